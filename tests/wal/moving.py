"""A decoder that runs, and sources moved between triggers and WAL by hand: for tests that want both at work."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from pgtrickle import db
from pgtrickle.capture import handover, mode_change, slot
from pgtrickle.capture.decoder import Decoder
from pgtrickle.capture.modes import CaptureMode, SlotState
from pgtrickle.db import Connection
from pgtrickle.errors import Error


class Moving:
    """Moves sources of one database, step by step; its decoder reads the slot whenever there is one."""

    def __init__(self, dsn: str, conn: Connection) -> None:
        self.dsn = dsn
        self.conn = conn
        self.failures: list[Exception] = []
        """What ended the decoder: a slot dropped under it, say. It is started again."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._decode)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def mode(self, oid: int) -> CaptureMode | None:
        with self.conn.transaction():
            return mode_change.mode_of(self.conn, oid)

    def step(self, oid: int) -> CaptureMode | None:
        """One step further on the way TRIGGER → TRANSITIONING → WAL → TRIGGER; the mode then."""
        match self.mode(oid):
            case CaptureMode.TRIGGER:
                handover.begin_transition(self.conn, oid, "the test moves it")
            case CaptureMode.TRANSITIONING:
                handover.complete(self.conn, oid, "the test moves it")
            case CaptureMode.WAL:
                handover.back(self.conn, oid, "the test moves it")
        return self.mode(oid)

    def to(self, oid: int, mode: CaptureMode) -> None:
        while self.mode(oid) is not mode:
            self.step(oid)

    def await_decoder(self) -> None:
        """Wait until all that is committed now is in the buffers."""
        self.conn.execute("SET synchronous_commit = local")
        row = self.conn.execute("SELECT pg_logical_emit_message(true, 'pgtrickle', 'test')::text").fetchone()
        assert row is not None
        deadline = time.monotonic() + 30
        while not db.scalar(
            self.conn, f"SELECT coalesce(lsn >= '{row[0]}', false) FROM pgtrickle_internal.pgt_decoded"
        ):
            assert time.monotonic() < deadline, self.failures
            time.sleep(0.01)

    def _decode(self) -> None:
        with db.connect(self.dsn) as conn:
            name = slot.name(conn)
            while not self._stop.wait(0.02):
                if slot.inspect(conn).state is not SlotState.ALIVE or not slot.is_used(conn):
                    continue  # as the service does: a slot that no source counts on is about to be dropped
                try:
                    Decoder(self.dsn, name, name).run(self._stop)
                except (Error, psycopg.Error) as error:
                    self.failures.append(error)


@contextmanager
def moving(dsn: str) -> Iterator[Moving]:
    """The catalog must be installed."""
    with db.connect(dsn) as conn:
        made = Moving(dsn, conn)
        made.start()
        try:
            yield made
        finally:
            made.stop()
