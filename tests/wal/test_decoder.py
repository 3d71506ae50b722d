"""The decoder against real servers: what is written to a table arrives in its buffer, once, whatever happens."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from psycopg import sql

from pgtrickle import db
from pgtrickle.capture import decoder as decoder_module
from pgtrickle.capture import triggers
from pgtrickle.capture.buffer import buffer_column
from pgtrickle.capture.copybinary import Target
from pgtrickle.capture.decoder import Decoder
from pgtrickle.capture.replication import (
    PublicationMissing,
    ReplicationConnection,
    SlotBusy,
    SlotMissing,
    StreamError,
    parse_lsn,
)
from pgtrickle.capture.sink import Sink
from pgtrickle.catalog.install import install
from pgtrickle.db import Connection
from pgtrickle.errors import StateError
from pgtrickle.model import Table

Bag = Counter[tuple[str | None, ...]]
WAIT_SECONDS = 60.0


@dataclass
class Wal:
    """A database whose tables are captured from the WAL by a decoder that the test starts and stops."""

    dsn: str
    conn: Connection
    slot: str
    stop: threading.Event = field(default_factory=threading.Event)
    thread: threading.Thread | None = None
    error: BaseException | None = None

    def table(self, create: str, *columns: str, name: str = "t", identity: str = "FULL") -> int:
        """Make a table and capture some columns from the WAL only."""
        self.run(create)
        if identity:
            self.run(f"ALTER TABLE {name} REPLICA IDENTITY {identity}")
        oid = self.oid(name)
        triggers.attach(self.conn, Table(oid, "public", name), columns)
        self.run(
            f"ALTER TABLE {name} DISABLE TRIGGER USER",
            f"UPDATE pgtrickle.pgt_change_tracking SET cdc_mode = 'WAL' WHERE source_relid = {oid}",
            f"ALTER PUBLICATION {self.slot} ADD TABLE {name}",
        )
        return oid

    def oid(self, name: str) -> int:
        return int(str(db.scalar(self.conn, f"SELECT '{name}'::regclass::oid::bigint")))

    def run(self, *statements: str) -> None:
        """The statements in one transaction."""
        with self.conn.transaction():
            for each in statements:
                self.conn.execute(db.statement(each))

    def start(self) -> None:
        self.stop, self.error = threading.Event(), None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            Decoder(self.dsn, self.slot, self.slot).run(self.stop)
        except BaseException as error:  # noqa: BLE001 - handed to the test's thread
            self.error = error

    def end(self) -> BaseException | None:
        """Stop the decoder; what it ended with, if not by that."""
        if self.thread is not None:
            self.stop.set()
            self.thread.join(WAIT_SECONDS)
            assert not self.thread.is_alive()
            self.thread = None
        return self.error

    def fails(self) -> BaseException:
        """Wait until the decoder ends by itself."""
        assert self.thread is not None
        self.thread.join(WAIT_SECONDS)
        assert not self.thread.is_alive()
        assert self.error is not None
        return self.error

    def pass_barrier(self) -> None:
        """Wait until all that is committed is in the buffers."""
        lsn = db.scalar(self.conn, "SELECT pg_logical_emit_message(true, 'pgtrickle', 'x')")
        deadline = time.monotonic() + WAIT_SECONDS
        while not db.scalar(self.conn, f"SELECT bool_or(confirmed_lsn >= '{lsn}') FROM pgtrickle.pgt_decoder"):
            if self.error is not None:
                raise self.error
            assert time.monotonic() < deadline, "the decoder does not come"
            time.sleep(0.005)

    def passed_over(self) -> None:
        """Wait until the server knows that all that is committed was taken in, though nothing had to be recorded."""
        lsn = db.scalar(self.conn, "SELECT pg_current_wal_insert_lsn()")
        confirmed = f"SELECT confirmed_flush_lsn >= '{lsn}' FROM pg_replication_slots WHERE slot_name = '{self.slot}'"
        deadline = time.monotonic() + WAIT_SECONDS
        while not db.scalar(self.conn, confirmed):
            assert time.monotonic() < deadline, "the position is not confirmed"
            time.sleep(0.02)

    def actions(self, oid: int) -> str:
        rows = self.conn.execute(
            db.statement(f"SELECT action::text FROM pgtrickle_changes.changes_{oid} ORDER BY change_id")
        )
        return "".join(str(action) for (action,) in rows)

    def decoded(self, oid: int, *columns: str) -> Bag:
        """What the buffer's rows add up to, as text."""
        bag: Bag = Counter()
        for side, weight, without in (("old", -1, "I"), ("new", 1, "D")):
            texts = ", ".join(f'"{buffer_column(side, name)}"::text' for name in columns)
            for row in self.conn.execute(
                db.statement(
                    f"SELECT {texts} FROM pgtrickle_changes.changes_{oid}"
                    f" WHERE cdc_source = 'W' AND action NOT IN ('{without}', 'T')"
                )
            ):
                bag[tuple(None if value is None else str(value) for value in row)] += weight
        return Counter({row: weight for row, weight in bag.items() if weight})

    def held(self, *columns: str, name: str = "t") -> Bag:
        texts = ", ".join(f'"{each}"::text' for each in columns)
        rows = self.conn.execute(db.statement(f"SELECT {texts} FROM {name}"))
        return Counter(tuple(None if value is None else str(value) for value in row) for row in rows)

    def check(self, oid: int, *columns: str, name: str = "t") -> None:
        """All that was written to the table since it was made has arrived, once."""
        self.pass_barrier()
        assert self.decoded(oid, *columns) == self.held(*columns, name=name)

    def record(self) -> dict[str, object]:
        cursor = self.conn.execute("SELECT status, error, pid, commit_lsn::text FROM pgtrickle.pgt_decoder")
        row = cursor.fetchone()
        assert row is not None
        return dict(zip(("status", "error", "pid", "commit_lsn"), row, strict=True))


@contextmanager
def prepared(dsn: str) -> Iterator[Wal]:
    with db.connect(dsn) as conn:
        install(conn)
        slot = f"pgtrickle_{db.scalar(conn, 'SELECT oid::text FROM pg_database WHERE datname = current_database()')}"
        conn.execute(sql.SQL("CREATE PUBLICATION {}").format(sql.Identifier(slot)))
        conn.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
        found = Wal(dsn, conn, slot)
        try:
            yield found
        finally:
            found.end()


@pytest.fixture
def wal(database: str) -> Iterator[Wal]:
    with prepared(database) as found:
        yield found


@pytest.fixture
def wal18(database18: str) -> Iterator[Wal]:
    with prepared(database18) as found:
        yield found


def test_changes_arrive_with_their_transaction_and_position(wal: Wal) -> None:
    oid = wal.table("CREATE TABLE t (id int, v text, w int)", "id", "v")
    wal.start()
    with wal.conn.transaction():
        wal.conn.execute("INSERT INTO t VALUES (1, 'a', 1), (2, NULL, 2), (3, 'c', 3)")
        wal.conn.execute("UPDATE t SET v = 'b', id = 20 WHERE id = 2")
        with wal.conn.transaction(force_rollback=True):
            wal.conn.execute("DELETE FROM t")
        with wal.conn.transaction():
            wal.conn.execute("DELETE FROM t WHERE id = 3")
        xid = db.scalar(wal.conn, "SELECT pg_current_xact_id()::text")
        before = db.scalar(wal.conn, "SELECT pg_current_wal_insert_lsn()::text")
    after = db.scalar(wal.conn, "SELECT pg_current_wal_insert_lsn()::text")
    wal.check(oid, "id", "v")
    assert wal.actions(oid) == "IIIUD"
    rows = wal.conn.execute(
        db.statement(f"SELECT DISTINCT xid::text, lsn::text, cdc_source::text FROM pgtrickle_changes.changes_{oid}")
    ).fetchall()
    assert len(rows) == 1
    assert rows[0][0] == xid
    assert rows[0][2] == "W"
    assert parse_lsn(str(before)) <= parse_lsn(str(rows[0][1])) < parse_lsn(str(after))
    assert wal.end() is None
    assert wal.record()["status"] == "STOPPED"


def test_an_update_of_columns_not_used_writes_nothing(wal18: Wal) -> None:
    oid = wal18.table("CREATE TABLE t (id int, v text, w int)", "id", "v")
    wal18.start()
    wal18.run("INSERT INTO t SELECT g, 'v', 0 FROM generate_series(1, 100) AS g", "UPDATE t SET w = 1")
    wal18.check(oid, "id", "v")
    assert wal18.actions(oid) == 100 * "I"


def test_an_identity_index_that_covers_the_columns_is_enough(wal: Wal) -> None:
    oid = wal.table(
        "CREATE TABLE t (id int NOT NULL, v text NOT NULL, w int); CREATE UNIQUE INDEX i ON t (v, id)",
        "id",
        "v",
        identity="USING INDEX i",
    )
    wal.start()
    wal.run("INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)")
    wal.run("UPDATE t SET w = 10", "UPDATE t SET v = 'z' WHERE id = 1", "DELETE FROM t WHERE id = 2")
    wal.check(oid, "id", "v")
    assert wal.actions(oid) == "IIIUD"


def test_old_values_that_the_identity_lacks_make_a_mark(wal18: Wal) -> None:
    oid = wal18.table("CREATE TABLE t (id int PRIMARY KEY, v text)", "id", "v", identity="DEFAULT")
    wal18.start()
    wal18.run("INSERT INTO t VALUES (1, 'a')")
    wal18.run("UPDATE t SET v = 'b'", "UPDATE t SET v = 'c'")
    wal18.run("DELETE FROM t")
    wal18.pass_barrier()
    assert wal18.actions(oid) == "ITT"


def test_large_values_left_alone_and_changed(wal: Wal) -> None:
    oid = wal.table("CREATE TABLE t (id int, v text, big text)", "id", "v", "big")
    wal.run("ALTER TABLE t ALTER big SET STORAGE EXTERNAL")
    wal.start()
    wal.run("INSERT INTO t SELECT g, 'v', repeat(g::text, 20000) FROM generate_series(1, 5) AS g")
    wal.run("UPDATE t SET v = 'w' WHERE id < 4")
    wal.run("UPDATE t SET big = repeat('z', 30000) WHERE id = 2", "UPDATE t SET id = 10 WHERE id = 3")
    wal.run("DELETE FROM t WHERE id = 4")
    wal.check(oid, "id", "v", "big")
    assert wal.actions(oid) == "IIIIIUUUUUD"


def test_values_of_all_kinds_arrive_as_they_are(wal: Wal) -> None:
    columns = {
        "n": ("numeric", "'NaN'", "1.50", "-12345678901234567890123456789012345678901234567890.000001"),
        "m": ("numeric(10,2)", "0", "1.5", "NULL"),
        "f": ("float8", "'-0'", "'NaN'", "0.1"),
        "b": ("bytea", "'\\x00ff'", "''", "NULL"),
        "j": ("jsonb", "'{\"a\": [1, null]}'", "'null'", "NULL"),
        "a": ("text[]", "'{a,NULL,\"b c\"}'", "'{}'", "NULL"),
        "z": ("timestamptz", "'infinity'", "'2024-02-29 12:00:00.123456+05:30'", "NULL"),
        "i": ("interval", "'1 mon -2 days 03:04:05.6'", "'0'", "NULL"),
        "r": ("int4range", "'[1,5)'", "'empty'", "NULL"),
        "u": ("uuid", "'00000000-0000-0000-0000-000000000001'", "gen_random_uuid()", "NULL"),
        "d": ("positive", "1", "2", "3"),
        "e": ("mood", "'ok'", "'sad'", "NULL"),
        "p": ("pair", "'(1,x)'", "'(,)'", "NULL"),
        "c": ("varchar(5)", "'abc'", "'ü€'", "NULL"),
        "g": ("aclitem", "'=r/postgres'", "'postgres=arw/postgres'", "NULL"),
        "Täble col": ("bit varying(9)", "B'101'", "B''", "NULL"),
    }
    definitions = ", ".join(f'"{name}" {each[0]}' for name, each in columns.items())
    oid = wal.table(
        "CREATE DOMAIN positive AS int NOT NULL CHECK (VALUE > 0); CREATE TYPE mood AS ENUM ('ok', 'sad');"
        f"CREATE TYPE pair AS (x int, y text); CREATE TABLE t ({definitions})",
        *columns,
    )
    wal.start()
    for place in (1, 2, 3):
        wal.run(f"INSERT INTO t VALUES ({', '.join(each[place] for each in columns.values())})")
    wal.check(oid, *columns)
    wal.run("INSERT INTO t SELECT t.* FROM t, generate_series(1, 50)")
    wal.run("UPDATE t SET m = 7, g = '=w/postgres' WHERE d = 2", "DELETE FROM t WHERE d = 3")
    wal.check(oid, *columns)


def test_truncate_makes_a_mark(wal: Wal) -> None:
    first = wal.table("CREATE TABLE t (id int)", "id")
    second = wal.table("CREATE TABLE u (id int)", "id", name="u")
    wal.start()
    wal.run("INSERT INTO t VALUES (1)", "TRUNCATE t, u", "INSERT INTO t VALUES (2)")
    wal.run("TRUNCATE u")
    wal.pass_barrier()
    assert wal.actions(first) == "ITI"
    assert wal.actions(second) == "TT"


def test_columns_come_and_go(wal: Wal) -> None:
    oid = wal.table("CREATE TABLE t (a int, id int, v text)", "id", "v")
    wal.start()
    wal.run("INSERT INTO t VALUES (0, 1, 'a')")
    wal.run("ALTER TABLE t ADD COLUMN more text DEFAULT 'm'", "INSERT INTO t VALUES (0, 2, 'b', 'x')")
    wal.run(
        "INSERT INTO t VALUES (0, 3, 'c', 'y')", "ALTER TABLE t DROP COLUMN a", "INSERT INTO t VALUES (4, 'd', 'z')"
    )
    wal.check(oid, "id", "v")
    assert wal.actions(oid) == "IIII"


@pytest.mark.parametrize(
    "ddl",
    [
        "ALTER TABLE t ALTER v TYPE varchar(20)",
        "ALTER TABLE t ALTER n TYPE varchar(9)",
        "ALTER TABLE t RENAME v TO x",
        "ALTER TABLE t DROP COLUMN v",
    ],
)
def test_a_change_of_a_used_column_makes_a_mark(wal18: Wal, ddl: str) -> None:
    oid = wal18.table("CREATE TABLE t (id int, v text, n varchar(5))", "id", "v", "n")
    wal18.start()
    wal18.run("INSERT INTO t VALUES (1, 'a', 'n')")
    wal18.run(ddl)
    wal18.run("INSERT INTO t (id) VALUES (2), (3)", "DELETE FROM t WHERE id = 2")
    wal18.run("INSERT INTO t (id) VALUES (4)")
    wal18.pass_barrier()
    assert wal18.actions(oid) == "ITT"


def test_a_column_that_a_new_consumer_needs_is_there_from_then_on(wal18: Wal) -> None:
    oid = wal18.table("CREATE TABLE t (id int, v text)", "id")
    wal18.start()
    wal18.run("INSERT INTO t VALUES (1, 'a')")
    wal18.pass_barrier()
    triggers.attach(wal18.conn, Table(oid, "public", "t"), ["v"])  # which takes it back to triggers
    wal18.run(
        "ALTER TABLE t DISABLE TRIGGER USER",
        "UPDATE pgtrickle.pgt_change_tracking SET cdc_mode = 'WAL'",
        f"ALTER PUBLICATION {wal18.slot} SET TABLE t",
    )
    wal18.run("INSERT INTO t VALUES (2, 'b')")
    wal18.pass_barrier()
    assert wal18.decoded(oid, "id", "v") == Counter([("1", None), ("2", "b")])


@pytest.mark.parametrize("via_root", [True, False])
def test_partitions_are_decoded_as_their_root(wal: Wal, via_root: bool) -> None:
    wal.run(f"ALTER PUBLICATION {wal.slot} SET (publish_via_partition_root = {via_root})")
    oid = wal.table(
        "CREATE TABLE t (id int, v text) PARTITION BY RANGE (id);"
        "CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (100);"
        "CREATE TABLE high (v text, gone int, id int); ALTER TABLE high DROP COLUMN gone;"
        "ALTER TABLE t ATTACH PARTITION high FOR VALUES FROM (100) TO (200);"
        "ALTER TABLE low REPLICA IDENTITY FULL; ALTER TABLE high REPLICA IDENTITY FULL",
        "id",
        "v",
    )
    for partition in ("low", "high"):
        wal.run(f"ALTER TABLE {partition} DISABLE TRIGGER USER")
    wal.start()
    wal.run("INSERT INTO t SELECT g, 'v' || g FROM generate_series(1, 199) AS g", "UPDATE t SET id = 199 - id")
    wal.run("INSERT INTO high VALUES ('direct', 150)", "DELETE FROM low WHERE id < 20", "UPDATE high SET v = 'x'")
    wal.check(oid, "id", "v")
    assert "T" not in wal.actions(oid)
    wal.run("TRUNCATE t")
    wal.pass_barrier()
    assert wal.actions(oid).endswith("T")
    wal.run("INSERT INTO t VALUES (1, 'a')", "TRUNCATE low")
    wal.pass_barrier()
    # PostgreSQL does not publish the truncation of a partition as that of its root.
    assert wal.actions(oid).endswith("I" if via_root else "IT")


def test_a_prepared_transaction_arrives_when_it_commits(wal18: Wal) -> None:
    oid = wal18.table("CREATE TABLE t (id int)", "id")
    wal18.start()
    wal18.conn.execute("BEGIN")
    wal18.conn.execute("INSERT INTO t VALUES (1)")
    xid = db.scalar(wal18.conn, "SELECT pg_current_xact_id()::text")
    wal18.conn.execute("PREPARE TRANSACTION 'later'")
    wal18.pass_barrier()
    assert wal18.actions(oid) == ""
    wal18.conn.execute("COMMIT PREPARED 'later'")
    wal18.check(oid, "id")
    assert db.scalar(wal18.conn, f"SELECT xid::text FROM pgtrickle_changes.changes_{oid}") == xid


def test_tables_that_nobody_wants_are_passed_over_until_somebody_does(wal18: Wal) -> None:
    oid = wal18.table("CREATE TABLE t (id int)", "id")
    wal18.run("UPDATE pgtrickle.pgt_change_tracking SET cdc_mode = 'TRIGGER'")
    wal18.start()
    wal18.run("INSERT INTO t VALUES (1)")
    wal18.pass_barrier()
    wal18.run("INSERT INTO t VALUES (1)")
    wal18.passed_over()
    held = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgtrickle decoder' AND state <> 'idle'"
    assert db.scalar(wal18.conn, f"{held} AND datname = current_database() AND backend_type = 'client backend'") == 0
    wal18.run("UPDATE pgtrickle.pgt_change_tracking SET cdc_mode = 'TRANSITIONING'")
    wal18.run("INSERT INTO t VALUES (2)")
    wal18.pass_barrier()
    assert wal18.decoded(oid, "id") == Counter([("2",)])


def test_changes_that_count_still_arrive_after_the_way_back(wal18: Wal) -> None:
    oid = wal18.table("CREATE TABLE t (id int)", "id")
    wal18.run("INSERT INTO t VALUES (1)")
    wal18.run(
        "UPDATE pgtrickle.pgt_change_tracking SET cdc_mode = 'TRIGGER'",
        f"INSERT INTO pgtrickle.pgt_handovers (source_relid, at, side) VALUES ({oid}, pg_current_snapshot(), 'T')",
    )
    wal18.start()
    wal18.check(oid, "id")


def test_a_buffer_dropped_in_between_does_not_stop_the_others(wal18: Wal) -> None:
    first = wal18.table("CREATE TABLE t (id int)", "id")
    second = wal18.table("CREATE TABLE u (id int)", "id", name="u")
    wal18.start()
    wal18.run("INSERT INTO t VALUES (1)", "INSERT INTO u VALUES (1)")
    wal18.pass_barrier()
    wal18.run("INSERT INTO t VALUES (2)", "INSERT INTO u VALUES (2)")
    assert triggers.detach(wal18.conn, first)
    wal18.run("INSERT INTO t VALUES (3)", "INSERT INTO u VALUES (3)")
    wal18.check(second, "id", name="u")


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

    def flush_and_stop(self: Sink, target: Target) -> None:
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
        with db.connect(wal18.dsn) as conn:
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
