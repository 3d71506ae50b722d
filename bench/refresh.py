"""Join + aggregate over two sizes of the shop: a warm refresh of 100 changes against REFRESH MATERIALIZED VIEW;
then 100 thousand changes in one window; then a refresh with nothing to do.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pgtrickle
from bench.harness import Connection, Figure, create_shop, db, median, seconds
from pgtrickle.api import Trickle

QUERY = (
    "SELECT c.region, count(*) AS orders, sum(o.amount) AS amount, avg(o.amount) AS mean "
    "FROM orders o JOIN customers c ON c.id = o.customer GROUP BY c.region"
)
DETAIL = (
    "SELECT c.id, c.name, count(*) AS orders, sum(o.amount) AS amount "
    "FROM orders o JOIN customers c ON c.id = o.customer GROUP BY c.id, c.name"
)
SIZES = (200_000, 2_000_000)
CUSTOMERS = 100_000
ROUNDS = 12
WARM_UP = 8


def run(dsn: str) -> Iterator[Figure]:
    times: dict[int, float] = {}
    for size in SIZES:
        with db.open_session(dsn) as connection, pgtrickle.connect(dsn) as trickle:
            create_shop(connection, size, CUSTOMERS)
            times[size] = yield from _one_size(connection, trickle, size)
            if size == SIZES[-1]:
                yield from _large_window(connection, trickle)
                yield from _nothing(trickle)
            trickle.drop_stream_table("totals")
            trickle.drop_stream_table("per_customer")
    growth = times[SIZES[1]] / times[SIZES[0]]
    yield Figure("growth of the differential refresh, 200 thousand to 2 million rows", growth, "×", "at most 1.3")


def _one_size(connection: Connection, trickle: Trickle, size: int) -> Generator[Figure, None, float]:
    created = seconds(lambda: trickle.create_stream_table("totals", QUERY, refresh_mode="DIFFERENTIAL"))
    yield Figure(f"{size:,} orders: create and populate (FULL on Spark)", created, "s")
    trickle.create_stream_table("per_customer", DETAIL, refresh_mode="DIFFERENTIAL")
    connection.execute(f"CREATE MATERIALIZED VIEW peer_totals AS {QUERY}")
    connection.execute(f"CREATE MATERIALIZED VIEW peer_customers AS {DETAIL}")
    ours: dict[str, list[float]] = {"totals": [], "per_customer": []}
    peers: dict[str, list[float]] = {"peer_totals": [], "peer_customers": []}
    for round_ in range(ROUNDS + WARM_UP):
        change_hundred(connection, round_, size)
        for table in ours:
            taken = seconds(lambda table=table: trickle.refresh_stream_table(table))  # type: ignore[misc]
            if round_ >= WARM_UP:
                ours[table].append(taken)
        if round_ >= WARM_UP + ROUNDS - 5:
            for peer in peers:
                peers[peer].append(seconds(lambda peer=peer: connection.execute(f"REFRESH MATERIALIZED VIEW {peer}")))  # type: ignore[misc]
    _require_equal(trickle)
    for (table, mine), (peer, theirs) in zip(ours.items(), peers.items(), strict=True):
        yield Figure(f"{size:,} orders, {table}: differential refresh of 100 changes", median(mine), "s")
        yield Figure(f"{size:,} orders, {peer}: REFRESH MATERIALIZED VIEW", median(theirs), "s")
        goal = "at most 0.25" if size == SIZES[-1] else ""
        yield Figure(f"{size:,} orders, {table}: ours / theirs", median(mine) / median(theirs), "×", goal)
    return median(ours["totals"])


def change_hundred(connection: Connection, round_: int, size: int) -> None:
    """40 inserts, 40 updates, 20 deletes, in one transaction."""
    base = size + 1 + round_ * 40
    with connection.transaction():
        connection.execute(
            "INSERT INTO orders SELECT g, 1 + g %% 100000, 12.34 FROM generate_series(%s::int, %s::int) AS g",
            (base, base + 39),
        )
        connection.execute(
            "UPDATE orders SET amount = amount + 1 WHERE id BETWEEN %s AND %s", (1 + round_ * 60, 40 + round_ * 60)
        )
        connection.execute("DELETE FROM orders WHERE id BETWEEN %s AND %s", (41 + round_ * 60, 60 + round_ * 60))


def _large_window(connection: Connection, trickle: Trickle) -> Iterator[Figure]:
    for attempt in range(3):
        low = 1_000_000 + attempt * 100_000
        connection.execute("UPDATE orders SET amount = amount + 1 WHERE id >= %s AND id < %s", (low, low + 100_000))
        taken = seconds(lambda: trickle.refresh_stream_table("totals"))
        trickle.refresh_stream_table("per_customer")
    _require_equal(trickle)
    yield Figure("100,000 changed rows in one window: totals", taken, "s")
    yield Figure("100,000 changed rows in one window: changes a second", 100_000 / taken, "rows/s", "at least 50,000")


def _nothing(trickle: Trickle) -> Iterator[Figure]:
    trickle.refresh_stream_table("totals")
    taken = [seconds(lambda: trickle.refresh_stream_table("totals")) for _ in range(30)]
    assert all(row.action == "NO_DATA" for row in trickle.history("totals", 30))
    yield Figure("a refresh with nothing to do", median(taken) * 1000, "ms", "under 20, no Spark job")


def _require_equal(trickle: Trickle) -> None:
    different = [found for found in trickle.verify() if not found.equal]
    assert not different, different
