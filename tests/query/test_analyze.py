"""PostgreSQL's analysis as data: names, types, sources, functions, errors with their place."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from pgtrickle.errors import Error, QueryError
from pgtrickle.query.analyse.analyze import analyze

Shop = psycopg.Connection[Any]


def test_stars_are_expanded_and_names_qualified(shop: Shop) -> None:
    analysis = analyze(shop, "SELECT c.*, o.id AS order_id FROM customers c, orders o;")
    assert [column.name for column in analysis.columns] == ["id", "name", "region", "credit", "mood", "order_id"]
    assert "public.customers c" in analysis.normalised
    assert not analysis.normalised.endswith(";")


def test_types_keep_their_modifiers(shop: Shop) -> None:
    analysis = analyze(
        shop,
        "SELECT credit, mood, region, code, unit, tags, note, body, sum(amount), now() - placed AS age "
        "FROM customers, orders, items, notes GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 10",
    )
    types = {column.name: column.type for column in analysis.columns}
    assert {name: type.name for name, type in types.items()} == {
        "credit": "numeric(10,2)",
        "mood": "public.mood",
        "region": "character varying(10)",
        "code": "character(4)",
        "unit": "public.price",
        "tags": "text[]",
        "note": "text",
        "body": "text",
        "sum": "bigint",
        "age": "interval",
    }
    assert (types["note"].collation, types["note"].deterministic) == ('pg_catalog."C"', True)
    assert (types["body"].collation, types["body"].deterministic) == ('pg_catalog."POSIX"', True)
    assert types["region"].collation is None


def test_sources_are_found_through_views_with_the_columns_used(shop: Shop) -> None:
    analysis = analyze(shop, "SELECT who FROM rich")
    used = {str(source.table): [column.name for column in source.columns] for source in analysis.sources}
    assert used == {
        "public.customers": ["id", "name", "region", "credit"],
        "public.orders": ["id", "customer"],
        "public.items": ["order_id", "amount", "unit"],
    }
    assert [str(view.table) for view in analysis.views] == ["public.rich", "public.north", "public.totals"]
    keys = {source.table.name: source.primary_key for source in analysis.sources}
    assert keys == {"customers": ("id",), "orders": ("id",), "items": ()}
    assert analysis.incremental


def test_a_source_lists_all_its_columns_and_its_partitions(shop: Shop) -> None:
    shop.execute(
        "CREATE TABLE log (at date, n int, twice int GENERATED ALWAYS AS (n * 2) STORED) PARTITION BY RANGE (at)"
    )
    shop.execute("CREATE TABLE log_1 PARTITION OF log FOR VALUES FROM ('2024-01-01') TO ('2025-01-01')")
    (source,) = analyze(shop, "SELECT n FROM log").sources
    assert source.kind == "p"
    assert len(source.children) == 1
    assert [(column.name, column.generated) for column in source.attributes] == [("at", ""), ("n", ""), ("twice", "s")]


def test_nothing_stays_behind(shop: Shop) -> None:
    before = shop.execute("SELECT count(*), current_setting('search_path') FROM pg_class").fetchone()
    analyze(shop, "SELECT 1 AS one FROM customers", search_path="public, pg_catalog")
    with pytest.raises(QueryError):
        analyze(shop, "SELECT nothing FROM customers")
    assert shop.execute("SELECT count(*), current_setting('search_path') FROM pg_class").fetchone() == before


def test_an_error_leaves_the_callers_transaction_usable(shop: Shop) -> None:
    with shop.transaction():
        shop.execute("CREATE TABLE fresh (x int)")
        with pytest.raises(QueryError):
            analyze(shop, "SELECT y FROM fresh")
        assert analyze(shop, "SELECT x FROM fresh").sources[0].table.name == "fresh"


def test_search_path_decides_which_table_is_meant(shop: Shop) -> None:
    shop.execute("CREATE SCHEMA other; CREATE TABLE other.customers (only_here int)")
    assert analyze(shop, "SELECT * FROM customers", search_path="other").columns[0].name == "only_here"
    assert analyze(shop, "SELECT * FROM customers").columns[0].name == "id"


@pytest.mark.parametrize(
    ("query", "code", "at"),
    [
        ("SELECT id,\n  nam FROM customers", "PT106", "line 2, column 3"),
        ("SELECT *\nFROM nowhere", "PT106", "line 2, column 6"),
        ("SELECT id FORM customers, x", "PT100", "line 1, column 16"),
        ("SELECT 1 AS a; DROP TABLE customers", "PT101", "line 1, column 16"),
        ("SELECT id FROM customers; -- fine\n SELECT 2", "PT101", "line 2, column 2"),
        ("DELETE FROM customers RETURNING id", "PT102", "line 1, column 1"),
        ("WITH d AS (DELETE FROM customers RETURNING id) SELECT id FROM d", "PT102", None),
        ("SELECT id INTO x FROM customers", "PT102", None),
        ("SELECT id FROM customers\nWHERE id = $1", "PT103", "line 2, column 12"),
        ("SELECT $1", "PT103", "line 1, column 8"),
        ("SELECT c.id, o.id FROM customers c, orders o", "PT104", None),
        ("SELECT ROW(id, name) AS r FROM customers", "PT105", None),
        ("SELECT id FROM customers WITH CHECK OPTION", "PT100", "line 1, column 26"),
        ("  ", "PT100", None),
        ("-- nothing", "PT102", None),
    ],
)
def test_what_postgresql_refuses_says_where(shop: Shop, query: str, code: str, at: str | None) -> None:
    with pytest.raises(QueryError) as caught:
        analyze(shop, query)
    assert caught.value.code == code
    if at is not None:
        assert caught.value.at == at
    assert shop.execute("SELECT count(*) FROM customers").fetchone() == (5,)


def test_a_temporary_table_is_no_source(shop: Shop) -> None:
    shop.execute("CREATE TEMP TABLE mine (x int)")
    with pytest.raises(QueryError, match="mine is temporary") as caught:
        analyze(shop, "SELECT x FROM mine")
    assert caught.value.code == "PT108"


def test_a_role_that_may_not_read_is_told_so(shop: Shop) -> None:
    shop.execute(
        "CREATE ROLE nobody_here; GRANT USAGE ON SCHEMA public TO nobody_here; GRANT SELECT ON north TO nobody_here"
    )
    try:
        with shop.transaction(force_rollback=True):
            shop.execute("SET LOCAL ROLE nobody_here")
            with pytest.raises(Error) as caught:
                analyze(shop, "SELECT id FROM customers")
            assert caught.value.code == "PT107"
            (reason,) = analyze(shop, "SELECT id FROM north").reasons
            assert reason.code == "PT208"
    finally:
        shop.execute("DROP OWNED BY nobody_here; DROP ROLE nobody_here")


@pytest.mark.parametrize(
    ("query", "code", "at"),
    [
        ("SELECT id, random() AS r FROM customers", "PT201", "line 1, column 12"),
        ("SELECT id FROM orders\nWHERE placed < clock_timestamp()", "PT201", "line 2, column 16"),
        ("SELECT id FROM orders WHERE placed < statement_timestamp()", "PT202", "line 1, column 38"),
        ("SELECT CURRENT_TIME AT TIME ZONE 'UTC' FROM orders", "PT202", None),
        ("SELECT current_user AS u FROM orders", "PT202", "line 1, column 8"),
        ("SELECT age(xmin) FROM orders", "PT202", "line 1, column 8"),
        ("SELECT current_setting('x') FROM orders", "PT202", "line 1, column 8"),
        ("SELECT note::regclass::text FROM orders", "PT202", None),
        ("SELECT has_table_privilege(note, 'SELECT') FROM orders", "PT202", "line 1, column 8"),
        ("SELECT any_moment(id) FROM orders", "PT203", "line 1, column 8"),
        ("SELECT relname FROM pg_class", "PT206", "line 1, column 21"),
        ("SELECT table_name::text FROM information_schema.tables", "PT206", None),
    ],
)
def test_what_only_full_refresh_can_do_is_a_reason_not_an_error(
    shop: Shop, query: str, code: str, at: str | None
) -> None:
    analysis = analyze(shop, query)
    assert not analysis.incremental
    assert code in {reason.code for reason in analysis.reasons}
    if at is not None:
        assert analysis.reasons[0].at == at
    assert all(reason.hint for reason in analysis.reasons)


@pytest.mark.parametrize(
    "expression",
    [
        "to_char(placed, 'YYYY')",
        "date_trunc('day', placed)",
        "placed::date",
        "placed > '2024-01-01'",
        "concat(note, id)",
        "format('%s', id)",
        "jsonb_build_object('a', id)",
        "age(placed, placed)",
        "plus_one(id)",
    ],
)
def test_functions_of_arguments_and_settings_are_fine(shop: Shop, expression: str) -> None:
    reasons = analyze(shop, f"SELECT {expression} AS x FROM orders").reasons
    assert [str(reason) for reason in reasons] == []


def test_functions_in_views_count(shop: Shop) -> None:
    shop.execute("CREATE VIEW recent AS SELECT id FROM orders WHERE placed > statement_timestamp()")
    (reason,) = analyze(shop, "SELECT id FROM recent").reasons
    assert reason.code == "PT202"


@pytest.mark.parametrize(
    "expression",
    ["now()", "transaction_timestamp()", "CURRENT_DATE", "CURRENT_TIME(2)", "LOCALTIMESTAMP", "age(placed)"],
)
def test_the_clock_is_no_obstacle(shop: Shop, expression: str) -> None:
    shop.execute(f"CREATE OR REPLACE VIEW clocked AS SELECT id, {expression} AS x FROM orders".encode())
    for source in ("clocked", "orders"):
        analysis = analyze(shop, f"SELECT id{', x' if source == 'clocked' else f', {expression}'} FROM {source}")
        assert analysis.incremental
        assert (analysis.reads_clock, analysis.views_read_clock) == (True, source == "clocked")
    assert not analyze(shop, "SELECT id FROM orders").reads_clock


def test_a_meaning_that_hangs_on_search_path_is_refused(shop: Shop) -> None:
    """NULLIF, USING and the like are printed without their operator's schema."""
    shop.execute("""
        CREATE TYPE pair AS (a int, b int);
        CREATE FUNCTION same_a(pair, pair) RETURNS bool LANGUAGE sql IMMUTABLE AS 'SELECT ($1).a = ($2).a';
        CREATE OPERATOR = (LEFTARG = pair, RIGHTARG = pair, FUNCTION = same_a);
        CREATE TABLE pairs (p pair, q pair);
    """)
    with pytest.raises(QueryError) as caught:
        analyze(shop, "SELECT NULLIF(p, q) AS n FROM pairs")
    assert caught.value.code == "PT109"
    assert analyze(shop, "SELECT p = q AS same FROM pairs").incremental


def test_a_merged_column_that_a_subquery_hides_is_refused(shop: Shop) -> None:
    """PostgreSQL's text of the view has `a.id > id`, which is `a.id > a.id`."""
    both = "FROM orders o FULL JOIN customers c USING (id) AS j"
    for subquery in ("SELECT count(*) FROM orders a WHERE a.id > j.id", "SELECT j.id FROM customers LIMIT 1"):
        with pytest.raises(QueryError) as caught:
            analyze(shop, f"SELECT j.id, ({subquery}) AS n {both}")
        assert caught.value.code == "PT109"
    named = f"FROM (SELECT j.id AS either {both}) q"
    assert analyze(
        shop, f"SELECT q.either, (SELECT count(*) FROM orders a WHERE a.id > q.either) AS n {named}"
    ).incremental
