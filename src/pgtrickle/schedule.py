"""Schedules as users write them: a duration (`1h30m`), a cron expression (5 or 6 fields, `@hourly`), or none. Pure."""

from __future__ import annotations

import re
from datetime import datetime

from croniter import croniter

from pgtrickle.errors import UsageError

_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")
_CALCULATED = "calculated"
_RANDOM = re.compile(r"(?<![a-z])r(?![a-z])")  # croniter's own: other times at each look


def seconds(schedule: str) -> int | None:
    """The length of a duration; None if the text is not one."""
    match = _DURATION.fullmatch(schedule.strip().lower())
    if match is None or not any(match.groups()):
        return None
    return sum(int(amount) * unit for amount, unit in zip(match.groups(), _UNITS.values(), strict=True) if amount)


def fires(cron: str, start: datetime) -> croniter:
    """The times of a cron expression around `start`. Of six fields the first is the second, as nearly everywhere."""
    return croniter(cron, start, ret_type=datetime, second_at_beginning=True)


def _is_cron(text: str) -> bool:
    """Whether it is a cron expression with times that come (no 30 February) and that are the same at each look."""
    return not _RANDOM.search(text.lower()) and croniter.is_valid(text, second_at_beginning=True, strict=True)


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
