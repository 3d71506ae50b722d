"""A database captured from the WAL alone, for tests of the decoder."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from psycopg import sql

from pgtrickle import db
from pgtrickle.capture import triggers
from pgtrickle.capture.buffer import buffer_column
from pgtrickle.capture.decoder import Decoder
from pgtrickle.catalog.install import install
from pgtrickle.db import Connection
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
    with db.open_session(dsn) as conn:
        install(conn)
        slot = f"pgtrickle_{db.scalar(conn, 'SELECT oid::text FROM pg_database WHERE datname = current_database()')}"
        conn.execute(sql.SQL("CREATE PUBLICATION {}").format(sql.Identifier(slot)))
        conn.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
        found = Wal(dsn, conn, slot)
        try:
            yield found
        finally:
            found.end()
