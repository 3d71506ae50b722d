"""Schedules as users write them: a duration (`1h30m`), a cron expression (5 or 6 fields, `@hourly`), or none. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from croniter import croniter

from pgtrickle.config import LONGEST_SCHEDULE_S
from pgtrickle.errors import UsageError

_LONGEST_TEXT: Final = 100  # the bounds are those of pgtrickle_internal.check_schedule in SQL too
_SOME_DAY: Final = datetime(2000, 1, 1, tzinfo=UTC)
_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_DURATION = re.compile(r"(?:([0-9]+)d)?(?:([0-9]+)h)?(?:([0-9]+)m)?(?:([0-9]+)s)?")
_CALCULATED = "calculated"
_RANDOM = re.compile(r"(?<![a-z])r(?![a-z])")  # croniter's own: other times at each look


def seconds(schedule: str) -> int | None:
    """The length of a duration; None if the text is not one."""
    text = schedule.strip().lower()
    match = _DURATION.fullmatch(text) if text.isascii() and len(text) <= _LONGEST_TEXT else None
    if match is None or not any(match.groups()):
        return None
    return sum(int(amount) * unit for amount, unit in zip(match.groups(), _UNITS.values(), strict=True) if amount)


def fires(cron: str, start: datetime) -> croniter:
    """The times of a cron expression around `start`. Of six fields the first is the second, as nearly everywhere."""
    return croniter(cron, start, ret_type=datetime, second_at_beginning=True)


def _is_cron(text: str) -> bool:
    """Whether it is a cron expression with times that come (no 30 February) and that are the same at each look."""
    if not text.isascii() or len(text) > _LONGEST_TEXT or _RANDOM.search(text.lower()):
        return False
    if not croniter.is_valid(text, second_at_beginning=True, strict=True):
        return False
    try:
        fires(text, _SOME_DAY).get_next()
        fires(text, _SOME_DAY).get_prev()
    except ValueError:  # what croniter raises if it finds no time
        return False
    return True


def check_schedule(schedule: str | None, min_seconds: int) -> str | None:
    """The schedule as it is stored (None for `calculated`), or UsageError."""
    if schedule is None or schedule.strip().lower() == _CALCULATED:
        return None
    text = schedule.strip()
    length = seconds(text)
    if length is not None:
        if length < min_seconds:
            raise UsageError(
                f"the schedule {text!r} is shorter than {min_seconds} s",
                code="PT011",
                hint="choose a longer one, or lower pg_trickle.min_schedule_seconds",
            )
        if length > LONGEST_SCHEDULE_S:
            raise UsageError(
                f"the schedule {text!r} is longer than ten years",
                code="PT016",
                hint="choose a shorter one; `calculated` leaves the table to those that read it",
            )
        return text
    if text.startswith("@") or len(text.split()) in {5, 6}:
        if _is_cron(text):
            return text
        raise UsageError(
            f"{text!r} is not a cron expression", code="PT012", hint="five or six fields, as in '*/5 * * * *'"
        )
    raise UsageError(
        f"{text!r} is not a schedule", code="PT010", hint="write a duration (5s, 1h30m, 2d) or a cron expression"
    )
