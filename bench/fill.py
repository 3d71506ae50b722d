"""First fills of the 22 TPC-H tables against `CREATE MATERIALIZED VIEW` of the same query in the same run: as AUTO
fills them, and on Spark, as a mode that is asked for by name does.

Ours are from the call to its return, with the definition and capture of the sources, and with the state that later
refreshes need; Spark has been started before. PGTRICKLE_BENCH_FILL_SCALES names the scales.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial

import pgtrickle
from bench.harness import Connection, Figure, database, db, seconds
from bench.ticks import NEVER
from bench.tpch import QUERIES, load
from pgtrickle.api import Trickle

SCALES = tuple(os.environ.get("PGTRICKLE_BENCH_FILL_SCALES", "0.1,1").split(","))
MODES = ("AUTO", "DIFFERENTIAL")
WARM_UP = "SELECT n_regionkey, count(*) AS n FROM nation GROUP BY n_regionkey"


def run(dsn: str) -> Iterator[Figure]:
    for scale in SCALES:
        with database(dsn, f"fill_{scale.replace('.', '_')}") as own:
            load(own, scale)
            with db.open_session(own) as connection, pgtrickle.connect(own) as trickle:
                yield from _measure(connection, trickle, scale)


def _measure(connection: Connection, trickle: Trickle, scale: str) -> Iterator[Figure]:
    for _ in range(2):
        _fill(connection, trickle, "warm", WARM_UP, "DIFFERENTIAL")
    sums = dict.fromkeys((*MODES, "theirs"), 0.0)
    goal = "at most 4" if scale == SCALES[-1] else ""
    for name, query in QUERIES.items():
        theirs = seconds(partial(_materialize, connection, query))
        sums["theirs"] += theirs
        yield Figure(f"scale {scale}, {name}: CREATE MATERIALIZED VIEW", theirs * 1000, "ms")
        for mode in MODES:
            ours, way, state = _fill(connection, trickle, name, query, mode)
            sums[mode] += ours
            what = f"scale {scale}, {name}, {mode} ({way}; state of {state:,} rows)"
            yield Figure(f"{what}: first fill / theirs", ours / theirs, "×", goal)
    for mode in MODES:
        ratio, last = sums[mode] / sums["theirs"], "at most 2" if scale == SCALES[-1] else ""
        yield Figure(f"scale {scale}, {mode}: sum of first fills / sum of theirs", ratio, "×", last)


def _materialize(connection: Connection, query: str) -> None:
    connection.execute("DROP MATERIALIZED VIEW IF EXISTS peer")
    connection.execute(db.statement(f"CREATE MATERIALIZED VIEW peer AS {query}"))


def _fill(connection: Connection, trickle: Trickle, name: str, query: str, mode: str) -> tuple[float, str, int]:
    """Seconds, the way it took, and the rows of its state. It is equal to the view, if there is one, and dropped."""
    taken = seconds(lambda: trickle.create_stream_table(name, query, schedule=NEVER, refresh_mode=mode))
    way = trickle.history(name, 1)[0].way
    rows = sum(
        int(str(db.scalar(connection, f"SELECT count(*) FROM {table}")))
        for (table,) in connection.execute(
            "SELECT format('pgtrickle_state.%I', relname) FROM pg_class"
            " WHERE relnamespace = 'pgtrickle_state'::regnamespace AND relkind = 'r'"
        ).fetchall()
    )
    if name != "warm":
        _require_equal(connection, name)
    trickle.drop_stream_table(name)
    return taken, str(way), rows


def _require_equal(connection: Connection, name: str) -> None:
    one, other = f"TABLE {name}", "TABLE peer"
    differing = f"(({one}) EXCEPT ALL ({other})) UNION ALL (({other}) EXCEPT ALL ({one}))"
    assert not db.scalar(connection, f"SELECT count(*) FROM ({differing}) AS differing"), name
