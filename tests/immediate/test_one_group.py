"""A statement that has changed rows of one group of one table goes a way of its own, of a few small statements. What it
does there, and that it does not lose what others do to the same group meanwhile."""

from __future__ import annotations

import threading
import time

import psycopg
import pytest
from psycopg import IsolationLevel

from pgtrickle import db
from pgtrickle.db import statement
from tests.immediate.telling import Told
from tests.refresh.oracle import differing

LEVELS = (IsolationLevel.READ_COMMITTED, IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE)
AGAIN = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)
QUERIES = {
    "totals": "SELECT k, count(*) AS n, sum(v) AS total, avg(v) AS mean FROM l GROUP BY k",
    "mosts": "SELECT k, max(v) AS most, min(v) AS least FROM l GROUP BY k",
    "large": "SELECT k, sum(v) AS total FROM l GROUP BY k HAVING count(*) > 2",
    "shares": "SELECT k, 100 / sum(v) AS share FROM l GROUP BY k HAVING sum(v) <> 0",
}
STEPS = (
    "INSERT INTO l VALUES (10, 1, 5)",
    "INSERT INTO l VALUES (11, NULL, NULL), (12, NULL, 3)",
    "UPDATE l SET v = v + 1 WHERE k = 1",
    "UPDATE l SET v = NULL WHERE id = 12",
    "UPDATE l SET v = 0 WHERE k = 6",
    "UPDATE l SET v = 1 WHERE k = 6",
    "UPDATE l SET k = 2 WHERE id = 10",
    "UPDATE l SET note = 'other' WHERE k = 2",
    "UPDATE l SET v = v WHERE k = 2",
    "INSERT INTO l VALUES (13, 9, 1)",
    "DELETE FROM l WHERE k = 9",
    "DELETE FROM l WHERE id IN (1, 5)",
    "DELETE FROM l WHERE k IS NULL",
    "INSERT INTO l SELECT g, 3, g FROM generate_series(100, 1000) AS g",
    "DELETE FROM l WHERE id > 100 AND k = 3",
)
MEETINGS = {
    "both add": ("INSERT INTO l VALUES (50, 1, 7)", "INSERT INTO l VALUES (51, 1, 8)"),
    "both change": ("UPDATE l SET v = v + 10 WHERE id = 1", "UPDATE l SET v = v + 100 WHERE id = 5"),
    "both bring the group": ("INSERT INTO l VALUES (50, 77, 7)", "INSERT INTO l VALUES (51, 77, 8)"),
    "one empties it": ("DELETE FROM l WHERE k = 6", "INSERT INTO l VALUES (51, 6, 8)"),
    "the other empties it": ("INSERT INTO l VALUES (50, 6, 7)", "DELETE FROM l WHERE id = 20"),
    "both empty it": ("DELETE FROM l WHERE id = 21", "DELETE FROM l WHERE id = 22"),
    "one moves a row": ("UPDATE l SET k = 2 WHERE id = 1", "UPDATE l SET v = v + 1 WHERE id = 5"),
    "one of many": ("UPDATE l SET v = v + 1", "UPDATE l SET v = v + 1 WHERE id = 9"),
}
"""What two writers do; under the first, in this order."""


@pytest.fixture
def groups(story: Told) -> Told:
    story.run(
        "CREATE TABLE l (id int PRIMARY KEY, k int, v numeric, note text)",
        "CREATE INDEX ON l (k)",
        "INSERT INTO l SELECT g, g % 4, g FROM generate_series(1, 9) AS g",
        "INSERT INTO l VALUES (20, 6, 1), (21, 7, 1), (22, 7, 2)",
    )
    for name, query in QUERIES.items():
        story.create(name, query)
    return story


def test_a_row_that_stays_is_updated_in_place(groups: Told) -> None:
    """Whatever refers to it by a foreign key sees that it stays; it goes with its group."""
    groups.run(
        "ALTER TABLE totals ADD PRIMARY KEY (k)",
        "CREATE TABLE notes (k int REFERENCES totals ON DELETE CASCADE, note text)",
        "INSERT INTO notes VALUES (1, 'one'), (6, 'six')",
    )
    groups.write("UPDATE l SET v = v + 1 WHERE id = 1", "INSERT INTO l VALUES (50, 1, 2)", "DELETE FROM l WHERE id = 5")
    assert groups.value("SELECT count(*) FROM notes") == 2
    groups.write("DELETE FROM l WHERE k = 6")
    assert groups.value("SELECT string_agg(note, ',') FROM notes") == "one"


def test_each_step_is_right(groups: Told) -> None:
    groups.write(*STEPS)


def test_rows_doubled_by_hand_are_told(groups: Told) -> None:
    groups.run("INSERT INTO totals SELECT * FROM totals WHERE k = 1")
    with pytest.raises(psycopg.Error) as caught:
        groups.run("UPDATE l SET v = v + 1 WHERE id = 1")
    assert caught.value.sqlstate == "PT330"


def test_a_transaction_that_began_before_can_be_tried_again(groups: Told) -> None:
    with db.open_session(groups.dsn, autocommit=False) as old:
        old.isolation_level = IsolationLevel.REPEATABLE_READ
        old.execute("SELECT count(*) FROM pg_class")
        groups.create("later", "SELECT k, count(*) AS n FROM l GROUP BY k")
        with pytest.raises(psycopg.errors.SerializationFailure):
            old.execute("INSERT INTO l VALUES (60, 1, 1) ON CONFLICT (id) DO UPDATE SET v = 2")


def test_what_is_over_it_follows(groups: Told) -> None:
    groups.create("over", "SELECT n, count(*) AS m, sum(total) AS total FROM totals GROUP BY n")
    groups.create("beside", "SELECT t.k, t.total, l.id FROM totals t JOIN l ON l.k = t.k")
    groups.write(*STEPS)


def test_equal_keys_that_look_different_and_other_collations(story: Told) -> None:
    story.run(
        'CREATE TABLE w (id int PRIMARY KEY, k numeric, c text COLLATE "POSIX", b text COLLATE "C", v float8)',
        "INSERT INTO w VALUES (1, 1.0, 'Ann', 'x', 1), (2, 1.00, 'ann', 'X', 2), (3, 2, NULL, NULL, 'NaN')",
    )
    story.create("by_number", "SELECT k, count(*) AS n, sum(v) AS total FROM w GROUP BY k")
    story.create("by_name", "SELECT c, count(*) AS n, max(b) AS most FROM w GROUP BY c")
    story.create("by_byte", "SELECT b, count(*) AS n, min(c) AS least, max(v) AS most FROM w GROUP BY b")
    for each in (
        "INSERT INTO w VALUES (4, 1.000, 'ANN', 'x', 3)",
        "DELETE FROM w WHERE id = 1",
        "UPDATE w SET v = v + 1 WHERE id = 2",
        "UPDATE w SET v = 4 WHERE id = 3",
        "UPDATE w SET c = 'aNN' WHERE id = 2",
        "INSERT INTO w VALUES (5, NULL, NULL, NULL, 'Infinity')",
        "DELETE FROM w WHERE id = 5",
        "DELETE FROM w WHERE k = 1",
    ):
        story.run(each)
        for name, query in story.queries.items():  # by =, since PostgreSQL shows 1.0 or 1.00 as it comes
            assert differing(story.connection, name, query) == [], (name, each)


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name.lower())
@pytest.mark.parametrize("meeting", MEETINGS)
def test_two_writers_of_one_group(groups: Told, meeting: str, level: IsolationLevel) -> None:
    """Both have begun to read before either writes; the later waits for the first, or has to try again."""
    early, late = MEETINGS[meeting]
    first, second = (db.open_session(groups.dsn, autocommit=False) for _ in range(2))
    with first, second:
        for each in (first, second):
            each.isolation_level = level
            each.execute("SELECT count(*) FROM l")
        first.execute(statement(early))
        outcome: list[psycopg.Error | None] = []
        thread = threading.Thread(target=_try, args=(second, late, outcome))
        thread.start()
        time.sleep(0.3)
        assert not outcome or isinstance(outcome[0], AGAIN), "it has not waited"
        first.commit()
        thread.join(60)
        assert len(outcome) == 1
        if outcome[0] is not None:
            assert isinstance(outcome[0], AGAIN), outcome[0]
            assert level is not IsolationLevel.READ_COMMITTED, outcome[0]
            second.rollback()
            second.execute(statement(late))
        second.commit()
    groups.right()
    assert all(found.equal for found in groups.trickle.verify())


def _try(connection: db.Connection, text: str, outcome: list[psycopg.Error | None]) -> None:
    try:
        connection.execute(statement(text))
    except psycopg.Error as error:
        outcome.append(error)
    else:
        outcome.append(None)
