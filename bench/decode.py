"""Decoding the WAL into committed buffer rows, against `pg_recvlogical` writing the same WAL to a file; and the time
from a commit to its rows in the buffer, on an idle system."""

from __future__ import annotations

import resource
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from psycopg import sql

from bench.harness import Connection, Figure, db, median
from pgtrickle.capture import triggers
from pgtrickle.capture.decoder import Decoder
from pgtrickle.catalog.install import install
from pgtrickle.model import Table
from pgtrickle.programs import binaries, choose_account

TRANSACTIONS = 20
ROWS_EACH = 50_000
ROWS = TRANSACTIONS * ROWS_EACH
ROUNDS = 5
COMMITS = 100
SLOT = "bench_decode"
OTHER_SLOT = "bench_recvlogical"
COLUMNS = ("id", "account", "kind", "amount", "at")


def run(dsn: str) -> Iterator[Figure]:
    with db.connect(dsn) as connection:
        buffer = _set_up(connection)
        decoded, received = [], []
        for round_ in range(ROUNDS):
            end = _write(connection, round_)
            received.append(_recvlogical(dsn, end))
            decoded.append(_decode(connection, dsn, buffer, end))
        latencies = _latencies(connection, dsn, buffer)
    ours, theirs = ROWS / median(decoded), ROWS / median(received)
    yield Figure("decode to committed buffer, 5 columns", ours, "rows/s", "at least 100,000")
    yield Figure("pg_recvlogical writing the same WAL to a file", theirs, "rows/s")
    ratio = median([other / own for own, other in zip(decoded, received, strict=True)])
    yield Figure("decode / pg_recvlogical, median of the rounds", ratio, "×", "at least 1")
    yield Figure("commit to buffer, idle system, median", 1000 * median(latencies), "ms", "under 20")
    yield Figure("commit to buffer, idle system, longest", 1000 * max(latencies), "ms")
    yield Figure("largest memory of the process", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "MB")


def _set_up(connection: Connection) -> sql.Identifier:
    """A captured table whose changes come from the WAL only; the two slots stand before what is written."""
    install(connection)
    connection.execute(
        "CREATE TABLE decoded_events (id int PRIMARY KEY, account int, kind text, amount numeric(10,2), at timestamptz)"
    )
    connection.execute("ALTER TABLE decoded_events REPLICA IDENTITY FULL")
    oid = int(str(db.scalar(connection, "SELECT 'decoded_events'::regclass::oid::bigint")))
    triggers.attach(connection, Table(oid, "public", "decoded_events"), COLUMNS)
    connection.execute("ALTER TABLE decoded_events DISABLE TRIGGER USER")
    connection.execute("UPDATE pgtrickle.pgt_change_tracking SET cdc_mode = 'WAL'")
    connection.execute(db.statement(f"CREATE PUBLICATION {SLOT} FOR TABLE decoded_events"))
    for slot in (SLOT, OTHER_SLOT):
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
    return sql.Identifier("pgtrickle_changes", f"changes_{oid}")


def _write(connection: Connection, round_: int) -> str:
    """Several transactions of many rows; returns where the WAL then ends."""
    for number in range(TRANSACTIONS):
        connection.execute(
            f"INSERT INTO decoded_events SELECT %s + g, g %% 1000, 'kind ' || g %% 7, g / 100.0, now()"
            f" FROM generate_series(1, {ROWS_EACH}) AS g",
            (round_ * ROWS + number * ROWS_EACH,),
        )
    connection.execute("CHECKPOINT")  # so that none falls into a measurement
    return str(db.scalar(connection, "SELECT pg_logical_emit_message(true, 'pgtrickle', 'end')"))


def _recvlogical(dsn: str, end: str) -> float:
    """How long pg_recvlogical takes to write the changes up to `end` to a file."""
    program = binaries(18, choose_account(Path(tempfile.gettempdir()))) / "pg_recvlogical"
    with tempfile.TemporaryDirectory() as directory:
        command = [str(program), "--dbname", dsn, "--slot", OTHER_SLOT, "--start", "--endpos", end, "--no-loop"]
        command += ["-o", "proto_version=1", "-o", f"publication_names={SLOT}", "-o", "binary=true"]
        started = time.perf_counter()
        subprocess.run([*command, "--file", f"{directory}/wal"], check=True, capture_output=True)
        return time.perf_counter() - started


@contextmanager
def _decoding(dsn: str) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=Decoder(dsn, SLOT, SLOT).run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _decode(connection: Connection, dsn: str, buffer: sql.Identifier, end: str) -> float:
    """How long the decoder takes until all changes up to `end` are committed in the buffer."""
    connection.execute(sql.SQL("TRUNCATE {}").format(buffer))
    started = time.perf_counter()
    with _decoding(dsn):
        while not db.scalar(connection, f"SELECT bool_or(confirmed_lsn >= '{end}') FROM pgtrickle.pgt_decoder"):
            time.sleep(0.005)
        taken = time.perf_counter() - started
    count = connection.execute(sql.SQL("SELECT count(*) FROM {}").format(buffer)).fetchone()
    assert count == (ROWS,), count
    return taken


def _latencies(connection: Connection, dsn: str, buffer: sql.Identifier) -> list[float]:
    """Times from the return of a commit until a reader sees its row in the buffer."""
    connection.execute(sql.SQL("TRUNCATE {}").format(buffer))
    seen = sql.SQL("SELECT FROM {} WHERE new_id = {{}}").format(buffer).as_string(connection)
    found = []
    with _decoding(dsn):
        time.sleep(1)
        for number in range(COMMITS):
            time.sleep(0.1)
            connection.execute("INSERT INTO decoded_events VALUES (%s, 1, 'one', 1, now())", (-1 - number,))
            started = time.perf_counter()
            while not connection.execute(db.statement(seen.format(-1 - number))).rowcount:
                time.sleep(0.0005)
            found.append(time.perf_counter() - started)
    return found
