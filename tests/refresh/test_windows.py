"""Window functions where PostgreSQL leaves the answer open, over values of all sorts, and when the state is damaged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from pgtrickle import db
from pgtrickle.api import Trickle
from pgtrickle.errors import StateError

Row = tuple[object, ...]


class Followed:
    """A stream table, refreshed by plain SQL."""

    def __init__(self, dsn: str) -> None:
        self.connection = db.open_session(dsn)
        self.trickle = Trickle(dsn)
        self.trickle._refresher.without_spark = True

    def close(self) -> None:
        self.trickle.close()
        self.connection.close()

    def create(self, query: str) -> None:
        self.query = query
        self.trickle.create_stream_table("followed", query, refresh_mode="DIFFERENTIAL")

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.connection.execute(db.statement(statement))

    def rows(self, query: str = "SELECT * FROM followed") -> list[Row]:
        return self.connection.execute(db.statement(query)).fetchall()

    def after(self, *statements: str) -> list[Row]:
        """The rows once the stream table has followed some changes, by their differences."""
        self.run(*statements)
        assert self.trickle.refresh_stream_table("followed").action == "DIFFERENTIAL"
        return self.rows()

    def check(self) -> None:
        """The rows, as text, are those of the query."""
        images = (Counter(self.rows(f"SELECT q::text FROM ({query}) AS q")) for query in (self.query, "TABLE followed"))
        asked, kept = images
        assert kept == asked


@pytest.fixture
def followed(database18: str) -> Iterator[Followed]:
    found = Followed(database18)
    try:
        yield found
    finally:
        found.close()


def test_rows_that_tie_get_a_valid_order_which_stays(followed: Followed) -> None:
    followed.run(
        "CREATE TABLE t (name text, k int, v int, doc json)",
        "INSERT INTO t SELECT 'n' || g, g % 2, g % 3, json_build_object('g', g) FROM generate_series(1, 40) AS g",
    )
    followed.create(
        "SELECT name, k, v, doc, row_number() OVER w AS n, lag(name) OVER w AS before, "
        "last_value(name) OVER (PARTITION BY k ORDER BY v DESC) AS last,"
        " sum(v) OVER (w ROWS UNBOUNDED PRECEDING) AS s FROM t WINDOW w AS (PARTITION BY k ORDER BY v)"
    )
    first = {row[0]: row for row in followed.rows()}
    now = {row[0]: row for row in followed.after("INSERT INTO t VALUES ('x', 0, 9, NULL), ('y', 1, 9, '{}')")}
    assert {name: now[name] for name in first} == first
    assert [now[name][4:7] for name in ("x", "y")] == [
        (21, next(row[0] for row in first.values() if (row[1], row[4]) == (k, 20)), name)
        for k, name in ((0, "x"), (1, "y"))
    ]
    followed.after("DELETE FROM t WHERE name IN ('n1', 'n8', 'x')", "UPDATE t SET v = 1 WHERE name = 'n3'")
    partitions: dict[object, list[Row]] = {}
    for row in followed.rows("SELECT k, v, n, name, before, last FROM followed ORDER BY k, n"):
        partitions.setdefault(row[0], []).append(row)
    for rows in partitions.values():
        assert [row[2] for row in rows] == list(range(1, len(rows) + 1))
        assert [row[1] for row in rows] == sorted(int(str(row[1])) for row in rows)
        assert [row[4] for row in rows] == [None, *(row[3] for row in rows[:-1])]
        assert all(row[5] in {other[3] for other in rows if other[1] == row[1]} for row in rows)


def quoted(value: str) -> str:
    return "'" + value + "'"


TYPES = (
    ("numeric", "1.0", "1.00", "NaN"),
    ("float8", "0", "-0", "NaN"),
    ("interval", "1 month", "30 days", "00:00:01"),
    ("text", "a", "A", "é"),
    ("char(3)", "a", "b", "a "),
    ("varchar(5)", "a", "", "b"),
    ("jsonb", "1", "1.0", "[]"),
    ("numeric[]", "{1.0}", "{1.00}", "{}"),
    ("timestamptz", "2024-01-01 00:00+00", "2024-01-01 00:00:01+00", "2024-01-01 01:00+01"),
    ("bytea", "\\x00", "\\x", "\\xff"),
    ("int4range", "[1,2)", "empty", "[1,5]"),
    ("regclass", "t", "pg_class", "pg_type"),
    ("mood", "sad", "happy", "sad"),
    ("price", "1.00", "2.5", "1"),
    ("boolean", "t", "f", "t"),
)


@pytest.mark.parametrize("some", [TYPES[place::4] for place in range(4)], ids=lambda some: str(some[0][0]))
def test_values_of_a_type_as_partition_order_and_argument(
    followed: Followed, some: tuple[tuple[str, str, str, str], ...]
) -> None:
    columns = ", ".join(f"x{place} {type_}" for place, (type_, *_) in enumerate(some))

    def values(*ids_and_places: tuple[int, int]) -> str:
        return ", ".join(
            f"({id_}, {', '.join('NULL' if at == 0 else quoted(each[at]) for each in some)})"
            for id_, at in ids_and_places
        )

    calls = ", ".join(
        f"rank() OVER (ORDER BY x{at}), row_number() OVER (ORDER BY x{at} DESC, id),"
        f" count(*) OVER (PARTITION BY x{at}),"
        f" lag(x{at}) OVER (ORDER BY id), first_value(x{at}) OVER (PARTITION BY x{at} ORDER BY id),"
        f" cume_dist() OVER (PARTITION BY id % 2 ORDER BY x{at})"
        for at in range(len(some))
    )
    names = ", ".join(f"n{place}" for place in range(6 * len(some)))
    followed.run(
        "CREATE TYPE mood AS ENUM ('sad', 'happy')",
        "CREATE DOMAIN price AS numeric(8, 2)",
        f"CREATE TABLE t (id int PRIMARY KEY, {columns})",
        f"INSERT INTO t VALUES {values((1, 1), (2, 2), (3, 3), (4, 0), (5, 1), (6, 2))}",
    )
    followed.create(f"SELECT * FROM (SELECT {calls}, t.* FROM t) AS q ({names})")
    followed.check()
    for change in (
        f"INSERT INTO t VALUES {values((7, 3), (8, 0))}",
        "UPDATE t SET id = 9 WHERE id = 1",
        "DELETE FROM t WHERE id IN (2, 4)",
        f"INSERT INTO t VALUES {values((1, 2), (2, 1))}",
    ):
        followed.after(change)
        followed.check()


ORDERED = (
    ("smallint", "-1", "0", "7"),
    ("numeric(6, 2)", "1.5", "NaN", "-3"),
    ("float8", "0", "-0", "NaN"),
    ("varchar(5)", "a", "B", "é"),
    ("char(3)", "a", "b", "a "),
    ("boolean", "t", "f", "t"),
    ("date", "2024-01-01", "infinity", "-infinity"),
    ("timestamptz", "2024-01-01 00:00+00", "2024-01-01 00:00:01+00", "2024-01-01 01:00+01"),
    ("uuid", "00000000-0000-0000-0000-000000000001", "ffffffff-0000-0000-0000-000000000000", None),
    ("mood", "sad", "happy", "sad"),
)
"""Types that an index on the order may hold, each with values, the last of which may tie with the first."""


def test_orders_by_values_of_a_type_go_on_from_a_change(followed: Followed) -> None:
    columns = ", ".join(f"x{place} {type_}" for place, (type_, *_) in enumerate(ORDERED))

    def values(*ids_and_places: tuple[int, int]) -> str:
        def value(each: tuple[str | None, ...], at: int) -> str:
            return "NULL" if at == 0 or each[at] is None else quoted(str(each[at]))

        return ", ".join(f"({id_}, {', '.join(value(each, at) for each in ORDERED)})" for id_, at in ids_and_places)

    directions = ("", " DESC", " NULLS FIRST", " DESC NULLS LAST")
    orders = [f"x{place}{directions[place % 4]}" for place in range(len(ORDERED))]
    windows = " UNION ALL ".join(
        f"SELECT {place}, id, rank() OVER w, count(*) OVER w, lag(id) OVER (ORDER BY {order}, id DESC)"
        f" FROM (SELECT id, x{place} FROM t) AS q WINDOW w AS (ORDER BY {order}, id DESC)"
        for place, order in enumerate(orders)
    )
    ranks = " UNION ALL ".join(
        f"SELECT 100 + {place}, id, rank() OVER (ORDER BY {order}), 0, 0 FROM t" for place, order in enumerate(orders)
    )
    followed.run(
        "CREATE TYPE mood AS ENUM ('sad', 'happy')",
        f"CREATE TABLE t (id int PRIMARY KEY, {columns})",
        f"INSERT INTO t VALUES {values((1, 1), (2, 2), (3, 3), (4, 0), (5, 1), (6, 2))}",
    )
    followed.create(f"SELECT * FROM ({windows} UNION ALL {ranks}) AS q (place, id, r, n, l)")
    assert followed.trickle.explain("followed").count("from the first changed row on") == 2 * len(ORDERED)
    for change in (
        f"INSERT INTO t VALUES {values((7, 3), (8, 0))}",
        "UPDATE t SET id = 9 WHERE id = 1",
        "DELETE FROM t WHERE id IN (2, 4)",
        f"INSERT INTO t VALUES {values((1, 2), (2, 1))}",
    ):
        followed.after(change)
        followed.check()


def test_sums_and_means_that_go_on_have_the_very_digits(followed: Followed) -> None:
    followed.run(
        "CREATE TABLE t (id int PRIMARY KEY, k int, v numeric, b bigint)",
        "INSERT INTO t SELECT g, g % 3, CASE g % 4 WHEN 0 THEN NULL WHEN 1 THEN g WHEN 2 THEN g / 7.0 ELSE 1.50 END, g "
        "FROM generate_series(1, 40) AS g",
    )
    followed.create(
        "SELECT id, avg(v) OVER w AS m, sum(v) OVER w AS s, avg(b) OVER w AS l, avg(k) OVER w AS i,"
        " avg(v) FILTER (WHERE b > 20) OVER (w ROWS UNBOUNDED PRECEDING) AS f FROM t"
        " WINDOW w AS (PARTITION BY k ORDER BY id)"
    )
    assert "window 1 again, in each partition from the first changed row on" in followed.trickle.explain("followed")
    for change in (
        "INSERT INTO t VALUES (41, 0, 1.000000, 9223372036854775807), (42, 1, NULL, NULL), (43, 2, 1e40, 3)",
        "INSERT INTO t VALUES (44, 0, 'Infinity', 1), (45, 1, 'NaN', 2)",
        "UPDATE t SET v = 2 WHERE id IN (30, 44)",
        "DELETE FROM t WHERE id IN (1, 2, 41, 45)",
        "INSERT INTO t VALUES (46, 0, '-Infinity', 1), (47, 0, 'Infinity', 1), (48, 3, NULL, 1), (49, 3, 0.10, 1)",
        "INSERT INTO t VALUES (50, 0, 7, 1), (51, 3, 1, 1)",
    ):
        followed.after(change)
        followed.check()


def test_sums_of_floats_are_those_of_the_rows_that_are_there(followed: Followed) -> None:
    followed.run(
        "CREATE TABLE t (id int PRIMARY KEY, k int, x float8)",
        "INSERT INTO t SELECT g, g % 3, CASE g WHEN 5 THEN 1e30 WHEN 7 THEN 'NaN' ELSE g / 7.0 END "
        "FROM generate_series(1, 30) AS g",
    )
    followed.create(
        "SELECT id, sum(x) OVER (PARTITION BY k ORDER BY id) AS s,"
        " avg(x) OVER (PARTITION BY k ORDER BY id ROWS BETWEEN 2 PRECEDING AND 1 FOLLOWING) AS a FROM t"
    )
    for change in ("DELETE FROM t WHERE id IN (5, 7)", "UPDATE t SET x = 'Infinity' WHERE id = 9", "DELETE FROM t"):
        followed.after(change)
        followed.check()


def test_a_full_refresh_in_between_leaves_a_state_to_go_on_from(followed: Followed) -> None:
    followed.run("CREATE TABLE t (k int, v int)", "INSERT INTO t SELECT g % 4, g FROM generate_series(1, 50) AS g")
    followed.create("SELECT k, v, rank() OVER (PARTITION BY k ORDER BY v DESC) AS r, count(*) OVER () AS n FROM t")
    followed.after("DELETE FROM t WHERE v > 40")
    followed.run("INSERT INTO t SELECT 4, g FROM generate_series(1, 5) AS g")
    assert followed.trickle.refresh_stream_table("followed", full=True).action == "FULL"
    followed.check()
    followed.after("UPDATE t SET k = 5 WHERE k = 4 AND v < 3", "INSERT INTO t VALUES (NULL, NULL), (NULL, NULL)")
    followed.check()


def test_a_damaged_state_is_noticed_and_made_again(followed: Followed) -> None:
    followed.run("CREATE TABLE t (k int, v int)", "INSERT INTO t SELECT g % 4, g FROM generate_series(1, 20) AS g")
    followed.create("SELECT k, v, sum(v) OVER (PARTITION BY k) AS s FROM t")
    [(state,)] = followed.rows("SELECT c.oid::regclass::text FROM pg_class c WHERE relname ~ '^s_\\d+_\\d+$'")
    followed.run(f"DELETE FROM {state}", "DELETE FROM t WHERE v = 3")
    with pytest.raises(StateError, match="PT610"):
        followed.trickle.refresh_stream_table("followed")
    assert followed.trickle.refresh_stream_table("followed").action == "REINITIALIZE"
    followed.check()


def test_only_partitions_that_changed_are_written(followed: Followed) -> None:
    followed.run("CREATE TABLE t (k int, v int)", "INSERT INTO t SELECT g % 9, g FROM generate_series(1, 90) AS g")
    followed.create("SELECT k, v, row_number() OVER (PARTITION BY k ORDER BY v) AS n FROM t")
    followed.run("UPDATE t SET v = v + 2 WHERE v = 85", "INSERT INTO t VALUES (3, 1000)")
    result = followed.trickle.refresh_stream_table("followed")
    assert (result.rows_inserted, result.rows_deleted) == (2, 1), "a rank that stays is not written"
    followed.check()


def test_rows_of_a_window_are_looked_up_by_an_index(followed: Followed) -> None:
    followed.run(
        "CREATE TABLE t (id int PRIMARY KEY, k int, name text)",
        "CREATE TABLE u (id int, name text)",
        "INSERT INTO t SELECT g, g % 7, 'n' || g FROM generate_series(1, 70) AS g",
        "INSERT INTO u SELECT g, 'n' || g FROM generate_series(1, 9) AS g",
    )
    followed.create(
        "SELECT u.id, q.r FROM u JOIN (SELECT id + 0 AS no, id, name, rank() OVER (PARTITION BY k ORDER BY id) AS r"
        " FROM t) AS q ON q.id = u.id AND q.name = u.name"
    )
    indexes = followed.rows("SELECT indexdef FROM pg_indexes WHERE schemaname = 'pgtrickle_state' ORDER BY 1")
    assert [str(row[0]).split(" USING ")[1] for row in indexes] == ["btree (c3)", "btree (h, (ARRAY[c3]))"]
    for change in ("UPDATE u SET id = id + 1", "DELETE FROM t WHERE id = 3", "UPDATE t SET name = 'n2' WHERE id = 4"):
        followed.after(change)
        followed.check()


def test_verify_takes_ties_as_a_refresh_does(followed: Followed) -> None:
    """PostgreSQL takes rows that tie as they come, so that its own answer changes without a change of the rows."""

    def told() -> tuple[bool, int, str]:
        (found,) = followed.trickle.verify("followed")
        return found.equal, found.missing, found.compared_with

    followed.run("CREATE TABLE e (k int, v text)", "INSERT INTO e VALUES (1, 'c'), (1, 'b'), (1, 'a')")
    followed.create("SELECT v, row_number() OVER (ORDER BY k) AS n FROM e")
    ties = "its snapshot; rows tie in the order of a window function"
    assert told() == (True, 0, ties)
    followed.run("INSERT INTO e VALUES (1, 'A')", "DELETE FROM e WHERE v = 'b'")
    assert told() == (True, 0, ties), "as the rows were"
    assert len(followed.after()) == 3
    followed.run("UPDATE followed SET n = 7 WHERE v = 'c'")
    equal, missing, compared_with = told()
    assert not equal
    assert missing > 0
    assert compared_with == "its snapshot"
