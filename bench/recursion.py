"""Recursions over a tree: a refresh after a subtree of about 100 nodes moved, against evaluating the query again.

PGTRICKLE_BENCH_NODES sets the size of the tree; each node but the last ones has ten below it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pgtrickle
from bench.harness import Connection, Figure, db, median, seconds
from pgtrickle.api import Trickle

NODES = int(os.environ.get("PGTRICKLE_BENCH_NODES", "1000000"))
ROUNDS = 12
WARM_UP = 30  # Spark's first minute is of its own, though it takes no part in the rounds
QUERIES = {
    "below": "WITH RECURSIVE r(id, root) AS (SELECT id, id FROM node WHERE parent IS NULL"
    " UNION SELECT n.id, r.root FROM r JOIN node n ON n.parent = r.id) SELECT id, root FROM r",
    "paths": "WITH RECURSIVE r(id, depth, path) AS (SELECT id, 0, id::text FROM node WHERE parent IS NULL"
    " UNION ALL SELECT n.id, r.depth + 1, r.path || '/' || n.id FROM r JOIN node n ON n.parent = r.id)"
    " SELECT id, depth, path FROM r",
}


def run(dsn: str) -> Iterator[Figure]:
    with db.open_session(dsn) as connection, pgtrickle.connect(dsn) as trickle:
        _create_tree(connection)
        for name, query in QUERIES.items():
            created = seconds(lambda: trickle.create_stream_table(name, query, refresh_mode="DIFFERENTIAL"))  # noqa: B023
            yield Figure(f"{NODES:,} nodes, {name}: create and populate", created, "s")
            connection.execute(f"CREATE MATERIALIZED VIEW peer_{name} AS {query}")
        yield from _moves(connection, trickle)


def _create_tree(connection: Connection) -> None:
    connection.execute("DROP TABLE IF EXISTS node CASCADE")
    connection.execute("CREATE TABLE node (id int PRIMARY KEY, parent int)")
    connection.execute("INSERT INTO node SELECT g, nullif(g / 10, 0) FROM generate_series(1, %s) AS g", (NODES,))
    connection.execute("CREATE INDEX ON node (parent)")
    connection.execute("VACUUM ANALYZE node")


def _moves(connection: Connection, trickle: Trickle) -> Iterator[Figure]:
    ours: dict[str, list[float]] = {name: [] for name in QUERIES}
    for round_ in range(WARM_UP + ROUNDS):
        moved = _move(connection, round_)
        for name, times in ours.items():
            taken = seconds(lambda name=name: trickle.refresh_stream_table(name))  # type: ignore[misc]
            if round_ >= WARM_UP:
                times.append(taken)
    for name, times in ours.items():
        refresh = f"REFRESH MATERIALIZED VIEW peer_{name}"
        theirs = [seconds(lambda refresh=refresh: connection.execute(refresh)) for _ in range(3)]  # type: ignore[misc]
        whole = seconds(lambda name=name: trickle.refresh_stream_table(name, full=True))  # type: ignore[misc]
        different = [found for found in trickle.verify(name) if not found.equal]
        assert not different, different
        yield Figure(f"{NODES:,} nodes, {name}: refresh, a subtree of {moved} moved", median(times), "s")
        yield Figure(f"{NODES:,} nodes, {name}: REFRESH MATERIALIZED VIEW", median(theirs), "s")
        yield Figure(f"{NODES:,} nodes, {name}: full refresh", whole, "s")
        goal = "at most 0.1"
        yield Figure(f"{NODES:,} nodes, {name}: ours / evaluated again", median(times) / median(theirs), "×", goal)


def _move(connection: Connection, round_: int) -> int:
    """Puts a node with two levels below it under another one; returns how many nodes are moved."""
    lowest = 1
    while lowest * 1000 + 999 <= NODES:
        lowest *= 10
    node, target = lowest + 2 * round_, lowest + 2 * round_ + 1
    connection.execute("UPDATE node SET parent = %s WHERE id = %s", (target, node))
    row = connection.execute(
        "WITH RECURSIVE r(id) AS (SELECT %s::int UNION ALL SELECT n.id FROM r JOIN node n ON n.parent = r.id)"
        " SELECT count(*) FROM r",
        (node,),
    ).fetchone()
    assert row is not None
    return int(str(row[0]))
