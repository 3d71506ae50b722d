"""Schedules: what is taken, how long a duration is, and what is refused with which code."""

from __future__ import annotations

import pytest
from psycopg.errors import DatabaseError

from pgtrickle import db
from pgtrickle.catalog.install import install
from pgtrickle.config import LONGEST_SCHEDULE_S
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


REFUSED = {
    "": "PT010",
    "soon": "PT010",
    "5 minutes": "PT010",
    "-5s": "PT010",
    "nan": "PT010",
    "inf": "PT010",
    "1e3s": "PT010",
    "٣s": "PT010",
    "9" * 5000 + "s": "PT010",
    "1s": "PT011",
    "0d": "PT011",
    "61 * * * *": "PT012",
    "@now": "PT012",
    "0 0 30 2 *": "PT012",
    "0 0 31 2 *": "PT012",
    "0 0 31 4,6,9,11 *": "PT012",
    "٣ * * * *": "PT012",
    "R * * * *": "PT012",
    ",".join(["1"] * 60) + " * * * *": "PT012",
    "99999999999999999999d": "PT016",
    "5000000000d": "PT016",
    "3651d": "PT016",
    "3650d1s": "PT016",
}
BY_THE_SERVICE = {"0 0 30 2 *", "0 0 31 2 *", "0 0 31 4,6,9,11 *"}
"""What SQL takes for a cron expression, and the service refuses as it carries out the request."""


@pytest.mark.parametrize(("text", "code"), REFUSED.items(), ids=lambda text: text[:30])
def test_refused(text: str, code: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_schedule(text, 2)
    assert caught.value.code == code
    assert caught.value.hint


def test_the_longest_is_taken() -> None:
    assert check_schedule("3650d", LONGEST_SCHEDULE_S) == "3650d"


def test_sql_has_the_same_bounds(database18: str) -> None:
    with db.open_session(database18) as conn:
        install(conn)
        conn.execute("SET pg_trickle.min_schedule_seconds = 2")
        answers = {text: _answer(conn, text) for text in [*REFUSED, "3650d", "1h30m", "0 0 29 2 *", "calculated"]}
    expected = {text: None if text in BY_THE_SERVICE else code for text, code in REFUSED.items()}
    assert answers == expected | dict.fromkeys(["3650d", "1h30m", "0 0 29 2 *", "calculated"])


def _answer(conn: db.Connection, text: str) -> str | None:
    try:
        conn.execute("SELECT pgtrickle_internal.check_schedule(%s)", (text,))
    except DatabaseError as error:
        return error.sqlstate
    return None
