"""When a stream table counts as stale, and is told so: once, until it was fresh again. Pure; called in each round.

The rule is that of `pgtrickle.health_check()`: older than twice its schedule and ten seconds. A cron expression says
nothing about how old data may be, and a suspended table is meant to be.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from pgtrickle.catalog.reader import StreamTable
from pgtrickle.schedule import seconds

GRACE: Final = timedelta(seconds=10)


def is_stale(stream: StreamTable, now: datetime) -> bool:
    period = None if stream.schedule is None else seconds(stream.schedule)
    if period is None or stream.data_timestamp is None or stream.status == "SUSPENDED" or not stream.is_populated:
        return False
    return now - stream.data_timestamp > 2 * timedelta(seconds=period) + GRACE


def alert(stream: StreamTable, now: datetime) -> dict[str, object]:
    assert stream.data_timestamp is not None
    return {
        "event": "stale",
        "table": str(stream),
        "schedule": stream.schedule,
        "staleness_seconds": round((now - stream.data_timestamp).total_seconds(), 3),
    }
