"""The window of a refresh: what changed, source by source, where that is read, and the wait for what is being decoded.

A change is in the window iff its transaction is visible at its end and not at its start. What is in it is decided by
that alone, so the buffers may be read at another snapshot than the tables:

* changes captured by triggers are in the buffers as soon as their transaction is visible: the refresh's own snapshot
  sees them;
* decoded ones come a moment after. For them we wait until the decoder has passed the snapshot, and read at a later one;
* stream tables as sources are refreshed after the snapshot of a tick was taken: of them the window ends where they
  are now, and what is not committed yet is read in the transaction that will commit it.

Called by `table_refresh.py`, `circle/circle_refresh.py` and `verification/verify.py`.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final
from uuid import uuid4

from pgtrickle.capture import change_window
from pgtrickle.capture.change_window import Pending, Sides
from pgtrickle.db import Connection, execute
from pgtrickle.model import quote
from pgtrickle.physical.flow import Place
from pgtrickle.physical.window_parts import WindowPart
from pgtrickle.postgres.copy import pipe
from pgtrickle.postgres.row_image import by_image
from pgtrickle.query.operators import Scan
from pgtrickle.refresh.connections import Connections
from pgtrickle.refresh.outcome import Skip, Stop
from pgtrickle.refresh.tick import now

_UNREAD_S: Final = 2.0
"""A slot that no one reads for so long is not one whose decoder is just being started again."""
_SHORTEST_POLL_S: Final = 0.002
_LONGEST_POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Span:
    """The window of one source: changes visible in `until` and not in `since`; `sides` tells which rows count.

    `reaches_beyond`: it ends later than the snapshot that tables are read at.
    """

    since: str
    until: str
    place: Place = Place.SNAPSHOT
    sides: Sides | None = None
    reaches_beyond: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether all that counts is there without a decoder."""
        return self.sides is None or not self.sides.from_decoder(self.since)


@dataclass(frozen=True, slots=True)
class Window:
    """The windows of all sources of a refresh whose tables are read at `snapshot`."""

    snapshot: str
    connections: Connections
    spans: Mapping[int, Span]

    @property
    def is_complete(self) -> bool:
        return all(span.is_complete for span in self.spans.values())

    @property
    def waited(self) -> bool:
        """Whether some of it is read later than at the snapshot."""
        return any(span.place is not Place.SNAPSHOT for span in self.spans.values())

    @property
    def end_beyond(self) -> str | None:
        """Where the spans end that reach beyond the snapshot."""
        return next((span.until for span in self.spans.values() if span.reaches_beyond), None)

    def pending(self, part: WindowPart = WindowPart.WHOLE) -> dict[int, Pending]:
        """How much there is, source by source; of the late part only those sources that may have one."""
        found: dict[int, Pending] = {}
        asked: dict[tuple[Place, str, str | None], list[int]] = {}
        for oid, span in self.spans.items():
            if part is WindowPart.LATE and not span.reaches_beyond:
                continue
            since, until = self._ends(span, part)
            asked.setdefault((span.place, since, until), []).append(oid)
        for (place, since, until), oids in asked.items():
            sides = {oid: known for oid in oids if (known := self.spans[oid].sides) is not None}
            found |= change_window.pending(self.connection(place), oids, since, until, sides=sides)
        return found

    def changes_sql(
        self,
        source: int,
        columns: Sequence[tuple[str, str]],
        part: WindowPart = WindowPart.WHOLE,
        *,
        within: str = "true",
    ) -> str:
        """The changes of one source in that part of the window, weighted; to be read at the source's place."""
        span = self.spans[source]
        since, until = self._ends(span, part)
        return change_window.changes_sql(source, columns, since, until, within=within, sides=span.sides)

    def changes_of(self, scan: Scan, part: WindowPart = WindowPart.WHOLE, *, within: str = "true") -> str:
        """Those of what a scan reads, under its names."""
        if scan.apart:
            within = f"{within} AND {change_window.of_itself(scan.table.oid)}"
        return self.changes_sql(scan.table.oid, scan.pairs, part, within=within)

    def connection(self, place: Place) -> Connection:
        """The one that reads there."""
        at = self.connections
        places = {Place.SNAPSHOT: at.reader, Place.READER: at.reader, Place.LATE: at.late, Place.WRITER: at.writer}
        return places[place]

    def _ends(self, span: Span, part: WindowPart) -> tuple[str, str | None]:
        """Where the part begins and ends; a reader at the end itself need not be told."""
        since = self.snapshot if part is WindowPart.LATE else span.since
        until = self.snapshot if part is WindowPart.EARLY and span.reaches_beyond else span.until
        return since, None if span.place is Place.SNAPSHOT and until == self.snapshot else until


def at_snapshot(connections: Connections, since: Mapping[int, str], snapshot: str) -> Window:
    """The window up to the snapshot, as far as it is in the buffers; `since` has its start for each source."""
    sides = change_window.sides_of(connections.reader, list(since))
    spans = {oid: Span(start, snapshot, sides=sides.get(oid)) for oid, start in since.items()}
    return Window(snapshot, connections, spans)


def extended(found: Window, upstream: Collection[int], place: Place, until: str) -> Window:
    """The window that reaches, for the stream tables among the sources, up to what `place` sees."""
    spans = {
        oid: replace(span, until=until, place=place, reaches_beyond=True) if oid in upstream else span
        for oid, span in found.spans.items()
    }
    return replace(found, spans=spans)


def from_decoder(found: Window, sources: Collection[int]) -> frozenset[int]:
    """Those of the sources of whose changes some come from the decoder: by now, which the snapshot may not know of."""
    sides = change_window.sides_of(found.connections.aside, list(sources))
    return frozenset(oid for oid, known in sides.items() if known.from_decoder(found.spans[oid].since))


def await_decoder(found: Window, patience_s: float) -> Window:
    """The window once all is there that was still to be decoded: to be read by the late connection, whose transaction
    must begin after this. Stop if it takes too long.

    A source that has lost the slot or the publication is not waited for: its `Pending` says that it is not captured.
    """
    awaited = {oid: span for oid, span in found.spans.items() if not span.is_complete}
    sides = {oid: span.sides for oid, span in awaited.items() if span.sides is not None}
    decoder_passed(found.connections.aside, sides, patience_s)
    late = {oid: replace(span, place=Place.LATE) for oid, span in awaited.items()}
    return replace(found, spans={**found.spans, **late})


def decoder_passed(aside: Connection, awaited: Mapping[int, Sides], patience_s: float) -> None:
    """Returns once all that is visible by now is decoded, of sources for which that counts; Stop if it is not."""
    target = _target(aside, awaited.values())
    if target is not None:
        _wait(aside, target, list(awaited), patience_s)


@contextmanager
def opened(found: Window, *, also: bool = False) -> Iterator[Window]:
    """The late connection's transaction, if something is read there (`also`: if something else will be)."""
    if also or any(span.place is Place.LATE for span in found.spans.values()):
        with found.connections.late.transaction():
            execute(found.connections.late, "SELECT")  # its snapshot is of now: what the caller looks at next is later
            yield found
    else:
        yield found


@contextmanager
def opened_until_now(found: Window, upstream: Collection[int]) -> Iterator[Window]:
    """The same; of the stream tables `upstream`, the window reaches to what they are by now."""
    with opened(found, also=bool(upstream)) as window:
        yield extended(window, upstream, Place.LATE, now(window.connections.late).snapshot) if upstream else window


def including(snapshot: str, xid: int) -> str:
    """The snapshot in which that transaction, too, is visible: our own, of which a snapshot says that it runs."""
    _, end, running = snapshot.split(":")
    first_unborn = int(end)
    still = {int(each) for each in running.split(",") if each}
    if xid >= first_unborn:  # whatever else has begun since runs as well
        still |= set(range(first_unborn, xid))
        first_unborn = xid + 1
    still.discard(xid)
    return f"{min(still, default=first_unborn)}:{first_unborn}:{','.join(map(str, sorted(still)))}"


def moved(scan: Scan, changes: str, sign: int) -> str:
    """SELECT text of a table as it was before the changes (sign −1), or is after them (sign 1)."""
    now = ", ".join([*(f"{quote(attribute)} AS {quote(name)}" for attribute, name in scan.pairs), "1::bigint AS w"])
    weighted = ", ".join([*map(quote, scan.names), f"{sign} * w AS w"])
    rows = f"SELECT {now} FROM {scan.relation} UNION ALL SELECT {weighted} FROM ({changes}) AS between"
    names = ", ".join(quote(name) for name in scan.names)
    return f"SELECT {names} FROM ({by_image(rows, scan.columns)}) AS net CROSS JOIN generate_series(1, net.w)"


def copied(source: Connection, query: str, target: Connection, *, like: str | None = None) -> str:
    """A temporary table of `target`'s with the rows that `source` sees; returns its name. `like` is a query with the
    same columns, where `target` cannot read what the one reads."""
    table = f"pg_temp.pgt_copy_{uuid4().hex[:12]}"
    copy_to(target, table, source, query, like=like)
    return table


def heirs_of(connection: Connection, copy: str) -> str:
    """An empty temporary table that inherits from a copy: for what a query that reads ONLY the copy must not see."""
    heirs = f"pg_temp.pgt_heirs_{uuid4().hex[:12]}"
    execute(connection, f"CREATE TEMPORARY TABLE {heirs} () INHERITS ({copy}) ON COMMIT DROP")
    return heirs


def copy_to(target: Connection, table: str, source: Connection, query: str, *, like: str | None = None) -> None:
    """The same, in a temporary table of a given name."""
    execute(target, f"CREATE TEMPORARY TABLE {table} ON COMMIT DROP AS {like or query} WITH NO DATA")
    pipe(source, query, target, table)


def _target(aside: Connection, awaited: Collection[Sides]) -> str | None:
    """The position that the decoder must have passed; None if it has.

    All that is visible in a snapshot has its commit in the WAL before any position taken later. Where recent commits
    are not flushed yet (synchronous_commit = off), our message is, and they with it.
    """
    positions = [sides.awaits for sides in awaited if sides.awaits is not None]
    if any(sides.decoded for sides in awaited):
        row = aside.execute(
            "SELECT coalesce((SELECT lsn FROM pgtrickle_internal.pgt_decoded) >= pg_current_wal_insert_lsn(), false)"
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
            "   AND k.cdc_mode = 'WAL'"
            "   AND k.source_relid NOT IN (SELECT source_relid FROM pgtrickle_internal.pgt_published)),"
            " coalesce(s.active, false),"
            " pg_wal_lsn_diff(%(target)s::pg_lsn, p.lsn)::bigint, d.error"
            " FROM pgtrickle_internal.pgt_decoded AS p LEFT JOIN pgtrickle_internal.pgt_slot AS s ON true"
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
            told = f" {error}" if error else ""
            raise Stop(Skip(f"no decoder reads the slot: is the service (pgtrickle run) up?{told}"))
        if now - begun > patience_s:
            raise Stop(Skip(f"the decoder is {lag} bytes of WAL behind after {patience_s:g} s"))
        time.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_POLL_S)
