"""The threads that refresh side by side: each has a `Refresher` of its own, kept warm. Called by `refresh_loop.py`.

The caller's thread hands out units as their own upstreams are done, and hears of each when it is through; the members
of the pool decide nothing.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass
from graphlib import TopologicalSorter
from queue import SimpleQueue
from typing import Final, Generic, TypeAlias, TypeVar

from pgtrickle.refresh.refresher import Refresher
from pgtrickle.scheduler.diamonds import Unit
from pgtrickle.scheduler.heartbeat import Busy, Loop

T = TypeVar("T")
END_WITHIN_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """What became of a unit: an answer, or what was raised."""

    unit: Unit
    answer: T | None = None
    error: Exception | None = None


Task: TypeAlias = Callable[[Refresher, Unit], T]


class WorkerPool(Generic[T]):
    """Threads that carry out one task for many units. For one caller; `backend_pids` may be asked for by another."""

    def __init__(self, refresher: Callable[[], Refresher]) -> None:
        self._refresher = refresher
        self._members: list[_Member[T]] = []
        self._through: SimpleQueue[tuple[_Member[T], Outcome[T]]] = SimpleQueue()

    @property
    def backend_pids(self) -> tuple[int, ...]:
        """The sessions in which its members may be waiting."""
        return tuple(pid for member in self._members for pid in member.refresher.backend_pids)

    def loops(self, names: Callable[[Unit], str]) -> tuple[Loop, ...]:
        """Its members, for the heartbeat, each with what it is at; may be asked for by another thread."""
        return tuple(member.loop(names) for member in tuple(self._members))

    @property
    def refreshers(self) -> list[Refresher]:
        """Those of its members; not to be touched while they work."""
        return [member.refresher for member in self._members]

    def work(
        self,
        units: TopologicalSorter[Unit],
        width: int,
        task: Task[T],
        may_begin: Callable[[Unit], bool],
        ended: Callable[[Outcome[T]], None],
    ) -> None:
        """Carries out the task for every unit that `may_begin`, at most `width` at a time; returns when all are done.

        `may_begin` and `ended` are called in this thread: the one just before a unit begins, the other when it is over.
        """
        free = deque(self._of(width))
        ready: deque[Unit] = deque()
        running = 0
        try:
            while units.is_active():
                ready.extend(units.get_ready())
                while ready and free:
                    unit = ready.popleft()
                    if may_begin(unit):
                        free.popleft().begin(task, unit)
                        running += 1
                    else:
                        units.done(unit)
                        ready.extend(units.get_ready())
                if running:
                    member, outcome = self._through.get()
                    running -= 1
                    free.append(member)
                    ended(outcome)
                    units.done(outcome.unit)
        finally:
            for _ in range(running):  # what `ended` raised does not end those that are at work
                self._through.get()

    def close(self) -> None:
        """Ends the threads and their sessions. Called when none is at work."""
        for member in self._members:
            member.end()
        self._members.clear()

    def _of(self, width: int) -> list[_Member[T]]:
        """As many members as there should be now."""
        while len(self._members) > width:
            self._members.pop().end()
        while len(self._members) < width:
            self._members.append(_Member(f"refresh-{len(self._members) + 1}", self._refresher(), self._through))
        return self._members


class _Member(Generic[T]):
    """One thread, which ends with the process whatever it waits for."""

    def __init__(self, name: str, refresher: Refresher, through: SimpleQueue[tuple[_Member[T], Outcome[T]]]) -> None:
        self.refresher = refresher
        self._through = through
        self._inbox: SimpleQueue[tuple[Task[T], Unit] | None] = SimpleQueue()
        self._at: tuple[Unit, float] | None = None
        self._woken_at = time.monotonic()
        self._thread = threading.Thread(target=copy_context().run, args=(self._work,), name=name, daemon=True)
        self._thread.start()

    def loop(self, names: Callable[[Unit], str]) -> Loop:
        """It waits for work without an interval: while it has none, and its thread lives, nothing is wrong with it."""
        at, now = self._at, time.monotonic()
        alive = at is None and self._thread.is_alive()
        busy = None if at is None else Busy(names(at[0]), at[1], self.refresher.backend_pids)
        return Loop(self._thread.name, now if alive else self._woken_at, 0.0, busy)

    def begin(self, task: Task[T], unit: Unit) -> None:
        self._inbox.put((task, unit))

    def end(self) -> None:
        self._inbox.put(None)
        self._thread.join(END_WITHIN_S)
        self.refresher.close()

    def _work(self) -> None:
        while (given := self._inbox.get()) is not None:
            task, unit = given
            self._woken_at = time.monotonic()
            self._at = (unit, self._woken_at)
            try:
                outcome = Outcome(unit, answer=task(self.refresher, unit))
            except Exception as error:  # noqa: BLE001 - whoever gave the task looks at it
                outcome = Outcome(unit, error=error)
            self._at = None
            self._through.put((self, outcome))
