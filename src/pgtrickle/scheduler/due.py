"""When a stream table is due: pure functions of its schedule, the last time and the present. Called by the service.

A schedule cuts time into slots, and a table is due once in each: in the first tick of a slot that the table's data is
older than. The slots of a duration start at multiples of its canonical period since 1970, those of a cron expression
when it fires (UTC), so tables of like schedule become due in the same tick.

`last` is the moment the table's data is from (`data_timestamp`), or of the last try: not when a refresh ended, or a
refresh that runs across the start of a slot would let that slot go by. All times are of one clock, the server's.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

from pgtrickle.schedule import check_schedule, fires, seconds

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND: Final = timedelta(seconds=1)
_SHORTEST_CANONICAL: Final = 48


def canonical_period(length: int) -> int:
    """The largest 48·2ⁿ seconds not above `length`, so that periods divide each other; under 48 s as given."""
    if length < _SHORTEST_CANONICAL:
        return length
    return _SHORTEST_CANONICAL << ((length // _SHORTEST_CANONICAL).bit_length() - 1)


def is_due(schedule: str | None, last: datetime | None, now: datetime, *, min_seconds: int = 1) -> bool:
    """Whether a table is due: once in a slot, however many went by since `last`; at once if it never ran.

    A table without a schedule of its own (calculated) is never due by itself. A clock that was set back a little is
    waited for; one set back by more than a slot is believed, or nothing would run until it is there again.
    """
    if schedule is None:
        return False
    if last is None:
        return True
    if last <= now:
        return now >= _following(schedule, last, min_seconds)
    return _slot(schedule, last, min_seconds) > _next_slot(schedule, now, min_seconds)


def next_cron_run(schedule: str | None, last: datetime | None, *, min_seconds: int = 1) -> datetime | None:
    """When a table of that cron schedule is due after `last`; None if it has another kind of schedule, or never ran. Of
    a duration PostgreSQL works it out by itself (`pgt_next_runs`)."""
    if schedule is None or last is None or _period(schedule, min_seconds) is not None:
        return None
    return _following(schedule, last, min_seconds)


def next_run(schedule: str | None, last: datetime | None, now: datetime, *, min_seconds: int = 1) -> datetime | None:
    """When the table will be due: `now` if it is; None if it has no schedule of its own."""
    if schedule is None:
        return None
    if last is None or is_due(schedule, last, now, min_seconds=min_seconds):
        return now
    return _following(schedule, last, min_seconds)


@lru_cache(maxsize=4096)  # asked in each tick for each table, and the same until the table's next run
def _following(schedule: str, last: datetime, min_seconds: int) -> datetime:
    """The start of the first slot in which a table that ran at `last` may run again."""
    enough = _slot(schedule, last, min_seconds) + _least_gap(schedule, min_seconds)
    slot = _slot(schedule, enough, min_seconds)
    return slot if slot == enough else _next_slot(schedule, enough, min_seconds)


def _slot(schedule: str, at: datetime, min_seconds: int) -> datetime:
    """The start of the slot that `at` is in."""
    period = _period(schedule, min_seconds)
    if period is not None:
        return at - (at - _EPOCH) % period
    return _as_datetime(fires(schedule, _whole_second(at) + _SECOND).get_prev())


def _next_slot(schedule: str, at: datetime, min_seconds: int) -> datetime:
    """The start of the slot after it."""
    period = _period(schedule, min_seconds)
    if period is not None:
        return _slot(schedule, at, min_seconds) + period
    return _as_datetime(fires(schedule, _whole_second(at)).get_next())


@lru_cache(maxsize=1024)
def _period(schedule: str, min_seconds: int) -> timedelta | None:
    """The length of a duration's slots; None for a cron expression."""
    check_schedule(schedule, 0)
    length = seconds(schedule)
    return None if length is None else timedelta(seconds=canonical_period(max(length, min_seconds)))


def _least_gap(schedule: str, min_seconds: int) -> timedelta:
    """What must lie between the slots of two runs: more than nothing, and of a busy cron expression not all are used.

    A duration has slots that are long enough, or just below it where its canonical period is.
    """
    return _SECOND if _period(schedule, min_seconds) is not None else timedelta(seconds=min_seconds)


def _whole_second(at: datetime) -> datetime:
    """`at` without its fraction, in UTC: cron fires at whole seconds, in the time zone of the start it is given."""
    return at.astimezone(UTC).replace(microsecond=0)


def _as_datetime(fired: object) -> datetime:
    assert isinstance(fired, datetime)
    return fired
