"""Which of many stream tables are due, and which stale, each worked out by itself. Pure; called in each round.

A schedule that an older version took, or that was written into the catalog by hand, may make no sense. Such a table is
told apart with what is wrong with it, and keeps no other from its turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from pgtrickle.catalog.reader import StreamTable
from pgtrickle.errors import Error, UsageError
from pgtrickle.scheduler.due import is_due, next_cron_run
from pgtrickle.scheduler.staleness import is_stale
from pgtrickle.spark.java_errors import text_of


@dataclass(frozen=True, slots=True)
class Timing:
    """Stream tables by id: those due, those stale, and those whose row cannot be understood, with the reason."""

    due: frozenset[int]
    stale: frozenset[int]
    wrong: Mapping[int, Error]
    cron_runs: Mapping[int, tuple[str, datetime]] = field(default_factory=dict)
    """When those with a cron schedule are due next, with the schedule that says so."""


def timing_of(
    streams: Iterable[StreamTable], tried: Mapping[int, datetime | None], now: datetime, *, min_seconds: int
) -> Timing:
    """The timing of all; `tried` has the moment since when each has not been tried."""
    due, stale, wrong = set(), set(), dict[int, Error]()
    cron_runs: dict[int, tuple[str, datetime]] = {}
    for stream in streams:
        try:
            is_its_turn = is_due(stream.schedule, tried[stream.pgt_id], now, min_seconds=min_seconds)
            is_late = is_stale(stream, now)
            next_run = next_cron_run(stream.schedule, stream.data_timestamp, min_seconds=min_seconds)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one row is recorded with that row
            wrong[stream.pgt_id] = _told(stream, error)
            continue
        if next_run is not None and stream.schedule is not None:
            cron_runs[stream.pgt_id] = (stream.schedule, next_run)
        if is_its_turn:
            due.add(stream.pgt_id)
        if is_late:
            stale.add(stream.pgt_id)
    return Timing(frozenset(due), frozenset(stale), wrong, cron_runs)


def _told(stream: StreamTable, error: Exception) -> Error:
    why = error.message if isinstance(error, Error) else f"{type(error).__name__}: {text_of(error)}"
    return UsageError(
        f"the schedule {stream.schedule!r} cannot be kept: {why}",
        code="PT017",
        hint="alter the stream table's schedule",
    )
