"""A real `pgtrickle run` process, its log, and what may be asked of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PROGRAM = Path(sys.executable).parent / "pgtrickle"
QUICK = {"PGTRICKLE_SCHEDULER_INTERVAL_MS": "100"}


class Running:
    """The process. Events of its log are dictionaries, as it wrote them."""

    def __init__(self, dsn: str, log: Path, settings: dict[str, str], arguments: Sequence[str] = ()) -> None:
        self._log = log
        with log.open("w") as stderr:
            self.process = subprocess.Popen(
                [PROGRAM, "run", *arguments],
                env={**os.environ, "PGTRICKLE_DSN": dsn, **QUICK, **settings},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
            )

    def events(self, name: str) -> list[dict[str, object]]:
        lines = self._log.read_text().splitlines(keepends=True)
        events = [json.loads(line) for line in lines if line.endswith("\n")]
        return [event for event in events if event["event"] == name]

    def await_event(self, name: str, times: int = 1) -> None:
        until(lambda: len(self.events(name)) >= times, f"{name} in {self.log}")

    @property
    def log(self) -> str:
        return self._log.read_text()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """As `kill -9`: nothing of it runs any more when this returns."""
        self.process.kill()
        self.process.wait(10)

    def stop(self) -> int:
        """SIGTERM; its exit code, or TimeoutExpired after the ten seconds that it has."""
        self.process.terminate()
        return self.process.wait(10)


@contextmanager
def running(dsn: str, directory: Path, *arguments: str, **settings: str) -> Iterator[Running]:
    """The service, stopped at the end if it still runs, and then without an error."""
    place = directory / f"service-{len(list(directory.glob('service-*')))}.log"
    service = Running(dsn, place, {f"PGTRICKLE_{name.upper()}": value for name, value in settings.items()}, arguments)
    try:
        yield service
        if service.process.poll() is None:
            assert service.stop() == 0, service.log
    finally:
        if service.process.poll() is None:
            service.kill()


def until(holds: Callable[[], object], what: object, timeout_s: float = 120.0) -> None:
    """Wait for something to become true."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, what() if callable(what) else what
        time.sleep(0.02)
