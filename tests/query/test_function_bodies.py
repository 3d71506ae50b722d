"""Which STABLE functions of a user a query may call: those whose body in SQL reads nothing but its arguments."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from pgtrickle.answers import TRUSTING
from pgtrickle.query.compile import compile_query

Shop = psycopg.Connection[Any]

PROVEN = (
    "f(int) RETURNS int STABLE LANGUAGE sql AS 'SELECT $1 + 1'",
    "f(x int, OUT y text) STABLE LANGUAGE sql AS $$ SELECT to_char(x, '99') -- of settings $$",
    "f(x int, y int DEFAULT 3) RETURNS numeric STABLE LANGUAGE sql AS 'SELECT 1; SELECT round(x / 2.0, y);'",
    "f(x int) RETURNS int STABLE LANGUAGE sql BEGIN ATOMIC SELECT kept(x) * plus_one(x); END",
    "f(x int) RETURNS text STABLE LANGUAGE sql BEGIN ATOMIC SELECT 'ok'::mood::text || x; END",
    "f(VARIADIC x int[]) RETURNS int STABLE LANGUAGE sql AS 'SELECT max(v.x) FROM (VALUES ($1[1])) AS v(x)'",
)
NOT_PROVEN = (
    "f(x int) RETURNS bigint STABLE LANGUAGE sql AS 'SELECT count(*) FROM public.orders WHERE id > x'",
    "f(x int) RETURNS bigint STABLE LANGUAGE sql BEGIN ATOMIC SELECT count(*) FROM orders WHERE orders.id > x; END",
    "f(x int) RETURNS bigint STABLE LANGUAGE sql BEGIN ATOMIC SELECT reads(x); END",
    "f(x int) RETURNS text STABLE LANGUAGE sql AS 'SELECT now()::text'",
    "f(x int) RETURNS date STABLE LANGUAGE sql BEGIN ATOMIC SELECT CURRENT_DATE + x; END",
    "f(x int) RETURNS interval STABLE LANGUAGE sql AS 'SELECT age(timestamp ''2020-01-01'') * x'",
    "f(x int) RETURNS text STABLE LANGUAGE sql AS 'SELECT CURRENT_USER::text'",
    "f(x int) RETURNS float8 STABLE LANGUAGE sql AS 'SELECT random() * x'",
    "f(x int) RETURNS int STABLE LANGUAGE plpgsql AS 'BEGIN RETURN x; END'",
    "f(x int) RETURNS int STABLE LANGUAGE sql AS 'SELECT public.plus_one(x)'",
    "f(x int) RETURNS text STABLE LANGUAGE sql AS 'SELECT ''ok''::public.mood::text'",
    "f(x int) RETURNS int STABLE SECURITY DEFINER LANGUAGE sql AS 'SELECT x'",
    "f(x int) RETURNS int STABLE SET search_path = public LANGUAGE sql AS 'SELECT x'",
    "f(x anyelement) RETURNS anyelement STABLE LANGUAGE sql AS 'SELECT x'",
    "f(x int) RETURNS int STABLE LANGUAGE sql AS 'SELECT 1; END; DROP TABLE public.notes; SELECT 2'",
    "f(x int) RETURNS int LANGUAGE sql AS 'SELECT x'",
    "f(x int) RETURNS timestamptz STABLE LANGUAGE sql AS 'SELECT ''now''::text::timestamptz'",
    "f(x int) RETURNS text STABLE LANGUAGE sql BEGIN ATOMIC SELECT at_default(x); END",
    "f(x int, at timestamptz DEFAULT now()) RETURNS text STABLE LANGUAGE plpgsql AS 'BEGIN RETURN at::text; END'",
)
PROMISED = (
    "f(x int) RETURNS int STABLE LANGUAGE plpgsql AS 'BEGIN RETURN x; END'",
    "f(x int) RETURNS int STABLE SECURITY DEFINER LANGUAGE sql AS 'SELECT x'",
    "f(x int) RETURNS int STABLE LANGUAGE sql AS 'SELECT public.plus_one(x)'",
    "f(x int) RETURNS int STABLE LANGUAGE sql BEGIN ATOMIC SELECT unseen(x); END",
)
BROKEN = (
    "f(x int) RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN x; END'",
    "f(x int) RETURNS bigint STABLE LANGUAGE sql AS 'SELECT count(*) FROM public.orders WHERE id > x'",
    "f(x int) RETURNS bigint STABLE LANGUAGE sql BEGIN ATOMIC SELECT unseen(x) + reads(x); END",
    "f(x int) RETURNS text STABLE LANGUAGE sql AS 'SELECT now()::text'",
    "f(x int, at timestamptz DEFAULT now()) RETURNS int STABLE LANGUAGE plpgsql AS 'BEGIN RETURN x; END'",
)
HELPERS = """
CREATE FUNCTION unseen(x int) RETURNS int STABLE LANGUAGE plpgsql AS 'BEGIN RETURN x; END';
CREATE FUNCTION at_default(x int, at timestamptz DEFAULT now()) RETURNS text IMMUTABLE LANGUAGE sql AS 'SELECT ''x''';
CREATE FUNCTION kept(x int) RETURNS int STABLE LANGUAGE sql AS 'SELECT x';
CREATE FUNCTION reads(x int) RETURNS bigint STABLE LANGUAGE sql AS 'SELECT count(*) FROM public.orders'
"""


@pytest.mark.parametrize(("function", "proven"), [*((f, True) for f in PROVEN), *((f, False) for f in NOT_PROVEN)])
def test_a_body_proves_it_or_not(shop: Shop, function: str, proven: bool) -> None:
    shop.execute("SET check_function_bodies = off")
    shop.execute(HELPERS.encode())
    shop.execute(f"CREATE FUNCTION {function}".encode())
    found = compile_query(shop, "SELECT f(id) AS v FROM customers")
    assert (found.refusal is None) == proven, found.refusal
    if not proven:
        assert found.refusal is not None
        assert found.refusal.code == ("PT202" if "DEFAULT now()" in function else "PT203")
    assert shop.execute("SELECT count(*) FROM notes").fetchone() == (4,)
    twins = shop.execute("SELECT count(*) FROM pg_proc WHERE proname = 'pgtrickle_twin'").fetchone()
    assert twins == (0,)


@pytest.mark.parametrize(("function", "kept"), [*((f, True) for f in PROMISED), *((f, False) for f in BROKEN)])
def test_a_promise_counts_unless_it_is_seen_to_be_broken(shop: Shop, function: str, kept: bool) -> None:
    shop.execute(HELPERS.encode())
    shop.execute(f"CREATE FUNCTION {function}".encode())
    found = compile_query(shop, "SELECT f(id) AS v FROM customers", settings={TRUSTING: "on"})
    assert (found.refusal is None) == kept, found.refusal
    assert compile_query(shop, "SELECT f(id) AS v FROM customers", settings={}).refusal is not None


@pytest.mark.parametrize(
    ("expression", "refused"),
    [
        ("'now'::text::timestamptz", True),
        ("(' Today'::text)::date", True),
        ("('to' || 'day')::date", True),
        ("('t' || 'o'::text || 'DAY')::date", True),
        ("reverse('yadot')::date", True),
        ("('2024-01-01 12:00 ' || 'IST')::timestamptz", False),
        ("coalesce(note, 'tomorrow')::timestamp", True),
        ("ARRAY['now'::text]::timestamptz[]", True),
        ("'{now}'::text::timestamptz[]", True),
        ("'[now,]'::text::tstzrange", True),
        ("timestamptz_in('now', 0, -1)", True),
        ("at_default(id)", True),
        ("at_default(x => id)", True),
        ("at_default(id, placed)", False),
        ("at_default(at => placed, x => id)", False),
        ("'2024-01-01'::text::timestamptz", False),
        ("note::timestamptz", False),
        ("string_to_array(note, ',')::date[]", False),
        ("array_append(string_to_array(note, ','), 'today')::date[]", True),
        ("concat(note, 'nowhere')", False),
        ("'now'::timestamptz", False),
    ],
)
def test_a_clock_that_no_call_tells_of(shop: Shop, expression: str, refused: bool) -> None:
    shop.execute(HELPERS.encode())
    shop.execute(f"CREATE VIEW hiding AS SELECT {expression} AS v FROM orders".encode())
    for query in (f"SELECT {expression} AS v FROM orders", "SELECT v FROM hiding"):
        found = compile_query(shop, query)
        assert (found.refusal is not None) == refused, found.refusal
        if found.refusal is not None:
            assert found.refusal.code == "PT202"
