"""Stream tables over stream tables, of which some are kept by writers and some by refreshes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pgtrickle.config import Settings
from pgtrickle.errors import Error
from pgtrickle.refresh.refresher import Refresher
from pgtrickle.refresh.units import refresh_table
from tests.immediate.telling import Told
from tests.refresh.stacked import tick

TOTALS = "SELECT region, sum(amount) AS total, count(*) AS n FROM orders GROUP BY region"
LARGE = "SELECT region, total FROM totals WHERE total > 60"
SHARES = "SELECT o.id, o.amount, t.total FROM orders o JOIN totals t ON t.region = o.region"


@pytest.fixture
def orders(story18: Told) -> Told:
    story18.run(
        "CREATE TABLE orders (id int PRIMARY KEY, region int, amount int)",
        "CREATE INDEX ON orders (region)",
        "INSERT INTO orders SELECT g, g % 4, g FROM generate_series(1, 20) g",
    )
    return story18


def test_in_one_transaction(orders: Told) -> None:
    """Diamonds too: one of them reads the base table and the other stream table."""
    orders.create("totals", TOTALS)
    orders.create("large", LARGE)
    orders.create("shares", SHARES)
    orders.create("top", "SELECT s.id, l.total FROM shares s JOIN large l USING (total) ORDER BY s.id LIMIT 3")
    orders.write(
        "INSERT INTO orders VALUES (30, 1, 50)",
        "UPDATE orders SET region = 3 WHERE id < 6",
        "DELETE FROM orders WHERE region = 3",
        "INSERT INTO orders SELECT g, g % 6, g FROM generate_series(100, 700) g",
        "DELETE FROM orders WHERE id > 120",
        "TRUNCATE orders",
        "INSERT INTO orders VALUES (1, 1, 80)",
    )
    with orders.connection.transaction(force_rollback=True):
        orders.write("UPDATE orders SET amount = 3", "TRUNCATE orders")
    orders.right()
    assert all(found.equal for found in orders.trickle.verify())


def test_a_refresh_writes_too(orders: Told) -> None:
    """One that a refresh keeps is a source like any other."""
    totals = TOTALS
    orders.trickle.create_stream_table("totals", totals, refresh_mode="DIFFERENTIAL")
    orders.create("large", LARGE)
    for full in (False, True):
        orders.write("UPDATE orders SET amount = amount + 30 WHERE id % 3 = 0", "DELETE FROM orders WHERE region = 1")
        orders.trickle.refresh_stream_table("totals", full=full)
        orders.right()
        assert orders.value("SELECT count(*) FROM large") != 0
    orders.trickle.alter_stream_table("totals", query=f"{totals} HAVING count(*) > 1")
    orders.trickle.refresh_stream_table("large")
    orders.right()
    assert orders.stream("large").is_immediate


def test_read_by_a_refresh(orders: Told) -> None:
    orders.create("totals", TOTALS)
    orders.create("large", LARGE, mode="DIFFERENTIAL")
    orders.create("shares", SHARES, mode="DIFFERENTIAL")
    orders.run("UPDATE orders SET amount = amount + 30 WHERE id % 3 = 0", "DELETE FROM orders WHERE region = 1")
    orders.check("large")
    orders.check("shares")
    orders.trickle.drop_stream_table("totals", cascade=True)


@pytest.fixture
def refresher(orders: Told) -> Iterator[Refresher]:
    made = Refresher(orders.dsn, Settings(), lambda: pytest.fail("Spark was asked for"))
    made.without_spark = True
    yield made
    made.close()


def test_in_a_tick_it_is_read_as_base_tables_are(orders: Told, refresher: Refresher) -> None:
    """At the snapshot of the tick, whatever is written meanwhile."""
    orders.create("totals", TOTALS)
    orders.create("shares", SHARES, mode="DIFFERENTIAL")
    shares, totals = orders.stream("shares").pgt_id, orders.stream("totals").pgt_id
    orders.run("UPDATE orders SET amount = amount + 30 WHERE id % 3 = 0")
    then = orders.rows(f"{SHARES} ORDER BY 1")
    with tick(orders.dsn) as at:
        orders.run("DELETE FROM orders WHERE region = 2", "INSERT INTO orders VALUES (90, 1, 1)")
        refresh_table(refresher, totals, tick=at)
        refresh_table(refresher, shares, tick=at)
    assert orders.rows("SELECT * FROM shares ORDER BY 1") == then
    with tick(orders.dsn) as at:
        refresh_table(refresher, shares, tick=at)
    orders.right()


def test_into_the_mode_and_out_of_it_between_ticks(orders: Told, refresher: Refresher) -> None:
    """A reader that has seen changes of the other after a tick's snapshot must not see them twice."""
    orders.create("totals", TOTALS, mode="DIFFERENTIAL")
    orders.create("shares", SHARES, mode="DIFFERENTIAL")
    orders.trickle.create_stream_table(
        "lagging", LARGE, refresh_mode="DIFFERENTIAL"
    )  # for it changes stay in the buffer
    shares, totals = orders.stream("shares").pgt_id, orders.stream("totals").pgt_id
    for mode in ("IMMEDIATE", "DIFFERENTIAL", "IMMEDIATE"):
        orders.run("UPDATE orders SET amount = amount + 30 WHERE id % 3 = 0")
        with tick(orders.dsn) as at:
            orders.run("UPDATE orders SET amount = amount + 1 WHERE region = 1")
            refresh_table(refresher, totals, tick=at)
            assert refresh_table(refresher, shares, tick=at)[shares].action in {"DIFFERENTIAL", "NO_DATA"}, mode
        orders.trickle.alter_stream_table("totals", refresh_mode=mode)
        refresher.compiled.clear()  # as another service would
        orders.run("UPDATE orders SET amount = amount + 2 WHERE region = 2")
        refresh_table(refresher, totals)
        result = refresh_table(refresher, shares)[shares]
        assert result.action == "DIFFERENTIAL", (mode, result)
        orders.right()
        assert all(found.equal for found in orders.trickle.verify("shares", "totals"))


def test_beside_one_that_a_refresh_keeps(orders: Told, refresher: Refresher) -> None:
    """What a reader has read of either is on record as one: nothing that is written during the tick is passed over."""
    orders.create("totals", TOTALS)
    orders.create("counts", "SELECT region, count(*) AS n FROM orders GROUP BY region", mode="DIFFERENTIAL")
    query = "SELECT o.id, t.total, c.n FROM orders o JOIN totals t USING (region) JOIN counts c USING (region)"
    orders.create("all_of_it", query, mode="DIFFERENTIAL")
    ids = [orders.stream(name).pgt_id for name in ("counts", "all_of_it")]
    for _ in range(2):
        orders.run("INSERT INTO orders SELECT max(id) + 1, 1, 5 FROM orders")
        with tick(orders.dsn) as at:
            orders.run("UPDATE orders SET amount = amount + 1 WHERE region = 1")
            for pgt_id in ids:
                refresh_table(refresher, pgt_id, tick=at)
            orders.run("DELETE FROM orders WHERE id = (SELECT max(id) FROM orders WHERE region = 2)")
        for pgt_id in ids:
            assert refresh_table(refresher, pgt_id)[pgt_id].action == "DIFFERENTIAL"
        orders.right()


def test_no_circle(orders: Told) -> None:
    orders.create("totals", TOTALS)
    orders.create("large", LARGE)
    with pytest.raises(Error, match="PT"):
        orders.trickle.alter_stream_table("totals", query="SELECT region, total, total AS n FROM large")
    orders.write("INSERT INTO orders VALUES (30, 1, 50)")
