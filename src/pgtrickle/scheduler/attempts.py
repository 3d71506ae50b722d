"""Refreshes that failed, and when each table may be tried again. Pure: `refresh_loop.py` tells it what became of each.

What passes by itself is tried again after pauses that grow, due or not; what does not, when the table is next due.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import random

from pgtrickle.scheduler.backoff import pause_of_a_table


@dataclass(frozen=True, slots=True)
class Failed:
    """The last try of a table, how many in a row have failed, and how long the next has to wait if it may pass."""

    at: datetime
    failures: int
    pause: timedelta | None

    def holds_at(self, now: datetime) -> bool:
        """Whether it is too early. A clock that was set back does not make a table wait for long."""
        return self.pause is not None and self.at <= now < self.at + self.pause


@dataclass(slots=True)
class Attempts:
    """Of all tables that failed last time. Not stored: the next service tries them at once."""

    jitter: Callable[[], float] = random
    _failed: dict[int, Failed] = field(default_factory=dict)

    def failed(self, tables: Iterable[int], now: datetime, *, passing: bool) -> None:
        """These failed; `passing`: it is no fault of theirs."""
        for pgt_id in tables:
            before = self._failed.get(pgt_id)
            failures = 1 if before is None else before.failures + 1
            pause = timedelta(seconds=pause_of_a_table(failures, self.jitter())) if passing else None
            self._failed[pgt_id] = Failed(now, failures, pause)

    def succeeded(self, tables: Iterable[int]) -> None:
        for pgt_id in tables:
            self._failed.pop(pgt_id, None)

    def keep(self, tables: Container[int]) -> None:
        """The others are no more."""
        self._failed = {pgt_id: each for pgt_id, each in self._failed.items() if pgt_id in tables}

    def waiting(self, now: datetime) -> frozenset[int]:
        """Those that are not to be tried yet."""
        return frozenset(pgt_id for pgt_id, each in self._failed.items() if each.holds_at(now))

    def since(self, pgt_id: int, data_timestamp: datetime | None) -> datetime | None:
        """Since when a table has not been tried: it is as old as its data, or as its last failure that counts."""
        failed = self._failed.get(pgt_id)
        if failed is None or failed.pause is not None:
            return data_timestamp
        return failed.at if data_timestamp is None else max(failed.at, data_timestamp)
