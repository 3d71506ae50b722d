"""Keys of GROUP BY are those that PostgreSQL resolved: random grouping sets are answered as PostgreSQL answers them."""

from __future__ import annotations

import os
from typing import Any

import psycopg
import pytest

from pgtrickle.errors import QueryError
from pgtrickle.query.compile import compile_query
from tests.query.random_groupings import TABLES, Writer
from tests.query.test_build import difference

QUERIES = int(os.environ.get("PGTRICKLE_GROUPINGS", "150"))
FIRST = int(os.environ.get("PGTRICKLE_GROUPINGS_FROM", "0"))


def is_query(connection: psycopg.Connection[Any], query: str) -> bool:
    try:
        connection.execute(query.encode())
    except psycopg.Error:
        return False
    return True


def test_random_groupings(database: str, subtests: pytest.Subtests) -> None:
    valid, refused = 0, dict[str, list[str]]()
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLES.encode())
        for seed in range(FIRST, FIRST + QUERIES):
            query = Writer(seed).query()
            if not is_query(connection, query):
                continue
            valid += 1
            with subtests.test(seed=seed, query=query):
                try:
                    found = compile_query(connection, query)
                except QueryError:  # no query that a view could have
                    continue
                if found.tree is None:
                    assert found.refusal is not None
                    refused.setdefault(str(found.refusal), []).append(query)
                else:
                    assert difference(connection, query, found.tree) == []
    if os.environ.get("PGTRICKLE_GROUPINGS"):
        print(valid, {why: (len(some), some[:2]) for why, some in refused.items()})
    assert valid > QUERIES // 4
    assert sum(map(len, refused.values())) < valid // 7, refused


TOLD_APART = """
SELECT a, grouping(a), count(*) FROM t AS l FULL JOIN u AS r USING (a) GROUP BY ROLLUP (a)

SELECT a, grouping(l.a), grouping(r.a, a), l.a + 1 FROM t AS l FULL JOIN u AS r USING (a) GROUP BY CUBE (a, l.a, r.a)

SELECT a, coalesce(l.a, r.a), count(*) FROM t AS l FULL JOIN u AS r USING (a) GROUP BY ROLLUP (a)

SELECT 1 AS x, a, sum(v) FROM t GROUP BY GROUPING SETS (1, 2)

SELECT 1 AS x, 1 AS y, 1 + a AS z, a, sum(v) FROM t GROUP BY GROUPING SETS (1, 4)

SELECT NULL::int AS x, 'k' AS y, a, grouping(a) FROM t GROUP BY CUBE (1, 2, 3) HAVING grouping(a) = 0 OR count(*) > 1

SELECT a, int8abs(a) AS w, a::bigint AS big FROM t GROUP BY GROUPING SETS ((a), (3), ())

SELECT a, a + 1 AS b, a + 1 + a AS c FROM t GROUP BY GROUPING SETS (a, a + 1, (a, a + 1))

SELECT x.a, y.a AS other, x.a + y.a AS both FROM t AS x JOIN u AS y ON x.v = y.v GROUP BY CUBE (x.a, y.a)

SELECT a, (SELECT count(*) FROM u WHERE u.a = t.a) AS n FROM t GROUP BY ROLLUP (a)

SELECT s.a, s.n, grouping(s.n) FROM (SELECT a, count(*) AS n FROM t GROUP BY ROLLUP (a)) AS s GROUP BY CUBE (1, 2)

SELECT a, v FROM t GROUP BY ROLLUP (a, v) UNION ALL SELECT v, a FROM t GROUP BY ROLLUP (a, v)

SELECT a, v FROM t GROUP BY ROLLUP (a, v) UNION ALL SELECT a, v FROM t GROUP BY ROLLUP (v, a)

SELECT DISTINCT grouping(a), v IS NULL FROM t GROUP BY CUBE (a, v)

SELECT a, v, count(*) FROM t GROUP BY CUBE (a, v) ORDER BY grouping(a), a, grouping(v), v LIMIT 5

SELECT a, count(*), grouping(a) FROM t GROUP BY a HAVING grouping(a) = 0

SELECT EXISTS (SELECT FROM u WHERE u.a = t.a) AS e, grouping(EXISTS (SELECT FROM u WHERE u.a = t.a))
  FROM t GROUP BY CUBE (1)

SELECT a IN (SELECT a FROM u) AS i, v > ALL (SELECT v FROM u) AS g, count(*)
  FROM t GROUP BY CUBE (1, v > ALL (SELECT v FROM u))

SELECT (a, v) IN (SELECT a, v FROM u) AS i, ARRAY(SELECT v FROM u WHERE u.a = t.a ORDER BY v) AS l
  FROM t GROUP BY ROLLUP (1, 2)

SELECT a, (SELECT max(v) FROM u) + 1 AS x, (SELECT max(v) FROM u) AS y, (SELECT max(v) FROM u) AS z, count(*)
  FROM t GROUP BY ROLLUP (a, (SELECT max(v) FROM u))

SELECT a, count(*) FROM t GROUP BY ROLLUP (a, (SELECT max(v) FROM u)) HAVING (SELECT max(v) FROM u) IS NOT NULL

SELECT a, count(*) FROM t GROUP BY CUBE (a, EXISTS (SELECT FROM u)) HAVING EXISTS (SELECT FROM u)

SELECT a, coalesce((SELECT max(v) FROM u) + a, -1) AS x, count(*) FROM t GROUP BY CUBE (a, (SELECT max(v) FROM u))

SELECT a, (5 IN (SELECT a FROM u)) IS NULL AS x, count(*) FROM t GROUP BY GROUPING SETS (a, (5 IN (SELECT a FROM u)))
"""


def test_keys_that_are_easily_mistaken(database: str, subtests: pytest.Subtests) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLES.encode())
        for query in TOLD_APART.strip().split("\n\n"):
            with subtests.test(query=query):
                names = ", ".join(
                    f"o{place}" for place in range(len(connection.execute(query.encode()).description or ()))
                )
                named = f"SELECT * FROM ({query}) AS q ({names})"
                found = compile_query(connection, named)
                assert found.refusal is None, found.refusal
                assert found.tree is not None
                assert difference(connection, query, found.tree) == []


ASKED_WITHIN = """
SELECT (SELECT max(v) FROM u WHERE u.a = t.a) + 1 AS m, count(*)
  FROM t GROUP BY ROLLUP ((SELECT max(v) FROM u WHERE u.a = t.a))

SELECT a, sum(v) AS s
  FROM t GROUP BY CUBE (a, (a IN (SELECT a FROM u))) HAVING (a IN (SELECT a FROM u)) OR count(*) > 2

SELECT NOT (EXISTS (SELECT FROM u WHERE u.a = t.a)) AS e, a
  FROM t GROUP BY CUBE (EXISTS (SELECT FROM u WHERE u.a = t.a), a)

SELECT a, rank() OVER (PARTITION BY (SELECT max(v) FROM u WHERE u.a = t.a) IS NULL ORDER BY count(*)) AS r FROM t
  GROUP BY GROUPING SETS (a, (SELECT max(v) FROM u WHERE u.a = t.a))

SELECT a, count(*) FROM t GROUP BY ROLLUP (a, (SELECT max(v) FROM u)) ORDER BY (SELECT max(v) FROM u) DESC, a LIMIT 3
"""


def test_subqueries_that_are_keys_within_expressions(database: str) -> None:
    """Where a set leaves such a key out, it is NULL there; PostgreSQL before 18 asks it of some row of the group."""
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLES.encode())
        for query in ASKED_WITHIN.strip().split("\n\n"):
            found = compile_query(connection, query)
            if connection.info.server_version < 180000:
                assert found.refusal is not None
                assert found.refusal.code == "PT274"
            else:
                assert found.tree is not None, found.refusal
                assert difference(connection, query, found.tree) == []


NOT_DEFINITE = """
SELECT upper(b) AS x, upper(b) AS y, count(*) FROM t GROUP BY GROUPING SETS (1, 2)

SELECT a, coalesce(1 + 1) AS two, count(*) FROM t GROUP BY GROUPING SETS (1 + 1, a)

SELECT 1 AS x, a, count(*) FROM t GROUP BY CUBE (1, 2) ORDER BY 1, 2 LIMIT 2

SELECT a, rank() OVER (ORDER BY (SELECT max(v) FROM u), a) AS x FROM t GROUP BY CUBE (a, (SELECT max(v) FROM u))

SELECT a, (SELECT max(v) FROM u) + 1 AS m FROM t GROUP BY ROLLUP (a, (SELECT max(v) FROM u)) ORDER BY a LIMIT 20

SELECT DISTINCT ON (a) a, (SELECT max(v) FROM u) + 1 AS m FROM t GROUP BY ROLLUP (a, (SELECT max(v) FROM u)) ORDER BY a

SELECT a, (SELECT max(v) FROM u) IN (SELECT v FROM u) AS i FROM t GROUP BY ROLLUP (a, (SELECT max(v) FROM u))

SELECT o.a, x.* FROM u AS o, LATERAL (SELECT t.a AS b, o.a + 1 AS m, count(*) FROM t GROUP BY ROLLUP (t.a, o.a)) AS x
"""
ASKS_FURTHER_OUT = """
SELECT o.a, x.* FROM u AS o, LATERAL (
  SELECT t.a AS b, (SELECT max(i.v) FROM u AS i WHERE i.v > o.v) + 1 AS m, count(*) FROM t
  GROUP BY ROLLUP (t.a, (SELECT max(i.v) FROM u AS i WHERE i.v > o.v))) AS x
"""


def test_a_key_that_asks_a_query_further_out_is_refused(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLES.encode())
        assert compile_query(connection, ASKS_FURTHER_OUT).refusal is not None


def test_what_is_not_definite_is_refused(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLES.encode())
        for query in NOT_DEFINITE.strip().split("\n\n"):
            refusal = compile_query(connection, query).refusal
            assert refusal is not None
            assert refusal.code == "PT274"
