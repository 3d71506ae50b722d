"""Work that is large, with a driver of 1 GiB: join + aggregate over two sizes of the shop, the second ten times the
first. A warm refresh of 100 changes over both; over the second also windows of a million and of two million changes, a
full refresh, and the most memory that each takes: of the driver's Python, of Java (whose tasks run in it), and of the
Python workers together. Memory is read from /proc: for Linux only. What processes share counts in parts.

PGTRICKLE_BENCH_LARGE_ROWS is the second size (20 million for the figures that we state).
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

import pgtrickle
from bench.harness import Connection, Figure, create_shop, database, db, median, seconds, spark_of_its_own
from bench.refresh import DETAIL, QUERY, change_hundred
from bench.ticks import NEVER
from pgtrickle.api import Trickle
from pgtrickle.refresh.decide import Action

ROWS = int(os.environ.get("PGTRICKLE_BENCH_LARGE_ROWS", "20000000"))
CUSTOMERS = 100_000
DRIVER = {"spark.driver.memory": "1g"}
TABLES = {"totals": QUERY, "per_customer": DETAIL}
PEERS = {"totals": "totals", "per_customer": "per_customer", "auto_totals": "totals"}
"""The stream tables, one of them in mode AUTO, and whose materialized view each is held against."""
WINDOWS = {ROWS // 20: "at least 150,000", ROWS // 10: ""}
"""Changes of a window, and the changes a second that are the goal for the first table."""
WARM_UP, ROUNDS = 5, 8
LARGE_ROUNDS = 2
SAMPLE_SECONDS = 0.2
_MIB = 1 << 20


def run(dsn: str) -> Iterator[Figure]:
    with spark_of_its_own():
        yield from _run(dsn)


def _run(dsn: str) -> Iterator[Figure]:
    few: dict[int, dict[str, float]] = {}
    for size in (ROWS // 10, ROWS):
        with (
            database(dsn, f"large_{size}") as own,
            db.open_session(own) as connection,
            pgtrickle.connect(own, spark_conf=DRIVER) as trickle,
        ):
            create_shop(connection, size, CUSTOMERS)
            yield from _create(connection, trickle, size)
            few[size] = _hundred(connection, trickle, size)
            yield from _against_theirs(connection, trickle, few[size], size)
            if size == ROWS:
                yield from _windows(connection, trickle)
                yield from _full(connection, trickle)
            _require_equal(trickle)
    for name in PEERS:
        growth = few[ROWS][name] / few[ROWS // 10][name]
        yield Figure(f"{name}: growth of 100 changes, {ROWS // 10:,} to {ROWS:,} orders", growth, "×", "at most 1.3")


def _create(connection: Connection, trickle: Trickle, size: int) -> Iterator[Figure]:
    for name, query in TABLES.items():
        create = partial(trickle.create_stream_table, name, query, schedule=NEVER, refresh_mode="DIFFERENTIAL")
        with _peak(trickle) as peak:
            taken = seconds(create)
        yield Figure(f"{size:,} orders, {name}: create and populate", taken, "s")
        yield from peak.figures(f"{size:,} orders, {name}: create and populate")
        connection.execute(db.statement(f"CREATE MATERIALIZED VIEW peer_{name} AS {query}"))
    trickle.create_stream_table("auto_totals", QUERY, schedule=NEVER, refresh_mode="AUTO")


def _hundred(connection: Connection, trickle: Trickle, size: int) -> dict[str, float]:
    """Medians of warm refreshes of 100 changes."""
    found: dict[str, list[float]] = {name: [] for name in PEERS}
    for number in range(WARM_UP + ROUNDS):
        change_hundred(connection, number, size)
        for name in PEERS:
            taken = seconds(partial(trickle.refresh_stream_table, name))
            if number >= WARM_UP:
                found[name].append(taken)
    return {name: median(times) for name, times in found.items()}


def _against_theirs(connection: Connection, trickle: Trickle, ours: dict[str, float], size: int) -> Iterator[Figure]:
    theirs: dict[str, float] = {}
    for name in TABLES:
        again = db.statement(f"REFRESH MATERIALIZED VIEW peer_{name}")
        theirs[name] = median([seconds(partial(connection.execute, again)) for _ in range(LARGE_ROUNDS)])
        yield Figure(f"{size:,} orders, {name}: REFRESH MATERIALIZED VIEW", theirs[name], "s")
    for name, taken in ours.items():
        what = f"{size:,} orders, {name} ({trickle.history(name, 1)[0].way})"
        yield Figure(f"{what}: refresh of 100 changes", taken, "s")
        yield Figure(f"{what}: ours / theirs", taken / theirs[PEERS[name]], "×", "at most 0.25")


def _windows(connection: Connection, trickle: Trickle) -> Iterator[Figure]:
    """Each twice, of which the second counts: the first one's workers are new."""
    first = count(1, ROWS // 10)
    for changes, goal in WINDOWS.items():
        taken: dict[str, float] = {}
        peaks: dict[str, _Peak] = {}
        for _ in range(LARGE_ROUNDS):
            low = next(first)
            connection.execute("UPDATE orders SET amount = amount + 1 WHERE id >= %s AND id < %s", (low, low + changes))
            for name in TABLES:
                with _peak(trickle) as peaks[name]:
                    taken[name] = seconds(partial(_refresh, trickle, name))
        for name in TABLES:
            what = f"{changes:,} changes in one window, {name}"
            rate = changes / taken[name]
            yield Figure(f"{what}: changes a second", rate, "rows/s", goal if name == "totals" else "")
            yield from peaks[name].figures(what)


def _full(connection: Connection, trickle: Trickle) -> Iterator[Figure]:
    for name in TABLES:
        again = partial(trickle.refresh_stream_table, name, full=True)
        with _peak(trickle) as peak:
            taken = seconds(again)
        assert trickle.history(name, 1)[0].action == Action.FULL
        yield Figure(f"{ROWS:,} orders, {name}: FULL on Spark", taken, "s")
        yield from peak.figures(f"{ROWS:,} orders, {name}: FULL on Spark")


def _refresh(trickle: Trickle, name: str) -> None:
    result = trickle.refresh_stream_table(name)
    assert result.action == Action.DIFFERENTIAL, result


def _require_equal(trickle: Trickle) -> None:
    trickle.refresh_stream_table("auto_totals")  # which the large windows left alone
    different = [found for found in trickle.verify() if not found.equal]
    assert not different, different


@dataclass(slots=True)
class _Peak:
    """The most bytes that each has had in memory."""

    driver: int = 0
    java: int = 0
    workers: int = 0

    def figures(self, what: str) -> Iterator[Figure]:
        for name, most in (("the driver's Python", self.driver), ("Java", self.java), ("workers", self.workers)):
            yield Figure(f"{what}: peak of {name}", most / _MIB, "MiB")


@contextmanager
def _peak(trickle: Trickle) -> Iterator[_Peak]:
    """What is there at most within it, looked at again and again."""
    jvm = trickle._session().sparkContext._jvm
    assert jvm is not None
    java = int(jvm.java.lang.ProcessHandle.current().pid())
    found, over = _Peak(), threading.Event()

    def look() -> None:
        while True:
            found.driver = max(found.driver, _resident(os.getpid()))
            found.java = max(found.java, _resident(java))
            found.workers = max(found.workers, sum(map(_resident, _below(java))))
            if over.wait(SAMPLE_SECONDS):
                return

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield found
    finally:
        over.set()
        looking.join()


def _resident(pid: int) -> int:
    """What a process has in memory, and its part of what it shares: forked workers have much in common."""
    with suppress(OSError):
        found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
        return int(found[1]) * 1024 if found else 0
    return 0


def _below(pid: int) -> list[int]:
    """All processes that one has started, and those that these have."""
    children: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(status.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(status.parent.name))
    found, left = list[int](), [pid]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found
