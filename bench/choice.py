"""What AUTO chooses: the 22 TPC-H queries, small windows that change all eight tables. AUTO first refreshes by itself,
by what it expects and learns; then each way is measured over windows alike. The way that AUTO took at last is held
against the best of them.

PGTRICKLE_BENCH_CHOICE_SCALES names the scales.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from itertools import count

import pgtrickle
from bench.harness import Connection, Figure, database, db, median, seconds
from bench.ticks import NEVER
from bench.tpch import QUERIES, change, load
from pgtrickle.api import Trickle
from pgtrickle.refresh.ways import Way

SCALES = tuple(os.environ.get("PGTRICKLE_BENCH_CHOICE_SCALES", "0.01,0.1,1").split(","))
BY_ITSELF = 8
"""Refreshes that AUTO learns from."""
WARM_UP = 1
ROUNDS = 3
NEAR = 1.3
"""A way is as good as the best up to so many times its time."""
LEAST_MS = 5.0
"""Or if no more is lost: times of a few milliseconds vary by themselves."""
GOAL = 20


def run(dsn: str) -> Iterator[Figure]:
    for scale in SCALES:
        with database(dsn, f"choice_{scale.replace('.', '_')}") as own:
            load(own, scale)
            with db.open_session(own) as connection, pgtrickle.connect(own) as trickle:
                yield from _measure(connection, trickle, scale)


def _measure(connection: Connection, trickle: Trickle, scale: str) -> Iterator[Figure]:
    for name, query in QUERIES.items():
        trickle.create_stream_table(name, query, schedule=NEVER, refresh_mode="AUTO")
    windows = count()
    taken = _by_itself(connection, trickle, windows)
    measured = {way: _by_way(connection, trickle, way, windows) for way in Way}
    _require_equal(trickle)
    near = 0
    for name in QUERIES:
        times = {way: found[name] * 1000 for way, found in measured.items() if name in found}
        best = min(times, key=times.__getitem__)
        ratio = times[taken[name]] / times[best]
        near += ratio <= NEAR or times[taken[name]] - times[best] <= LEAST_MS
        others = ", ".join(f"{way} {ms:.0f}" for way, ms in times.items())
        yield Figure(f"scale {scale}, {name}: {taken[name]} / best ({others} ms)", ratio, "×")
    yield Figure(f"scale {scale}: queries whose way is within {NEAR} of the best", near, "queries", f"at least {GOAL}")


def _by_itself(connection: Connection, trickle: Trickle, windows: count[int]) -> dict[str, Way]:
    """The way that AUTO takes of each, at last; a try of another one does not count."""
    taken: dict[str, Way] = {}
    for _ in range(BY_ITSELF):
        change(connection, next(windows))
        for name in QUERIES:
            result = trickle.refresh_stream_table(name)
            if "to try it" not in result.reason:
                taken[name] = Way(str(trickle.history(name, 1)[0].way))
    return taken


def _by_way(connection: Connection, trickle: Trickle, way: Way, windows: count[int]) -> dict[str, float]:
    """Medians of seconds, of refreshes by that way. Where too much of a small table has changed, changes are no way."""
    times: dict[str, list[float]] = {}
    trickle._refresher.way = way
    try:
        for number in range(WARM_UP + ROUNDS):
            change(connection, next(windows))
            for name in QUERIES:
                taken = seconds(partial(trickle.refresh_stream_table, name))
                if number >= WARM_UP and trickle.history(name, 1)[0].way == way:
                    times.setdefault(name, []).append(taken)
    finally:
        trickle._refresher.way = None
    return {name: median(found) for name, found in times.items()}


def _require_equal(trickle: Trickle) -> None:
    different = [found for found in trickle.verify() if not found.equal]
    assert not different, different
