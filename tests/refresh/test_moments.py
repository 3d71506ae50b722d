"""Variance and standard deviation from sums: digit for digit what PostgreSQL computes from the rows that are left."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pgtrickle import db, embedded
from pgtrickle.model import Column, PgType
from pgtrickle.postgres.moments import MOMENTS, moment, root
from tests.conftest import fresh_database

EXAMPLES = 10 * int(os.environ.get("PGTRICKLE_RANDOM_EXAMPLES", "6"))

INTEGERS = {"smallint": (21, 15), "integer": (23, 31), "bigint": (20, 63)}
"""Oid, and bits."""
SMALL = st.sampled_from([None, "0", "0.000", "1", "1.0", "1.00", "-2", "2.5", "-3.125"])
SCALED = st.builds(lambda digits, scale: f"{digits}e{scale}", st.integers(-(10**20), 10**20), st.integers(-30, 20))
SPECIAL = st.sampled_from(["NaN", "Infinity", "-Infinity"])
CENTS = st.integers(-(10**8), 10**8).map(lambda n: f"{n / 100:.2f}")

Rows = list[tuple[int, str | None]]


def _rarely(these: st.SearchStrategy[str], others: st.SearchStrategy[str | None]) -> st.SearchStrategy[str | None]:
    return st.integers(0, 15).flatmap(lambda number: these if number == 7 else others)


@st.composite
def columns(draw: st.DrawFn) -> tuple[PgType, Rows, Rows]:
    """A type, the values that are there, in groups, and others that came and left."""
    name = draw(st.sampled_from([*INTEGERS, "numeric", "numeric", "numeric(12,2)"]))
    if name in INTEGERS:
        oid, bits = INTEGERS[name]
        values = st.none() | st.integers(-(2**bits), 2**bits - 1).map(str) | st.integers(-9, 9).map(str)
    else:
        oid = 1700
        values = _rarely(SPECIAL, SMALL | SCALED) if name == "numeric" else _rarely(st.just("NaN"), CENTS)
    rows = st.lists(st.tuples(st.integers(0, 5), values), min_size=5, max_size=30)
    return PgType(oid, name), draw(rows), draw(rows)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(column=columns())
def test_the_digits_are_postgresqls(column: tuple[PgType, Rows, Rows], database: db.Connection) -> None:
    type_, present, gone = column
    with database.transaction(force_rollback=True):
        database.execute(db.statement(f"CREATE TABLE t (g int, x {type_.name}, w bigint, stays boolean)"))
        rows = [(*row, 1, True) for row in present]
        rows += [(*row, weight, False) for row in gone for weight in (1, -1)]
        with database.cursor() as cursor:
            cursor.executemany("INSERT INTO t VALUES (%s, %s, %s, %s)", rows)
        for function in sorted(MOMENTS):
            kept = moment(function, "a0", Column("x", type_), 2 if type_.name == "numeric(12,2)" else None)
            sums = ", ".join(f"{part.sql} AS {part.column.name}" for part in kept.contributions)
            ours = f"SELECT g, {kept.finish} AS r FROM (SELECT g, {sums} FROM t GROUP BY g) AS s"
            theirs = f"SELECT g, {function}(x) FILTER (WHERE stays) AS r FROM t GROUP BY g"
            differing = (
                f"SELECT * FROM ({ours}) o JOIN ({theirs}) t USING (g) WHERE o.r::text IS DISTINCT FROM t.r::text"
            )
            assert database.execute(db.statement(differing)).fetchall() == [], function


def test_a_root_is_rounded_once(database: db.Connection) -> None:
    """√v is less than half a digit above 31623, but by so little that sqrt says it is half a digit."""
    v = "1000014129.00031623::numeric"
    assert db.scalar(database, f"SELECT round(sqrt({v}), 8)::text") == "31623.00000001"
    assert db.scalar(database, f"SELECT ({root(f'SELECT {v} AS v')})::text") == "31623.00000000"


@pytest.fixture(scope="module")
def database(server18: embedded.Server) -> Iterator[db.Connection]:
    with fresh_database(server18) as dsn, db.open_session(dsn) as connection:
        yield connection
