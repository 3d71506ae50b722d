"""What ticks of the service cost: a chain of ten and sixty independent tables against one refresh, a tick with nothing
to do over a hundred tables, and the time from a commit until a table of schedule 1s shows it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import pgtrickle
from bench.harness import Connection, Figure, db, median, seconds
from pgtrickle.api import Trickle
from pgtrickle.config import Settings
from pgtrickle.scheduler.refresh_loop import RefreshLoop

ROUNDS = 5
WARM_UP = 3
LINKS = 10
TABLES = 60
IDLE_TABLES = 100
COMMITS = 12
NEVER = "0 0 1 1 *"
"""A schedule for tables that a benchmark makes due by hand."""


def run(dsn: str) -> Iterator[Figure]:
    with db.open_session(dsn) as connection, pgtrickle.connect(dsn) as trickle:
        refreshes = RefreshLoop(dsn)
        try:
            one = _one(connection, trickle, refreshes)
            yield Figure("a tick with one changed table", one, "s")
            chain = _chain(connection, trickle, refreshes)
            yield Figure("a tick with a chain of ten", chain, "s")
            yield Figure("chain of ten / one", chain / one, "×", "at most 10")
            sixty = _independent(connection, trickle, refreshes)
            yield Figure("a tick with 60 independent changed tables", sixty, "s")
            yield Figure("60 tables / 60 times one", sixty / (TABLES * one), "×", "at most 0.5")
            yield from _idle(connection, trickle, refreshes)
            yield Figure(
                "commit to visible, schedule 1s, median", _visible(connection, trickle, refreshes), "s", "under 2"
            )
        finally:
            refreshes.close()


def _one(connection: Connection, trickle: Trickle, refreshes: RefreshLoop) -> float:
    connection.execute("CREATE TABLE source (id int PRIMARY KEY, v int)")
    connection.execute("INSERT INTO source SELECT g, g FROM generate_series(1, 10000) AS g")
    trickle.create_stream_table("single", "SELECT id, v FROM source WHERE v >= 0", schedule=NEVER)
    return _ticks(connection, refreshes, ["single"], lambda: _change(connection, "source"))


def _chain(connection: Connection, trickle: Trickle, refreshes: RefreshLoop) -> float:
    trickle.drop_stream_table("single")
    names = ["source", *(f"link{place}" for place in range(LINKS))]
    for above, name in pairwise(names):
        trickle.create_stream_table(name, f"SELECT id, v FROM {above} WHERE v >= 0", schedule=NEVER)
    taken = _ticks(connection, refreshes, names[1:], lambda: _change(connection, "source"))
    for name in reversed(names[1:]):
        trickle.drop_stream_table(name)
    return taken


def _independent(connection: Connection, trickle: Trickle, refreshes: RefreshLoop) -> float:
    names = [f"alone{place}" for place in range(TABLES)]
    for name in names:
        connection.execute(db.statement(f"CREATE TABLE of_{name} (id int PRIMARY KEY, v int)"))
        connection.execute(db.statement(f"INSERT INTO of_{name} SELECT g, g FROM generate_series(1, 1000) AS g"))
        trickle.create_stream_table(name, f"SELECT id, v FROM of_{name} WHERE v >= 0", schedule=NEVER)

    def change() -> None:
        for name in names:
            _change(connection, f"of_{name}")

    return _ticks(connection, refreshes, names, change)


def _idle(connection: Connection, trickle: Trickle, refreshes: RefreshLoop) -> Iterator[Figure]:
    for place in range(IDLE_TABLES - TABLES):
        trickle.create_stream_table(
            f"more{place}", f"SELECT id, v FROM of_alone{place} WHERE v > {place}", schedule=NEVER
        )
    taken = [tick(connection, refreshes, None) for _ in range(WARM_UP + 4 * ROUNDS)]
    yield Figure("a tick with 100 tables due and nothing changed", 1000 * median(taken[WARM_UP:]), "ms", "under 50")
    settings = Settings()
    refreshes.round(settings)
    nothing = [seconds(lambda: refreshes.round(settings)) for _ in range(4 * ROUNDS)]
    yield Figure("a look at 100 tables of which none is due", 1000 * median(nothing), "ms")


def _visible(connection: Connection, trickle: Trickle, refreshes: RefreshLoop) -> float:
    """Measured by a reader, from the return of the commit."""
    trickle.alter_stream_table("alone0", schedule="1s")
    found = []
    with _serving(refreshes):
        for number in range(COMMITS + WARM_UP):
            time.sleep(0.37)  # so that commits fall anywhere between two ticks
            connection.execute("INSERT INTO of_alone0 VALUES (%s, 1)", (100_000 + number,))
            started = time.perf_counter()
            while not connection.execute("SELECT FROM alone0 WHERE id = %s", (100_000 + number,)).rowcount:
                time.sleep(0.002)
            found.append(time.perf_counter() - started)
    return median(found[WARM_UP:])


@contextmanager
def _serving(refreshes: RefreshLoop) -> Iterator[None]:
    """Rounds as the service has them, by the default settings."""
    stop = threading.Event()
    settings = Settings()

    def rounds() -> None:
        while not stop.is_set():
            begun = time.monotonic()
            refreshes.round(settings)
            stop.wait(max(begun + settings.scheduler_interval_ms / 1000 - time.monotonic(), 0))

    thread = threading.Thread(target=rounds)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _ticks(connection: Connection, refreshes: RefreshLoop, names: list[str], change: Callable[[], None]) -> float:
    taken = []
    for _ in range(WARM_UP + ROUNDS):
        change()
        taken.append(tick(connection, refreshes, names))
    return median(taken[WARM_UP:])


def tick(connection: Connection, refreshes: RefreshLoop, names: list[str] | None) -> float:
    """One round with these tables due (all, if none are named): their data is made to look old."""
    connection.execute(
        "UPDATE pgtrickle.pgt_stream_tables SET data_timestamp = '2000-01-01'"
        " WHERE %s::text[] IS NULL OR pgt_name = ANY(%s)",
        (names, names),
    )
    return seconds(lambda: refreshes.round(Settings()))


def _change(connection: Connection, table: str) -> None:
    connection.execute(db.statement(f"UPDATE {table} SET v = v + 1 WHERE id % 100 = 7"))
