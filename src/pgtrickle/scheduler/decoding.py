"""The decoder's life: started while a source counts on the slot, stopped when none does, started again when it fails.

Called by `capture_loop.py` in each of its rounds. `Record` is the pure part: what failures in a row mean. Those that
pass by themselves (a lost connection, a server that restarts) are sat out; those that do not are reported as FAILED
after a few tries, so that sources go back to triggers. The decoder is tried again even then: what the slot still holds
of before the fallback must be decoded, and if that succeeds for a while, all is forgotten.
"""

from __future__ import annotations

import logging
import threading
import time
from contextvars import copy_context
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import psycopg

from pgtrickle.capture import slot
from pgtrickle.capture.decoder import Decoder
from pgtrickle.capture.modes import DecoderState, SlotState
from pgtrickle.capture.replication import PublicationMissing, SlotBusy, SlotInvalid, SlotMissing, StreamError
from pgtrickle.capture.sink import TakenOver
from pgtrickle.db import Connection
from pgtrickle.errors import Error, ServerError
from pgtrickle.fence import Fence, LeaseLost
from pgtrickle.scheduler.backoff import pause_after
from pgtrickle.scheduler.events import say, trouble
from pgtrickle.scheduler.heartbeat import Loop

STEADY_S: Final = 30.0
"""A run that lasted so long has got over what ended the runs before it."""
STOP_WITHIN_S: Final = 2.5
DECODER_WAKES_S: Final = 1.0
_PASSING_STATES: Final = ("08", "40", "53", "55P03", "57")
"""SQLSTATEs of a server that is busy, full, or going down: of connections, conflicts, resources, locks, operators."""


class Failure(StrEnum):
    """What a decoder's end means for the next try."""

    ELSEWHERE = "another decoder has the slot"
    PASSING = "it passes by itself"
    LASTING = "it does not pass by itself"


LIMITS: Final[dict[Failure, float]] = {Failure.ELSEWHERE: float("inf"), Failure.PASSING: 20, Failure.LASTING: 3}
"""So many of a kind in a row, and the decoder counts as failed. Even what should pass may not: with the pauses
between the tries, twenty last about eight minutes, in which the server was there for us but not for the decoder."""


def classify(error: BaseException) -> Failure:
    """Whether the same may be expected at the next try."""
    if isinstance(error, SlotBusy | TakenOver | LeaseLost):
        return Failure.ELSEWHERE
    if isinstance(error, SlotMissing | SlotInvalid | PublicationMissing):
        return Failure.LASTING
    if isinstance(error, StreamError | psycopg.OperationalError | psycopg.InterfaceError) and error.sqlstate is None:
        return Failure.PASSING  # the connection was lost
    if isinstance(error, StreamError | psycopg.Error):
        return Failure.PASSING if (error.sqlstate or "").startswith(_PASSING_STATES) else Failure.LASTING
    if isinstance(error, Error) and error.code == ServerError.code:
        return Failure.PASSING
    return Failure.LASTING


@dataclass(frozen=True, slots=True)
class DecodingRecord:
    """The failures in a row, of each kind."""

    elsewhere: int = 0
    passing: int = 0
    lasting: int = 0

    @property
    def failed(self) -> bool:
        """Whether sources should no longer count on the decoder."""
        return self.passing >= LIMITS[Failure.PASSING] or self.lasting >= LIMITS[Failure.LASTING]

    @property
    def pause_s(self) -> float:
        """How long to wait before the next try."""
        return pause_after(self.elsewhere + self.passing + self.lasting)

    def after(self, failure: Failure, lasted_s: float) -> DecodingRecord:
        """The record after one more failure, of a run that lasted so long."""
        before = DecodingRecord() if lasted_s >= STEADY_S else self
        return DecodingRecord(
            before.elsewhere + (failure is Failure.ELSEWHERE),
            before.passing + (failure is Failure.PASSING),
            before.lasting + (failure is Failure.LASTING),
        )


class Decoding:
    """The decoder of a database, kept running. For one thread."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._run: _Run | None = None
        self._record = DecodingRecord()
        self._next_try = 0.0

    @property
    def loops(self) -> tuple[Loop, ...]:
        """The decoder, for the heartbeat; may be asked for by another thread."""
        run = self._run
        return () if run is None else (run.loop,)

    def follow(self, conn: Connection, fence: Fence | None = None) -> DecoderState:
        """Start or stop the decoder as the sources need it, and say how it is."""
        self._look_after()
        if not slot.is_used(conn):
            self.stop()
            self._record, self._next_try = DecodingRecord(), 0.0
            return DecoderState.STOPPED
        current = slot.inspect(conn)
        if self._run is None and current.state is SlotState.ALIVE and time.monotonic() >= self._next_try:
            self._run = _Run(self._dsn, current.name, fence)
            say("decoder_started", slot=current.name, position=current.confirmed_lsn)
        if self._record.failed:
            return DecoderState.FAILED
        return DecoderState.RUNNING if self._run is not None and _streams(conn) else DecoderState.STOPPED

    def stop(self) -> None:
        """Have the decoder end, and wait for it; what it has not committed is decoded again by the next."""
        if self._run is None:
            return
        if self._run.stop(STOP_WITHIN_S):
            say("decoder_stopped", slot=self._run.slot)
        else:
            say("decoder_abandoned", logging.WARNING, slot=self._run.slot, waited_s=STOP_WITHIN_S)
        self._run = None

    def _look_after(self) -> None:
        """See whether the decoder is well, or why it ended."""
        run = self._run
        if run is None:
            return
        if run.alive:
            if self._record != DecodingRecord() and run.age_s >= STEADY_S:
                say("decoder_recovered", slot=run.slot)
                self._record = DecodingRecord()
            return
        self._run = None
        error = run.error or StreamError("the decoder ended without being told to")
        failure = classify(error)
        self._record = self._record.after(failure, run.age_s)
        self._next_try = time.monotonic() + self._record.pause_s
        facts = {"slot": run.slot, "meaning": str(failure), "next_try_s": self._record.pause_s}
        if isinstance(error, Error | psycopg.Error):
            say("decoder_failed", logging.WARNING, error=error, **facts)
        else:
            trouble("decoder_failed", error, **facts)


class _Run:
    """One run of the decoder, in a thread of its own, which ends with the process whatever it waits for."""

    def __init__(self, dsn: str, name: str, fence: Fence | None) -> None:
        self.slot = name
        self.error: BaseException | None = None
        self._decoder = Decoder(dsn, name, name, fence)
        self._stop = threading.Event()
        self._since = time.monotonic()
        self._until: float | None = None
        self._thread = threading.Thread(target=copy_context().run, args=(self._decode,), name="decoder", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def loop(self) -> Loop:
        return Loop("decoder", max(self._since, self._decoder.woken_at), DECODER_WAKES_S)

    @property
    def age_s(self) -> float:
        """How long it runs, or ran."""
        return (self._until or time.monotonic()) - self._since

    def stop(self, within_s: float) -> bool:
        """Whether it ended in time."""
        self._stop.set()
        self._thread.join(within_s)
        return not self._thread.is_alive()

    def _decode(self) -> None:
        try:
            self._decoder.run(self._stop)
        except BaseException as error:  # noqa: BLE001 - whoever follows the run looks at it
            self.error = error
        self._until = time.monotonic()


def _streams(conn: Connection) -> bool:
    """Whether the decoder has begun to stream, and someone reads the slot."""
    row = conn.execute(
        "SELECT EXISTS (SELECT FROM pgtrickle.pgt_decoder AS d JOIN pgtrickle_internal.pgt_slot AS s USING (slot_name)"
        " WHERE d.status = 'STREAMING' AND s.active_pid IS NOT NULL)"
    ).fetchone()
    return row is not None and bool(row[0])
