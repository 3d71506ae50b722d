"""Shows on a terminal that work goes on, once it has taken a second; nothing in a pipe. `target` wraps work in it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console

_PATIENCE = 1.0
_TICK = 0.25


@dataclass(slots=True)
class Doing:
    """What is going on, in words; None where it is this process that works, which can be seen."""

    phase: str | None = None


@contextmanager
def progress(what: str) -> Iterator[Doing]:
    """A line on stderr with `what`, the phase and the seconds, from the first second until the work ends."""
    doing = Doing()
    if not sys.stderr.isatty():
        yield doing
        return
    done = threading.Event()
    shown = threading.Thread(target=_show, args=(what, doing, done), daemon=True)
    shown.start()
    try:
        yield doing
    finally:
        done.set()
        shown.join()


def _show(what: str, doing: Doing, done: threading.Event) -> None:
    began = time.monotonic()
    if done.wait(_PATIENCE):
        return
    with Console(stderr=True).status(what) as line:
        while not done.wait(_TICK):
            line.update(f"{what}: {doing.phase or _phase()} ({time.monotonic() - began:.0f} s)")


def _phase() -> str:
    """Seen from outside: Spark is loaded only when there is work for it."""
    spark = sys.modules.get("pyspark")
    if spark is None:
        return "asking PostgreSQL"
    context = getattr(spark, "SparkContext", None)
    if context is None or context._active_spark_context is None:
        return "starting Spark"
    return "working on Spark"
