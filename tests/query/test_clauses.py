"""Clauses of which nobody would look at a part are found, whatever holds them."""

from __future__ import annotations

import pytest

from pgtrickle.query.syntax import clauses, dialect

UNKNOWN = {
    "SELECT a FROM t FOR UPDATE": "locks",
    "SELECT a FROM (SELECT a FROM t FOR SHARE) AS q": "locks",
    "SELECT a FROM t TABLESAMPLE bernoulli (10)": "sample",
    "SELECT a FROM (t LIMIT 1)": "limit",
    "SELECT 1 FROM t WINDOW w AS (ORDER BY max(a))": "windows",
    "SELECT sum(a) OVER w FROM t": "alias",
    "SELECT a INTO x FROM t": "into",
    "SELECT max(a) FROM t GROUP BY ALL": "all",
}
KNOWN = (
    "VALUES (2), (1) ORDER BY 1 LIMIT 1 OFFSET 1",
    "SELECT DISTINCT ON (a) a, count(*) FROM t JOIN u USING (a) GROUP BY DISTINCT ROLLUP (a) ORDER BY a LIMIT 1",
    "WITH w AS MATERIALIZED (SELECT 1) (SELECT * FROM w OFFSET 2) UNION ALL VALUES (1), (2)",
    "SELECT sum(a) FILTER (WHERE b) OVER (PARTITION BY a ORDER BY b ROWS 1 PRECEDING EXCLUDE TIES) FROM t",
    "SELECT f.o FROM t, LATERAL unnest(t.x) WITH ORDINALITY AS f(v, o) FETCH FIRST 2 ROWS WITH TIES",
)


@pytest.mark.parametrize(("query", "part"), UNKNOWN.items(), ids=UNKNOWN.values())
def test_a_part_that_nobody_looks_at(query: str, part: str) -> None:
    assert [found for _, found in clauses.unknown(dialect.parse(query))] == [part]


@pytest.mark.parametrize("query", KNOWN)
def test_parts_that_are_looked_at(query: str) -> None:
    assert list(clauses.unknown(dialect.parse(query))) == []
