"""What `docs/features.md` says of queries, schedules and alerts is what the code does: each claim with a case of it."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg

import pgtrickle
from pgtrickle.scheduler.due import canonical_period

ROOT = Path(__file__).parent.parent
PAGE = " ".join((ROOT / "docs" / "features.md").read_text().split())
WORLD = """
CREATE TABLE r (id integer PRIMARY KEY, a integer, b integer, t text, f float8);
CREATE AGGREGATE my_sum (integer) (sfunc = int4pl, stype = integer, initcond = '0');
CREATE FUNCTION mine(integer) RETURNS integer LANGUAGE sql STABLE AS 'SELECT max(id) FROM public.r';
CREATE FUNCTION kept(integer, integer) RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT $2';
CREATE AGGREGATE my_last (ORDER BY integer) (sfunc = kept, stype = integer);
CREATE UNLOGGED TABLE lost (id integer);
CREATE TABLE parent (id integer);
CREATE TABLE child () INHERITS (parent);
CREATE MATERIALIZED VIEW mv AS SELECT 1 AS n
"""
INCREMENTAL = {
    "`now()` and `CURRENT_DATE` wherever they stand": (
        "SELECT id FROM r WHERE b > extract(epoch FROM now())",
        "SELECT a, count(*), now() AS at FROM r GROUP BY a HAVING max(b) < extract(day FROM CURRENT_DATE)",
    ),
    "every aggregate, built in or your own": (
        "SELECT a, stddev(b), corr(b, id), json_agg(b), bit_or(b), sum(f), string_agg(t, ',') FROM r GROUP BY a",
        "SELECT a, my_sum(b) FROM r GROUP BY a",
    ),
    "`DISTINCT`, `FILTER`, `ORDER BY` and `WITHIN GROUP`": (
        "SELECT a, count(DISTINCT t), sum(b) FILTER (WHERE b > 1), array_agg(b ORDER BY id) FROM r GROUP BY a",
        "SELECT a, percentile_cont(0.5) WITHIN GROUP (ORDER BY b) FROM r GROUP BY a",
        "SELECT a, my_last() WITHIN GROUP (ORDER BY b) FROM r GROUP BY a",
        "SELECT id, (SELECT rank(3) WITHIN GROUP (ORDER BY s.b) FROM r AS s WHERE s.a = r.id) AS place FROM r",
    ),
    "`WITH RECURSIVE`": (
        "WITH RECURSIVE w AS (SELECT id FROM r UNION SELECT s.id FROM w JOIN r AS s ON s.a = w.id) SELECT id FROM w",
    ),
    "window functions": ("SELECT id, rank() OVER (ORDER BY id), sum(b) OVER (PARTITION BY a) FROM r",),
    "SQL/JSON and XML": (
        "SELECT id, JSON_VALUE(t::jsonb, '$.a' RETURNING int) AS v FROM r WHERE JSON_EXISTS(t::jsonb, '$.b')",
        "SELECT a, JSON_ARRAYAGG(b ORDER BY id) AS j FROM r GROUP BY a",
        "SELECT j.q FROM r, JSON_TABLE(r.t::jsonb, '$[*]' COLUMNS (q text PATH '$')) AS j",
        "SELECT x.q FROM r, XMLTABLE('/a' PASSING (r.t::xml) COLUMNS q text PATH '.') AS x",
    ),
    "unlogged tables, tables that others inherit (with `ONLY` too), materialized views": (
        "SELECT id FROM lost",
        "SELECT id FROM ONLY parent",
        "SELECT n FROM mv",
        "SELECT p.id, l.id AS other FROM parent AS p LEFT JOIN lost AS l USING (id)",
    ),
    "rows as a whole": (
        "SELECT to_jsonb(r) AS j, r AS whole FROM r",
        "SELECT count(s) AS n FROM (SELECT id FROM r) AS s",
    ),
}
FULL = {
    "`LIMIT` and `ARRAY(SELECT …)` without `ORDER BY`": "SELECT id FROM r LIMIT 3",
    "volatile functions": "SELECT random() AS x FROM r",
    "those that read the session": "SELECT current_user AS x FROM r",
    "functions of yours that are neither `IMMUTABLE`": "SELECT mine(b) AS x FROM r",
    "an aggregate with `GROUP BY` that depends on the `ORDER BY` of a subquery": (
        "SELECT b, array_agg(id) FROM (SELECT id, b FROM r ORDER BY id) AS s GROUP BY b"
    ),
    "system columns": "SELECT ctid::text AS c FROM r",
    "`TABLESAMPLE`": "SELECT id FROM r TABLESAMPLE BERNOULLI (50)",
    "a `SELECT` without `FROM` that reads no table": "SELECT 1 AS x",
    "system tables": "SELECT relname FROM pg_class",
}


def test_what_is_incremental_and_what_becomes_full(database18: str) -> None:
    with psycopg.connect(database18, autocommit=True) as connection:
        connection.execute(WORLD.encode())
    with pgtrickle.connect(database18) as trickle:
        for claim, queries in INCREMENTAL.items():
            assert claim in PAGE
            for query in queries:
                assert trickle.explain(query=query).startswith("operators"), query
        for claim, query in FULL.items():
            assert claim in PAGE
            assert trickle.explain(query=query).startswith("refresh mode"), query


def test_schedules() -> None:
    told = re.findall(r"`(\d+)([mh])` (?:is )?every (\d+) s", PAGE)
    assert told == [("1", "m", "48"), ("5", "m", "192"), ("1", "h", "3072")]
    for amount, unit, period in told:
        assert canonical_period(int(amount) * {"m": 60, "h": 3600}[unit]) == int(period)
    assert canonical_period(47) == 47


def test_alerts() -> None:
    """Every event that the code sends, and no other; those of a slot are names of marks in `scheduler/alerts.py`."""
    listed = PAGE.split("`LISTEN pg_trickle_alert`")[1].split("`pg_trickle_cdc_transition`")[0]
    named = set(re.findall(r"`([a-z_]+)`", listed))
    source = "".join(
        path.read_text() for path in (ROOT / "src" / "pgtrickle").rglob("*") if path.suffix in {".py", ".sql"}
    )
    assert {name for name in named if f'"{name}"' not in source and f"'{name}'" not in source} == set()
    plain = re.findall(r"""["']event["']:? ?,? ?["']([a-z_]+)["']""", source)
    given = re.findall(r'\bevent ?= ?"([a-z_]+)"', source)
    chosen = re.findall(r"'event', (CASE .+? END)", source, re.DOTALL)
    by_case = re.findall(r"(?:THEN|ELSE) '([a-z_]+)'", "".join(chosen))
    assert {*plain, *given, *by_case} - {"library", "lease_taken"} <= named
