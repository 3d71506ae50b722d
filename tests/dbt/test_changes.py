"""Models that change: their query, their options, their materialization, what they read."""

from __future__ import annotations

import pytest

from tests.dbt.shop import ORDERS, TOTALS, Shop

BY_HAND = (
    "CREATE INDEX by_hand ON totals (n)",
    "COMMENT ON TABLE totals IS 'by hand'",
    "GRANT SELECT ON totals TO PUBLIC",
)
KEPT = (
    "SELECT to_regclass('by_hand') IS NOT NULL, obj_description('totals'::regclass),"
    " has_table_privilege('pg_monitor', 'totals', 'SELECT')"
)


def test_another_query_takes_effect_in_the_same_table(shop: Shop) -> None:
    shop.write(
        orders_csv=ORDERS,
        totals="{{ config(primary_key='customer', indexes=[{'columns': ['total']}]) }} " + TOTALS,
        reader="select * from {{ ref('totals') }}",
        seen="{{ config(materialized='view') }} select customer from {{ ref('totals') }}",
    )
    shop.dbt("build")
    shop.served.run(*BY_HAND)
    before = shop.relid("totals")
    changed = TOTALS.replace("sum(amount) as total", "sum(amount)::text as total, max(id) as newest")
    shop.write(totals="{{ config(primary_key='customer', indexes=[{'columns': ['newest']}]) }} " + changed)
    done = shop.dbt("run")
    assert done.message("totals") == "ALTER STREAM TABLE query, primary_key"
    assert done.message("reader") == "ALTER STREAM TABLE query"  # whose star means more now
    assert shop.relid("totals") == before
    assert shop.rows(KEPT) == [(True, "by hand", True)]
    assert shop.rows("SELECT newest FROM reader ORDER BY 1") == [(2,), (3,)]
    assert shop.rows("SELECT count(*) FROM pg_constraint WHERE conrelid = 'totals'::regclass AND contype = 'p'") == [
        (1,)
    ]
    ours = (
        "SELECT pg_get_indexdef(indexrelid) FROM pg_index JOIN pg_class ON oid = indexrelid"
        " WHERE relname ~ '^pgtrickle_dbt'"
    )
    assert [str(text).rpartition("(")[2] for (text,) in shop.rows(ours)] == ["newest)"]
    for name in ("totals", "reader"):
        shop.is_equal(name)


@pytest.mark.long
def test_options_are_altered_without_computing_anything(shop: Shop) -> None:
    shop.write(orders_csv=ORDERS, totals=TOTALS)
    shop.dbt("build")
    computed = shop.computed()
    options = {
        "schedule='2h'": "schedule",
        "schedule='2h', primary_key='customer'": "primary_key",
        "schedule='2h', protect=true": "primary_key, protect",
        "schedule='2h', cdc_mode='trigger', diamond_consistency='none', diamond_schedule_policy='slowest'": "cdc_mode,"
        " diamond_consistency, diamond_schedule_policy, protect",
        "schedule='calculated', refresh_mode='IMMEDIATE'": "cdc_mode, diamond_consistency, diamond_schedule_policy,"
        " refresh_mode, schedule",
        "refresh_mode='DIFFERENTIAL', meta={'protect': true}": "protect, refresh_mode, schedule",
    }
    for config, changed in options.items():
        shop.write(totals=f"{{{{ config({config}) }}}} {TOTALS}")
        message = shop.dbt("run").message("totals").removeprefix("ALTER STREAM TABLE ")
        assert ", ".join(sorted(message.split(", "))) == changed
        assert shop.dbt("run").message("totals") == ("skip" if "IMMEDIATE" in config else "REFRESH (NO_DATA)")
    assert shop.computed() == computed
    shop.is_equal()


@pytest.mark.long
def test_what_to_do_about_changes(shop: Shop) -> None:
    shop.write(orders_csv=ORDERS, totals=TOTALS)
    shop.dbt("build")
    state = "SELECT schedule, defining_query FROM pgtrickle.pgt_stream_tables"
    before = shop.rows(state)
    changed = TOTALS.replace("count(*)", "max(id)")
    shop.write(totals="{{ config(schedule='5h', on_configuration_change='continue') }} " + changed)
    done = shop.dbt("run")
    assert done.message("totals") == "skip"
    assert "differs from its model in schedule, query" in done.said
    shop.write(totals="{{ config(schedule='5h', on_configuration_change='fail') }} " + changed)
    failed = shop.dbt("run", ok=False)
    assert "differs from its model in schedule, query" in failed.said + str(failed.results)
    assert shop.rows(state) == before
    shop.write(totals="{{ config(schedule='5h', on_configuration_change='apply') }} " + changed)
    shop.dbt("run")
    assert shop.rows("SELECT schedule FROM pgtrickle.pgt_stream_tables") == [("5h",)]
    shop.is_equal()


@pytest.mark.long
def test_full_refresh_computes_again_and_readers_stay(shop: Shop) -> None:
    shop.write(orders_csv=ORDERS, totals=TOTALS, reader="select sum(total) as s from {{ ref('totals') }}")
    shop.dbt("build")
    relid, reader, computed = shop.relid("totals"), shop.relid("reader"), shop.computed()
    shop.served.run("UPDATE totals SET total = 0")  # by hand, which nobody should
    done = shop.dbt("run", "--full-refresh", "--select", "totals")
    assert done.message("totals") == "ALTER STREAM TABLE query"
    assert (shop.relid("totals"), shop.relid("reader")) == (relid, reader)
    assert shop.computed() > computed
    assert shop.stream_tables() == ["reader", "totals"]
    shop.is_equal()


@pytest.mark.long
def test_a_view_on_a_column_that_goes(shop: Shop) -> None:
    """Is in the way, and dropped by a full refresh, as dbt does with tables."""
    view = "{{ config(materialized='view') }} select n from {{ ref('totals') }}"
    shop.write(orders_csv=ORDERS, totals=TOTALS, seen=view)
    shop.dbt("build")
    shop.write(totals=TOTALS.replace(" as n", " as m"), seen=view.replace("select n", "select m"))
    failed = shop.dbt("run", ok=False)
    assert "PT440" in failed.message("totals")
    assert "Hint:" in failed.message("totals")
    shop.dbt("run", "--full-refresh")
    assert shop.rows("SELECT m FROM seen ORDER BY 1") == [(1,), (2,)]


@pytest.mark.parametrize("mode", ["AUTO", pytest.param("IMMEDIATE", marks=pytest.mark.long)])
def test_from_table_to_stream_table_to_view_and_back(shop: Shop, mode: str) -> None:
    stream = f"{{{{ config(refresh_mode='{mode}') }}}} {TOTALS}"
    shop.write(
        orders_csv=ORDERS,
        totals="{{ config(materialized='table') }} " + TOTALS,
        reader="select sum(total) as s from {{ ref('totals') }}",
        seen="{{ config(materialized='view') }} select customer from {{ ref('totals') }}",
    )
    shop.dbt("build")
    ways = {
        "table": "{{ config(materialized='table') }} " + TOTALS,
        "view": "{{ config(materialized='view') }} " + TOTALS,
        "stream table": stream,
    }
    for kind in ("stream table", "view", "stream table", "table"):
        shop.write(totals=ways[kind])
        done = shop.dbt("run")
        assert shop.kind("totals") == kind
        assert done.message("reader").startswith("ALTER STREAM TABLE query; ")  # what it reads was replaced
        assert shop.rows("SELECT s FROM reader") == [(31,)]
        assert shop.rows("SELECT count(*) FROM seen") == [(2,)]
        if kind == "stream table":
            shop.is_equal("totals")
            modes = shop.rows("SELECT refresh_mode FROM pgtrickle.pgt_stream_tables WHERE pgt_name = 'totals'")
            assert modes == [(mode,)]
            shop.served.run("INSERT INTO orders VALUES (9, 'ann', 5)", "DELETE FROM orders WHERE id = 9")
        assert shop.rows("SELECT relname FROM pg_class WHERE relname ~ '__dbt_' AND relkind <> 'i'") == []
    shop.served.until(lambda: shop.stream_tables() == ["reader"], shop.stream_tables)
    shop.is_equal("reader")


@pytest.mark.long
@pytest.mark.parametrize("above", ["table", "view", "view_in_place", "incremental", "ephemeral", "materialized_view"])
def test_models_of_each_kind_as_what_is_read(shop: Shop, above: str) -> None:
    """dbt makes another table or view at each run, so that the stream table is defined again; by a view in place, or an
    incremental table, it goes on as it was."""
    steady = above in {"view_in_place", "incremental", "ephemeral"}
    shop.write(
        orders_csv=ORDERS,
        middle=f"{{{{ config(materialized='{above}') }}}} select id, customer, amount from {{{{ ref('orders') }}}}",
        totals=TOTALS.replace("orders", "middle"),
    )
    shop.dbt("build")
    computed = shop.computed()
    again = shop.dbt("run")
    shop.is_equal()
    assert again.message("totals").startswith("REFRESH" if steady or above == "materialized_view" else "ALTER"), again
    if above in {"view_in_place", "ephemeral"}:
        assert shop.computed() == computed
        shop.write(
            middle=f"{{{{ config(materialized='{above}') }}}} select id, customer, amount + 1 as amount"
            " from {{ ref('orders') }}"
        )
        shop.dbt("run")
        assert shop.rows("SELECT sum(total) FROM totals") == [(34,)]
    if above == "view_in_place":
        shop.write(middle="{{ config(materialized='view_in_place') }} select amount, customer from {{ ref('orders') }}")
        assert shop.dbt("run").message("totals").startswith("ALTER STREAM TABLE query; ")
        shop.is_equal()


@pytest.mark.long
def test_models_that_are_gone(shop: Shop) -> None:
    shop.write(orders_csv=ORDERS, totals=TOTALS, other="select * from {{ ref('totals') }}")
    shop.dbt("build")
    shop.served.run("CREATE SCHEMA shop_elsewhere")
    shop.served.create("shop_elsewhere.mine", "SELECT id FROM shop.orders", "1h")
    shop.write(other="", totals="", renamed=TOTALS)
    shop.dbt("run")
    said = shop.dbt("--log-level", "info", "run-operation", "drop_removed_stream_tables").said
    assert "would drop the stream table shop.other" in said
    assert shop.stream_tables() == ["mine", "other", "renamed", "totals"]
    shop.dbt("run-operation", "drop_removed_stream_tables", "--args", "{dry_run: false}")
    assert shop.stream_tables() == ["mine", "renamed"]
    said = shop.dbt("--log-level", "info", "run-operation", "drop_removed_stream_tables").said
    assert "every stream table has a model" in said
