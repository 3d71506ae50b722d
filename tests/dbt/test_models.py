"""What a project does with stream tables, day by day."""

from __future__ import annotations

import json
import re
import subprocess

import pytest

from tests.dbt.shop import ENVIRONMENT, ORDERS, ROOT, TOTALS, Shop

PAGE = ROOT / "docs" / "dbt.md"
SCHEMA_FILE = """
models:
  - name: totals
    description: what each 'customer' has bought
    config: {persist_docs: {relation: true, columns: true}, grants: {select: [pg_monitor]}}
    columns:
      - name: customer
        description: the "name"
        data_tests: [unique, not_null]
    data_tests:
      - pgtrickle.is_fresh: {arguments: {within: 1 hour}}
"""


def test_build_test_docs_and_snapshot_by_the_command_line(shop: Shop) -> None:
    """The real program, as somebody types it."""
    shop.write(
        orders_csv=ORDERS,
        totals=f"{{{{ config(primary_key='customer', indexes=[{{'columns': ['total', 'n']}}]) }}}} {TOTALS}",
        rich="select customer from {{ ref('totals') }} where total > 11",
        report="{{ config(materialized='table') }} select count(*) as n from {{ ref('rich') }}",
        schema_yml=SCHEMA_FILE,
    )
    shop.put(
        "snapshots/kept.yml",
        """
        snapshots:
          - {name: kept, relation: ref('totals'), config: {unique_key: customer, strategy: check, check_cols: all}}
        """,
    )
    for verb in (["build"], ["docs", "generate"]):
        done = subprocess.run(
            [ENVIRONMENT / "bin" / "dbt", "--no-version-check", "--no-use-colors", *verb],
            cwd=shop.place,
            env=shop.environment(),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Deprecat" not in done.stdout
    assert shop.rows("SELECT customer, total, n FROM totals ORDER BY 1") == [("ann", 11, 2), ("bob", 20, 1)]
    assert shop.rows("SELECT n FROM report") == [(1,)]
    assert shop.rows("SELECT customer FROM kept ORDER BY 1") == [("ann",), ("bob",)]
    catalog = json.loads((shop.place / "target" / "catalog.json").read_text())["nodes"]["model.shop.totals"]
    assert catalog["metadata"]["comment"] == "what each 'customer' has bought"
    assert catalog["columns"]["customer"]["comment"] == 'the "name"'
    assert shop.rows("SELECT has_table_privilege('pg_monitor', 'totals', 'SELECT')") == [(True,)]
    assert shop.rows("SELECT indexdef FROM pg_indexes WHERE schemaname = 'shop' AND indexname ~ '^pgtrickle_dbt'")[0][
        0
    ].endswith("USING btree (total, n)")  # type: ignore[attr-defined]


def test_a_second_run_does_nothing(shop: Shop) -> None:
    shop.put("macros/twice.sql", "{% macro nothing() %}{% endmacro %}")
    shop.write(
        orders_csv=ORDERS,
        totals="{{ config(primary_key=['customer'], indexes=[{'columns': ['lower(customer)'], 'unique': true}],"
        " protect=true, refresh_mode='differential', cdc_mode='trigger', diamond_consistency='none') }}\n" + TOTALS,
        parts="select o.id, o.amount::numeric(10,2) as amount, t.total, 'x'::varchar(5) as mark, null as unknown"
        " from {{ ref('orders') }} as o join {{ ref('totals') }} as t using (customer) -- as it is\n",
        once="{{ config(schedule='calculated', refresh_mode='FULL') }} select {{ target.schema }}.half(1) as h",
        now="{{ config(refresh_mode='IMMEDIATE') }} select distinct customer from {{ ref('orders') }}",
    )
    shop.dbt("seed")
    shop.served.run("CREATE FUNCTION shop.half(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1 / 2'")
    shop.dbt("run")
    state = "SELECT pgt_relid, pgt_id, source_fingerprint FROM pgtrickle.pgt_stream_tables ORDER BY 1"
    indexes = "SELECT indexrelid FROM pg_index WHERE indrelid::regclass::text IN ('totals', 'parts') ORDER BY 1"
    before = (
        shop.rows(state),
        shop.rows(indexes),
        [shop.computed(name) for name in ("totals", "parts", "once", "now")],
    )
    asked = len(shop.requests())
    again = shop.dbt("run")
    assert {name: again.message(name) for name in again.results} == {
        "totals": "REFRESH (NO_DATA)",
        "parts": "REFRESH (NO_DATA)",
        "once": "REFRESH (FULL)",  # which is what this mode does
        "now": "skip",
    }
    assert set(shop.requests()[asked:]) == {"refresh"}
    computed = [shop.computed(name) for name in ("totals", "parts", "once", "now")]
    computed[2] -= 1
    assert (shop.rows(state), shop.rows(indexes), computed) == before
    for name in ("totals", "parts", "now"):
        shop.is_equal(name)


@pytest.mark.long
def test_what_comes_after_sees_what_went_before(shop: Shop) -> None:
    """Though the schedule is an hour; unless the model says that it may wait."""
    shop.write(
        orders_csv=ORDERS,
        totals=TOTALS,
        lazy="{{ config(refresh_on_run=false) }} " + TOTALS,
        report="{{ config(materialized='table') }} select sum(total) as s from {{ ref('totals') }}",
    )
    shop.dbt("build")
    shop.write(orders_csv=ORDERS + "4,eve,100\n")
    done = shop.dbt("build")
    assert (done.message("totals"), done.message("lazy")) == ("REFRESH (REINITIALIZE)", "skip")  # dbt truncates
    assert shop.rows("SELECT s FROM report") == [(131,)]
    assert shop.rows("SELECT sum(total) FROM lazy") == [(31,)]
    shop.is_equal()


@pytest.mark.long
def test_many_models_at_once_and_some_of_them(shop: Shop) -> None:
    names = [f"m{number}" for number in range(8)]
    shop.write(
        orders_csv=ORDERS,
        **{name: f"select id, amount + {name[1:]} as a from {{{{ ref('orders') }}}}" for name in names},
    )
    shop.dbt("build", "--threads", "4")
    for name in names:
        shop.is_equal(name)
    done = shop.dbt("run", "--select", "m3")
    assert list(done.results) == ["m3"]


@pytest.mark.long
def test_hooks(shop: Shop) -> None:
    """Those before and after a transaction, too; what one before makes, the query may use."""
    shop.write(
        orders_csv=ORDERS,
        totals="""
        {{ config(
            pre_hook=["create table if not exists shop.rates (rate int)", "insert into shop.rates select 2",
                      {'sql': 'vacuum shop.orders', 'transaction': false}],
            post_hook=["create index if not exists by_hand on {{ this }} (a)",
                       {'sql': 'vacuum {{ this }}', 'transaction': false}]) }}
        select o.id, o.amount * r.rate as a from {{ ref('orders') }} as o cross join shop.rates as r
        """,
    )
    shop.dbt("build")
    assert shop.rows("SELECT sum(a) FROM totals") == [(62,)]
    shop.dbt("run")  # twice as many rates, since the hook does that
    assert shop.rows("SELECT sum(a) FROM totals") == [(124,)]
    assert shop.rows("SELECT count(*) FROM pg_indexes WHERE indexname = 'by_hand'") == [(1,)]


@pytest.mark.long
@pytest.mark.parametrize("header", ["set local search_path = shop, public;"])
def test_a_header_is_run_before_the_query_is_read(shop: Shop, header: str) -> None:
    shop.write(
        orders_csv=ORDERS,
        totals="{{ config(sql_header='" + header + "') }} select count(*) as n from orders -- {{ ref('orders') }}",
    )
    shop.dbt("build")
    assert shop.rows("SELECT n FROM totals") == [(3,)]


@pytest.mark.long
def test_an_empty_run_proves_the_query_and_the_next_one_mends_it(shop: Shop) -> None:
    shop.write(orders_csv=ORDERS, totals=TOTALS)
    shop.dbt("seed")
    shop.dbt("run", "--empty")
    assert shop.rows("SELECT count(*) FROM totals") == [(0,)]
    assert shop.rows("SELECT schedule, refresh_mode FROM pgtrickle.pgt_stream_tables") == [(None, "FULL")]
    done = shop.dbt("run")
    assert done.message("totals").startswith("ALTER STREAM TABLE")
    assert shop.rows("SELECT schedule, refresh_mode, effective_mode FROM pgtrickle.pgt_stream_tables") == [
        ("1h", "AUTO", "DIFFERENTIAL")
    ]
    shop.is_equal()


@pytest.mark.long
def test_a_sample_is_a_query_like_others(shop: Shop) -> None:
    shop.write(
        orders_csv="id,at\n1,2024-01-01\n2,2024-02-01\n",
        orders_yml="seeds: [{name: orders, config: {event_time: at, column_types: {at: timestamp}}}]",
        late="select id from {{ ref('orders') }}",
    )
    shop.dbt("seed")
    shop.dbt("run", "--sample", '{"start": "2024-01-15", "end": "2024-03-01"}')
    assert shop.rows("SELECT id FROM late") == [(2,)]
    shop.dbt("run")
    assert shop.rows("SELECT id FROM late ORDER BY 1") == [(1,), (2,)]


def test_the_page_of_the_documentation(shop: Shop) -> None:
    """Its files are a project that runs."""
    found = re.findall(
        r"^```(?:sql|yaml)\n(?:--|#) <project>/(models/\S+)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    assert [name for name, _ in found] == [
        "models/region_totals.sql",
        "models/good_regions.sql",
        "models/schema.yml",
        "models/sources.yml",
    ]
    shop.write(
        customers_csv="id,region\n1,north\n2,south\n",
        orders_csv="id,customer,amount\n1,1,99\n2,1,2\n3,2,5\n",
    )
    for name, text in found:
        shop.put(name, text)
    shop.dbt("build")
    assert shop.rows("SELECT region FROM good_regions") == [("north",)]
    shop.dbt("source", "freshness")
    said = shop.dbt("--log-level", "info", "run-operation", "drop_removed_stream_tables").said
    assert "every stream table has a model" in said


LONG = "a_name_of_sixty_three_characters_" + "x" * 30
NAMES = [
    ("shop_2", "MixedCase"),
    ("Shop Two", "with space. and-dash"),
    ("shopüß", "ärger 100%s {x}"),
    ("shop_2", "order"),
    ("shop_2", LONG),
    ("shop_2", "ä" * 31),
]


@pytest.mark.long
@pytest.mark.parametrize(("schema", "alias"), NAMES, ids=[str(number) for number in range(len(NAMES))])
def test_names(shop: Shop, schema: str, alias: str) -> None:
    """Schema and alias of the config, in each way that a table comes to be."""
    shop.put(
        "macros/schema.sql", "{% macro generate_schema_name(name, node) %}{{ name or target.schema }}{% endmacro %}"
    )
    name = f'"{schema}"."{alias}"'
    config = f"schema='{schema}', alias='{alias}', primary_key='\"Cust, \"\"omer\"', indexes=[{{'columns': ['n']}}]"
    query = TOTALS.replace("select customer", 'select customer as "Cust, ""omer"')
    shop.write(
        orders_csv=ORDERS, totals=f"{{{{ config(materialized='table', schema='{schema}', alias='{alias}') }}}} {query}"
    )
    shop.dbt("build")
    for message in ("CREATE STREAM TABLE (FULL)", "REFRESH (NO_DATA)"):
        shop.write(totals=f"{{{{ config({config}) }}}} {query}", reader="select n from {{ ref('totals') }}")
        assert shop.dbt("run").message("totals") == message
        assert shop.kind(name) == "stream table"
    shop.is_equal(name)
    shop.write(totals=f"{{{{ config({config}) }}}} {query} having count(*) > 1", reader="")
    assert shop.dbt("run").message("totals").startswith("ALTER STREAM TABLE query")
    shop.is_equal(name)
