"""A thread that does its round again and again: at each interval, at once when woken, with pauses after failures.

The service has one for each of its parts, so that none waits for another.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from typing import Final

import psycopg

from pgtrickle.config import Settings
from pgtrickle.errors import Error
from pgtrickle.scheduler.backoff import pause_after
from pgtrickle.scheduler.events import say, trouble
from pgtrickle.scheduler.heartbeat import Activity, Loop

Round = Callable[[Settings], bool]
"""One round; true if the next should follow at once. What it raises is logged, and it is called again later."""
AT_ONCE_S: Final = 0.05


class LoopThread:
    """The thread; `settings` may be replaced while it runs."""

    def __init__(self, name: str, work: Round, settings: Settings) -> None:
        self.settings = settings
        self.name = name
        self._work = work
        self._woken_at = time.monotonic()
        self._pause_s = 0.0
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=copy_context().run, args=(self._repeat,), name=name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Have the next round begin now."""
        self._wake.set()

    def stop(self) -> None:
        """Have no further round begin."""
        self._stop.set()
        self._wake.set()

    def loop(self, at: Activity) -> Loop:
        """Itself, for the heartbeat; may be asked for by another thread, which knows what it is at."""
        interval_s = max(self.settings.scheduler_interval_ms / 1000, self._pause_s)
        return Loop(self.name, max(self._woken_at, at.turned_at), interval_s, at.busy, at.paused)

    def join(self, within_s: float | None = None) -> bool:
        """Whether the last round ended in time."""
        self._thread.join(within_s)
        return not self._thread.is_alive()

    def _repeat(self) -> None:
        failures = 0
        while not self._stop.is_set():
            begun = self._woken_at = time.monotonic()
            self._wake.clear()
            if self._stop.is_set():  # set just before that was cleared
                return
            soon = False
            try:
                soon = self._work(self.settings)
                say(f"{self.name}_round", logging.DEBUG, ms=round((time.monotonic() - begun) * 1000))
                failures = 0
            except Exception as error:  # noqa: BLE001 - a service goes on; the log has the whole story
                if self._stop.is_set():
                    say(f"{self.name}_abandoned", error=error)
                    return
                failures += 1
                if isinstance(error, Error | psycopg.Error):
                    say(f"{self.name}_failed", logging.WARNING, error=error, next_try_s=pause_after(failures))
                else:
                    trouble(f"{self.name}_failed", error, next_try_s=pause_after(failures))
            self._pause_s = pause_after(failures)
            if failures:
                self._stop.wait(pause_after(failures))
            else:
                interval = 0.0 if soon else self.settings.scheduler_interval_ms / 1000
                self._wake.wait(max(begun + interval - time.monotonic(), AT_ONCE_S))
