"""Aggregates over many groups: a warm refresh of 100 changes for each, against the join + aggregate refresh over the
same table, and over a tenth of the rows. `PGTRICKLE_BENCH_ROWS` says how many rows there are; a group has twenty.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import pgtrickle
from bench.harness import Connection, Figure, db, median, seconds
from pgtrickle.api import Trickle

ROWS = int(os.environ.get("PGTRICKLE_BENCH_ROWS", "2000000"))
IN_A_GROUP = 20
ROUNDS, WARM_UP = 10, 5
PEER = "join_and_aggregate"
QUERIES = {
    PEER: "SELECT s.id, s.name, count(*) AS n, sum(r.value) AS total FROM reading r JOIN series s ON s.id = r.series "
    "GROUP BY s.id, s.name",
    "string_agg": "SELECT series, string_agg(note, ',' ORDER BY id) AS notes FROM reading GROUP BY series",
    "array_agg": "SELECT series, array_agg(value ORDER BY id) AS list FROM reading GROUP BY series",
    "stddev": "SELECT series, stddev(value) AS deviation, avg(value) AS mean FROM reading GROUP BY series",
    "mode": "SELECT series, mode() WITHIN GROUP (ORDER BY note) AS most FROM reading GROUP BY series",
    "percentile": "SELECT series, percentile_disc(0.9) WITHIN GROUP (ORDER BY value) AS p90 FROM reading "
    "GROUP BY series",
    "first_of_each": "SELECT DISTINCT ON (series) series, id, value FROM reading ORDER BY series, value DESC, id",
    "top_three": "SELECT s.id, t.id AS reading, t.value FROM series s CROSS JOIN LATERAL "
    "(SELECT r.id, r.value FROM reading r WHERE r.series = s.id ORDER BY r.value DESC, r.id LIMIT 3) AS t",
}


def run(dsn: str) -> Iterator[Figure]:
    sizes = (ROWS // 10, ROWS)
    taken = {}
    for size in sizes:
        with db.open_session(dsn) as connection, pgtrickle.connect(dsn) as trickle:
            taken[size] = _one_size(connection, trickle, size)
        for name, time in taken[size].items():
            yield Figure(f"{size:,} rows, {name}: differential refresh of 100 changes", time, "s")
    small, large = (taken[size] for size in sizes)
    for name in QUERIES:
        if name != PEER:
            yield Figure(f"{name}: against {PEER}", large[name] / large[PEER], "×", "at most 2")
        yield Figure(f"{name}: growth with ten times the rows", large[name] / small[name], "×", "at most 1.3")


def _one_size(connection: Connection, trickle: Trickle, size: int) -> Mapping[str, float]:
    """The median time of a refresh, for each query."""
    _create(connection, size)
    times: dict[str, list[float]] = {name: [] for name in QUERIES}
    for name, query in QUERIES.items():
        trickle.create_stream_table(name, query, refresh_mode="DIFFERENTIAL")
    for round_ in range(WARM_UP + ROUNDS):
        _change_hundred(connection, round_, size)
        for name in QUERIES:
            time = seconds(lambda name=name: trickle.refresh_stream_table(name))  # type: ignore[misc]
            if round_ >= WARM_UP:
                times[name].append(time)
    different = [found for found in trickle.verify() if not found.equal]
    assert not different, different
    for name in QUERIES:
        assert trickle.history(name, 1)[0].action == "DIFFERENTIAL"
        trickle.drop_stream_table(name)
    return {name: median(found) for name, found in times.items()}


def _create(connection: Connection, size: int) -> None:
    groups = size // IN_A_GROUP
    connection.execute("DROP TABLE IF EXISTS reading, series CASCADE")
    connection.execute("CREATE TABLE series (id int PRIMARY KEY, name text NOT NULL)")
    connection.execute("CREATE TABLE reading (id int PRIMARY KEY, series int NOT NULL, value numeric(12,4), note text)")
    connection.execute("INSERT INTO series SELECT g, 'series ' || g FROM generate_series(0, %s) AS g", (groups - 1,))
    connection.execute(
        "INSERT INTO reading SELECT g, g %% %s, (g::bigint * 7919 %% 1000003) / 100.0, 'note ' || g %% 1000 "
        "FROM generate_series(1, %s) AS g",
        (groups, size),
    )
    connection.execute("CREATE INDEX ON reading (series)")
    connection.execute("VACUUM ANALYZE reading")
    connection.execute("VACUUM ANALYZE series")


def _change_hundred(connection: Connection, round_: int, size: int) -> None:
    """40 inserts, 40 updates, 20 deletes, spread over the groups, in one transaction."""
    groups, base = size // IN_A_GROUP, size + 1 + round_ * 40
    low = 1 + round_ * 60
    with connection.transaction():
        connection.execute(
            "INSERT INTO reading SELECT g, g * 31 %% %s, 12.34, 'new' FROM generate_series(%s::int, %s::int) AS g",
            (groups, base, base + 39),
        )
        connection.execute("UPDATE reading SET value = value + 1 WHERE id BETWEEN %s AND %s", (low, low + 39))
        connection.execute("DELETE FROM reading WHERE id BETWEEN %s AND %s", (low + 40, low + 59))
