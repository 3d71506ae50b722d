"""An attempt to refresh stream tables that read each other in a circle: all at one snapshot, committed together.

    snapshot S → decide (`rules.py`) → rounds (`fixpoint.py`) → one transaction for all of them

Made by `units.py`. While they are in a circle, tables keep no state; who leaves it is computed anew (`define.redefine`
sees to that).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from pgtrickle import failpoints, tracing
from pgtrickle.apply import merge
from pgtrickle.capture.change_window import NotCaptured, Pending
from pgtrickle.catalog import reader as catalog
from pgtrickle.catalog import serving
from pgtrickle.catalog.reader import StreamTable
from pgtrickle.db import execute, scalar
from pgtrickle.errors import Refused
from pgtrickle.model import OID, TABLEOID, Column, PgType, Table, quote
from pgtrickle.physical.flow import Place
from pgtrickle.physical.window_parts import WindowPart
from pgtrickle.postgres.row_image import by_image
from pgtrickle.postgres.statements.result import Storage
from pgtrickle.postgres.wire import WEIGHT
from pgtrickle.query.operators import Scan, walk
from pgtrickle.refresh.circle import rules
from pgtrickle.refresh.circle.fixpoint import Fixpoint, Outside
from pgtrickle.refresh.circle.rules import Gained, Member
from pgtrickle.refresh.connections import Connections
from pgtrickle.refresh.decide import Action, Decision, too_early
from pgtrickle.refresh.definition.define import redefine
from pgtrickle.refresh.failure import as_ours, is_known
from pgtrickle.refresh.outcome import Again, Redefine, Skip, Stop
from pgtrickle.refresh.prepared import Prepared
from pgtrickle.refresh.refresh_record import notify, skipped
from pgtrickle.refresh.refresher import Refresher
from pgtrickle.refresh.result import RefreshResult
from pgtrickle.refresh.retry import classify
from pgtrickle.refresh.table_refresh import CHANGED, TableRefresh
from pgtrickle.refresh.tick import Moment, Tick
from pgtrickle.refresh.window import (
    Window,
    at_snapshot,
    await_decoder,
    copied,
    including,
    moved,
    opened_until_now,
)

ALTERED = "a definition in the circle was changed meanwhile"


@dataclass(slots=True)
class CircleAttempt:
    """One attempt; the caller holds the locks of all members."""

    owner: Refresher
    connections: Connections
    pgt_ids: tuple[int, ...]
    initiated_by: str
    full: bool
    tick: Tick | None = None
    parts: dict[int, TableRefresh] = field(default_factory=dict)
    streams: dict[int, StreamTable] = field(default_factory=dict)
    ready: dict[int, Prepared] = field(default_factory=dict)

    def run(self, at: Tick | None) -> dict[int, RefreshResult]:
        self.tick = at
        self.parts = {
            each: TableRefresh(self.owner, self.connections, each, self.initiated_by, None, at) for each in self.pgt_ids
        }
        with tracing.span("circle", Stop, tables=len(self.pgt_ids), initiated_by=self.initiated_by) as span:
            with self._recorded():
                results = self._run()
            span.note(**{f"action.{each}": result.action.value for each, result in results.items()})
        return results

    @contextmanager
    def _recorded(self) -> Iterator[None]:
        """What goes wrong is recorded for all of them."""
        try:
            yield
        except (Refused, serving.NotServed, Stop):
            raise
        except Exception as error:
            raised = as_ours(error)
            for part in self.parts.values():
                part.fail(raised, classify(error))
            if raised is error or not is_known(error):
                raise
            raise raised from error

    def clean(self) -> None:
        """Removes from the buffers what every consumer has applied; those of the members themselves too."""
        for pgt_id, part in self.parts.items():
            if part.refresh_id is not None:
                part.clean_buffers({self.streams[pgt_id].pgt_relid: False})
            part.clean()

    def _run(self) -> dict[int, RefreshResult]:
        self._read()
        try:
            with self.parts[self.pgt_ids[0]].snapshot(self._lockable(), self.pgt_ids) as moment:
                before = self.ready
                self._read()
                if any(before[each] is not self.ready[each] for each in self.pgt_ids):
                    raise Stop(Again(ALTERED, at_tick=True))
                if any(stream.status == "SUSPENDED" for stream in self.streams.values()):
                    raise Stop(Skip("a stream table of its circle is suspended: resume it with status ACTIVE"))
                if (early := self._too_early()) is not None:
                    raise Stop(Skip(early))
                for each, part in self.parts.items():
                    part.require_in_tick(self.streams[each])
                with self._window(moment) as window:
                    pending = window.pending()
                    outdated = self._outdated(pending)
                    if window.waited and any(part.read() != part.stream for part in self.parts.values()):
                        raise Stop(Again(ALTERED, at_tick=True))  # while we waited
                    if not outdated:
                        self._require_right()
                        return self._refresh(window, pending, moment)
        except NotCaptured:
            outdated = dict.fromkeys(self.pgt_ids, CHANGED)
        raise Stop(Redefine(outdated))

    def define_anew(self, outdated: Mapping[int, str]) -> None:
        """By this the circle may be another one."""
        settings, fence = self.owner.settings, self.owner.fence
        with self._recorded():
            for each, reason in outdated.items():
                stream = self.parts[each].read()
                why = stream.reinit_reason or reason  # what DDL was noted says more than a fingerprint
                redefine(self.connections.aside, stream, settings=settings, reason=why, locked=True, fence=fence)

    def _read(self) -> None:
        self.streams = {each: part.read() for each, part in self.parts.items()}
        for stream in self.streams.values():
            serving.require(self.connections.aside, stream)
        self.ready = {each: self.owner.prepared(stream) for each, stream in self.streams.items()}
        for each, part in self.parts.items():
            part.stream = self.streams[each]

    def _too_early(self) -> str | None:
        """Why it has to wait, if a stream table outside that it reads was never filled."""
        upstream = frozenset(oid for ready in self.ready.values() for oid in ready.upstream) - self._relids
        unfilled = catalog.unfilled(self.connections.aside, upstream) if upstream else {}
        if not unfilled:
            return None
        table = str(self.streams[self.pgt_ids[0]])
        return too_early(table, [*unfilled.values()], by_service=self.initiated_by == "SCHEDULER").reason

    @property
    def _relids(self) -> frozenset[int]:
        return frozenset(stream.pgt_relid for stream in self.streams.values())

    def _lockable(self) -> frozenset[Table]:
        return frozenset(table for ready in self.ready.values() for table in ready.lockable)

    def _members(self) -> list[Member]:
        return [member(self.streams[each], self.ready[each]) for each in self.pgt_ids]

    def _require_right(self) -> None:
        members = self._members()
        if not self.owner.settings.allow_circular:
            raise rules.not_allowed(rules.route(members))
        rules.require_monotone(members)

    def _outdated(self, pending: dict[int, Pending]) -> dict[int, str]:
        """The members that must be defined anew on their sources, and why."""
        found = {
            each: part.outdated(self.streams[each], self.ready[each], pending) for each, part in self.parts.items()
        }
        return {each: reason for each, reason in found.items() if reason}

    def _reinitialize(self) -> str | None:
        """Why the members cannot go on from what they hold."""
        for stream in self.streams.values():
            if stream.needs_reinit:
                return f"{stream}: {stream.reinit_reason}"
            if not stream.is_populated:
                return f"{stream} was not populated yet"
        if len({(stream.frontier, stream.upstream_frontier) for stream in self.streams.values()}) > 1:
            return "its tables were of different snapshots"
        return None

    @contextmanager
    def _window(self, moment: Moment) -> Iterator[Window]:
        """The changes of all sources outside the circle."""
        stream = next(iter(self.streams.values()))
        stacked = frozenset(oid for ready in self.ready.values() for oid in ready.stacked) - self._relids
        upstream = stacked if any(ready.upstream - self._relids for ready in self.ready.values()) else frozenset()
        sources = frozenset(table.oid for ready in self.ready.values() for table in ready.sources) - self._relids
        window = at_snapshot(
            self.connections, {oid: stream.since(oid in stacked) for oid in sorted(sources)}, moment.snapshot
        )
        by_changes = not self.full and self._reinitialize() is None
        if by_changes and not window.is_complete:
            window = await_decoder(window, self.owner.settings.decoder_wait_timeout)
        late = upstream if self.tick is not None else frozenset()
        self.parts[self.pgt_ids[0]].require_at_hand(window, late)
        with opened_until_now(window, late) as window:
            for part in self.parts.values():
                part.window = window
            yield window

    def _refresh(self, window: Window, pending: dict[int, Pending], moment: Moment) -> dict[int, RefreshResult]:
        sources = _Sources(window, [node for ready in self.ready.values() for node in _scans(ready)])
        if any(pending[oid].truncated for oid, span in window.spans.items() if span.reaches_beyond):
            raise Stop(Again("a stream table that it reads was truncated"))
        by_changes = not self.full and self._reinitialize() is None
        titles = {table.oid: str(table) for ready in self.ready.values() for table in ready.sources}
        gained = {
            oid: Gained(
                titles[oid],
                found.changes,
                found.truncated,
                by_changes and found.changes > 0 and not found.truncated and sources.lost_rows(oid),
            )
            for oid, found in pending.items()
        }
        full = "full refresh asked for" if self.full else None
        decision = rules.decide(self._members(), self._reinitialize(), full, gained)
        for part in self.parts.values():
            part.decision = decision
            part.lap("decide")
        if decision.action is Action.NO_DATA:
            writer = self.connections.writer
            with writer.transaction():
                return {each: part.nothing(writer, decision, window, moment) for each, part in self.parts.items()}
        return self._work(sources, decision, sum(found.changes for found in pending.values()), moment)

    def _work(self, sources: _Sources, decision: Decision, changes: int, moment: Moment) -> dict[int, RefreshResult]:
        """The rounds, then the one transaction."""
        onward = decision.action is Action.DIFFERENTIAL
        for part in self.parts.values():
            part.start()
        members = {stream.pgt_relid: self.ready[each] for each, stream in self.streams.items()}
        rounds = Fixpoint(
            self.connections.reader, members, Outside(sources.at, sources.gained, sources.changed), onward
        )
        most = self.owner.settings.max_fixpoint_iterations
        number = rounds.run(most)
        if number is None:
            raise rules.unsettled(rules.route(self._members()), most)
        how = "went on from what was there" if onward else "computed from nothing"
        decision = replace(decision, reason=f"{decision.reason}; {how}, settled after {number} rounds")
        for part in self.parts.values():
            part.decision = decision
            part.lap("rounds")
        results = {}
        writer = self.connections.writer
        with writer.transaction():
            applied = {each: self._apply(rounds, each, onward) for each in self.ready}
            frontier = including(sources.until, int(str(scalar(writer, "SELECT pg_current_xact_id()::text"))))
            for each, part in self.parts.items():
                part.lap("apply")
                results[each] = part.finish(writer, decision, applied[each], changes, moment, frontier)
                notify(writer, self.streams[each], results[each])
            failpoints.reach("before-group-commit")
            self.owner.hold_fence(writer)
            failpoints.reach("fenced")
        return results

    def _apply(self, rounds: Fixpoint, pgt_id: int, onward: bool) -> merge.Applied:
        ready = self.ready[pgt_id]
        self.connections.use_settings(ready.settings)

        def gained(target: Storage) -> str:
            return f"SELECT * FROM {self._copied(target, rounds, ready)}"

        return self.parts[pgt_id].apply(self.streams[pgt_id], ready, gained, whole=not onward)

    def _copied(self, target: Storage, rounds: Fixpoint, ready: Prepared) -> str:
        """The rows that the rounds found, where they are written from."""
        pairs = zip(ready.storage.columns, ready.tree.columns, strict=True)
        stored = ", ".join(f"{quote(mine.name)} AS {quote(column.name)}" for mine, column in pairs)
        like = f"SELECT {stored}, 1::bigint AS {WEIGHT} FROM {target.qualified}"
        return copied(self.connections.reader, rounds.gained_sql(ready), self.connections.writer, like=like)

    def skip(self, reason: str) -> dict[int, RefreshResult]:
        return {each: skipped(self.connections.aside, each, self.initiated_by, reason) for each in self.pgt_ids}


class _Sources:
    """What is read of the sources outside the circle: at the end of the window, and what they gained in it."""

    def __init__(self, window: Window, scans: Iterable[Scan]) -> None:
        self._window = window
        self._reader = window.connections.reader
        self._scans = [scan for scan in scans if scan.table.oid in window.spans]
        self._late = frozenset(oid for oid, found in window.pending(WindowPart.LATE).items() if found.changes)
        self._net: dict[int, tuple[str, Mapping[str, Column]]] = {}
        self._moved: dict[Scan, str] = {}

    @property
    def until(self) -> str:
        """The snapshot that stream tables among them are read at."""
        return self._window.end_beyond or self._window.snapshot

    @property
    def changed(self) -> frozenset[int]:
        """Those whose changes were looked at."""
        return frozenset(self._net)

    def lost_rows(self, oid: int) -> bool:
        """Whether the window's changes of a source, taken together, are more than rows gained."""
        scans = [scan for scan in self._scans if scan.table.oid == oid]
        used = dict.fromkeys(pair for scan in scans for pair in _typed(scan))
        columns = {attribute: Column(f"a{number}", type_) for number, (attribute, type_) in enumerate(used)}
        pairs = [(attribute, column.name) for attribute, column in columns.items()]
        changes = self._here(oid, self._window.changes_sql(oid, pairs))
        table = f"pgt_gained_{oid}"
        net = by_image(changes, tuple(columns.values()))
        execute(self._reader, f"CREATE TEMPORARY TABLE {table} ON COMMIT DROP AS {net}")
        self._net[oid] = (f"pg_temp.{table}", columns)
        return bool(scalar(self._reader, f"SELECT EXISTS (SELECT FROM pg_temp.{table} WHERE {WEIGHT} < 0)"))

    def gained(self, scan: Scan) -> str:
        """The rows a source gained."""
        table, columns = self._net[scan.table.oid]
        shown = ", ".join(f"{quote(columns[attribute].name)} AS {quote(name)}" for attribute, name in scan.pairs)
        own = f" WHERE {quote(columns[TABLEOID].name)} = {scan.table.oid}" if scan.apart else ""
        return f"SELECT {shown} FROM {table} AS net CROSS JOIN generate_series(1, net.{WEIGHT}){own}"

    def at(self, scan: Scan) -> str | None:
        """A stream table as it is by now, where the reader's snapshot is that of a tick before its refresh."""
        oid = scan.table.oid
        if oid not in self._late:
            return None
        if scan not in self._moved:
            changes = self._here(oid, self._window.changes_of(scan, WindowPart.LATE))
            self._moved[scan] = moved(scan, changes, 1)
        return self._moved[scan]

    def _here(self, oid: int, changes: str) -> str:
        """Changes of a source as the reader can read them."""
        place = self._window.spans[oid].place
        if place is Place.SNAPSHOT:
            return changes
        return f"SELECT * FROM {copied(self._window.connection(place), changes, self._reader)}"


def member(stream: StreamTable, ready: Prepared) -> Member:
    """A stream table as the rules look at it."""
    sources = frozenset(table.oid for table in ready.sources)
    return Member(stream.pgt_relid, str(stream), ready.compiled.tree, stream.mode_reason, sources)


def _scans(ready: Prepared) -> list[Scan]:
    return [node for node in walk(ready.tree) if isinstance(node, Scan)]


def _typed(scan: Scan) -> Iterator[tuple[str, PgType]]:
    """What is read of it, and which table a row is of where that counts."""
    yield from zip(scan.attributes, (column.type for column in scan.columns), strict=True)
    if scan.apart:
        yield TABLEOID, OID


def explained(way: str) -> str:
    """How it is maintained, for `explain`."""
    return (
        f"circle\n  {way}\n  refreshed together, round by round until no table gains a row, and committed at once;\n"
        "  from nothing if rows were deleted or updated, else going on from what is there\n"
    )
