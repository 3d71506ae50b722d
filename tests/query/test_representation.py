"""Conditions on keys whose equal values look different: what is definite is maintained, what is not is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from pgtrickle.query.compile import compile_query
from pgtrickle.query.representation import Representation, look_of
from pgtrickle.query.syntax import dialect
from tests.query.test_build import difference

TABLE = """
CREATE DOMAIN amount AS numeric;
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE FUNCTION shown(numeric) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT $1::text';
CREATE TABLE t (k numeric, d amount, p numeric(8, 2), i interval, f float8, c bpchar, j jsonb, a numeric[],
                m mood, l text, n int, at timestamp);
INSERT INTO t VALUES
  (1.0, 1.0, 1, '1 day', 0, 'a', '{"a": 1.0}', '{1.0}', 'ok', 'x', 1, '2024-01-31'),
  (1.00, 1.00, 1, '24:00', '-0', 'a ', '{"a": 1.00}', '{1.00}', 'ok', 'x', 2, '2024-01-31'),
  (2.5, 2.5, 2, '1 mon', 1, 'b', '{"a": 2}', '{2}', 'sad', 'y', 3, NULL),
  (NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 4, NULL);
"""
DEPENDENT = """
SELECT k, count(*) FROM t GROUP BY k HAVING k::text = '1.0'

SELECT k, count(*) FROM t GROUP BY k HAVING count(*) > 0 AND (scale(k) = 1 OR k IS NULL)

SELECT k FROM (SELECT DISTINCT k FROM t) q WHERE k::text = '1.00'

SELECT k FROM (SELECT k FROM t UNION SELECT p FROM t) q WHERE to_char(k, 'FM9.99') = '1.0'

SELECT k FROM (SELECT k FROM t INTERSECT SELECT k FROM t) q WHERE k || 'x' = '1.0x'

SELECT k FROM (SELECT k FROM t EXCEPT SELECT 5) q WHERE concat(k) = '1.0'

SELECT s FROM (SELECT k::text AS s, count(*) FROM t GROUP BY k) q WHERE s LIKE '1.0%'

SELECT k, count(*) FROM t GROUP BY k HAVING (k + 1)::text = '2.0'

SELECT d, count(*) FROM t GROUP BY d HAVING d::text = '1.0'

SELECT k, count(*) FROM t GROUP BY k HAVING shown(k) = '1.0'

SELECT i, count(*) FROM t GROUP BY i HAVING extract(day FROM i) = 1

SELECT i, count(*) FROM t GROUP BY i HAVING timestamp '2024-01-31' + i > '2024-03-01'

SELECT f, count(*) FROM t GROUP BY f HAVING f::text = '-0'

SELECT c, count(*) FROM t GROUP BY c HAVING octet_length(c) = 1

SELECT j, count(*) FROM t GROUP BY j HAVING j ->> 'a' = '1.0'

SELECT a, count(*) FROM t GROUP BY a HAVING array_to_string(a, ',') = '1.0'

SELECT k, n FROM (SELECT DISTINCT ON (k) k, n FROM t ORDER BY k, n) q WHERE k::text = '1.00'

SELECT n, max(k) FROM t GROUP BY n HAVING max(k)::text = '1.0'

SELECT q.k FROM (SELECT DISTINCT k FROM t) q JOIN t ON t.l = q.k::text
"""
DEFINITE = """
SELECT k, sum(n) FROM t GROUP BY k HAVING sum(n) > 1

SELECT k + 1 AS m, count(*) FROM t GROUP BY k HAVING k * 2 > 1 AND round(k) = 1 AND k::int = 1 AND k IN (1, 2)

SELECT k, count(*) FROM t GROUP BY k HAVING round(k)::text = '1' AND (k > 0)::text = 'true'

SELECT p, count(*) FROM t GROUP BY p HAVING p::text = '1.00'

SELECT l, count(*) FROM t GROUP BY l HAVING l || 'x' = 'xx'

SELECT m, count(*) FROM t GROUP BY m HAVING m::text = 'ok'

SELECT c, count(*) FROM t GROUP BY c HAVING c::text = 'a'

SELECT i, count(*) FROM t GROUP BY i HAVING extract(epoch FROM i) > 10 AND i < '2 days'

SELECT k, k::text AS s, count(*) FROM t GROUP BY k, k::text HAVING k::text = '1.0'

SELECT k::numeric(8, 1)::text AS s, count(*) FROM t WHERE k::text = '1.0' GROUP BY k

SELECT k, (SELECT count(*) FROM t u WHERE u.k <= q.k AND u.l = 'x') AS n FROM (SELECT DISTINCT k FROM t) q

SELECT k FROM (SELECT k, count(*) AS n FROM t GROUP BY k) q WHERE n > 1 AND k IS NOT NULL

SELECT k, n FROM (SELECT DISTINCT ON (k) k, n FROM t ORDER BY k, n) q WHERE k > 1 AND n::text = '3'

SELECT at, count(*) FROM t GROUP BY at HAVING at::text LIKE '2024%'
"""


@pytest.fixture
def looks(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(TABLE.encode())
        yield connection


def test_what_depends_on_a_look_is_refused(looks: psycopg.Connection[Any], subtests: pytest.Subtests) -> None:
    for query in DEPENDENT.strip().split("\n\n"):
        with subtests.test(query=query):
            refusal = compile_query(looks, query).refusal
            assert refusal is not None
            assert refusal.code == "PT275"


def test_what_does_not_is_maintained(looks: psycopg.Connection[Any], subtests: pytest.Subtests) -> None:
    looks.execute("DELETE FROM t WHERE k::text = '1.00'")  # so that PostgreSQL's answer has one look too
    for query in DEFINITE.strip().split("\n\n"):
        with subtests.test(query=query):
            found = compile_query(looks, query)
            assert found.refusal is None, found.refusal
            assert found.tree is not None
            assert difference(looks, query, found.tree) == []


@pytest.mark.parametrize(
    ("condition", "look"),
    [
        ("s COLLATE \"C\" = 'A'", Representation.SHOWN),
        ("length(s) = 1", Representation.SHOWN),
        ("s ~~ 'a%'", Representation.SHOWN),
        ("upper(s) = 'A'", Representation.SHOWN),
        ("s::text = 'a'", None),
        ("coalesce(s, 'x') > 'a' OR s IS NULL", None),
        ("coalesce(s, 'x')", Representation.TEXT),
    ],
)
def test_strings_that_are_equal_and_differ(condition: str, look: Representation | None) -> None:
    assert look_of(dialect.parse_expression(condition), {"s": Representation.TEXT}) is look
