"""Capture from the WAL, as the service does it: decoding, the cost for writers, the time to the buffer, a long load.

`PGTRICKLE_BENCH_LOAD_SECONDS` is the length of the load (600 for the figure that we state), and
`PGTRICKLE_BENCH_PGBENCH_SECONDS` that of one run of pgbench. Memory is read from /proc: the load is for Linux only.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psycopg

import pgtrickle
from bench import decode
from bench.harness import Connection, Figure, db, median, quantile, service, wait_until
from pgtrickle.api import Trickle
from pgtrickle.programs import binaries, choose_account

PGBENCH_SECONDS: Final = int(os.environ.get("PGTRICKLE_BENCH_PGBENCH_SECONDS", "10"))
PGBENCH_ROUNDS: Final = 5
CLIENTS: Final = 4
ACCOUNTS: Final = 100_000
COMMITS: Final = 100
LOAD_SECONDS: Final = int(os.environ.get("PGTRICKLE_BENCH_LOAD_SECONDS", "60"))
LOAD_ROWS_PER_SECOND: Final = 5_000
LOAD_SESSIONS: Final = 2
ROWS_PER_TRANSACTION: Final = 50
SAMPLE_SECONDS: Final = 0.1

_TABLE: Final = "(id bigserial PRIMARY KEY, account int, kind text, amount numeric(10,2), at timestamptz)"
_FILL: Final = "(account, kind, amount, at) SELECT g % 1000, 'kind ' || g % 7, g / 100.0, now() FROM generate_series"
_CHOICE: Final = f"\\set id random(1, {ACCOUNTS})\n\\set amount random(1, 100000)\n"
_WRITES: Final = (
    "UPDATE {} SET amount = :amount / 100.0, at = now() WHERE id = :id;",
    "INSERT INTO {} (account, kind, amount, at) VALUES (:id, 'one', :amount / 100.0, now());",
)


def run(dsn: str) -> Iterator[Figure]:
    yield Figure("load of the machine in the last minute, at the start", os.getloadavg()[0], "")
    yield from decode.run(dsn)
    with _captured(dsn) as captured:
        yield from _latencies(captured)
        yield from _writes(captured)
        yield from _load(captured)


@dataclass(frozen=True, slots=True)
class Captured:
    """A table captured for a stream table that is never refreshed, one that is not captured, and the service."""

    dsn: str
    connection: Connection
    trickle: Trickle
    service_pid: int
    oid: int

    def move(self, mode: str) -> None:
        """Have the service capture the table that way."""
        self.trickle.alter_stream_table("consumer", cdc_mode=mode)
        here = f"SELECT cdc_mode = '{mode.upper()}' AND NOT draining FROM pgtrickle.pgt_cdc_status"
        wait_until(lambda: db.scalar(self.connection, here), f"capture by {mode}")


@contextmanager
def _captured(dsn: str) -> Iterator[Captured]:
    with db.open_session(dsn) as connection, pgtrickle.connect(dsn) as trickle:
        for table in ("plain", "captured", "peer"):
            connection.execute(db.statement(f"CREATE TABLE {table} {_TABLE}"))
            connection.execute(db.statement(f"INSERT INTO {table} {_FILL}(1, {ACCOUNTS}) AS g"))
            connection.execute(db.statement(f"VACUUM ANALYZE {table}"))
        connection.execute("ALTER TABLE captured REPLICA IDENTITY FULL")
        connection.execute("ALTER TABLE peer REPLICA IDENTITY FULL")
        connection.execute("CREATE PUBLICATION peer FOR TABLE peer")
        trickle.create_stream_table("consumer", "SELECT * FROM captured", refresh_mode="DIFFERENTIAL", initialize=False)
        oid = int(str(db.scalar(connection, "SELECT 'captured'::regclass::oid::bigint")))
        with service(dsn) as process:
            yield Captured(dsn, connection, trickle, process.pid, oid)


def _latencies(captured: Captured) -> Iterator[Figure]:
    """Times from the return of a commit until a reader sees its row in the buffer, with nothing else going on."""
    captured.move("wal")
    seen = db.statement(f"SELECT FROM pgtrickle_changes.changes_{captured.oid} WHERE new_account = %s")
    found = []
    time.sleep(2)
    for number in range(COMMITS):
        time.sleep(0.1)
        captured.connection.execute("INSERT INTO captured (account) VALUES (%s)", (-1 - number,))
        started = time.perf_counter()
        while not captured.connection.execute(seen, (-1 - number,)).rowcount:
            time.sleep(0.0005)
        found.append(1000 * (time.perf_counter() - started))
    yield Figure("commit to buffer, idle system, median", median(found), "ms", "under 20")
    yield Figure("commit to buffer, idle system, 95 of 100", quantile(found, 0.95), "ms")


def _writes(captured: Captured) -> Iterator[Figure]:
    """pgbench on the four, in turn; each round begins with another one. What REPLICA IDENTITY FULL costs is part of
    what capture costs: the table that is not captured does not have it. The peer, pg_recvlogical that throws all away,
    shows what the server's own decoding costs: no reader of the WAL can cost writers less."""
    ways = ("plain", "wal", "trigger", "peer")
    rates: dict[str, list[float]] = {way: [] for way in ways}
    for round_ in range(PGBENCH_ROUNDS):
        for turn in range(len(ways)):
            way = ways[(round_ + turn) % len(ways)]
            captured.move("wal" if way == "wal" else "trigger")
            captured.connection.execute(db.statement(f"TRUNCATE pgtrickle_changes.changes_{captured.oid}"))
            captured.connection.execute("CHECKPOINT")
            with _peer(captured) if way == "peer" else nullcontext():
                rates[way].append(_pgbench(captured.dsn, way if way in ("plain", "peer") else "captured"))
    names = ("not captured", "captured from the WAL", "captured by triggers", "read by pg_recvlogical")
    for way, name in zip(ways, names, strict=True):
        yield Figure(f"pgbench, single-row writes, {CLIENTS} clients, {name}", median(rates[way]), "tx/s")
    for way, goal in (("wal", "at least 0.95"), ("trigger", ""), ("peer", "")):
        ratios = [ours / plain for ours, plain in zip(rates[way], rates["plain"], strict=True)]
        yield Figure(f"pgbench, {way} / not captured, median of the rounds", median(ratios), "×", goal)


@contextmanager
def _peer(captured: Captured) -> Iterator[None]:
    """pg_recvlogical on a slot of its own."""
    captured.connection.execute("SELECT pg_create_logical_replication_slot('peer', 'pgoutput')")
    options = ("proto_version=1", "publication_names=peer", "binary=true")
    command = [str(_program("pg_recvlogical")), "-d", captured.dsn, "--slot", "peer", "--start", "-f", os.devnull]
    reader = subprocess.Popen([*command, *(part for each in options for part in ("-o", each))], stderr=subprocess.PIPE)
    try:
        reading = "SELECT active FROM pg_replication_slots WHERE slot_name = 'peer'"
        wait_until(lambda: db.scalar(captured.connection, reading), "pg_recvlogical")
        yield
    finally:
        reader.terminate()
        reader.communicate()
        wait_until(lambda: not db.scalar(captured.connection, reading), "the end of pg_recvlogical")
        captured.connection.execute("SELECT pg_drop_replication_slot('peer')")


def _program(name: str) -> Path:
    return binaries(18, choose_account(Path(tempfile.gettempdir()))) / name


def _pgbench(dsn: str, table: str) -> float:
    """Transactions a second; each changes one row or adds one."""
    program = _program("pgbench")
    with tempfile.TemporaryDirectory() as directory:
        command = [str(program), "-n", "-M", "prepared", "-c", str(CLIENTS), "-j", "2", "-T", str(PGBENCH_SECONDS)]
        for number, write in enumerate(_WRITES):
            script = Path(directory) / f"{number}.sql"
            script.write_text(_CHOICE + write.format(table) + "\n")
            command += ["-f", str(script)]
        done = subprocess.run([*command, "-d", dsn], check=True, capture_output=True, text=True)
    found = re.search(r"tps = ([\d.]+)", done.stdout)
    assert found is not None, done.stdout
    return float(found[1])


def _load(captured: Captured) -> Iterator[Figure]:
    """Lag and memory of the service while rows are written at one pace."""
    captured.move("wal")
    stop = threading.Event()
    written: list[int] = []
    sessions = [
        threading.Thread(target=_write, args=(captured.dsn, number, stop, written)) for number in range(LOAD_SESSIONS)
    ]
    started = time.monotonic()
    for session in sessions:
        session.start()
    try:
        lags, memory = _watch(captured, started)
    finally:
        stop.set()
        for session in sessions:
            session.join()
    taken = time.monotonic() - started
    sizes = [size / 1024 for size, _ in lags]
    times = [delay for _, delay in lags]
    half = len(lags) // 2
    yield Figure(f"load of {LOAD_SECONDS} s, rows written", sum(written) / taken, "rows/s", "5,000")
    yield Figure("decoder lag under load, median", median(sizes), "kB")
    yield Figure("decoder lag under load, longest in the first half", max(sizes[:half]), "kB")
    yield Figure("decoder lag under load, longest in the second half", max(sizes[half:]), "kB", "bounded")
    yield Figure("decoder lag under load, in time, median", median(times), "s")
    yield Figure("decoder lag under load, in time, longest", max(times), "s", "bounded")
    for when, value in zip(("at a tenth", "half-way", "at the end"), memory, strict=True):
        yield Figure(f"memory of the service under load, {when}", value, "MB", "flat")


def _write(dsn: str, number: int, stop: threading.Event, written: list[int]) -> None:
    """One session's share of the load: small transactions at set times, half of the rows new, half changed."""
    pause = ROWS_PER_TRANSACTION * LOAD_SESSIONS / LOAD_ROWS_PER_SECOND
    half = ROWS_PER_TRANSACTION // 2
    places = itertools.cycle(range(number * half, ACCOUNTS - half, LOAD_SESSIONS * half))
    with psycopg.connect(dsn) as conn:
        due = time.monotonic()
        while not stop.wait(max(due - time.monotonic(), 0)):
            due += pause
            place = next(places)
            with conn.transaction():
                conn.execute(db.statement(f"INSERT INTO captured {_FILL}(1, {half}) AS g"))
                conn.execute(
                    "UPDATE captured SET amount = amount + 1 WHERE id > %s AND id <= %s", (place, place + half)
                )
            written.append(ROWS_PER_TRANSACTION)


def _watch(captured: Captured, started: float) -> tuple[list[tuple[int, float]], list[float]]:
    """Samples of the lag, in bytes and in seconds, and the memory at a tenth of the time, half-way, and at the end.

    The lag in seconds is how long ago the WAL ended where the decoder is.
    """
    ends: list[tuple[float, int]] = []
    lags: list[tuple[int, float]] = []
    memory: list[float] = []
    marks = [LOAD_SECONDS * share for share in (0.1, 0.5)]
    position = (
        "SELECT pg_current_wal_insert_lsn() - '0/0', coalesce(lsn, '0/0') - '0/0' FROM pgtrickle_internal.pgt_decoded"
    )
    while (now := time.monotonic() - started) < LOAD_SECONDS:
        row = captured.connection.execute(db.statement(position)).fetchone()
        assert row is not None
        end, decoded = int(str(row[0])), int(str(row[1]))
        ends.append((now, end))
        while len(ends) > 1 and ends[1][1] <= decoded:
            ends.pop(0)
        lags.append((max(end - decoded, 0), now - ends[0][0] if decoded < end else 0.0))
        if marks and now >= marks[0]:
            marks.pop(0)
            memory.append(_resident(captured.service_pid))
        time.sleep(SAMPLE_SECONDS)
    return lags, [*memory, _resident(captured.service_pid)]


def _resident(pid: int) -> float:
    """The memory of a process, in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
