"""Every operator PostgreSQL has comes through sqlglot unchanged, between two operands or before one."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from pgtrickle.query.compile import compile_query
from pgtrickle.query.syntax import operator_syntax

OPERATORS = """
SELECT DISTINCT ON (oprname, oprkind) oprname, NULLIF(oprleft, 0)::regtype::text, oprright::regtype::text
FROM pg_operator
WHERE oprnamespace = 'pg_catalog'::regnamespace AND oprcode <> 0
  AND NOT EXISTS (SELECT FROM pg_type AS t WHERE t.oid IN (oprleft, oprright) AND (typtype = 'p' OR typname = 'bit'))
ORDER BY oprname, oprkind, oid
"""


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT (a.x <<= b.y) FROM a", "SELECT (a.x OPERATOR(<<=) b.y) FROM a"),
        ("SELECT (@ a.x), (- a.x), count(*)", "SELECT (OPERATOR(@) a.x), (- a.x), count(*)"),
        ("SELECT (+ a.x), (a.x + 1)", "SELECT (OPERATOR(+) a.x), (a.x + 1)"),
        ("SELECT '(@ <<= ''<<=', \"<<=\", E'\\'<<='", "SELECT '(@ <<= ''<<=', \"<<=\", E'\\'<<='"),
        ("SELECT (a.x OPERATOR(s.<<=) b.y)", "SELECT (a.x OPERATOR(s.<<=) b.y)"),
    ],
)
def test_spelled_out(sql: str, expected: str) -> None:
    assert operator_syntax.spelled_out(sql) == expected


def test_every_operator_is_carried(shop: psycopg.Connection[Any], subtests: pytest.Subtests) -> None:
    operators = shop.execute(OPERATORS.encode()).fetchall()
    assert len(operators) > 60
    shop.execute("CREATE TABLE whole (id int)")
    for sign, left, right in operators:
        with subtests.test(operator=sign, left=left, right=right):
            operands = [f"(CASE w.id WHEN 0 THEN NULL::{kind} END)" for kind in (left, right) if kind is not None]
            query = f"SELECT w.id FROM whole AS w WHERE ({f' {sign} '.join(['', *operands][-2:])}) IS NOT NULL"
            refusal = compile_query(shop, query).refusal
            assert refusal is None, refusal
