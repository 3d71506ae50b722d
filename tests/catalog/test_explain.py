"""explain_st and explain_delta: how a stream table follows, what it has cost, told by SQL to whoever may look."""

from __future__ import annotations

import pytest

from pgtrickle import db
from pgtrickle.api import Trickle

JOINED = "SELECT c.region, sum(o.amount) AS total FROM orders o JOIN customers c ON c.id = o.customer GROUP BY c.region"


@pytest.fixture
def trickle(database18: str, monkeypatch: pytest.MonkeyPatch) -> Trickle:
    monkeypatch.setenv("PGTRICKLE_POSTGRES_ROWS", "100000")
    with db.open_session(database18) as conn:
        conn.execute(
            "CREATE TABLE customers (id int PRIMARY KEY, region text); CREATE TABLE orders (id int PRIMARY KEY,"
            " customer int, amount numeric(10, 2)); INSERT INTO customers VALUES (7, 'north');"
            "INSERT INTO orders VALUES (1, 7, 10)"
        )
    return Trickle(database18)


def test_each_source_has_its_delta(trickle: Trickle) -> None:
    with trickle, db.open_session(trickle.dsn) as conn:
        trickle.create_stream_table("totals", JOINED)

        def plans(name: str) -> dict[str, str]:
            rows = conn.execute("SELECT * FROM pgtrickle.explain_delta(%s)", (name,)).fetchall()
            return {str(changed): str(plan) for changed, plan in rows}

        found = plans("totals")
        assert list(found) == ["public.customers", "public.orders"]
        for source, plan in found.items():
            other = ({"public.customers", "public.orders"} - {source}).pop()
            assert f"Δ{source}" in plan or f"Δ {source}" in plan, plan
            assert f"Δ{other}" not in plan
            assert f"Δ {other}" not in plan
        conn.execute("ALTER TABLE orders RENAME TO sales")
        assert list(plans("totals")) == ["public.customers", "public.sales"], "under the names of today"
        trickle.create_stream_table("recent", "SELECT id FROM sales WHERE now() < '2099-01-01'", initialize=False)
        assert list(plans("recent")) == ["public.sales", "the clock"]
        trickle.create_stream_table("whole", "SELECT random() AS r FROM sales", refresh_mode="FULL", initialize=False)
        assert plans("whole") == {"all of it": "computed in full: refresh mode is FULL"}
        trickle.alter_stream_table("totals", query="SELECT region FROM customers")
        assert list(plans("totals")) == ["public.customers"]


def test_costs_are_those_of_the_history(trickle: Trickle) -> None:
    with trickle, db.open_session(trickle.dsn) as conn:
        trickle.create_stream_table("totals", JOINED)
        conn.execute("INSERT INTO orders VALUES (2, 7, 5)")
        trickle.refresh_stream_table("totals")
        told = {str(k): str(v) for k, v in conn.execute("SELECT * FROM pgtrickle.explain_st('totals')")}
        assert {"operators", "delta plan", "state", "changes waiting"} <= told.keys()
        differential, full = told["costs so far"].splitlines()
        assert differential.startswith("DIFFERENTIAL: 1 refreshes, ")
        assert differential.endswith(", 1 changes read, 2 rows written")
        assert full.startswith("FULL: 1 refreshes, ")
        first, phases = told["last refresh"].splitlines()
        assert first.startswith("DIFFERENTIAL, COMPLETED in ")
        assert phases.startswith("of that ")
