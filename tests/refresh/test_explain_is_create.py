"""`explain` and `create` agree: the same mode, or the same refusal. Nothing is populated, so no Spark."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import pgtrickle
from pgtrickle import db
from pgtrickle.api import Trickle
from pgtrickle.errors import Error

TABLES = (
    "CREATE TABLE t (id int PRIMARY KEY, a int, b text, i interval)",
    "CREATE TABLE parent (id int)",
    "CREATE TABLE child (v int) INHERITS (parent)",
    "CREATE UNLOGGED TABLE scratch (id int)",
    "CREATE TABLE parts (id int, v int) PARTITION BY LIST (id)",
    "CREATE TABLE part_1 PARTITION OF parts FOR VALUES IN (1)",
    "CREATE MATERIALIZED VIEW kept AS SELECT id FROM t",
    "CREATE TYPE lasting AS (n int, i interval)",
    "CREATE TABLE lasted (id int, l lasting)",
    f"CREATE TABLE broad (id int, {', '.join(f'c{n} int' for n in range(900))})",
    "CREATE VIEW seen AS SELECT id FROM parent",
)
EXPECTED = {
    "SELECT id, a FROM t": "DIFFERENTIAL",
    "SELECT a, count(*) AS n FROM t GROUP BY a": "DIFFERENTIAL",
    "SELECT id FROM parts": "DIFFERENTIAL",
    "SELECT id, c1 FROM broad": "DIFFERENTIAL",
    f"SELECT {'+'.join(['a'] * 300)} AS x FROM t": "DIFFERENTIAL",
    "SELECT id FROM parent": "DIFFERENTIAL",
    "SELECT id FROM child": "DIFFERENTIAL",
    "SELECT id FROM ONLY parent": "DIFFERENTIAL",
    "SELECT id FROM t TABLESAMPLE BERNOULLI (50) REPEATABLE (1)": "FULL PT232",
    "SELECT a, (SELECT max(s.a) FROM t AS s TABLESAMPLE SYSTEM (10)) AS m FROM t": "FULL PT232",
    "SELECT id FROM t LIMIT 3": "FULL PT230",
    "SELECT id FROM t OFFSET 2": "FULL PT230",
    "SELECT id FROM t FETCH FIRST ROW ONLY": "FULL PT230",
    "SELECT p.id FROM t AS p WHERE p.id IN (SELECT q.id FROM t AS q LIMIT 2)": "FULL PT230",
    "SELECT count(*) AS n FROM t LIMIT 3": "DIFFERENTIAL",
    "SELECT id FROM t ORDER BY id LIMIT 3": "DIFFERENTIAL",
    "SELECT id FROM ONLY child": "DIFFERENTIAL",
    "SELECT id FROM seen": "DIFFERENTIAL",
    "SELECT id FROM scratch": "DIFFERENTIAL",
    "SELECT id FROM kept": "DIFFERENTIAL",
    "SELECT id, random() AS r FROM t": "FULL PT201",
    "SELECT relname::text AS r FROM pg_class": "FULL PT206",
    "SELECT l FROM lasted": "FULL PT283",
    "SELECT * FROM broad": "FULL PT282",
    f"SELECT {'+'.join(['a'] * 4000)} AS x FROM t": "FULL PT280",
    f"SELECT a, {', '.join(f'sum(a + {n}) AS c{n}' for n in range(900))} FROM t GROUP BY a": "FULL PT284",
    f"SELECT ARRAY[{', '.join(f'sum(a + {n}) OVER ()' for n in range(1591))}] AS sums FROM t": "FULL PT611",
    "SELECT FROM t": "PT112",
    f"SELECT {', '.join(f'a AS c{n}' for n in range(1600))} FROM t": "PT113",
    f"SELECT {', '.join(f'a AS c{n}' for n in range(1601))} FROM t": "PT110",
    f"SELECT {', '.join(f'a AS c{n}' for n in range(1700))} FROM t": "PT110",
    "SELECT a, a FROM t": "PT104",
    "SELECT nothing FROM t": "PT106",
    "SELECT 1; SELECT 2": "PT101",
    "INSERT INTO t VALUES (1) RETURNING id": "PT102",
    "": "PT100",
}


@pytest.fixture
def trickle(database18: str) -> Iterator[Trickle]:
    with db.open_session(database18) as conn:
        for each in TABLES:
            conn.execute(db.statement(each))
    with pgtrickle.connect(database18) as api:
        yield api


def _explained(trickle: Trickle, query: str) -> str:
    try:
        text = trickle.explain(query=query)
    except Error as error:
        return error.code
    return f"FULL {text.split('FULL: ')[1][:5]}" if text.startswith("refresh mode\n  FULL: ") else "DIFFERENTIAL"


def _created(trickle: Trickle, name: str, query: str) -> str:
    try:
        trickle.create_stream_table(name, query, initialize=False)
    except Error as error:
        return error.code
    (stream,) = trickle.status(name)
    return f"FULL {(stream.mode_reason or '')[:5]}" if stream.effective_mode == "FULL" else stream.effective_mode


def test_explain_promises_what_create_does(trickle: Trickle) -> None:
    found = {
        query: (_explained(trickle, query), _created(trickle, f"s{place}", query))
        for place, query in enumerate(EXPECTED)
    }
    assert found == {query: (expected, expected) for query, expected in EXPECTED.items()}


def test_a_stream_table_over_others_and_one_without_place(trickle: Trickle) -> None:
    trickle.create_stream_table("lower", "SELECT id, a FROM t", initialize=False)
    assert _explained(trickle, "SELECT a FROM lower") == "DIFFERENTIAL"
    assert _created(trickle, "upper", "SELECT a FROM lower") == "DIFFERENTIAL"
    assert _created(trickle, "n" * 64, "SELECT a FROM lower") == "PT004"
    trickle.connection.execute("SET search_path = nowhere")
    assert _created(trickle, "homeless", "SELECT a FROM public.t") == "PT005"
    assert _explained(trickle, "SELECT a FROM public.t") == "DIFFERENTIAL"  # it names no place
