"""The demo's capture, steered as the service does it: sources graduate from triggers to the WAL under live writes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pgtrickle import db
from pgtrickle.catalog import reader as catalog
from pgtrickle.config import Settings
from pgtrickle.db import Connection
from pgtrickle.scheduler.capture_loop import CaptureLoop
from pgtrickle.scheduler.loop_thread import LoopThread

_SETTLE_WITHIN_S = 60.0
_STOP_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Capture:
    """How the sources are captured at present."""

    connection: Connection

    def modes(self) -> dict[str, str]:
        """The mode of each source."""
        return {each.source_table: each.cdc_mode for each in catalog.cdc_status(self.connection)}

    def settle(self) -> None:
        """Waits, not for ever, until the sources that can be are captured from the WAL."""
        deadline = time.monotonic() + _SETTLE_WITHIN_S
        while time.monotonic() < deadline:
            if all(each.cdc_mode == "WAL" or not each.eligible for each in catalog.cdc_status(self.connection)):
                return
            time.sleep(0.2)

    def told(self) -> list[str]:
        """What became of each source, for the end."""
        return [
            f"  {each.source_table:<24} {each.cdc_mode:<8} {each.reason or ''}".rstrip()
            for each in catalog.cdc_status(self.connection)
        ]


@contextmanager
def capturing(dsn: str) -> Iterator[Capture]:
    """Capture is steered, and the WAL decoded, while the block runs."""
    with db.open_session(dsn, application_name="pgtrickle demo") as connection:
        loop = CaptureLoop(dsn)
        rounds = LoopThread("capture", loop.round, Settings.load(connection))
        try:
            yield Capture(connection)
        finally:
            rounds.stop()
            rounds.join(_STOP_WITHIN_S)
            loop.close()
