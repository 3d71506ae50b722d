"""The decoder: changes from the WAL into the buffers, for as long as it is let. Run by the service, one a database.

    walsender ──pgoutput──▶ ReplicationConnection ──rows──▶ Route ──COPY──▶ Sink (buffers and position, one commit)
        ▲                                                                     │
        └─────────────────── the position, confirmed after that commit ◀──────┘

A batch has the changes of whole transactions: it is committed when nothing more has arrived, or when it is large. One
large transaction is passed on in pieces as it arrives, so memory stays small. Killed at any point, the decoder loses
nothing: what was not committed is sent again. It doubles nothing: what was committed is known by its commit LSN.

An idle database writes no WAL of our making: positions between transactions are only confirmed to the server, and
recorded only when others have written much. Every recorded position is WAL, which is a position to confirm.
"""

from __future__ import annotations

import threading
import time
from typing import Final

import psycopg

from pgtrickle.capture import pgoutput
from pgtrickle.capture.copybinary import Route
from pgtrickle.capture.pgoutput import ProtocolError, Relation
from pgtrickle.capture.replication import (
    KEEPALIVE,
    WAL_DATA,
    WAL_DATA_HEADER,
    ReplicationConnection,
    SlotBusy,
    StreamError,
    format_lsn,
    keepalive,
)
from pgtrickle.capture.sink import Sink
from pgtrickle.errors import Error
from pgtrickle.fence import Fence

BARRIER_PREFIX: Final = "pgtrickle"
"""Messages with it (`pg_logical_emit_message`) are waited for: the position after them is recorded without delay."""

CHUNK_BYTES: Final = 1 << 20
"""Rows of a buffer that are kept before they are sent on."""
RUN_BYTES: Final = 2 << 20
"""Rows that are looked at together."""
BATCH_BYTES: Final = 32 << 20
BATCH_SECONDS: Final = 0.5
PACE_SECONDS: Final = 0.04
"""Time between commits while small transactions keep coming; the first after a pause is committed at once."""
CONFIRM_SECONDS: Final = 0.1
STATUS_SECONDS: Final = 10.0
POLL_SECONDS: Final = 0.25
RECORD_SECONDS: Final = 1.0
RECORD_BYTES: Final = 1 << 16
BUSY_SECONDS: Final = 10.0

_KIND: Final = WAL_DATA_HEADER
_BODY: Final = WAL_DATA_HEADER + 1
_ROW: Final = _BODY + 4
"""Where a row begins, after the oid of its table."""
_NO_RUN: Final = b"-"
_ROWS: Final = b"IUD"
_INSERT, _UPDATE, _ = _ROWS
_BEGIN, _COMMIT, _RELATION, _TRUNCATE, _MESSAGE = b"BCRTM"
_PASSED_OVER: Final = b"OY"


class Decoder:
    """Decodes the WAL of a slot into the buffers of this database."""

    def __init__(self, dsn: str, slot: str, publication: str, fence: Fence | None = None) -> None:
        self._fence = fence
        self._dsn = dsn
        self._slot = slot
        self._publication = publication
        self._current: _Run | None = None

    @property
    def woken_at(self) -> float:
        """When it last looked at what has arrived, by the monotonic clock; may be asked for by another thread."""
        return 0.0 if self._current is None else self._current.woken_at

    def run(self, stop: threading.Event) -> None:
        """Decode until `stop` is set. Whatever ends it otherwise is recorded in `pgt_decoder`, and raised."""
        sink = Sink(self._dsn, self._slot, self._publication, self._fence)
        run: _Run | None = None
        try:
            with ReplicationConnection(self._dsn) as stream:
                run = self._current = _Run(stream, sink, stop)
                run.run(self._slot, self._publication)
        except BaseException as error:
            try:
                sink.end(error, told_lsn=0 if run is None else run.told)
            except (Error, psycopg.Error) as second:
                error.add_note(f"and it could not be recorded: {second}")
            raise
        sink.end(told_lsn=run.told)


class _Run:
    """One run of a decoder: where it is in the stream."""

    def __init__(self, stream: ReplicationConnection, sink: Sink, stop: threading.Event) -> None:
        self._stream = stream
        self._sink = sink
        self._stop = stop
        self._relations: dict[int, Relation] = {}
        self._live: dict[bytes, tuple[Route, ...]] = {}
        """Where rows go, by the relation's oid as it stands in a message; for the transaction at hand."""
        self._transaction: pgoutput.Begin | None = None
        self._wanted = False
        """Whether the transaction at hand has something to record."""
        self._position = sink.confirmed_lsn
        """Before it, everything is in a committed batch or in the one at hand."""
        self._commit_lsn = sink.commit_lsn
        self._batch_bytes = 0
        self._pending = False
        self._urgent = False
        self._caught_up = False
        """Whether the server has nothing more for the moment: it says so by a keepalive."""
        self._confirmed = sink.confirmed_lsn
        self._told = 0
        self._answer = False
        now = self.woken_at = time.monotonic()
        self._batch_since = self._last_commit = self._last_told = now

    def run(self, slot: str, publication: str) -> None:
        self._require_same_server()
        self._start(slot, publication)
        self._sink.streaming()
        while not self._stop.is_set():
            self.woken_at = time.monotonic()
            drained = self._read()
            if self._transaction is None:
                self._settle(drained)
            self._tell()
            if drained:
                self._stream.wait(POLL_SECONDS if self._told >= self._confirmed else CONFIRM_SECONDS)
        if self._transaction is None and self._pending:
            self._commit()
        self._stream.confirm(self._confirmed)
        self._told = self._confirmed

    @property
    def told(self) -> int:
        """How far the server may have been told that we are."""
        return max(self._told, self._confirmed)

    def _require_same_server(self) -> None:
        """A server restored from a backup writes its WAL positions again, with other content."""
        reached = self._stream.identify().position
        if self._position > reached:
            raise StreamError(
                f"the WAL ends at {format_lsn(reached)}, but was decoded up to {format_lsn(self._position)} already",
                hint="The server was restored from a backup: the slot must be made again.",
            )

    def _start(self, slot: str, publication: str) -> None:
        """Start to stream. A decoder that just died may hold the slot for a moment."""
        deadline = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                self._stream.start(slot, publication, self._position)
                return
            except SlotBusy:
                if time.monotonic() > deadline or self._stop.wait(0.1):
                    raise

    def _read(self) -> bool:
        """Take in what has arrived; true if that is all, false if a batch is full first, or we must stop.

        Rows of one kind and table that follow each other are gathered to a run, and passed on together.
        """
        key, size = _NO_RUN, 0
        run: list[bytes] = []
        for data in self._stream.arrived():
            if data[_KIND:_ROW] == key:
                run.append(data[_ROW:])
                size += len(data)
                if size < RUN_BYTES:
                    continue
                self._pass_on(key, run)
                key, run, size = _NO_RUN, [], 0
                if self._stop.is_set():
                    return False
                continue
            if run:
                self._pass_on(key, run)
                key, run, size = _NO_RUN, [], 0
            if data[0] != WAL_DATA:
                self._keepalive(data)
            elif data[_KIND] in _ROWS:
                key, run, size = data[_KIND:_ROW], [data[_ROW:]], len(data)
            elif self._control(data[_KIND], data):
                return False
        if run:
            self._pass_on(key, run)
        return True

    def _pass_on(self, key: bytes, run: list[bytes]) -> None:
        """Rows of one kind and table go where they are wanted."""
        self.woken_at = time.monotonic()
        kind = key[0]
        for route in self._routes(key[1:]):
            if kind == _INSERT:
                route.inserts(run)
            elif kind == _UPDATE:
                route.updates(run)
            else:
                route.deletes(run)
            if len(route.target.rows) >= CHUNK_BYTES:
                self._batch_bytes += len(route.target.rows)
                self._sink.flush(route.target)
                self._tell()

    def _routes(self, oid: bytes) -> tuple[Route, ...]:
        """Where rows of a table go in the transaction at hand."""
        found = self._live.get(oid)
        if found is None:
            relation = self._relations.get(int.from_bytes(oid))
            begin = self._transaction
            if relation is None or begin is None:
                raise ProtocolError(f"a change of {int.from_bytes(oid)} before its shape, or outside a transaction")
            repeated = begin.commit_lsn <= self._commit_lsn  # sent again: we have it
            found = () if repeated else self._sink.routes(relation, begin.xid, begin.commit_lsn)
            self._wanted |= bool(found)
            self._live[oid] = found
        return found

    def _control(self, kind: int, data: bytes) -> bool:
        """Messages other than rows; true if the batch at hand is full."""
        if kind == _BEGIN:
            self._transaction = pgoutput.begin(data, _BODY)
            self._live.clear()
            self._wanted = self._caught_up = False
        elif kind == _COMMIT:
            return self._end(pgoutput.commit(data, _BODY))
        elif kind == _RELATION:
            relation = pgoutput.relation(data, _BODY)
            if self._relations.get(relation.oid) != relation:
                self._relations[relation.oid] = relation
                self._sink.shape_of(relation)
            self._live.pop(data[_BODY:_ROW], None)
        elif kind == _TRUNCATE:
            for oid in pgoutput.truncate(data, _BODY):
                for route in self._routes(oid.to_bytes(4)):
                    route.target.mark()
        elif kind == _MESSAGE:
            message = pgoutput.message(data, _BODY)
            if message.transactional and message.prefix == BARRIER_PREFIX:
                self._wanted = self._urgent = True
        elif kind not in _PASSED_OVER:
            raise ProtocolError(f"a message of the unknown kind {chr(kind)!r}")
        return False

    def _end(self, commit: pgoutput.Commit) -> bool:
        """A transaction is complete; true if the batch should be committed before more is read."""
        self._transaction = None
        self._position = max(self._position, commit.end_lsn)
        if not self._wanted:
            return False
        now = time.monotonic()
        if not self._pending:
            self._pending, self._batch_since = True, now
        self._commit_lsn = max(self._commit_lsn, commit.commit_lsn)
        return self._batch_bytes >= BATCH_BYTES or now - self._batch_since >= BATCH_SECONDS

    def _keepalive(self, data: bytes) -> None:
        if data[0] != KEEPALIVE:
            raise ProtocolError(f"a message of the unknown kind {chr(data[0])!r}")
        alive = keepalive(data)
        if self._transaction is None:
            self._position = max(self._position, alive.position)
            self._caught_up = True
        if alive.reply:
            self._answer = True
            self._tell()

    def _settle(self, drained: bool) -> None:
        """Between transactions: commit what there is, unless more is to be expected in a moment.

        As long as the server has not caught up, it prepares the next transaction: we go on taking rows in, and the
        session that copies them works meanwhile, instead of being waited for.
        """
        now = time.monotonic()
        if self._pending:
            if drained and not (self._caught_up or self._urgent) and now - self._batch_since < BATCH_SECONDS:
                return
            early = self._last_commit + PACE_SECONDS - now
            if drained and early > 0 and not self._urgent and not self._stop.wait(early):
                self._read()
                if self._transaction is not None:
                    return
            self._commit()
        elif self._position > self._sink.written_lsn + RECORD_BYTES and now - self._last_commit > RECORD_SECONDS:
            self._commit()
        else:
            self._sink.rest()
            self._confirmed = self._position

    def _commit(self) -> None:
        self._sink.commit(self._position, self._commit_lsn)
        self._confirmed = self._position
        self._pending = self._urgent = False
        self._batch_bytes = 0
        self._last_commit = time.monotonic()

    def _tell(self) -> None:
        """Confirm the position to the server, not too often, and not too seldom."""
        now = time.monotonic()
        since = now - self._last_told
        if self._answer or (self._confirmed > self._told and since >= CONFIRM_SECONDS) or since >= STATUS_SECONDS:
            self._stream.confirm(self._confirmed)
            self._told, self._last_told, self._answer = self._confirmed, now, False
