"""Bounds on compiling one query: how deep it may go, and how long it may take. Used by `compile.py` and
`syntax/dialect.py`.

A sum of a thousand terms is a thousand levels deep to whoever walks it, and sqlglot takes ten calls for a level. So a
query is compiled in a thread with a stack for many more calls than Python allows by itself. What is deeper still, or
takes too long, is refused for incremental modes: nobody else waits for it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Generic, TypeVar

from pgtrickle.query import gaps

Answer = TypeVar("Answer")

WITHIN_S: Final = 30.0
"""For a query that is new. One that was accepted is compiled again when a service starts, and then takes its time."""
DEPTH: Final = 40_000
_STACK: Final = 512 << 20  # over 10 kB for each call, which take less than 1 kB of it; only what is used is real memory
_lock: Final = threading.Lock()
_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)


class _Depth:
    """Python's limit on calls, raised while any thread is deep: it is one for all threads."""

    def __init__(self) -> None:
        self._users = 0
        self._before = 0

    def __enter__(self) -> None:
        with _lock:
            if self._users == 0:
                self._before = sys.getrecursionlimit()
                sys.setrecursionlimit(max(DEPTH, self._before))
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with _lock:
            self._users -= 1
            if self._users == 0:
                sys.setrecursionlimit(self._before)


_depth: Final = _Depth()


class _Call(threading.Thread, Generic[Answer]):
    """A call in a thread of its own, and what came of it."""

    def __init__(self, work: Callable[[], Answer]) -> None:
        super().__init__(name="pgtrickle compile", daemon=True)
        self._work = work
        self._answers: list[Answer] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            with _depth:
                self._answers.append(self._work())
        except BaseException as error:  # noqa: BLE001 - it is raised again by who waits for the answer
            self._error = error

    def answer(self) -> Answer:
        self.join()
        if self._error is not None:
            raise self._error
        return self._answers[0]


def with_deep_stack(work: Callable[[], Answer]) -> Answer:
    """What `work` answers or raises, called with room for `DEPTH` calls within each other. Where the system has no such
    stack to give (a limit on virtual memory), with the room that there is."""
    call = _Call(work)
    return call.answer() if _started(call) else work()


def _started(call: threading.Thread) -> bool:
    with _lock:
        before = threading.stack_size(_STACK)
        try:
            call.start()
        except RuntimeError:
            return False
        finally:
            threading.stack_size(before)
        return True


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """A bound on the time of what is done here, by those who ask `check_time`."""
    token = _deadline.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _deadline.reset(token)


def check_time() -> None:
    """Refuses the query if its time is over. Asked before each step that takes time."""
    until = _deadline.get()
    if until is not None and time.monotonic() > until:
        raise gaps.TOO_LONG.refuse()
