"""Which of many stream tables have nothing to do at a tick's snapshot, asked of PostgreSQL in a few queries for all.

The service settles these at once and refreshes the others. What is found here is what each table's own refresh would
find: the sources are defined and captured as they were, and no window has a change. Where it is not certain, the table
is left to its refresh.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import psycopg

from pgtrickle.capture.change_window import covers, sides_of
from pgtrickle.capture.idle_windows import Opening, quiet
from pgtrickle.catalog import writer as record
from pgtrickle.catalog.reader import StreamTable
from pgtrickle.db import Connection, use_settings
from pgtrickle.fence import Fence, fenced
from pgtrickle.query.analyse.analysis import Dependencies
from pgtrickle.query.analyse.fingerprint import fingerprint
from pgtrickle.refresh.clock import moves, settings_at
from pgtrickle.refresh.lock import lock_free
from pgtrickle.refresh.outcome import Stop
from pgtrickle.refresh.prepared import Prepared
from pgtrickle.refresh.tick import Tick
from pgtrickle.refresh.window import decoder_passed

PATIENCE_S: Final = 0.5
"""For the decoder. The tables it is too late for wait for it each by itself, and the others are not held up."""
NOTHING: Final = "no changes since the last refresh"


def may_be_idle(stream: StreamTable) -> bool:
    """Whether changes alone decide what its refresh does."""
    incremental = stream.effective_mode == "DIFFERENTIAL" and stream.is_populated and not stream.needs_reinit
    return incremental and stream.status == "ACTIVE" and stream.last_error is None


@dataclass(slots=True)
class Definitions:
    """Whether what tables depend on is as it was when they were compiled. One hash over all of it tells, once each
    table's own was compared while that hash was the same."""

    _proven: tuple[frozenset[tuple[int, str | None]], str] | None = None

    def unchanged(self, at: Connection, compiled: Mapping[StreamTable, Prepared]) -> frozenset[int]:
        """Those whose sources are defined as they were; the same tables each time are cheap to ask for."""
        tables = frozenset((stream.pgt_id, stream.source_fingerprint) for stream in compiled)
        dependencies = {stream: ready.compiled.analysis.dependencies for stream, ready in compiled.items()}
        found = (tables, fingerprint(at, _union(list(dependencies.values()))))
        if found == self._proven:
            return frozenset(stream.pgt_id for stream in compiled)
        valid = frozenset(
            stream.pgt_id for stream, own in dependencies.items() if fingerprint(at, own) == stream.source_fingerprint
        )
        self._proven = found if len(valid) == len(compiled) else None
        return valid


def without_changes(
    at: Connection, aside: Connection, tick: Tick, compiled: Mapping[StreamTable, Prepared]
) -> frozenset[int]:
    """Those of the tables whose sources have no change up to the tick. `at` sees its snapshot, `aside` the present."""
    until = tick.moment.snapshot
    windows = {stream.pgt_id: _windows(stream, ready) for stream, ready in compiled.items()}
    asked = {opening for each in windows.values() for opening in each if covers(until, opening[1])}
    sides = sides_of(at, sorted({oid for oid, _ in asked}))
    late = {(oid, since) for oid, since in asked if oid in sides and sides[oid].from_decoder(since)}
    empty = quiet(at, asked - late, until, sides)
    if late:
        try:
            decoder_passed(aside, {oid: sides[oid] for oid, _ in late}, PATIENCE_S)
            empty |= quiet(aside, late, until, sides)
        except Stop:
            pass  # each of these waits for itself, and says so if it is in vain
    return frozenset(
        stream.pgt_id
        for stream, ready in compiled.items()
        if windows[stream.pgt_id] <= empty
        and not ready.compares  # its own refresh does
        and (not ready.reads_clock or _stands_still(at, tick, stream, ready))
    )


def _stands_still(at: Connection, tick: Tick, stream: StreamTable, ready: Prepared) -> bool:
    """Whether all that a query makes of the clock is as it was: `CURRENT_DATE` is, for a day."""
    try:
        with at.transaction(force_rollback=True):
            use_settings(at, settings_at(ready.settings, tick.moment.at, stream.data_timestamp))
            return not moves(at, ready.tree).moved
    except psycopg.DataError:  # its own refresh finds that, too, and says so
        return False


def settle(
    aside: Connection, tick: Tick, streams: Sequence[StreamTable], since: float, fence: Fence | None = None
) -> frozenset[int]:
    """Records that these had nothing to do, all at once, since a time of the monotonic clock; returns those for which
    that still holds: one that is being refreshed, or was, is left alone."""
    with fenced(aside, fence):
        free = lock_free(aside, [stream.pgt_id for stream in streams])
        return record.record_no_data_of_many(
            aside,
            [stream for stream in streams if stream.pgt_id in free],
            reason=NOTHING,
            frontier=tick.moment.snapshot,
            data_timestamp=tick.moment.at,
            duration_ms=round((time.monotonic() - since) * 1000, 3),
        )


def _windows(stream: StreamTable, ready: Prepared) -> frozenset[Opening]:
    return frozenset((table.oid, stream.since(table.oid in ready.stacked)) for table in ready.sources)


def _union(all_of: Sequence[Dependencies]) -> Dependencies:
    """What any of them depends on."""
    columns: defaultdict[int, set[int]] = defaultdict(set)
    for each in all_of:
        for oid, numbers in each.relations:
            columns[oid].update(numbers)
    return Dependencies(
        relations=tuple((oid, tuple(sorted(columns[oid]))) for oid in sorted(columns)),
        views=tuple(sorted({oid for each in all_of for oid in each.views})),
        functions=tuple(sorted({oid for each in all_of for oid in each.functions})),
        constraints=tuple(sorted({oid for each in all_of for oid in each.constraints})),
        objects=tuple(sorted({address for each in all_of for address in each.objects})),
        texts=tuple(sorted({text for each in all_of for text in each.texts})),
    )
