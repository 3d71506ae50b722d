"""A sliding day over many events, refreshed each second while nobody writes: what enters and what leaves is the clock's
doing alone. Against a tenth of the events in a tenth of the time, in which as many enter and leave, and against
evaluating anew. `SLIDING_EVENTS` sets how many there are."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pgtrickle
from bench.harness import Connection, Figure, db, median
from pgtrickle.api import Trickle

EVENTS = int(os.environ.get("SLIDING_EVENTS", "2000000"))
DAY = 86_400
AHEAD = 3_600
"""Seconds for which events are there that are still to come."""
ROUNDS = 12
WARM_UP = 3
QUERIES = {
    "rows": "SELECT id, kind, ts FROM {events} WHERE ts > now() - interval '{seconds} s' AND ts <= now()",
    "groups": "SELECT kind, count(*) AS n, sum(amount) AS total FROM {events}"
    " WHERE ts > now() - interval '{seconds} s' AND ts <= now() GROUP BY kind",
}


def run(dsn: str) -> Iterator[Figure]:
    with db.open_session(dsn) as connection, pgtrickle.connect(dsn) as trickle:
        _fill(connection, "events", EVENTS / DAY, DAY)
        _fill(connection, "fewer", EVENTS / DAY, DAY // 10)
        for name, query in QUERIES.items():
            many, moved = _each_second(trickle, f"day_{name}", _over(query, "events", DAY))
            yield Figure(f"{name} of a sliding day, {EVENTS} events, each second", many, "s")
            yield Figure(f"{name} that a refresh changes", moved, "rows")
            few, _ = _each_second(trickle, f"tenth_{name}", _over(query, "fewer", DAY // 10))
            yield Figure(f"{name} of a tenth of a day, a tenth of the events", few, "s")
            yield Figure(f"{name}: a day / a tenth of one", many / few, "×", "about 1")
            begun = time.perf_counter()
            trickle.refresh_stream_table(f"day_{name}", full=True)
            yield Figure(f"{name} of a sliding day, computed in full", time.perf_counter() - begun, "s")


def _fill(connection: Connection, table: str, rate: float, seconds: int) -> None:
    """Events at an even pace, from before the window to an hour from now."""
    connection.execute(db.statement(f"CREATE TABLE {table} (id bigint, kind int, amount int, ts timestamptz)"))
    rows = f"SELECT g, g % 101, g % 997, now() - interval '{seconds + AHEAD} s' + g * interval '{1 / rate:.9f} s'"
    count = int(rate * (seconds + 2 * AHEAD))
    connection.execute(db.statement(f"INSERT INTO {table} {rows} FROM generate_series(1, {count}) AS g"))
    connection.execute(db.statement(f"CREATE INDEX ON {table} (ts)"))
    connection.execute(db.statement(f"VACUUM ANALYZE {table}"))


def _over(query: str, events: str, seconds: int) -> str:
    return query.format(events=events, seconds=seconds)


def _each_second(trickle: Trickle, name: str, query: str) -> tuple[float, float]:
    """The time that a refresh takes, and the rows that it changes."""
    trickle.create_stream_table(name, query, refresh_mode="DIFFERENTIAL")
    taken, moved = list[float](), list[float]()
    for _ in range(WARM_UP + ROUNDS):
        time.sleep(1.0)
        begun = time.perf_counter()
        result = trickle.refresh_stream_table(name)
        taken.append(time.perf_counter() - begun)
        moved.append(result.rows_inserted + result.rows_deleted)
    return median(taken[WARM_UP:]), median(moved[WARM_UP:])
