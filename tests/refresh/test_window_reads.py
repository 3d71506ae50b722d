"""What a refresh of window functions reads of what it keeps: rows after the first changed one, or the first places.
Counted by PostgreSQL itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pgtrickle import db
from pgtrickle.api import Trickle
from tests.refresh.reads import rows_read

ROWS = 20_000
OVER = "OVER (PARTITION BY k ORDER BY v DESC, id)"
RUNNING = {
    "ranked": f"SELECT id, row_number() {OVER} AS n, rank() {OVER} AS r, dense_rank() {OVER} AS d FROM t",
    "summed": "SELECT id, sum(id) OVER w AS s, avg(v) OVER w AS c, min(v) OVER w AS l FROM t "
    "WINDOW w AS (PARTITION BY k ORDER BY v DESC, id ROWS UNBOUNDED PRECEDING)",
    "around": "SELECT id, lag(id) OVER w AS b, lead(id, 2) OVER w AS n, avg(v) OVER (w ROWS 3 PRECEDING) AS a FROM t "
    "WINDOW w AS (PARTITION BY k ORDER BY v DESC, id)",
    "firsts": "SELECT id, first_value(id) OVER (PARTITION BY k ORDER BY v DESC) AS f FROM t",
}
FIRST = {
    "top": f"SELECT * FROM (SELECT id, k, v, row_number() {OVER} AS n FROM t) AS q WHERE n <= 3",
    "best": "SELECT * FROM (SELECT id, v, rank() OVER (ORDER BY v DESC NULLS LAST) AS n FROM t) AS q WHERE n = 1",
}
WHOLE = {"deviations": "SELECT id, stddev(v) OVER (PARTITION BY k ORDER BY v DESC, id) AS a FROM t"}
END = "INSERT INTO t VALUES (-1, 0, -5), (-2, 0, -6)"
FEW = 100


@pytest.fixture
def one_partition(database18: str) -> Iterator[tuple[db.Connection, Trickle]]:
    """A table all of whose rows are in one partition, with falling values."""
    with db.open_session(database18) as connection, Trickle(database18) as trickle:
        trickle._refresher.without_spark = True
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, k int, v int)")
        connection.execute("INSERT INTO t SELECT g, 0, %s - g FROM generate_series(1, %s) AS g", (ROWS, ROWS))
        connection.execute("ANALYZE t")
        yield connection, trickle


def _reads(given: tuple[db.Connection, Trickle], queries: dict[str, str], *windows: str) -> list[int]:
    """The most rows that one of the queries read, on average, of each window."""
    connection, trickle = given
    for name, query in queries.items():
        trickle.create_stream_table(name, query, refresh_mode="DIFFERENTIAL")
    return [found // len(queries) for found in rows_read(connection, trickle, queries, [[each] for each in windows])]


def test_rows_before_the_first_changed_one_are_not_read(one_partition: tuple[db.Connection, Trickle]) -> None:
    late = f"UPDATE t SET v = v + 1 WHERE id > {ROWS - 10}"
    moved = f"UPDATE t SET v = 100 WHERE id = {ROWS - 20}"
    middle = f"DELETE FROM t WHERE id = {ROWS // 2}"
    end, changed, nearly, half = _reads(one_partition, RUNNING, END, late, moved, middle)
    assert end < FEW
    assert changed < FEW
    assert nearly < 10 * FEW
    assert ROWS // 2 < half < 2 * ROWS


def test_a_function_of_all_rows_reads_the_partition(one_partition: tuple[db.Connection, Trickle]) -> None:
    assert _reads(one_partition, WHOLE, END)[0] >= ROWS


def test_rows_beyond_the_first_places_are_not_read(one_partition: tuple[db.Connection, Trickle]) -> None:
    beyond = f"DELETE FROM t WHERE id BETWEEN {ROWS - 5} AND {ROWS}"
    most = (END, beyond, "UPDATE t SET v = v + 1 WHERE id = 500", "DELETE FROM t WHERE id = 1")
    best = ("UPDATE t SET k = 1 WHERE id = 2", f"INSERT INTO t VALUES (-3, 0, {ROWS}), (-4, NULL, NULL)")
    for read in _reads(one_partition, FIRST, *most, *best):
        assert read < FEW
