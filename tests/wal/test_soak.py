"""The soak: writers without pause, sources moved between triggers and WAL, the decoder and PostgreSQL killed.

Afterwards every stream table equals its query, and what the buffers hold accounts for every committed row image exactly
once. PGTRICKLE_SOAK_SECONDS makes it longer, PGTRICKLE_SOAK_SEED has it choose otherwise, and
PGTRICKLE_SOAK_VERSION takes another PostgreSQL.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import SparkSession
from tests.refresh.oracle import differing

from pgtrickle import db, embedded
from pgtrickle.api import Trickle
from pgtrickle.capture import change_window, slot
from pgtrickle.capture.modes import CaptureMode
from pgtrickle.db import Connection
from pgtrickle.errors import EnvironmentProblem, Error

from .decoder_child import LOST
from .moving import Moving
from .writing import SCHEMA, TABLES, Writer

ROOT = Path(__file__).parents[2]
SECONDS = float(os.environ.get("PGTRICKLE_SOAK_SECONDS", "35"))
SEED = os.environ.get("PGTRICKLE_SOAK_SEED", "1")
VERSION = int(os.environ.get("PGTRICKLE_SOAK_VERSION", "18"))
WRITERS = (0.02, 0.02, 0.02, 0.02, 1.0)
"""Sessions that write, each by the share of its transactions that are long."""
ROUND_TRIPS = 20
REFRESHES = 3
"""Of each stream table, and by its changes."""
FAILPOINTS = ("decoder-copied", "decoder-recorded", "decoder-committed")
SETTINGS = {"deadlock_timeout": "200ms", "checkpoint_timeout": "30s"}

QUERIES = {
    "totals": "SELECT p.grp, count(*) AS n, sum(k.v) AS total, max(p.v) AS most, count(k.big) AS large"
    " FROM parted p JOIN keyed k ON k.id % 7 = p.id % 7 AND k.grp = p.grp GROUP BY p.grp",
    "projected": "SELECT id, v + 1 AS w, md5(big) AS digest FROM keyed WHERE v % 3 > 0",
    "copied": "SELECT * FROM keyless",
}
PINS = {f"pin_{table}": f"SELECT * FROM {table}" for table in TABLES}
"""Filled once and never refreshed: each keeps the buffer of its table whole, and what the table was when it began."""


class Soak:
    """Everything that runs at once. What goes wrong in a thread stops all, and stands in `failures`."""

    def __init__(self, server: embedded.Server, seed: str, log: Path) -> None:
        self.dsn = server.dsn
        self.log = log
        """What the decoders say before they die."""
        self.seed = seed
        self.stop = threading.Event()
        self.failures: list[BaseException] = []
        self.trips: Counter[str] = Counter()
        self.deaths: Counter[str] = Counter()
        self.refreshed: Counter[str] = Counter()
        self.crashed = False
        self.back_at: float | None = None
        """When PostgreSQL was up again after it was killed."""
        self._server = server
        self._threads: list[threading.Thread] = []
        self._stop_decoder = threading.Event()
        self._decoding = threading.Thread(target=self._guarded, args=(self.keep_decoding,), name="decoder")
        self.writers = [
            Writer(self.dsn, f"{seed}-writer-{number}", self.stop, lingers=lingers)
            for number, lingers in enumerate(WRITERS)
        ]

    def start(self) -> None:
        self._decoding.start()
        for work in (*(writer.run for writer in self.writers), self.move, self.crash):
            self._threads.append(threading.Thread(target=self._guarded, args=(work,), name=work.__qualname__))
            self._threads[-1].start()

    def rest(self) -> None:
        """Writers and moves end; from now on the decoder lives in peace."""
        self.stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), thread.name

    def end(self) -> None:
        self.rest()
        self._stop_decoder.set()
        self._decoding.join(60)
        assert not self._decoding.is_alive()

    def move(self) -> None:
        """Take one source after the other a step further, by chance; at times all go home, and the slot with them."""
        chance = self._random("moves")
        while not self.stop.is_set():
            begun = time.monotonic()
            try:
                with db.open_session(self.dsn) as conn:
                    self._move(conn, chance)
            except (Error, psycopg.Error):
                if not self._excused(begun):
                    raise
                self.stop.wait(0.2)

    def _move(self, conn: Connection, chance: random.Random) -> None:
        moving = Moving(self.dsn, conn)
        oids = {table: _oid(conn, table) for table in TABLES}
        while not self.stop.wait(chance.uniform(0, 0.2)):
            table = chance.choice(list(TABLES))
            before = moving.mode(oids[table])
            if moving.step(oids[table]) is CaptureMode.TRIGGER and before is CaptureMode.WAL:
                self.trips[table] += 1
            if chance.random() < 0.03:
                for table, oid in oids.items():
                    before = moving.mode(oid)
                    moving.to(oid, CaptureMode.TRIGGER)
                    self.trips[table] += before is not CaptureMode.TRIGGER
                if slot.drop_if_unused(conn):
                    self.deaths["slot"] += 1

    def keep_decoding(self) -> None:
        """A decoder, and after its death the next: at one of its failpoints in turn, or at any moment."""
        chance = self._random("decoder")
        failpoints = itertools.cycle(chance.sample(FAILPOINTS, len(FAILPOINTS)))
        while not self._stop_decoder.is_set():
            at = next(failpoints) if chance.random() < 0.4 and not self.stop.is_set() else None
            with self._decoder(at) as process:
                died = self._await_death(process, 20 if at else chance.uniform(0, 8))
            if died == -signal.SIGKILL:
                self.deaths[at or "unexpected"] += 1
            elif died is None:
                self.deaths["killed"] += 1
            elif died != LOST:
                raise AssertionError(f"the decoder ended with {died}: {self.log.read_text()}")

    def _await_death(self, process: subprocess.Popen[bytes], lives: float) -> int | None:
        """How the decoder ended; None if it did not within so many seconds of work. In the end it is left alone."""
        said, begun = self.log.stat().st_size, None
        while process.poll() is None and not self._stop_decoder.wait(0.02):
            if begun is None and self.log.stat().st_size > said:
                begun = time.monotonic()
            if begun is not None and time.monotonic() - begun > lives and not self.stop.is_set():
                break
        return process.poll()

    @contextmanager
    def _decoder(self, failpoint: str | None) -> Iterator[subprocess.Popen[bytes]]:
        with self.log.open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.wal.decoder_child", self.dsn],
                cwd=ROOT,
                env={**os.environ, **({"PGTRICKLE_FAILPOINT": failpoint} if failpoint else {})},
                stderr=log,
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait(20)

    def crash(self) -> None:
        """Kill PostgreSQL half-way, and start it again once its orphans have let go of its memory."""
        if self.stop.wait(SECONDS * self._random("crash").uniform(0.4, 0.6)):
            return
        self.crashed = True
        os.kill(self._server.pid, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while True:
            try:
                again = embedded.start(
                    self._server.data_dir, port=self._server.port, version=VERSION, settings=SETTINGS
                )
                break
            except EnvironmentProblem:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        assert again.pid != self._server.pid
        self.back_at = time.monotonic()

    def refresh(self, spark: SparkSession) -> None:
        """Refresh the stream tables in turn until it is time."""
        deadline = time.monotonic() + SECONDS
        while not self._is_over(deadline):
            begun = time.monotonic()
            try:
                with Trickle(self.dsn, spark=spark) as trickle:
                    while not self._is_over(deadline):
                        for name in QUERIES:
                            if trickle.refresh_stream_table(name).action == "DIFFERENTIAL":
                                self.refreshed[name] += 1
                            self.stop.wait(0.1)
            except (Error, psycopg.Error):
                if not self._excused(begun):
                    raise
                self.stop.wait(0.2)

    def _is_over(self, deadline: float) -> bool:
        """A slow machine gets more time for what must happen."""
        done = (
            self.back_at is not None
            and sum(self.trips.values()) >= ROUND_TRIPS
            and all(self.refreshed[name] >= REFRESHES for name in QUERIES)
            and set(FAILPOINTS) | {"killed"} <= set(self.deaths)
        )
        return self.stop.is_set() or time.monotonic() > (deadline if done else deadline + 120)

    def _excused(self, begun: float) -> bool:
        """Whether what began then and has failed met a PostgreSQL that was killed, and perhaps was not up again."""
        return self.crashed and (self.back_at is None or begun < self.back_at)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again by the test
            self.failures.append(error)
            self.stop.set()

    def _random(self, name: str) -> random.Random:
        return random.Random(f"{self.seed}-{name}")


@pytest.fixture
def own_server() -> Iterator[embedded.Server]:
    """A server for this test alone, as durable as in production."""
    home = Path(tempfile.mkdtemp(prefix="pgtrickle-soak-"))
    home.chmod(0o755)  # as root, the server runs under another account, which must get through
    try:
        yield embedded.start(home / "data", version=VERSION, settings=SETTINGS)
    finally:
        embedded.stop(home / "data")
        shutil.rmtree(home, ignore_errors=True)


@pytest.mark.long
def test_nothing_is_lost_or_doubled_whatever_happens(
    own_server: embedded.Server, spark: SparkSession, tmp_path: Path
) -> None:
    with Trickle(own_server.dsn, spark=spark) as trickle, db.open_session(own_server.dsn) as conn:
        db.execute(conn, SCHEMA)
        for name, query in {**QUERIES, **PINS}.items():
            trickle.create_stream_table(name, query, refresh_mode="DIFFERENTIAL")
    soak = Soak(own_server, SEED, tmp_path / "decoder.log")
    soak.start()
    try:
        soak.refresh(spark)
        soak.rest()
        if soak.failures:
            raise soak.failures[0]
        print(_story(soak))
        with Trickle(own_server.dsn, spark=spark) as trickle, db.open_session(own_server.dsn) as conn:
            _check_the_run(soak)
            _bring_up_to_date(trickle, conn)
            for name, query in QUERIES.items():
                assert differing(conn, name, query) == [], name
            for table in TABLES:
                _check_buffer(conn, table)
            _check_large_values(conn)
            _check_history(conn)
            _go_home(soak, conn)
    finally:
        soak.end()


def _story(soak: Soak) -> str:
    committed = sum(writer.committed for writer in soak.writers)
    return f"{committed} transactions, round trips {dict(soak.trips)}, ends {dict(soak.deaths)}"


def _check_the_run(soak: Soak) -> None:
    """That all happened what was to happen."""
    assert soak.back_at is not None
    assert sum(soak.trips.values()) >= ROUND_TRIPS
    assert all(soak.refreshed[name] >= REFRESHES for name in QUERIES), soak.refreshed
    assert set(FAILPOINTS) | {"killed"} <= set(soak.deaths), soak.deaths
    assert soak.deaths["unexpected"] == 0
    assert all(writer.committed > 0 for writer in soak.writers)


def _bring_up_to_date(trickle: Trickle, conn: Connection) -> None:
    """Refresh until nothing is skipped: the decoder may still be starting."""
    deadline = time.monotonic() + 60
    for name in QUERIES:
        while trickle.refresh_stream_table(name).action == "SKIP":
            assert time.monotonic() < deadline, trickle.history(name, 1)
    target = db.scalar(conn, "SELECT pg_logical_emit_message(true, 'pgtrickle', 'end')::text")
    while not db.scalar(conn, f"SELECT coalesce(lsn >= '{target}', true) FROM pgtrickle_internal.pgt_decoded"):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _check_buffer(conn: Connection, table: str) -> None:
    """What the pin holds and the weights that count make the table; and each image in the ledger is there once."""
    oid = _oid(conn, table)
    frontier = str(
        db.scalar(conn, f"SELECT frontier::text FROM pgtrickle.pgt_stream_tables WHERE pgt_name = 'pin_{table}'")
    )
    sides = change_window.sides_of(conn, [oid])[oid]
    columns = ", ".join(TABLES[table])
    changes = change_window.changes_sql(oid, [(name, name) for name in TABLES[table]], frontier, sides=sides)
    weighted = (
        f"SELECT {columns}, w FROM ({changes}) AS c UNION ALL SELECT {columns}, 1 FROM pin_{table}"
        f" UNION ALL SELECT {columns}, -1 FROM {table}"
    )
    wrong = f"SELECT {columns}, sum(w) FROM ({weighted}) AS a GROUP BY {columns} HAVING sum(w) <> 0"
    assert conn.execute(db.statement(wrong)).fetchall() == [], table
    counted, noted = f"SELECT rev, w FROM ({changes}) AS c", f"SELECT rev, w FROM ledger WHERE source = '{table}'"
    for more, less in ((counted, noted), (noted, counted)):
        assert conn.execute(db.statement(f"({more}) EXCEPT ALL ({less})")).fetchall() == [], table
    assert _sides(conn, f"SELECT cdc_source::text FROM pgtrickle_changes.changes_{oid}") == {"T", "W"}


def _check_large_values(conn: Connection) -> None:
    """Some were changed and some left alone, in both ways of capture."""
    updates = (
        f"SELECT cdc_source::text FROM pgtrickle_changes.changes_{_oid(conn, 'keyed')}"
        " WHERE action = 'U' AND length(new_big) > 8192 AND new_big"
    )
    assert _sides(conn, f"{updates} = old_big") == {"T", "W"}
    assert _sides(conn, f"{updates} <> old_big") == {"T", "W"}


def _sides(conn: Connection, query: str) -> set[object]:
    return {side for (side,) in conn.execute(db.statement(query))}


def _check_history(conn: Connection) -> None:
    """Nothing was computed anew: no change was ever missing. A refresh fails only where PostgreSQL went away."""
    done = Counter(
        conn.execute(
            "SELECT t.pgt_name, h.status, h.action FROM pgtrickle.pgt_refresh_history AS h"
            " JOIN pgtrickle.pgt_stream_tables AS t USING (pgt_id) WHERE h.initiated_by <> 'INITIAL'"
        ).fetchall()
    )
    print(dict(done))
    allowed = {("COMPLETED", "DIFFERENTIAL"), ("COMPLETED", "NO_DATA"), ("SKIPPED", "SKIP")}
    failed = [entry for entry in done.elements() if entry[1:] not in allowed]
    assert all(status == "FAILED" for _, status, _ in failed), failed
    assert len(failed) <= 1, failed
    assert not [pin for pin in PINS if any(name == pin for name, _, _ in done)]


def _go_home(soak: Soak, conn: Connection) -> None:
    """Back to triggers: once all is decoded, the slot goes."""
    moving = Moving(soak.dsn, conn)
    for table in TABLES:
        moving.to(_oid(conn, table), CaptureMode.TRIGGER)
    deadline = time.monotonic() + 60
    while not slot.drop_if_unused(conn):
        assert time.monotonic() < deadline, slot.inspect(conn)
        time.sleep(0.05)


def _oid(conn: Connection, table: str) -> int:
    return int(str(db.scalar(conn, f"SELECT '{table}'::regclass::oid::bigint")))
