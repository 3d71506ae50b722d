"""The window of a refresh: what changed, at which snapshot that is read, and the wait for what is still being decoded.

Changes captured by triggers are in the buffers as soon as their transaction is visible: the refresh's own snapshot
sees them. Decoded ones come a moment after. For them the refresh waits until the decoder has passed its snapshot, and
reads the buffers at a second, later one; which changes are in the window is decided by their transactions, so it stays
the same window. Called by `run.py` and `verify.py`.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from pgtrickle.capture import window
from pgtrickle.capture.window import Pending, Sides
from pgtrickle.db import Connection

_UNREAD_S: Final = 2.0
"""A slot that no one reads for so long is not one whose decoder is just being started again."""
_SHORTEST_POLL_S: Final = 0.002
_LONGEST_POLL_S: Final = 0.05


class Behind(Exception):
    """The decoder has not come as far as the window reaches, in the time there was; says why."""


@dataclass(frozen=True, slots=True)
class Window:
    """Changes visible in `until` and not in `since`. `buffers` is the connection that sees them all; `apart` if it is
    at another snapshot than the tables are read at. `sides` tells which rows count, where there are several."""

    since: str
    until: str
    buffers: Connection
    sides: Mapping[int, Sides]
    apart: bool = False

    def pending(self, sources: Sequence[int]) -> dict[int, Pending]:
        """How much there is, source by source."""
        return window.pending(self.buffers, sources, self.since, self.until if self.apart else None, sides=self.sides)

    def changes_sql(self, source: int, columns: Sequence[tuple[str, str]], *, within: str = "true") -> str:
        """The changes of one source, weighted."""
        until = self.until if self.apart else None
        return window.changes_sql(source, columns, self.since, until, within=within, sides=self.sides.get(source))


def at_once(reader: Connection, sources: Sequence[int], since: str, until: str) -> Window:
    """The window as far as it is in the buffers; `reader` is at the snapshot `until`."""
    return Window(since, until, reader, window.sides_of(reader, sources))


def is_complete(found: Window) -> bool:
    """Whether all that counts is there, without a decoder."""
    return not any(sides.from_decoder(found.since) for sides in found.sides.values())


@contextmanager
def completed(found: Window, aside: Connection, late: Connection, patience_s: float) -> Iterator[Window]:
    """The window with all that was still to be decoded; `late` opens its transaction once that is there.

    `aside` commits each statement. Behind if it takes too long. A source that has lost the slot or the publication is
    not waited for: its `Pending` says that it is not captured.
    """
    awaited = {oid: sides for oid, sides in found.sides.items() if sides.from_decoder(found.since)}
    target = _target(aside, awaited.values())
    if target is not None:
        _wait(aside, target, list(awaited), patience_s)
    with late.transaction():
        # Its snapshot, before the caller looks again whether the stream table is still as it was: changes given up as
        # lost after that look are then still missed in this snapshot, not settled in it.
        late.execute("SELECT pg_current_snapshot()")
        yield Window(found.since, found.until, late, found.sides, apart=True)


def _target(aside: Connection, awaited: Collection[Sides]) -> str | None:
    """The position that the decoder must have passed; None if it has.

    All that is visible in a snapshot has its commit in the WAL before any position taken later. Where recent commits
    are not flushed yet (synchronous_commit = off), our message is, and they with it.
    """
    positions = [sides.awaits for sides in awaited if sides.awaits is not None]
    if any(sides.decoded for sides in awaited):
        row = aside.execute(
            "SELECT coalesce((SELECT lsn FROM pgtrickle.pgt_decoded) >= pg_current_wal_insert_lsn(), false)"
        ).fetchone()
        assert row is not None
        if not row[0]:
            with aside.transaction():
                aside.execute("SET LOCAL synchronous_commit = local")
                row = aside.execute("SELECT pg_logical_emit_message(true, 'pgtrickle', 'barrier')::text").fetchone()
            assert row is not None
            positions.append(str(row[0]))
    if not positions:
        return None
    row = aside.execute("SELECT max(p)::text FROM unnest(%s::pg_lsn[]) AS p", (positions,)).fetchone()
    assert row is not None
    return str(row[0])


def _wait(aside: Connection, target: str, sources: list[int], patience_s: float) -> None:
    begun = unread_since = time.monotonic()
    pause = _SHORTEST_POLL_S
    while True:
        row = aside.execute(
            "SELECT coalesce(p.lsn >= %(target)s::pg_lsn, false), coalesce(s.alive, false) AND NOT EXISTS ("
            "   SELECT FROM pgtrickle.pgt_change_tracking AS k WHERE k.source_relid = ANY(%(sources)s::oid[])"
            "   AND k.cdc_mode = 'WAL' AND k.source_relid NOT IN (SELECT source_relid FROM pgtrickle.pgt_published)),"
            " coalesce(s.active, false),"
            " pg_wal_lsn_diff(%(target)s::pg_lsn, p.lsn)::bigint, d.error"
            " FROM pgtrickle.pgt_decoded AS p LEFT JOIN pgtrickle.pgt_slot AS s ON true"
            " LEFT JOIN pgtrickle.pgt_decoder AS d ON d.slot_name = s.slot_name",
            {"target": target, "sources": sources},
        ).fetchone()
        assert row is not None
        passed, to_come, is_read, lag, error = row
        if passed or not to_come:
            return
        now = time.monotonic()
        unread_since = now if is_read else unread_since
        if now - unread_since > min(_UNREAD_S, patience_s):
            raise Behind(f"no decoder reads the slot: is the service (pgtrickle run) up?{f' {error}' if error else ''}")
        if now - begun > patience_s:
            raise Behind(f"the decoder is {lag} bytes of WAL behind after {patience_s:g} s")
        time.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_POLL_S)
