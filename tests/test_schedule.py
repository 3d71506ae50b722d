"""Schedules: what is taken, how long a duration is, and what is refused with which code."""

from __future__ import annotations

import pytest

from pgtrickle.errors import UsageError
from pgtrickle.schedule import check_schedule, seconds


@pytest.mark.parametrize(
    ("text", "length"), [("5s", 5), ("1m", 60), ("1h30m", 5400), ("2d", 172800), ("1d1h1m1s", 90061), (" 10S ", 10)]
)
def test_durations(text: str, length: int) -> None:
    assert seconds(text) == length
    assert check_schedule(text, 1) == text.strip()


@pytest.mark.parametrize(
    "text", ["*/5 * * * *", "0 3 * * 1", "@hourly", "*/10 * * * * *", "30 0 12 31 * *", "0 0 29 2 *", "0 0 1 mar fri"]
)
def test_cron(text: str) -> None:
    assert check_schedule(text, 1) == text


@pytest.mark.parametrize("text", [None, "calculated", "CALCULATED"])
def test_calculated_is_no_schedule_of_its_own(text: str | None) -> None:
    assert check_schedule(text, 1) is None


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "PT010"),
        ("soon", "PT010"),
        ("5 minutes", "PT010"),
        ("1s", "PT011"),
        ("61 * * * *", "PT012"),
        ("@now", "PT012"),
        ("0 0 30 2 *", "PT012"),
        ("R * * * *", "PT012"),
    ],
)
def test_refused(text: str, code: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_schedule(text, 2)
    assert caught.value.code == code
    assert caught.value.hint
