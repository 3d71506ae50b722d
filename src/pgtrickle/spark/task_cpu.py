"""The CPU time that PostgreSQL spends on tasks' connections: each task adds its part up for the driver as it ends.

By an accumulator of Spark, which Spark Connect has not: there it is not known. Those of tasks that fail do not count.
Called by `worker.py` in tasks, by `connections.py` and `table_refresh.py` in the driver.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from pyspark.accumulators import AccumulatorParam

from pgtrickle.server_cpu import UNKNOWN, Backends, question
from pgtrickle.spark.executors import is_connect

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.accumulators import Accumulator
    from pyspark.sql import SparkSession

Ask: TypeAlias = Callable[[str], tuple[object, ...]]
"""Asks the server, in the session concerned; the one row of the answer."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Milliseconds, and how many tasks could not tell theirs."""

    ms: float = 0.0
    untold: int = 0

    def since(self, before: Spent) -> float | None:
        return self.ms - before.ms if self.untold == before.untold else None


class _Sum(AccumulatorParam[Spent]):
    def zero(self, value: Spent) -> Spent:
        return Spent()

    def addInPlace(self, value1: Spent, value2: Spent) -> Spent:  # noqa: N802 - Spark's name
        return Spent(value1.ms + value2.ms, value1.untold + value2.untold)


_of_thread = threading.local()


def sum_of_thread(session: SparkSession) -> Accumulator[Spent] | None:
    """What the tasks of this thread's refreshes add to. One for all of them: Spark keeps accumulators for ever."""
    if is_connect(session):
        return None
    context: SparkContext = session.sparkContext
    if getattr(_of_thread, "context", None) is not context:
        _of_thread.context, _of_thread.sum = context, context.accumulator(Spent(), _Sum())
    found: Accumulator[Spent] = _of_thread.sum
    return found


@dataclass(slots=True)
class Spending:
    """Of one connection of a task, from its beginning on."""

    backends: Backends | None = None
    told_ms: float = 0.0

    def add(self, to: Accumulator[Spent], ask: Ask) -> None:
        """Adds what was spent since it was last told."""
        if self.backends is None:
            self.backends = Backends.of([ask(question())])
        now = self.backends.here_ms()
        if now is None and self.backends.sql != UNKNOWN:
            (found,) = ask(f"SELECT {self.backends.sql}")
            now = None if found is None else float(str(found))
        if now is None:
            to.add(Spent(untold=1))
        else:
            to.add(Spent(now - self.told_ms))
            self.told_ms = now
