"""How long a refresh works, to hold against what was expected of its way, and what the server does for it. Used by
`refresh_record.py` and `table_refresh.py`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypedDict

from pgtrickle.server_cpu import UNKNOWN, Backends


@dataclass(slots=True)
class WorkTime:
    """Since it was made, without what is no part of the work: starting Spark."""

    _begun: float = field(default_factory=time.perf_counter)
    _apart: float = 0.0

    @property
    def ms(self) -> float:
        return (time.perf_counter() - self._begun - self._apart) * 1000

    @contextmanager
    def apart(self) -> Iterator[None]:
        begun = time.perf_counter()
        try:
            yield
        finally:
            self._apart += time.perf_counter() - begun


@dataclass(slots=True)
class ServerTime:
    """CPU time of the server: of a refresh's own sessions since `begun_ms`, and of the tasks it has on Spark."""

    backends: Backends
    begun_ms: float | None

    def sql(self, tasks_ms: float | None) -> str:
        """SQL of its milliseconds by now; `tasks_ms` is the part of the tasks."""
        if self.begun_ms is None or tasks_ms is None:
            return UNKNOWN
        now = self.backends.here_ms()
        told = self.backends.sql if now is None else f"{now:.3f}"
        return f"({told})::pg_catalog.float8 - {self.begun_ms:.3f} + {tasks_ms:.3f}"


class WayTaken(TypedDict, total=False):
    """What the history has of the choice: columns of `pgt_refresh_history`."""

    way: str
    expected: dict[str, float]
    took_ms: float
