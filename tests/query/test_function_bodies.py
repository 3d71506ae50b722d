"""Which STABLE functions of a user a query may call: those whose body in SQL reads nothing but its arguments."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

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
)
HELPERS = """
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
        assert found.refusal.code == "PT203"
    assert shop.execute("SELECT count(*) FROM notes").fetchone() == (4,)
    twins = shop.execute("SELECT count(*) FROM pg_proc WHERE proname = 'pgtrickle_twin'").fetchone()
    assert twins == (0,)
