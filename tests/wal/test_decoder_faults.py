"""The decoder when things go wrong: what arrives does so once, whatever happens, and what cannot is told."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
import time
import tracemalloc
from collections import Counter

import pytest

from pgtrickle import db
from pgtrickle.capture import decoder as decoder_module
from pgtrickle.capture.copybinary import CopyTarget
from pgtrickle.capture.decoder import Decoder
from pgtrickle.capture.replication import (
    PublicationMissing,
    ReplicationConnection,
    SlotBusy,
    SlotMissing,
    StreamError,
)
from pgtrickle.capture.sink import Sink
from pgtrickle.errors import StateError

from .captured import WAIT_SECONDS, Wal


def test_what_is_sent_again_is_not_written_again(wal: Wal, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server is never told how far we are, and we forget where to start, so that each start gets everything."""
    monkeypatch.setattr(ReplicationConnection, "confirm", lambda self, position: None)
    oid = wal.table("CREATE TABLE t (id int)", "id")
    for number in range(3):
        wal.run(f"INSERT INTO t SELECT g + {number * 100} FROM generate_series(1, 100) AS g")
        wal.run("UPDATE pgtrickle.pgt_decoder SET confirmed_lsn = NULL")
        wal.start()
        wal.check(oid, "id")
        wal.end()


def test_who_is_replaced_commits_nothing_more(wal18: Wal) -> None:
    oid = wal18.table("CREATE TABLE t (id int)", "id")
    wal18.start()
    wal18.run("INSERT INTO t VALUES (1)")
    wal18.pass_barrier()
    wal18.run("UPDATE pgtrickle.pgt_decoder SET pid = 0")
    wal18.run("INSERT INTO t VALUES (2)")
    error = wal18.fails()
    assert isinstance(error, StateError)
    assert error.code == "PT358"
    assert wal18.decoded(oid, "id") == Counter([("1",)])
    assert wal18.record()["error"] is None, "the record is the other's"


def _decode_until_killed(dsn: str, slot: str, failpoint: str) -> None:
    os.environ["PGTRICKLE_FAILPOINT"] = failpoint
    Decoder(dsn, slot, slot).run(threading.Event())


@pytest.mark.parametrize("failpoint", ["decoder-copied", "decoder-recorded", "decoder-committed"])
def test_killed_at_any_point_nothing_is_lost_or_doubled(wal18: Wal, failpoint: str) -> None:
    oid = wal18.table("CREATE TABLE t (id int)", "id")
    wal18.run("INSERT INTO t VALUES (0)")
    process = multiprocessing.get_context("spawn").Process(
        target=_decode_until_killed, args=(wal18.dsn, wal18.slot, failpoint)
    )
    process.start()
    for number in range(1, 20):
        wal18.run(f"INSERT INTO t VALUES ({number})")
    process.join(WAIT_SECONDS)
    assert process.exitcode == -signal.SIGKILL
    wal18.run("INSERT INTO t VALUES (100)")
    wal18.start()
    wal18.check(oid, "id")


def test_a_large_transaction_takes_little_memory(wal18: Wal) -> None:
    oid = wal18.table("CREATE TABLE t (id int, v text)", "id", "v")
    wal18.start()
    wal18.pass_barrier()
    tracemalloc.start()
    try:
        wal18.run("INSERT INTO t SELECT g, repeat('x', 500) FROM generate_series(1, 100000) AS g")
        wal18.pass_barrier()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert db.scalar(wal18.conn, f"SELECT count(*) FROM pgtrickle_changes.changes_{oid}") == 100_000
    assert peak < 12 << 20, "50 MB went through"


def test_a_stop_in_mid_transaction_leaves_it_for_the_next(wal18: Wal, monkeypatch: pytest.MonkeyPatch) -> None:
    oid = wal18.table("CREATE TABLE t (id int, v text)", "id", "v")
    wal18.run("INSERT INTO t SELECT g, repeat('x', 500) FROM generate_series(1, 20000) AS g")
    stopped = threading.Event()
    flush = Sink.flush

    def flush_and_stop(self: Sink, target: CopyTarget) -> None:
        flush(self, target)
        wal18.stop.set()
        stopped.set()

    monkeypatch.setattr(Sink, "flush", flush_and_stop)
    wal18.start()
    assert stopped.wait(WAIT_SECONDS)
    assert wal18.end() is None
    assert wal18.decoded(oid, "id") == Counter()
    monkeypatch.undo()
    wal18.start()
    wal18.check(oid, "id", "v")


def test_an_idle_database_releases_its_wal_and_is_left_in_peace(wal: Wal) -> None:
    oid = wal.table("CREATE TABLE t (id int)", "id")
    wal.run("CREATE TABLE other (v text)")
    wal.start()
    wal.run("INSERT INTO t VALUES (1)")
    wal.check(oid, "id")
    wal.run("INSERT INTO other SELECT repeat('x', 1000) FROM generate_series(1, 10000)")  # not published
    wal.passed_over()
    position = "SELECT confirmed_lsn - '0/0' FROM pgtrickle.pgt_decoder"
    recorded = [int(str(db.scalar(wal.conn, position)))]
    for _ in range(8):
        time.sleep(0.5)
        recorded.append(int(str(db.scalar(wal.conn, position))))
    # what the server itself writes (autovacuum, checkpoints) may be recorded once it is much; our own record never is
    steps = [after - before for before, after in itertools.pairwise(recorded) if after != before]
    assert all(step > decoder_module.RECORD_BYTES for step in steps), steps


def test_a_missing_slot_is_told_and_recorded(wal: Wal) -> None:
    wal.conn.execute("SELECT pg_drop_replication_slot(%s)", (wal.slot,))
    wal.start()
    error = wal.fails()
    assert isinstance(error, SlotMissing)
    assert error.sqlstate == "42704"
    record = wal.record()
    assert record["status"] == "ERROR"
    assert wal.slot in str(record["error"])


def test_a_slot_in_use_is_waited_for_and_then_told(wal18: Wal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder_module, "BUSY_SECONDS", 0.5)
    with ReplicationConnection(wal18.dsn) as other:
        other.start(wal18.slot, wal18.slot, 0)
        wal18.start()
        assert isinstance(wal18.fails(), SlotBusy)
    wal18.start()
    wal18.pass_barrier()


def test_a_dropped_publication_is_noticed(wal: Wal) -> None:
    wal.table("CREATE TABLE t (id int)", "id")
    wal.start()
    wal.run("INSERT INTO t VALUES (1)")
    wal.pass_barrier()
    wal.run(f"DROP PUBLICATION {wal.slot}")
    wal.run("INSERT INTO t VALUES (2)")
    assert isinstance(wal.fails(), PublicationMissing)
    assert wal.record()["status"] == "ERROR"


def test_a_lost_connection_is_told_and_recorded(wal18: Wal) -> None:
    wal18.start()
    wal18.pass_barrier()
    wal18.conn.execute(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", (wal18.slot,)
    )
    assert isinstance(wal18.fails(), StreamError)
    assert wal18.record()["status"] == "ERROR"
    wal18.start()
    wal18.pass_barrier()
    assert wal18.record()["status"] == "STREAMING"


def test_a_server_restored_to_an_earlier_time_is_refused(wal18: Wal) -> None:
    wal18.start()
    wal18.pass_barrier()
    wal18.end()
    wal18.run("UPDATE pgtrickle.pgt_decoder SET confirmed_lsn = 'FFFF/0'")
    wal18.start()
    error = wal18.fails()
    assert isinstance(error, StreamError)
    assert "restored" in str(error.hint)


def test_many_writers_and_a_decoder_that_comes_and_goes(wal18: Wal) -> None:
    oid = wal18.table("CREATE TABLE t (id int PRIMARY KEY, v text, n int)", "id", "v", "n")
    done = threading.Event()

    def write(number: int) -> None:
        with db.open_session(wal18.dsn) as conn:
            at = 0
            while not done.is_set():
                at += 1
                key = number * 1_000_000 + at
                with conn.transaction():
                    conn.execute("INSERT INTO t VALUES (%s, %s, 0)", (key, "x" * (at % 50 * 100)))
                    conn.execute("UPDATE t SET n = n + 1 WHERE id BETWEEN %s AND %s", (key - 5, key))
                    conn.execute("UPDATE t SET id = -id WHERE id = %s", (key - 3,))
                    conn.execute("DELETE FROM t WHERE id = %s", (3 - key,))

    writers = [threading.Thread(target=write, args=(number,)) for number in range(1, 4)]
    for writer in writers:
        writer.start()
    for _ in range(5):
        wal18.start()
        time.sleep(0.6)
        wal18.end()
    done.set()
    for writer in writers:
        writer.join()
    wal18.start()
    wal18.check(oid, "id", "v", "n")
