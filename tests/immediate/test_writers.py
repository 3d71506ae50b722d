"""Writers side by side: what one cannot see of another must not be missed by both."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence

import psycopg
import pytest
from psycopg import IsolationLevel

from pgtrickle import db
from pgtrickle.db import Connection, statement
from tests.immediate.telling import Told

LEVELS = (IsolationLevel.READ_COMMITTED, IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE)
AGAIN = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)


@pytest.fixture
def pair(story: Told) -> Told:
    story.run(
        "CREATE TABLE l (id int PRIMARY KEY, k int, v int)",
        "CREATE TABLE r (id int PRIMARY KEY, k int, w int)",
        "CREATE INDEX ON l (k)",
        "CREATE INDEX ON r (k)",
        "INSERT INTO l SELECT g, g % 4, g FROM generate_series(1, 12) g",
        "INSERT INTO r SELECT g, g % 5, g FROM generate_series(1, 10) g",
    )
    return story


QUERIES = {
    "pairs": "SELECT l.k, l.id AS l, r.id AS r, v, w FROM l JOIN r ON l.k = r.k",
    "unkeyed": "SELECT v, w FROM l JOIN r ON l.k = r.k",
    "outer_pairs": "SELECT l.k, l.id AS l, r.id AS r, v, w FROM l FULL JOIN r ON l.k = r.k",
    "met": "SELECT l.* FROM l WHERE EXISTS (SELECT FROM r WHERE r.k = l.k)",
    "none": "SELECT l.* FROM l WHERE k NOT IN (SELECT k FROM r WHERE k IS NOT NULL)",
    "totals": "SELECT k, count(*) AS n, sum(v) AS total, max(v) AS most FROM l GROUP BY k",
    "sums": "SELECT l.k, sum(r.w) AS total, count(*) AS n FROM l JOIN r ON l.k = r.k GROUP BY l.k",
    "all_sums": "SELECT count(*) AS n, sum(v) AS total FROM l",
    "kinds": "SELECT DISTINCT k FROM l",
    "beyond": "SELECT k FROM l EXCEPT SELECT k FROM r",
    "first": "SELECT id, v FROM l ORDER BY v DESC, id LIMIT 3",
    "places": "SELECT id, k, rank() OVER (PARTITION BY k ORDER BY v, id) AS place FROM l",
}


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name.lower())
@pytest.mark.parametrize("query", ["pairs", "unkeyed", "outer_pairs", "met", "none", "sums"])
def test_two_writers_on_both_sides_of_a_join(pair: Told, query: str, level: IsolationLevel) -> None:
    """Each inserts its half of a match, and neither sees the other's: the later waits, or has to try again."""
    pair.create(query, QUERIES[query])
    left, right = (db.open_session(pair.dsn, autocommit=False) for _ in range(2))
    with left, right:
        for each in (left, right):
            each.isolation_level = level
            each.execute("SELECT count(*) FROM l")
        left.execute("INSERT INTO l VALUES (100, 77, 1)")
        outcome: list[psycopg.Error | None] = []
        thread = threading.Thread(target=_try, args=(right, "INSERT INTO r VALUES (100, 77, 2)", outcome))
        thread.start()
        time.sleep(0.2)
        left.commit()
        thread.join(20)
        assert len(outcome) == 1
        if outcome[0] is not None:
            assert isinstance(outcome[0], AGAIN)
            assert level is not IsolationLevel.READ_COMMITTED
            right.rollback()
            right.execute("INSERT INTO r VALUES (100, 77, 2)")
        right.commit()
    pair.right()


def _try(connection: Connection, text: str, outcome: list[psycopg.Error | None]) -> None:
    try:
        connection.execute(statement(text))
    except psycopg.Error as error:
        outcome.append(error)
    else:
        outcome.append(None)


@pytest.mark.parametrize("query", ["pairs", "totals", "first"])
def test_a_transaction_older_than_the_mode_has_to_try_again(pair: Told, query: str) -> None:
    """What it would read of the state is older than the stream table."""
    pair.create(query, QUERIES[query], mode="DIFFERENTIAL")
    with pair.session() as old:
        old.autocommit = False
        old.isolation_level = IsolationLevel.REPEATABLE_READ
        old.execute("SELECT 1")
        pair.run("INSERT INTO r VALUES (50, 2, 4)", "UPDATE l SET v = v + 1 WHERE id = 12")
        pair.trickle.alter_stream_table(query, refresh_mode="IMMEDIATE")
        assert pair.stream(query).is_immediate
        with pytest.raises(psycopg.errors.SerializationFailure, match=query):
            old.execute("INSERT INTO l VALUES (60, 2, 4)")
        old.rollback()
        old.execute("INSERT INTO l VALUES (60, 2, 4)")
        old.commit()
    pair.right()


def _writer(seed: int, number: int) -> Callable[[Connection], None]:
    """What one writer does: changes of rows of its own and of others, alone and several at once."""
    chance = random.Random(seed * 100 + number)

    def change() -> str:
        table, column = chance.choice((("l", "v"), ("r", "w")))
        id = chance.randrange(1, 20)
        match chance.randrange(6):
            case 0:
                row = f"({id}, {chance.randrange(5)}, {chance.randrange(9)})"
                return f"INSERT INTO {table} VALUES {row} ON CONFLICT (id) DO UPDATE SET {column} = excluded.{column}"
            case 1:
                return f"DELETE FROM {table} WHERE id = {id}"
            case 2:
                return f"UPDATE {table} SET k = {chance.choice(('NULL', '1', '2', '3'))} WHERE id = {id}"
            case 3:
                return f"UPDATE {table} SET {column} = {column} + 1 WHERE k = {chance.randrange(5)}"
            case 4:
                new = 1000 * (number + 1) + chance.randrange(1000)
                rows = f"SELECT g, g % 5, g % 3 FROM generate_series({new}, {new + 2}) g"
                return f"INSERT INTO {table} {rows} ON CONFLICT DO NOTHING"
        gone = f"DELETE FROM l WHERE id = {id} RETURNING *"
        return f"WITH gone AS ({gone}) UPDATE r SET w = w + 1 FROM gone WHERE r.k = gone.k"

    def write(connection: Connection) -> None:
        for _ in range(8):
            level, changes = chance.choice(LEVELS), [change() for _ in range(chance.randrange(1, 4))]
            for _ in range(40):
                try:
                    connection.isolation_level = level
                    with connection.transaction():
                        for each in changes:
                            connection.execute(statement(each))
                    break
                except AGAIN:
                    time.sleep(chance.random() * 0.02)

    return write


@pytest.mark.parametrize(
    "seed",
    [
        1,
        pytest.param(2, marks=pytest.mark.long),
        pytest.param(3, marks=pytest.mark.long),
        pytest.param(4, marks=pytest.mark.long),
    ],
)
def test_random_writers(pair: Told, seed: int) -> None:
    for name, query in QUERIES.items():
        pair.create(name, query)
    _all_at_once(pair.dsn, [_writer(seed, number) for number in range(4)])
    pair.right()
    assert all(found.equal for found in pair.trickle.verify())


@pytest.mark.parametrize("query", QUERIES)
def test_random_writers_on_one_stream_table(pair: Told, query: str) -> None:
    """With no other stream table on these sources, whose turns would put the writers in order."""
    pair.create(query, QUERIES[query])
    _all_at_once(pair.dsn, [_writer(7, number) for number in range(4)])
    pair.right()


def _all_at_once(dsn: str, writers: Sequence[Callable[[Connection], None]]) -> None:
    problems: list[Exception] = []

    def run(write: Callable[[Connection], None]) -> None:
        try:
            with db.open_session(dsn) as connection:
                connection.execute("SET deadlock_timeout = '20ms'")
                write(connection)
        except Exception as problem:  # noqa: BLE001 -- raised again by the test
            problems.append(problem)

    threads = [threading.Thread(target=run, args=(each,)) for each in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]
