"""Contracts that are broken, queries that are refused, a service that is not there, and freshness."""

from __future__ import annotations

import pytest
from psycopg.conninfo import make_conninfo

from pgtrickle import db, embedded
from pgtrickle.catalog.install import install
from tests.conftest import fresh_database
from tests.dbt.shop import ORDERS, TOTALS, Shop, write_profile
from tests.service.running import running

CONTRACT = """
models:
  - name: totals
    config: {{contract: {{enforced: true}}}}
    constraints: [{{type: primary_key, columns: [customer]}}, {{type: check, expression: "n > 0"}}]
    columns:
      - {{name: customer, data_type: text}}
      - {{name: total, data_type: "{total}", constraints: [{constraints}]}}
      - {{name: n, data_type: bigint}}
"""
ROUNDED = TOTALS.replace("sum(amount)", "sum(amount)::numeric(10,2)")


def test_a_contract_is_kept(shop: Shop) -> None:
    contract = CONTRACT.format(total="numeric(10,2)", constraints="{type: not_null}")
    shop.write(orders_csv=ORDERS, totals=ROUNDED, schema_yml=contract)
    done = shop.dbt("build")
    assert "no check constraint" in done.said
    keys = "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'totals'::regclass AND contype = 'p'"
    assert shop.rows(keys) == [("PRIMARY KEY (customer)",)]
    not_null = (
        "SELECT attname FROM pg_attribute WHERE attrelid = 'totals'::regclass AND attnum > 0 AND attnotnull ORDER BY 1"
    )
    assert shop.rows(not_null) == [("customer",), ("total",)]
    assert shop.dbt("run").message("totals") == "REFRESH (NO_DATA)"
    shop.write(schema_yml=CONTRACT.format(total="numeric", constraints=""))
    shop.dbt("run")
    assert shop.rows(not_null) == [("customer",)]


@pytest.mark.parametrize(
    ("declared", "said"),
    [("integer", "contract"), ("numeric(8,1)", "the query answers numeric(10,2)")],
    ids=["type", "precision"],
)
def test_a_broken_contract_is_refused_before_anything_is_done(shop: Shop, declared: str, said: str) -> None:
    shop.write(orders_csv=ORDERS, totals=ROUNDED, schema_yml=CONTRACT.format(total=declared, constraints=""))
    shop.dbt("seed")
    asked = len(shop.requests())
    assert said in shop.dbt("run", ok=False).message("totals")
    assert (len(shop.requests()), shop.stream_tables()) == (asked, [])


def test_a_query_that_is_refused_leaves_what_was_there(shop: Shop) -> None:
    volatile = "{{ config(refresh_mode='DIFFERENTIAL') }} select random() as r from {{ ref('orders') }}"
    shop.write(orders_csv=ORDERS, totals=volatile, old="{{ config(materialized='table') }} select 1 as one")
    shop.dbt("build", ok=False)
    failed = shop.dbt("run", "--select", "totals", ok=False).message("totals")
    assert "PT201" in failed
    assert "Hint:" in failed
    assert shop.kind("totals") == "nothing"
    shop.write(old=volatile)
    assert "PT201" in shop.dbt("run", "--select", "old", ok=False).message("old")
    assert shop.rows("SELECT one FROM old") == [(1,)]
    shop.write(totals="select nothing from {{ ref('orders') }}")
    assert 'column "nothing" does not exist' in shop.dbt("run", "--select", "totals", ok=False).message("totals")
    for wrong, code in {"schedule='soon'": "PT010", "refresh_mode='NOW'": "PT006", "primary_key='no'": "PT"}.items():
        shop.write(totals=f"{{{{ config({wrong}) }}}} {TOTALS}")
        assert code in shop.dbt("run", "--select", "totals", ok=False).message("totals")
    assert "true or false" in _message(shop, "protect='maybe'")
    assert shop.stream_tables() == []
    assert shop.rows("SELECT relname FROM pg_class WHERE relname ~ '__dbt_' AND relkind <> 'i'") == []


def _message(shop: Shop, config: str) -> str:
    shop.write(totals=f"{{{{ config({config}) }}}} {TOTALS}")
    return shop.dbt("run", "--select", "totals", ok=False).message("totals")


@pytest.mark.long
def test_freshness_is_that_of_our_status(shop: Shop) -> None:
    shop.write(
        orders_csv=ORDERS,
        totals="{{ config(schedule='1d') }} " + TOTALS,
        schema_yml="""
        models: [{name: totals, data_tests: [pgtrickle.is_fresh: {arguments: {within: 1 hour}}]}]
        sources:
          - name: kept
            schema: shop
            tables:
              - name: totals
                config:
                  loaded_at_query: "select data_timestamp from pgtrickle.stream_tables_info
                                    where (pgt_schema, pgt_name) = ('shop', 'totals')"
                  freshness: {error_after: {count: 1, period: hour}}
        """,
    )
    shop.dbt("build")
    shop.dbt("source", "freshness")
    shop.served.run("UPDATE pgtrickle.pgt_stream_tables SET data_timestamp = now() - interval '2 hours'")
    shop.dbt("source", "freshness", ok=False)
    shop.dbt("test", ok=False)
    shop.served.ask("refresh_stream_table('totals')")
    shop.dbt("test")
    shop.served.ask("pause_stream_table('totals')")
    shop.dbt("test", ok=False)
    done = shop.dbt("run")
    assert done.message("totals") == "skip"
    assert "is suspended, and was not refreshed" in done.said


@pytest.mark.long
def test_a_table_in_error_is_mended_by_a_run(shop: Shop) -> None:
    """Its source was dropped and is there again: another table, by the same name."""
    shop.write(orders_csv=ORDERS, totals=TOTALS)
    shop.dbt("build")
    shop.served.run("DROP TABLE orders")
    shop.served.until(lambda: shop.served.state("totals")[0] == "ERROR", "an error")
    shop.dbt("seed")
    assert "ERROR" in shop.dbt("run").message("totals")
    assert shop.served.state("totals")[0] == "ACTIVE"
    shop.is_equal()


def test_without_a_service(shop: Shop, server18: embedded.Server) -> None:
    """An error that says so, and nothing that a service that is started later would do. Then it goes on."""
    first = shop.served.dsn
    with fresh_database(server18) as dsn, db.open_session(dsn) as conn:
        write_profile(shop.place, dsn)
        try:
            query = "{{ config(service_timeout=1) }} " + TOTALS
            shop.write(orders_csv=ORDERS, totals=query, old="{{ config(materialized='table') }} select 1 as one")
            missing = shop.dbt("build", ok=False).message("totals")
            assert "pgtrickle is not installed in this database" in missing
            install(conn)
            for _ in range(2):
                failed = shop.dbt("run", ok=False).message("totals")
                assert "no running pgtrickle service serves the role" in failed
                assert "Hint: start one" in failed
            shop.write(old=query)
            assert "no running pgtrickle service" in shop.dbt("run", ok=False).message("old")
            assert conn.execute("SELECT one FROM shop.old").fetchall() == [(1,)]
            left = conn.execute("SELECT count(*) FROM pgtrickle.pgt_requests").fetchall()
            assert left == [(0,)]
            shop.write(old="")
            with running(dsn, shop.place, postgres_rows="100000") as service:
                service.await_event("lease_taken")
                assert shop.dbt("run").message("totals") == "CREATE STREAM TABLE (FULL)"
        finally:
            write_profile(shop.place, first)


@pytest.mark.long
@pytest.mark.parametrize("how", ["autocommit", "repeatable read"])
def test_other_ways_to_connect(shop: Shop, how: str) -> None:
    """dbt with its connections in autocommit, and a role whose transactions see only what was there as they began."""
    shop.write(orders_csv=ORDERS, totals=TOTALS)
    role = "current_user"
    try:
        if how == "autocommit":
            write_profile(shop.place, shop.served.dsn, autocommit=True)
        else:
            shop.served.run(f"ALTER ROLE {role} SET default_transaction_isolation = 'repeatable read'")
        assert shop.dbt("build").message("totals") == "CREATE STREAM TABLE (FULL)"
        shop.write(totals=TOTALS + " having count(*) > 1")
        shop.dbt("run")
        assert shop.dbt("run").message("totals") == "REFRESH (NO_DATA)"
        shop.is_equal()
    finally:
        shop.served.run(f"ALTER ROLE {role} RESET default_transaction_isolation")
        write_profile(shop.place, shop.served.dsn)


@pytest.mark.long
def test_a_role_that_no_service_serves(shop: Shop) -> None:
    shop.write(orders_csv=ORDERS, totals="{{ config(service_timeout=0.1) }} " + TOTALS)
    shop.dbt("seed")
    shop.served.run(
        "CREATE ROLE dbt_clerk LOGIN PASSWORD 'plain'",
        "GRANT pgtrickle_user TO dbt_clerk",
        "GRANT CREATE, USAGE ON SCHEMA shop TO dbt_clerk",
        "GRANT SELECT ON shop.orders TO dbt_clerk",
    )
    try:
        write_profile(shop.place, make_conninfo(shop.served.dsn, user="dbt_clerk", password="plain"))
        assert "serves the role dbt_clerk" in shop.dbt("run", ok=False).message("totals")
    finally:
        write_profile(shop.place, shop.served.dsn)
        shop.served.run("DROP OWNED BY dbt_clerk", "DROP ROLE dbt_clerk")
