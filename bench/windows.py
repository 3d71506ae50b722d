"""Window functions over many partitions: a warm refresh of 100 changes for each, against the join + aggregate refresh
over the same table, and over a tenth of the rows; then one long partition, with a row appended and one in its middle.
`PGTRICKLE_BENCH_ROWS` says how many rows there are, twenty in a partition; the long one has half as many.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import pgtrickle
from bench.harness import Connection, Figure, db, median, seconds
from pgtrickle.api import Trickle

ROWS = int(os.environ.get("PGTRICKLE_BENCH_ROWS", "2000000"))
IN_A_PARTITION = 20
ROUNDS, WARM_UP = 10, 5
PEER = "join_and_aggregate"
OVER = "OVER (PARTITION BY series ORDER BY value DESC, id)"
RANKED = f"SELECT id, series, rank() {OVER} AS place, row_number() {OVER} AS n FROM reading"
SUMMED = f"SELECT id, series, sum(value) {OVER} AS total, count(*) {OVER} AS n FROM reading"
TOP = (
    f"SELECT id, series, value FROM (SELECT id, series, value, row_number() {OVER} AS n FROM reading) AS q WHERE n <= 3"
)
QUERIES = {
    PEER: "SELECT s.id, s.name, count(*) AS n, sum(r.value) AS total FROM reading r JOIN series s ON s.id = r.series "
    "GROUP BY s.id, s.name",
    "ranks": RANKED,
    "running_sum": SUMMED,
    "top_3": TOP,
    "whole_partitions": "SELECT id, series, sum(value) OVER (PARTITION BY series) AS total FROM reading",
}
LONG = {"ranks": RANKED, "running_sum": SUMMED, "top_3": TOP}


def run(dsn: str) -> Iterator[Figure]:
    sizes = (ROWS // 10, ROWS)
    taken = {}
    for size in sizes:
        with db.open_session(dsn) as connection, pgtrickle.connect(dsn) as trickle:
            taken[size] = _many_partitions(connection, trickle, size)
        for name, time in taken[size].items():
            yield Figure(f"{size:,} rows, {name}: differential refresh of 100 changes", time, "s")
    small, large = (taken[size] for size in sizes)
    for name in QUERIES:
        if name != PEER:
            yield Figure(f"{name}: against {PEER}", large[name] / large[PEER], "×", "at most 2")
        yield Figure(f"{name}: growth with ten times the rows", large[name] / small[name], "×", "at most 1.3")
    with db.open_session(dsn) as connection, pgtrickle.connect(dsn) as trickle:
        yield from _one_partition(connection, trickle, ROWS // 2)


def _many_partitions(connection: Connection, trickle: Trickle, size: int) -> Mapping[str, float]:
    """The median time of a refresh, for each query."""
    _create(connection, size, size // IN_A_PARTITION)
    times: dict[str, list[float]] = {name: [] for name in QUERIES}
    for name, query in QUERIES.items():
        trickle.create_stream_table(name, query, refresh_mode="DIFFERENTIAL")
    for round_ in range(WARM_UP + ROUNDS):
        _change_hundred(connection, round_, size)
        for name in QUERIES:
            time = seconds(lambda name=name: trickle.refresh_stream_table(name))  # type: ignore[misc]
            if round_ >= WARM_UP:
                times[name].append(time)
    _end(trickle, QUERIES)
    return {name: median(found) for name, found in times.items()}


def _one_partition(connection: Connection, trickle: Trickle, size: int) -> Iterator[Figure]:
    """All rows in one series; the order is that of falling values, so the least value is the last."""
    _create(connection, size, 1)
    for name, query in LONG.items():
        trickle.create_stream_table(name, query, refresh_mode="DIFFERENTIAL")
    appended: dict[str, list[float]] = {name: [] for name in LONG}
    for round_ in range(WARM_UP + ROUNDS):
        connection.execute("INSERT INTO reading VALUES (%s, 0, -1 - %s, 'new')", (size + 1 + round_, round_))
        for name in LONG:
            time = seconds(lambda name=name: trickle.refresh_stream_table(name))  # type: ignore[misc]
            if round_ >= WARM_UP:
                appended[name].append(time)
    for name, found in appended.items():
        yield Figure(f"one partition of {size:,} rows, {name}: a row appended", median(found), "s")
    middle = "(SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY value) FROM reading)"
    connection.execute(db.statement(f"INSERT INTO reading SELECT {size + 1000}, 0, {middle}, 'new'"))
    for name in LONG:
        time = seconds(lambda name=name: trickle.refresh_stream_table(name))  # type: ignore[misc]
        yield Figure(f"one partition of {size:,} rows, {name}: a row in the middle", time, "s")
    _end(trickle, LONG)


def _end(trickle: Trickle, queries: Mapping[str, str]) -> None:
    """The answers are right, and were not computed in full."""
    different = [found for found in trickle.verify() if not found.equal]
    assert not different, different
    for name in queries:
        assert trickle.history(name, 1)[0].action == "DIFFERENTIAL"
        trickle.drop_stream_table(name)


def _create(connection: Connection, size: int, partitions: int) -> None:
    connection.execute("DROP TABLE IF EXISTS reading, series CASCADE")
    connection.execute("CREATE TABLE series (id int PRIMARY KEY, name text NOT NULL)")
    connection.execute("CREATE TABLE reading (id int PRIMARY KEY, series int NOT NULL, value numeric(12,4), note text)")
    connection.execute(
        "INSERT INTO series SELECT g, 'series ' || g FROM generate_series(0, %s) AS g", (partitions - 1,)
    )
    connection.execute(
        "INSERT INTO reading SELECT g, g %% %s, (g::bigint * 7919 %% 1000003) / 100.0, 'note ' || g %% 1000 "
        "FROM generate_series(1, %s) AS g",
        (partitions, size),
    )
    connection.execute("CREATE INDEX ON reading (series)")
    connection.execute("VACUUM ANALYZE reading")
    connection.execute("VACUUM ANALYZE series")


def _change_hundred(connection: Connection, round_: int, size: int) -> None:
    """40 inserts, 40 updates, 20 deletes, spread over the partitions, in one transaction."""
    partitions, base = size // IN_A_PARTITION, size + 1 + round_ * 40
    low = 1 + round_ * 60
    with connection.transaction():
        connection.execute(
            "INSERT INTO reading SELECT g, g * 31 %% %s, g %% 10000, 'new' FROM generate_series(%s::int, %s::int) AS g",
            (partitions, base, base + 39),
        )
        connection.execute("UPDATE reading SET value = value + 1 WHERE id BETWEEN %s AND %s", (low, low + 39))
        connection.execute("DELETE FROM reading WHERE id BETWEEN %s AND %s", (low + 40, low + 59))
