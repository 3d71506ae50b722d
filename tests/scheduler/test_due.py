"""When a table is due: once in each slot, never twice and never not, whatever the clock and the ticks do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgtrickle.errors import UsageError
from pgtrickle.scheduler.due import canonical_period, is_due, next_run

NOON = datetime(2024, 5, 1, 12, 0, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)

moments = st.datetimes(datetime(2001, 1, 1), datetime(2037, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
durations = st.integers(1, 5 * 86400).map(lambda length: f"{length}s")
crons = st.sampled_from(["*/5 * * * *", "0 3 * * 1", "@hourly", "@monthly", "*/10 * * * * *", "0 0 13 * 5"])
schedules = durations | crons
steps = st.lists(st.timedeltas(timedelta(0), timedelta(hours=3)), min_size=1, max_size=20)


def at(text: str) -> datetime:
    return datetime.fromisoformat(f"2024-05-01T{text}+00:00")


@pytest.mark.parametrize(
    ("length", "period"),
    [(1, 1), (10, 10), (47, 47), (48, 48), (60, 48), (95, 48), (96, 96), (300, 192), (3600, 3072), (86400, 49152)],
)
def test_canonical_periods(length: int, period: int) -> None:
    assert canonical_period(length) == period


@settings(deadline=None)
@given(st.integers(48, 10**9))
def test_a_canonical_period_is_the_largest_that_fits(length: int) -> None:
    period = canonical_period(length)
    assert period <= length < 2 * period
    assert period % 48 == 0
    assert (period // 48).bit_count() == 1


@pytest.mark.parametrize(
    ("schedule", "last", "now", "due"),
    [
        ("10s", "12:00:09.9", "12:00:09.99", False),
        ("10s", "12:00:09.9", "12:00:10", True),
        ("10s", "12:00:10", "12:00:19.999", False),
        ("*/5 * * * *", "12:04:59.999", "12:05:00", True),
        ("*/5 * * * *", "12:05:00", "12:09:59.999", False),
        ("*/5 * * * *", "12:05:00.001", "12:10:00", True),
        ("30 0 * * * *", "12:00:29", "12:00:30", True),
        ("30 0 * * * *", "12:00:30", "12:59:59", False),
        ("@daily", "00:00:00", "23:59:59", False),
        ("@daily", "00:00:00", "12:00:00", False),
    ],
)
def test_slots(schedule: str, last: str, now: str, due: bool) -> None:
    assert is_due(schedule, at(last), at(now)) is due


def test_what_never_ran_is_due_and_what_is_calculated_never_is() -> None:
    assert is_due("1d", None, NOON)
    assert next_run("1d", None, NOON) == NOON
    for last in (None, NOON):
        assert not is_due(None, last, NOON + timedelta(days=400))
        assert next_run(None, last, NOON) is None


def test_what_is_no_schedule_is_an_error_and_not_silence() -> None:
    with pytest.raises(UsageError):
        is_due("soon", NOON, NOON)


@settings(deadline=None)
@given(schedules, moments, steps)
def test_once_in_each_slot_and_not_again(schedule: str, start: datetime, ticks: list[timedelta]) -> None:
    """Each run serves one slot: at once afterwards nothing is due, however long the sleep before was."""
    last = now = start
    for tick in ticks:
        now += tick
        if is_due(schedule, last, now):
            last = now
        assert not is_due(schedule, last, now)
        following = next_run(schedule, last, now)
        assert following is not None
        assert following > now
        assert not is_due(schedule, last, following - MICROSECOND)
        assert is_due(schedule, last, following)


@settings(deadline=None)
@given(schedules, moments, st.timedeltas(timedelta(0), timedelta(days=40)), st.timedeltas(timedelta(0)))
def test_due_stays_due_until_it_is_done(schedule: str, last: datetime, wait: timedelta, more: timedelta) -> None:
    now = last + wait
    later = min(now + more, datetime(2040, 1, 1, tzinfo=UTC)) if more < timedelta(days=3650) else now
    if is_due(schedule, last, now) and later >= now:
        assert is_due(schedule, last, later)
        assert next_run(schedule, last, later) == later


@settings(deadline=None)
@given(durations, moments, st.timedeltas(timedelta(0), timedelta(days=10)))
def test_data_is_never_older_than_the_schedule_when_nothing_is_due(
    schedule: str, last: datetime, wait: timedelta
) -> None:
    if not is_due(schedule, last, last + wait):
        assert wait < timedelta(seconds=int(schedule[:-1]))


@settings(deadline=None)
@given(moments, moments, moments, st.integers(48, 95), st.integers(48, 95))
def test_like_schedules_are_due_in_the_same_tick(
    one: datetime, other: datetime, now: datetime, first: int, second: int
) -> None:
    """Whenever they ran before: both wait for the same moment, and a period twice as long for every other one."""
    one, other = min(one, now), min(other, now)
    following = {next_run(f"{length}s", now, now) for length in (first, second)}
    assert len(following) == 1
    (slot,) = following
    assert slot is not None
    assert is_due(f"{first}s", one, slot)
    assert is_due(f"{second}s", other, slot)
    double = next_run(f"{2 * first}s", now, now)
    assert double in {slot, slot + timedelta(seconds=48)}


@settings(deadline=None)
@given(st.sampled_from(["10s", "1m", "*/5 * * * *"]), moments, st.timedeltas(MICROSECOND, timedelta(seconds=9)))
def test_a_clock_set_back_a_little_repeats_nothing(schedule: str, last: datetime, back: timedelta) -> None:
    assert not is_due(schedule, last, last - back)
    following = next_run(schedule, last, last - back)
    assert following is not None
    assert following > last


@settings(deadline=None)
@given(st.sampled_from(["10s", "1m", "*/5 * * * *", "@daily"]), moments, st.integers(3, 3000))
def test_a_clock_set_back_far_stops_nothing(schedule: str, last: datetime, days: int) -> None:
    now = last - timedelta(days=days)
    assert is_due(schedule, last, now)
    assert not is_due(schedule, now, now), "and the next run puts it right"


@pytest.mark.parametrize(
    ("schedule", "min_seconds", "seconds"),
    [("5s", 20, 20), ("5s", 60, 48), ("* * * * * *", 20, 20), ("* * * * *", 90, 120), ("*/10 * * * * *", 1, 10)],
)
def test_the_shortest_schedule_holds_for_all(schedule: str, min_seconds: int, seconds: int) -> None:
    """Also for a cron expression, and for a table created before the limit was raised."""
    start = datetime(2024, 5, 1, 12, 0, tzinfo=UTC)
    last, runs = start, []
    for tick in range(1, 500):
        now = start + timedelta(seconds=tick)
        if is_due(schedule, last, now, min_seconds=min_seconds):
            runs.append(now)
            last = now
        expected = next_run(schedule, last, now, min_seconds=min_seconds)
        assert expected is not None
        assert is_due(schedule, last, expected, min_seconds=min_seconds)
        assert not is_due(schedule, last, expected - MICROSECOND, min_seconds=min_seconds)
    assert {later - earlier for earlier, later in pairwise(runs[1:])} == {timedelta(seconds=seconds)}


def test_cron_is_in_utc_wherever_the_times_are_from() -> None:
    tokyo = timezone(timedelta(hours=9))
    last = datetime(2024, 5, 1, 0, 30, tzinfo=UTC).astimezone(tokyo)
    assert next_run("0 3 * * *", last, last) == datetime(2024, 5, 1, 3, 0, tzinfo=UTC)
    assert not is_due("0 3 * * *", last, last + timedelta(hours=2, minutes=29))
    assert is_due("0 3 * * *", last, last + timedelta(hours=2, minutes=30))
