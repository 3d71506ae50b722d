"""Decoding the WAL into committed buffer rows, against `pg_recvlogical` writing the same WAL to a file.

Both read the same transactions with the same options of pgoutput, each from a slot of its own that was made right
before they were written; who begins alternates. pg_recvlogical writes each message as it came, with a line break after
it, and asks the system every ten seconds and at the end to put the file on disk. The decoder's rows are transcoded, in
a table, and committed.
"""

from __future__ import annotations

import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from psycopg import sql

from bench.harness import Connection, Figure, database, db, median, wait_until
from pgtrickle.capture import triggers
from pgtrickle.capture.decoder import Decoder
from pgtrickle.catalog.install import install
from pgtrickle.model import Table
from pgtrickle.programs import binaries, choose_account

TRANSACTIONS = 20
ROWS_EACH = 50_000
ROWS = TRANSACTIONS * ROWS_EACH
ROUNDS = 6
SLOT = "bench_decode"
OTHER_SLOT = "bench_recvlogical"
COLUMNS = ("id", "account", "kind", "amount", "at")


def run(dsn: str) -> Iterator[Figure]:
    with database(dsn, "bench_decode") as own, db.open_session(own) as connection:
        buffer = _set_up(connection)
        decoded, received = [], []
        for round_ in range(ROUNDS):
            end = _write(connection, round_)
            if round_ % 2:
                received.append(_recvlogical(own, end))
            decoded.append(_decode(connection, own, buffer, end))
            if not round_ % 2:
                received.append(_recvlogical(own, end))
        _drop_slots(connection)
    yield Figure("decode to committed buffer, 5 columns", ROWS / median(decoded), "rows/s", "at least 100,000")
    yield Figure("pg_recvlogical writing the same WAL to a file", ROWS / median(received), "rows/s")
    ratios = [theirs / ours for ours, theirs in zip(decoded, received, strict=True)]
    yield Figure("decode / pg_recvlogical, median of the rounds", median(ratios), "×", "at least 1")
    yield Figure("decode / pg_recvlogical, worst round", min(ratios), "×")


def _set_up(connection: Connection) -> sql.Identifier:
    """A captured table whose changes come from the WAL only."""
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
    return sql.Identifier("pgtrickle_changes", f"changes_{oid}")


def _drop_slots(connection: Connection) -> None:
    """The server notices that a reader is gone a moment after it went."""
    read = "SELECT bool_or(active) FROM pg_replication_slots"
    wait_until(lambda: not db.scalar(connection, read), "the slots are read no more")
    connection.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = ANY (%s)",
        ([SLOT, OTHER_SLOT],),
    )


def _write(connection: Connection, round_: int) -> str:
    """New slots, then several transactions of many rows; returns where the WAL then ends."""
    _drop_slots(connection)
    for slot in (SLOT, OTHER_SLOT):
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
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
        for option in ("proto_version=1", f"publication_names={SLOT}", "binary=true", "messages=true"):
            command += ["-o", option]
        started = time.perf_counter()
        subprocess.run([*command, "--file", f"{directory}/wal"], check=True, capture_output=True)
        return time.perf_counter() - started


def _decode(connection: Connection, dsn: str, buffer: sql.Identifier, end: str) -> float:
    """How long the decoder takes until all changes up to `end` are committed in the buffer."""
    connection.execute(sql.SQL("TRUNCATE {}").format(buffer))
    started = time.perf_counter()
    with _decoding(dsn):
        while not db.scalar(connection, f"SELECT bool_or(confirmed_lsn >= '{end}') FROM pgtrickle.pgt_decoder"):
            time.sleep(0.01)
        taken = time.perf_counter() - started
    count = connection.execute(sql.SQL("SELECT count(*) FROM {}").format(buffer)).fetchone()
    assert count == (ROWS,), count
    return taken


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
