"""What each loop of the service is at, told with the heartbeat of its lease (`pgt_leases.loops`). For the service.

A loop that waits for nothing wakes once an interval. One that does not, and does not say what keeps it busy, is stuck.
Times are told as seconds before the heartbeat, so the clock of the server is the only one that counts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Busy:
    """What keeps a loop from waking, for people, since when (by the monotonic clock), and in which sessions."""

    what: str
    since: float
    backend_pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop of the service: when it last woke (by the monotonic clock), and within what time it should wake again."""

    name: str
    woken_at: float
    interval_s: float
    busy: Busy | None = None
    paused: bool = False


@dataclass(frozen=True, slots=True)
class Activity:
    """What a part of the service is at besides its rounds: `turned_at` is when its round last got on with its work,
    `inner` are threads of its own; `paused`: it was told to do nothing, and does nothing."""

    busy: Busy | None = None
    paused: bool = False
    turned_at: float = 0.0
    inner: tuple[Loop, ...] = ()


def report(loops: Iterable[Loop], now: float | None = None) -> str:
    """The loops as the catalog has them, a JSON array (`pgtrickle.pgt_service_loops` reads it)."""
    at = time.monotonic() if now is None else now
    return json.dumps([_told(each, at) for each in loops])


def _told(loop: Loop, now: float) -> dict[str, object]:
    told: dict[str, object] = {
        "loop": loop.name,
        "woken_s": round(max(now - loop.woken_at, 0.0), 3),
        "interval_s": round(loop.interval_s, 3),
        "paused": loop.paused,
    }
    if loop.busy is not None:
        told["busy_with"] = loop.busy.what
        told["busy_s"] = round(max(now - loop.busy.since, 0.0), 3)
        told["backend_pids"] = list(loop.busy.backend_pids)
    return told
