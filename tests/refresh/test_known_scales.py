"""Numerics whose scale types tell, and first fills that take all numbers for finite ones until they see otherwise."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pgtrickle import db
from pgtrickle.api import Trickle
from pgtrickle.config import Settings
from pgtrickle.db import Connection
from pgtrickle.postgres.aggregate import state_columns
from pgtrickle.query.number_scales import known_scale
from pgtrickle.query.operators import Aggregate, walk
from pgtrickle.refresh.definition.define import rehearse

TABLE = "CREATE TABLE t (k int, i int, b bigint, f float8, p numeric(12,2), q numeric(9,4), r numeric(6,-2), u numeric)"
VALUES = (
    "(1, 3, 4, 0.5, 1.25, 2.5, 1234, 1.5), (1, -7, NULL, 2, NULL, 0.0001, -99, 1.500), (1, 0, 9, 1e-3, 'NaN', 'NaN',"
    " 'NaN', 'Infinity'), (2, NULL, 0, -1, -0.01, 99999.9999, 0, 'NaN'), (2, 2, 2, 7, 0, 0, 0, '-Infinity'),"
    " (3, 1, 1, 1, 10.00, 1, 1, 0.10)"
)
SCALES = {
    "p": 2,
    "r": 0,
    "-p": 2,
    "p + q": 4,
    "p - i": 2,
    "p * q": 6,
    "p * (1 - q) * (1 + p)": 8,
    "p * 0.050": 5,
    "p * 100": 2,
    "i * p + b": 2,
    "coalesce(p, 0.00)": 2,
    "CASE WHEN i > 0 THEN p ELSE NULL END": 2,
    "CASE WHEN i > 0 THEN p * p ELSE q END": 4,
    "(u)::numeric(10,1)": 1,
    "(f)::numeric(10)": 0,
    "i::numeric": 0,
    "coalesce(p, 0)": None,
    "CASE WHEN i > 0 THEN p ELSE q END": None,
    "p / 2": None,
    "p % q": None,
    "round(p, i)": None,
    "u": None,
    "p + u": None,
    "f::numeric": None,
    "u::text::numeric": None,
    "greatest(p, q)": None,
}


@pytest.fixture
def conn(database18: str) -> Iterator[Connection]:
    with Trickle(database18), db.open_session(database18) as found:
        found.execute(db.statement(TABLE))
        yield found


@pytest.fixture
def trickle(conn: Connection, database18: str) -> Iterator[Trickle]:
    with Trickle(database18) as found:
        found._refresher.without_spark = True
        yield found


def aggregate(conn: Connection, query: str) -> Aggregate:
    prepared, _ = rehearse(conn, query, Settings())
    return next(node for node in walk(prepared.tree) if isinstance(node, Aggregate))


def test_the_scale_of_an_expression_is_that_of_all_of_its_values(conn: Connection) -> None:
    conn.execute(db.statement(f"INSERT INTO t VALUES {VALUES}"))
    for expression, scale in SCALES.items():
        found = aggregate(conn, f"SELECT k, sum({expression}) AS s FROM t GROUP BY k")
        argument = found.calls[0].argument
        assert argument is not None
        assert known_scale(found.input, argument) == scale, expression
        if scale is not None:
            where = f"WHERE u NOT IN ('Infinity', '-Infinity') AND scale({expression}) <> {scale}"
            assert not db.scalar(conn, f"SELECT count(*) FROM t {where}"), expression


def test_calls_of_one_argument_share_what_they_keep(conn: Connection) -> None:
    calls = "sum(p) AS s, avg(p) AS a, count(p) AS c, stddev(p) AS d, min(p) AS m, bit_xor(i) AS x, avg(i) AS y"
    kept = [column.name for column in state_columns(aggregate(conn, f"SELECT k, {calls} FROM t GROUP BY k"))]
    assert [name for name in kept if name.startswith("a0_")] == ["a0_n", "a0_s", "a0_nan", "a0_special", "a0_s2"]
    assert len(kept) == len(set(kept)) == 2 + 5 + 1 + 3
    nested = aggregate(conn, "SELECT sum(s) AS t FROM (SELECT k, sum(p * q) AS s FROM t GROUP BY k) AS g")
    assert known_scale(nested.input, nested.calls[0].argument or nested.columns[0]) == 6


@pytest.mark.parametrize("grouped", [True, False], ids=["in the read", "where they land"])
def test_numbers_that_are_not_finite_are_seen_while_filling(conn: Connection, trickle: Trickle, grouped: bool) -> None:
    conn.execute(db.statement(f"INSERT INTO t VALUES {VALUES}"))
    source = "t" if grouped else "(SELECT * FROM t UNION ALL SELECT * FROM t WHERE k = 1) AS t"
    calls = ", ".join(
        f"{call}({x}) AS {call}_{x}" for x in ("p", "u", "i") for call in ("sum", "avg", "stddev", "count")
    )
    query = f"SELECT k, {calls} FROM {source} GROUP BY k"
    trickle.create_stream_table("st", query)
    for change in (
        "INSERT INTO t (k, p, u) VALUES (3, 'NaN', 'Infinity'), (4, 1.00, 1.0000)",
        "DELETE FROM t WHERE p = 'NaN'",
        "DELETE FROM t WHERE u IN ('Infinity', '-Infinity', 'NaN')",
        "UPDATE t SET u = 2 WHERE scale(u) = 4",
    ):
        require_equal(conn, query)
        conn.execute(db.statement(change))
        assert trickle.refresh_stream_table("st").action in {"DIFFERENTIAL", "FULL"}
    require_equal(conn, query)


def require_equal(conn: Connection, query: str) -> None:
    one, other = ("SELECT x::text FROM st AS x", f"SELECT x::text FROM ({query}) AS x")
    differing = f"(({one}) EXCEPT ALL ({other})) UNION ALL (({other}) EXCEPT ALL ({one}))"
    assert conn.execute(db.statement(differing)).fetchall() == []
