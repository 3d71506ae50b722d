"""TPC-H, the 22 queries as stream tables: warm differential refreshes of small windows that change all eight tables,
against `REFRESH MATERIALIZED VIEW` in the same run; all 22 in one tick; the rows PostgreSQL reads for a changed row;
and how the times grow with the scale.

Data is tpchgen-cli's. PGTRICKLE_BENCH_TPCH_SCALES names the scales, smallest first.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import sleep

from tests.tpch import windows

import pgtrickle
from bench.harness import Connection, Figure, database, db, median, seconds
from bench.ticks import NEVER, tick
from pgtrickle.api import Trickle
from pgtrickle.refresh.result import RefreshResult
from pgtrickle.scheduler.refresh_loop import RefreshLoop

SUITE = Path(windows.__file__).parent
QUERIES = {path.stem: path.read_text() for path in sorted((SUITE / "queries").glob("q*.sql"))}
GENERATOR = Path(sys.executable).with_name("tpchgen-cli")
SCALES = tuple(os.environ.get("PGTRICKLE_BENCH_TPCH_SCALES", "0.1,1").split(","))
ROWS = 15
SAMPLE_PERCENT = 1.0
"""The rows of a window are chosen among so many of a large table."""
WARM_UP = 2
ROUNDS = 3
BLOCK = 1 << 20
STATISTICS_SECONDS = 11
"""A session that has gone idle tells what it has read after ten."""


@dataclass(frozen=True, slots=True)
class Times:
    """Of one query, in seconds: our differential refresh, and PostgreSQL's of a materialized view."""

    ours: float
    theirs: float


def run(dsn: str) -> Iterator[Figure]:
    found: dict[str, dict[str, Times]] = {}
    for scale in SCALES:
        with database(dsn, f"tpch_{scale.replace('.', '_')}") as own:
            load(own, scale)
            found[scale] = yield from measure(own, scale)
    for smaller, larger in pairwise(SCALES):
        for name in QUERIES:
            growth = found[larger][name].ours / found[smaller][name].ours
            yield Figure(f"{name}: growth of ours, scale {smaller} to {larger}", growth, "×", "at most 1.5")


def load(dsn: str, scale: str) -> None:
    """The eight tables with their usual indexes, filled by COPY."""
    with tempfile.TemporaryDirectory(prefix="pgtrickle-tpch-") as data, db.open_session(dsn) as connection:
        subprocess.run([GENERATOR, "-s", scale, f"--output-dir={data}"], check=True, capture_output=True)
        fill(connection, Path(data))


def fill(connection: Connection, data: Path) -> None:
    connection.execute(db.statement((SUITE / "schema.sql").read_text()))
    with connection.cursor() as cursor:
        for table in windows.TABLES:
            into = db.statement(f"COPY {table.name} FROM STDIN (DELIMITER '|')")
            with (data / f"{table.name}.tbl").open("rb") as file, cursor.copy(into) as copy:
                while lines := file.readlines(BLOCK):
                    copy.write(b"".join(lines).replace(b"|\n", b"\n"))
    connection.execute(db.statement((SUITE / "indexes.sql").read_text()))
    connection.execute("VACUUM ANALYZE")


def measure(dsn: str, scale: str) -> Generator[Figure, None, dict[str, Times]]:
    with db.open_session(dsn) as connection, pgtrickle.connect(dsn) as trickle:
        yield Figure(f"scale {scale}: create and populate all", seconds(lambda: create(connection, trickle)), "s")
        times = by_window(connection, trickle)
        _require_equal(connection)
        yield from _one_by_one(scale, times)
        together = median(list(_ticks(dsn, connection)))
        all_theirs, all_ours = sum(time.theirs for time in times.values()), sum(time.ours for time in times.values())
        yield Figure(f"scale {scale}: all 22 in one tick", together, "s")
        yield Figure(f"scale {scale}: all 22 in one tick / one by one", together / all_ours, "×", "at most 0.6")
        yield Figure(
            f"scale {scale}: all 22 in one tick / theirs",
            together / all_theirs,
            "×",
            "at most 0.33" if scale == SCALES[-1] else "",
        )
        yield from _reads(scale, connection, trickle)
    return times


def create(connection: Connection, trickle: Trickle) -> None:
    for name, query in QUERIES.items():
        trickle.create_stream_table(name, query, schedule=NEVER, refresh_mode="DIFFERENTIAL")
        connection.execute(db.statement(f"CREATE MATERIALIZED VIEW peer_{name} AS {query}"))


def by_window(connection: Connection, trickle: Trickle) -> dict[str, Times]:
    """Medians over windows, of ours; then of as many refreshes of theirs. (Not in turns: Spark lets its Python workers
    go when they were idle for a minute.)"""
    ours: dict[str, list[float]] = {name: [] for name in QUERIES}
    for number in range(WARM_UP + ROUNDS):
        change(connection, number)
        for name in QUERIES:
            taken = seconds(partial(_refresh, trickle, name))
            if number >= WARM_UP:
                ours[name].append(taken)
    return {name: Times(median(ours[name]), _of_peer(connection, name)) for name in QUERIES}


def _of_peer(connection: Connection, name: str) -> float:
    again = db.statement(f"REFRESH MATERIALIZED VIEW peer_{name}")
    return median([seconds(lambda: connection.execute(again)) for _ in range(ROUNDS)])


def _require_equal(connection: Connection) -> None:
    """Ours have what theirs have, of the same moment."""
    for name in QUERIES:
        one, other = f"TABLE {name}", f"TABLE peer_{name}"
        differing = f"(({one}) EXCEPT ALL ({other})) UNION ALL (({other}) EXCEPT ALL ({one}))"
        assert not db.scalar(connection, f"SELECT count(*) FROM ({differing}) AS differing"), name


def _refresh(trickle: Trickle, name: str) -> RefreshResult:
    result = trickle.refresh_stream_table(name)
    assert result.action == "DIFFERENTIAL", (name, result)
    return result


def _reads(scale: str, connection: Connection, trickle: Trickle) -> Iterator[Figure]:
    """Rows and index entries of the eight tables that PostgreSQL looked at in one refresh, for each change read."""
    change(connection, 2 * (WARM_UP + ROUNDS))
    sleep(STATISTICS_SECONDS)
    before = _rows_read(connection)
    for name in QUERIES:
        result = _refresh(trickle, name)
        sleep(STATISTICS_SECONDS)
        after = _rows_read(connection)
        read, before = after - before, after
        yield Figure(f"scale {scale}, {name}: rows read for a changed row", read / result.changes_read, "rows")


def _rows_read(connection: Connection) -> int:
    """Since the server began."""
    row = connection.execute(
        "SELECT (SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE relname = ANY (%(tables)s))"
        " + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = ANY (%(tables)s))",
        {"tables": [table.name for table in windows.TABLES]},
    ).fetchone()
    assert row is not None
    return int(str(row[0]))


def change(connection: Connection, number: int) -> None:
    """About 15 rows of every table inserted, updated and deleted."""
    for statement in windows.lasting_window(number, ROWS, SAMPLE_PERCENT):
        connection.execute(db.statement(statement))


def _one_by_one(scale: str, times: Mapping[str, Times]) -> Iterator[Figure]:
    for name, time in times.items():
        yield Figure(f"scale {scale}, {name}: differential refresh", time.ours * 1000, "ms", "under 1000")
        yield Figure(f"scale {scale}, {name}: REFRESH MATERIALIZED VIEW", time.theirs * 1000, "ms")
    ours, theirs = sum(t.ours for t in times.values()), sum(t.theirs for t in times.values())
    yield Figure(f"scale {scale}: sum of ours", ours, "s")
    yield Figure(f"scale {scale}: sum of theirs", theirs, "s")
    last = scale == SCALES[-1]
    yield Figure(f"scale {scale}: sum of ours / sum of theirs", ours / theirs, "×", "at most 0.2" if last else "")
    faster = sum(t.ours < t.theirs for t in times.values())
    goal = "at least 18" if last else ""
    yield Figure(f"scale {scale}: queries of 22 that are faster than theirs", faster, "queries", goal)
    slow = sum(t.ours > 1.0 for t in times.values())
    yield Figure(f"scale {scale}: queries over one second", slow, "queries", "none")


def _ticks(dsn: str, connection: Connection) -> Iterator[float]:
    """Times of ticks of the service in which all 22 are due."""
    refreshes = RefreshLoop(dsn)
    try:
        for number in range(WARM_UP + ROUNDS):
            change(connection, WARM_UP + ROUNDS + number)
            taken = tick(connection, refreshes, list(QUERIES))
            if number >= WARM_UP:
                yield taken
    finally:
        refreshes.close()
