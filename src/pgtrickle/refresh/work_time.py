"""How long a refresh works, to hold against what was expected of its way. Used by `table_refresh.py`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypedDict


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


class WayTaken(TypedDict, total=False):
    """What the history has of the choice: columns of `pgt_refresh_history`."""

    way: str
    expected: dict[str, float]
    took_ms: float
