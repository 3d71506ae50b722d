"""Calls with words between their operands are written back as they were, and their operands are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlglot import exp

from pgtrickle.query.compile import compile_query
from pgtrickle.query.syntax import dialect
from pgtrickle.query.syntax.special_calls import SpecialCall
from tests.query.test_build import difference

HERE = Path(__file__).parent
Shop = psycopg.Connection[Any]

#: As PostgreSQL prints them; the columns that each reads.
CALLS = {
    "JSON_VALUE(a.j, '$.\"x\"' PASSING a.b AS n, (a.c + 1) AS m RETURNING numeric(10,2) DEFAULT 0 ON EMPTY)": "jbc",
    "JSON_OBJECT(a.k : a.value, 'b' : (1 + a.b) ABSENT ON NULL WITH UNIQUE KEYS RETURNING jsonb)": ["k", "value", "b"],
    "JSON_OBJECT(RETURNING jsonb)": "",
    "JSON_ARRAY()": "",
    "JSON_ARRAYAGG(a.x ORDER BY a.b DESC NULLS LAST, a.c ABSENT ON NULL RETURNING jsonb)": "xbc",
    "TRIM(TRAILING FROM a.x)": "x",
    "TRIM(BOTH a.y FROM a.x)": "yx",
    "SUBSTRING(a.x SIMILAR a.y ESCAPE a.z)": "xyz",
    "SUBSTRING(a.x FROM 1 FOR a.n)": "xn",
    "NORMALIZE(a.x, NFKD)": "x",
    'XMLELEMENT(NAME "Foo, bar", XMLATTRIBUTES(a.b AS c, a.d AS "RETURNING"), \'text (\', a.n)': "bdn",
    "XMLROOT(a.x, VERSION NO VALUE, STANDALONE YES)": "x",
    "XMLSERIALIZE(CONTENT a.x AS character varying(10) NO INDENT)": "x",
    "XMLFOREST(a.b AS b, XMLCONCAT(a.c, a.d) AS e)": "bcd",
}


@pytest.mark.parametrize("text", CALLS)
def test_a_call_is_written_back(text: str) -> None:
    call = dialect.parse_expression(text)
    assert isinstance(call, SpecialCall)
    assert dialect.text(call) == text
    assert [column.name for column in call.find_all(exp.Column, bfs=False)] == list(CALLS[text])


def test_a_call_in_lower_case_or_quoted_is_an_ordinary_one() -> None:
    for text in ('"substring"(a.x, 1)', "trim(a.x)", '"JSON_VALUE"(a.x, a.y)'):
        assert not isinstance(dialect.parse_expression(text), SpecialCall)


def test_the_columns_of_a_table_function_are_known() -> None:
    json = (
        "JSON_TABLE(t.j, '$' AS p PASSING t.a AS z COLUMNS (n FOR ORDINALITY, \"a,\" numeric(10,2) PATH '$.a' DEFAULT 1"
        " ON EMPTY, NESTED PATH '$.c[*]' AS q COLUMNS ( e boolean EXISTS PATH '$.zz')) ERROR ON ERROR)"
    )
    xml = (
        "XMLTABLE(XMLNAMESPACES('u' AS x), (t.p) PASSING (t.x) COLUMNS v integer PATH (t.q) DEFAULT (3) NOT NULL,"
        " o FOR ORDINALITY)"
    )
    for text, names in ((json, ["n", "a,", "e"]), (xml, ["v", "o"])):
        tree = dialect.parse(f"SELECT 1 FROM t, LATERAL {text} AS k")
        (call,) = tree.find_all(SpecialCall)
        assert call.column_names == names
        assert dialect.text(call) == text


def test_rows_from_within_a_literal_is_left() -> None:
    query = "SELECT 'ROWS FROM (' AS \"ROWS FROM(\" FROM ROWS FROM (f(1), g('ROWS FROM(') AS (a integer)) AS r(a, b)"
    assert dialect.text(dialect.parse(query)) == query


SINCE_17 = 170000
ORDERED_SET = (
    "CREATE AGGREGATE middle(float8 ORDER BY anyelement) (sfunc = ordered_set_transition, stype = internal,"
    " finalfunc = percentile_disc_final, finalfunc_extra)"
)


def test_the_tree_gives_what_the_query_gives(shop: Shop, subtests: pytest.Subtests) -> None:
    shop.execute(ORDERED_SET)
    names = ["special.sql", *(["special_17.sql"] if shop.info.server_version >= SINCE_17 else [])]
    for query in (query for name in names for query in (HERE / name).read_text().split("\n\n")[1:]):
        with subtests.test(query=query):
            found = compile_query(shop, query)
            assert found.tree is not None, found.refusal
            assert difference(shop, query, found.tree) == []


def test_how_a_key_looks_shows_in_such_a_call(shop: Shop) -> None:
    if shop.info.server_version < 160000:
        pytest.skip("JSON_OBJECT is new in PostgreSQL 16")
    query = "SELECT k FROM (SELECT DISTINCT weight AS k FROM items) s WHERE JSON_OBJECT('k' : k)::text LIKE '%-0%'"
    refusal = compile_query(shop, query).refusal
    assert refusal is not None
    assert refusal.code == "PT275"
