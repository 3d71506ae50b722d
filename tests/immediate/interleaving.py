"""Sessions that take their steps in a given order, as in PostgreSQL's own isolation tests: a step that waits for a lock
is left waiting, and the others go on. Used by `test_interleaved.py`."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, cycle

import psycopg
from psycopg import IsolationLevel

from pgtrickle import db
from pgtrickle.db import Connection, statement

AGAIN = (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)
"""PostgreSQL ends a transaction for the sake of others: it is to be run again."""
FAULTS = (psycopg.errors.UniqueViolation, psycopg.errors.ForeignKeyViolation, psycopg.errors.CardinalityViolation)
"""What a writer's own statement is to blame for: its transaction is rolled back."""
_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class Transaction:
    """What one session does in one go, and how it ends."""

    level: IsolationLevel
    steps: tuple[str, ...]
    rolled_back: bool = False

    def __iter__(self) -> Iterator[str]:
        yield f"BEGIN ISOLATION LEVEL {self.level.name.replace('_', ' ')}"
        yield from self.steps
        yield "ROLLBACK" if self.rolled_back else "COMMIT"


@dataclass(slots=True)
class Session:
    """A connection of its own, in a thread of its own, and what is left for it to do."""

    connection: Connection
    asked: queue.Queue[str | None] = field(default_factory=queue.Queue)
    idle: threading.Event = field(default_factory=threading.Event)
    error: psycopg.Error | None = None
    transactions: deque[Transaction] = field(default_factory=deque)
    under_way: Transaction | None = None
    left: deque[str] = field(default_factory=deque)

    def serve(self) -> None:
        while (text := self.asked.get()) is not None:
            try:
                self.connection.execute(statement(text))
            except psycopg.Error as error:
                self.error = error
            self.idle.set()

    def forget(self) -> None:
        """Whatever a run that failed has left."""
        if not self.idle.is_set():
            self.connection.cancel_safe()
            self.idle.wait()
        self.connection.rollback()
        self.error, self.under_way = None, None
        self.left.clear()
        self.transactions.clear()

    @property
    def is_done(self) -> bool:
        return self.idle.is_set() and self.error is None and not self.left and not self.transactions

    def go_on(self) -> Transaction | None:
        """Takes the next step, unless the last one waits. Returns a transaction that failed and is to be run again."""
        if not self.idle.is_set() or self.is_done:
            return None
        if self.error is not None:
            return self._roll_back(self.error)
        if not self.left:
            self.under_way = self.transactions.popleft()
            self.left.extend(self.under_way)
        self._ask(self.left.popleft())
        return None

    def _roll_back(self, error: psycopg.Error) -> Transaction | None:
        if not isinstance(error, (*AGAIN, *FAULTS)):
            raise error
        self.error = None
        self.left.clear()
        self._ask("ROLLBACK")
        return self.under_way if isinstance(error, AGAIN) else None

    def _ask(self, text: str) -> None:
        self.idle.clear()
        self.asked.put(text)


class Interleaving:
    """Sessions, kept for several runs, and one that sees who waits."""

    def __init__(self, dsn: str, sessions: int) -> None:
        self.monitor = db.open_session(dsn)
        self.sessions = [Session(db.open_session(dsn)) for _ in range(sessions)]
        self.threads = [threading.Thread(target=each.serve) for each in self.sessions]
        for session, thread in zip(self.sessions, self.threads, strict=True):
            session.connection.execute("SET deadlock_timeout = '5ms'")
            session.idle.set()
            thread.start()

    def close(self) -> None:
        for session, thread in zip(self.sessions, self.threads, strict=True):
            if not session.idle.is_set():
                self.monitor.execute("SELECT pg_cancel_backend(%s)", (session.connection.info.backend_pid,))
            session.asked.put(None)
            thread.join()
            session.connection.close()
        self.monitor.close()

    def forget(self) -> None:
        for session in self.sessions:
            session.forget()

    def run(self, work: Sequence[Sequence[Transaction]], order: Sequence[int]) -> int:
        """Each session's transactions, a step of one whenever `order` names it, and what is left in turns. Those that
        are to be run again are, at the end, one by one. Returns how many these were."""
        for session, transactions in zip(self.sessions, work, strict=True):
            session.transactions.extend(transactions)
        again = self._take_steps(chain(order, cycle(range(len(work)))))
        for transaction in again:
            self.sessions[0].transactions.append(transaction)
            assert self._take_steps(cycle([0])) == [], "nobody else is there to be serialized with"
        return len(again)

    def _take_steps(self, order: Iterator[int]) -> list[Transaction]:
        again, deadline = [], time.monotonic() + _PATIENCE_S
        while not all(session.is_done for session in self.sessions):
            if time.monotonic() > deadline:
                raise TimeoutError("sessions wait for each other")
            failed = self.sessions[next(order) % len(self.sessions)].go_on()
            again += [failed] if failed is not None else []
            self._settle()
        return again

    def _settle(self) -> None:
        """Until all are idle or wait for a lock."""
        while busy := [each for each in self.sessions if not each.idle.wait(0.001)]:
            pids = [each.connection.info.backend_pid for each in busy]
            waiting = "SELECT bool_and(cardinality(pg_blocking_pids(pid)) > 0) FROM unnest(%s::int[]) AS pid"
            if self.monitor.execute(waiting, (pids,)).fetchone() == (True,):
                return
