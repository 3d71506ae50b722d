"""One refresh, from lock to commit: the only place that wires capture, Spark, apply and catalog together.

    lock  →  snapshot S  →  decide  →  plan  →  Spark  →  one transaction: state, result, frontier, history  →  clean up

A crash anywhere leaves the old state or the new one: nothing is visible before the one commit, and what is left
outside it (staging tables, RUNNING history rows) is removed by the next refresh of the table, under its lock.

Spark is imported where work begins: a refresh with nothing to do, and all that only reads the catalog, load none of it.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import psycopg
from psycopg import IsolationLevel

from pgtrickle import db, failpoints
from pgtrickle.apply import merge, stage
from pgtrickle.capture import buffer, handover
from pgtrickle.capture.window import NotCaptured, Pending, covers
from pgtrickle.catalog import reader as catalog
from pgtrickle.catalog import writer as record
from pgtrickle.catalog.reader import StreamTable
from pgtrickle.config import Settings
from pgtrickle.db import Connection
from pgtrickle.errors import Error, Refused, StateError
from pgtrickle.model import Table
from pgtrickle.query.fingerprint import fingerprint
from pgtrickle.refresh import facts as ask
from pgtrickle.refresh.connections import Connections
from pgtrickle.refresh.decide import Action, Circumstances, Decision, SourceChanges, decide
from pgtrickle.refresh.define import load, redefine
from pgtrickle.refresh.failure import ValueProblem, as_ours, breaks_definition, known_failures
from pgtrickle.refresh.lock import refresh_lock, refresh_locks
from pgtrickle.refresh.plan import is_small, plan_delta, plan_full, result_columns
from pgtrickle.refresh.prepared import Prepared
from pgtrickle.refresh.result import RefreshResult
from pgtrickle.refresh.retry import Kind, classify
from pgtrickle.refresh.tick import Moment, Tick, now
from pgtrickle.refresh.window import Behind, Window, at_snapshot, await_decoder, extended, including, opened
from pgtrickle.spark.facts import Facts
from pgtrickle.spark.flow import Place
from pgtrickle.spark.lower import Changed, Inseparable, Part

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pgtrickle.refresh.stages import StageRunner

UNDER_WAY = "another refresh of the table is under way"
_MOST_REDEFINITIONS = 3
_LOCK_TIMEOUT = "10s"
_MANY_CHANGES = 1000
"""With so many the time a differential refresh takes follows their number: fewer cost what starting it costs."""
CHANGED = "the definition of a source changed"


CompiledTables: TypeAlias = dict[int, tuple[str, Prepared]]
"""Stream tables made ready, by id, each with the version of the definition it was compiled for."""


class SourceGone(Exception):
    """A source is not there under the name it had when the query was compiled."""


class InCircle(Exception):
    """The table, defined anew on its sources, reads itself, through others or not: it is refreshed with all of these
    (`circle.refresh`)."""


class NotInTick(Exception):
    """The table cannot be brought to the tick's snapshot: it must be refreshed by itself; says why."""

    def __init__(self, pgt_id: int, reason: str) -> None:
        super().__init__(reason)
        self.pgt_id = pgt_id


@dataclass(slots=True)
class Refresher:
    """Refreshes stream tables of one database; keeps its connections and compiled queries warm between refreshes.

    For one thread. Those of several threads may share `compiled`.
    """

    dsn: str
    settings: Settings
    session: Callable[[], SparkSession]
    compiled: CompiledTables = field(default_factory=dict)
    _connections: Connections | None = None

    def refresh(
        self, pgt_id: int, *, full: bool = False, initiated_by: str = "MANUAL", tick: Tick | None = None
    ) -> RefreshResult:
        """Refreshes one stream table, to the tick's snapshot if there is one and it can be. Raises what went wrong,
        after recording it."""
        connections = self.connections()
        with refresh_lock(connections.aside, pgt_id) as locked:
            if not locked:
                return skipped(connections.aside, pgt_id, initiated_by, UNDER_WAY)
            record.close_abandoned(connections.aside, pgt_id)
            reason = "full refresh asked for" if full else None
            try:
                refresh = Refresh(self, connections, pgt_id, initiated_by, reason, tick)
                result = refresh.run()
            except NotInTick:
                refresh = Refresh(self, connections, pgt_id, initiated_by, reason)
                result = refresh.run()
            refresh.clean()
            return result

    def refresh_together(
        self,
        pgt_ids: Sequence[int],
        tick: Tick,
        *,
        initiated_by: str = "SCHEDULER",
        on_change: Callable[[Connection], None] | None = None,
    ) -> dict[int, RefreshResult]:
        """Refreshes several stream tables, each after those it reads, and commits them together or not at all;
        `on_change` is part of that transaction, unless none of them had anything to do.

        What goes wrong with one is raised, after recording it, and all stay as they were. NotInTick if one must be
        refreshed by itself first.
        """
        connections = self.connections()
        done: list[Refresh] = []
        results: dict[int, RefreshResult] = {}
        with refresh_locks(connections.aside, pgt_ids) as locked:
            if not locked:
                return {each: skipped(connections.aside, each, initiated_by, UNDER_WAY) for each in pgt_ids}
            for pgt_id in pgt_ids:
                record.close_abandoned(connections.aside, pgt_id)
            try:
                with connections.writer.transaction():
                    for pgt_id in pgt_ids:
                        refresh = Refresh(self, connections, pgt_id, initiated_by, None, tick, together=True)
                        results[pgt_id] = refresh.run()
                        done.append(refresh)
                    if on_change is not None and any(r.action is not Action.NO_DATA for r in results.values()):
                        on_change(connections.writer)
                    failpoints.reach("before-group-commit")
            except Behind as behind:
                return {each: skipped(connections.aside, each, initiated_by, str(behind)) for each in pgt_ids}
            except Exception as error:
                for refresh in done:
                    refresh.undone(f"undone with the others of its group: {error}")
                raise
            for refresh in done:
                refresh.clean()
        return results

    def close(self) -> None:
        if self._connections is not None:
            for connection in self._connections:
                connection.close()
            self._connections = None

    def known(self, pgt_id: int) -> Prepared | None:
        """The compiled stream table as of its last refresh here; its definition may have changed since."""
        found = self.compiled.get(pgt_id)
        return None if found is None else found[1]

    def prepared(self, stream: StreamTable) -> Prepared:
        """The compiled stream table, from memory if it was compiled for the same definition."""
        known = at_hand(self.compiled, stream)
        if known is not None:
            return known
        aside = self.connections().aside
        with aside.transaction():
            db.execute(aside, f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")  # someone may hold a source for long
            prepared = load(aside, stream)
        self.compiled[stream.pgt_id] = (_version(stream), prepared)
        return prepared

    @property
    def backend_pids(self) -> tuple[int, ...]:
        """The sessions in which a refresh may be waiting; may be asked for by another thread."""
        known = self._connections
        return () if known is None else tuple(each.info.backend_pid for each in known if not each.closed)

    def connections(self) -> Connections:
        """Its connections, opened where they are not, or not any more. Not to be used while a refresh is under way."""
        known = self._connections
        if known is not None and not any(connection.closed or connection.broken for connection in known):
            return known
        self.close()
        roles = ("reader", "writer", "aside", "late")
        opened = Connections(*(db.connect(self.dsn, application_name=f"pgtrickle {role}") for role in roles))
        opened.reader.isolation_level = opened.late.isolation_level = IsolationLevel.REPEATABLE_READ
        self._connections = opened
        return self._connections


@dataclass(slots=True)
class Refresh:
    """One refresh under way; the caller holds the stream table's lock."""

    owner: Refresher
    connections: Connections
    pgt_id: int
    initiated_by: str
    full: str | None
    tick: Tick | None = None
    together: bool = False
    """Whether the writer's transaction is one of several refreshes, and committed by the caller."""
    stream: StreamTable | None = None
    window: Window | None = None
    decision: Decision | None = None
    refresh_id: int | None = None
    phases: dict[str, float] = field(default_factory=dict)
    started: float = field(default_factory=time.perf_counter)

    def run(self) -> RefreshResult:
        try:
            return self._run()
        except (Refused, NotInTick, Behind, InCircle):
            raise
        except Exception as error:
            raised = as_ours(error)
            self.fail(raised, classify(error))
            if not isinstance(error, known_failures()):
                raise
            if isinstance(raised, ValueProblem) and self._may_run_full():
                reason = f"a differential refresh could not be computed: {raised.message}"
                again = Refresh(self.owner, self.connections, self.pgt_id, self.initiated_by, reason)
                return again.run()
            if raised is error:
                raise
            raise raised from error

    def _may_run_full(self) -> bool:
        """AUTO may, and says so: a delta can meet values and pairs of rows that the present no longer has."""
        differential = self.decision is not None and self.decision.action is Action.DIFFERENTIAL
        auto = self.stream is not None and self.stream.refresh_mode == "AUTO"
        return differential and auto and not self.together

    def _run(self) -> RefreshResult:
        prepared = self.owner.known(self.pgt_id) or self.owner.prepared(self.read())
        for _ in range(_MOST_REDEFINITIONS):
            try:
                with self.snapshot(prepared.lockable) as moment:
                    self.stream = stream = self.read()
                    if self.owner.prepared(stream) is not prepared:
                        prepared = self.owner.prepared(stream)
                        continue
                    self.require_in_tick(stream)
                    with self._window(stream, prepared, moment) as window:
                        self.window = window
                        if window.waited and self.read() != stream:  # changed while we waited
                            continue
                        pending = window.pending()
                        outdated = self.outdated(stream, prepared, pending)
                        result = None if outdated else self._refresh(stream, prepared, pending, window, moment)
            except (SourceGone, NotCaptured):  # if the query no longer holds, PostgreSQL's word on it is the clearest
                stream, outdated, result = self.read(), CHANGED, None
            except Behind as behind:
                if self.together:
                    raise
                return skipped(self.connections.aside, self.pgt_id, self.initiated_by, str(behind))
            if result is not None:
                return result
            if self.tick is not None:
                raise NotInTick(self.pgt_id, outdated or CHANGED)
            reason = stream.reinit_reason or outdated or CHANGED  # what DDL was noted says more than a fingerprint
            redefine(self.connections.aside, stream, settings=self.owner.settings, reason=reason)
            if catalog.circle(self.connections.aside, self.pgt_id):  # a view was replaced
                raise InCircle
            prepared = self.owner.prepared(self.read())
        raise StateError(
            "the sources keep changing their definition", code="PT342", hint="refresh again when no DDL is under way"
        )

    def require_in_tick(self, stream: StreamTable) -> None:
        """A tick may bring the table forward only: someone may have refreshed it since the snapshot was taken."""
        if self.tick is None:
            return
        for frontier in {stream.frontier, stream.since(True)}:
            if not covers(self.tick.moment.snapshot, frontier):
                raise NotInTick(self.pgt_id, "it was refreshed since the tick began")

    @contextmanager
    def _window(self, stream: StreamTable, prepared: Prepared, moment: Moment) -> Iterator[Window]:
        """The changes since the last refresh; all of them, if it may depend on them what is done."""
        sources = [] if stream.effective_mode == "FULL" else [table.oid for table in prepared.sources]
        since = {oid: stream.since(oid in prepared.upstream) for oid in sources}
        window = at_snapshot(self.connections, since, moment.snapshot)
        by_changes = stream.is_populated and not stream.needs_reinit and self.full is None
        if not by_changes or stream.status == "SUSPENDED":
            yield window
            return
        if not window.is_complete:
            window = await_decoder(window, self.owner.settings.decoder_wait_timeout)
            self.lap("wait")
        upstream = prepared.upstream.intersection(sources) if self.tick is not None else frozenset()
        if upstream and self.together:
            window = extended(window, upstream, Place.WRITER, _as_committed(self.connections.writer))
        with opened(window, also=bool(upstream) and not self.together) as window:
            if upstream and not self.together:
                window = extended(window, upstream, Place.LATE, now(self.connections.late).snapshot)
            yield window

    def outdated(self, stream: StreamTable, prepared: Prepared, pending: dict[int, Pending]) -> str | None:
        """Why the table must be defined anew on its sources, if it must."""
        dependencies = prepared.compiled.analysis.dependencies
        found = {fingerprint(self.connections.reader, dependencies)}
        if self.tick is not None:  # its snapshot is older than our locks, so DDL may have come in between
            found.add(fingerprint(self.connections.aside, dependencies))
        if found != {stream.source_fingerprint}:
            truncated = [
                str(table) for table in prepared.sources if table.oid in pending and pending[table.oid].truncated
            ]
            return f"{', '.join(truncated)} was truncated or altered" if truncated else CHANGED
        lost = [str(table) for table in prepared.sources if table.oid in pending and not pending[table.oid].captured]
        return f"changes of {', '.join(lost)} were not captured for a time" if lost else None

    def read(self) -> StreamTable:
        stream = catalog.by_id(self.connections.aside, self.pgt_id)
        if stream is None:
            raise StateError("the stream table was dropped", code="PT301", hint="`pgtrickle status` lists them all.")
        return stream

    @contextmanager
    def snapshot(self, lockable: Collection[Table]) -> Iterator[Moment]:
        """A transaction at one snapshot, with the sources protected from DDL while it is read."""
        reader = self.connections.reader
        with reader.transaction():
            if lockable:
                tables = ", ".join(table.qualified for table in lockable)
                db.execute(reader, f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")  # utility: takes no snapshot yet
                try:
                    db.execute(reader, f"LOCK TABLE {tables} IN ACCESS SHARE MODE")
                except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as error:
                    raise SourceGone from error
            if self.tick is None:
                yield now(reader)
            else:
                db.execute(reader, f"SET TRANSACTION SNAPSHOT '{self.tick.exported}'")
                yield self.tick.moment

    def _refresh(
        self, stream: StreamTable, prepared: Prepared, pending: dict[int, Pending], window: Window, moment: Moment
    ) -> RefreshResult:
        changes = {oid: found.changes for oid, found in pending.items()}
        facts = self._facts(prepared, changes) if any(changes.values()) else Facts({}, changes)
        truncated = frozenset(oid for oid, found in pending.items() if found.truncated)
        self.decision = decision = decide(self._circumstances(stream, prepared, facts, truncated))
        self.lap("decide")
        if decision.action is Action.SKIP:
            if self.together:
                raise NotInTick(self.pgt_id, decision.reason)
            return skipped(self.connections.aside, self.pgt_id, self.initiated_by, decision.reason)
        if decision.action is Action.NO_DATA:
            return self.nothing(decision, window, moment)
        place = self._place_of_full(stream, prepared, decision)
        stage.drop_orphans(self.connections.aside, self.pgt_id)
        return self._work(stream, prepared, decision, facts, window, moment, place)

    def _place_of_full(self, stream: StreamTable, prepared: Prepared, decision: Decision) -> Place:
        """Where a full refresh reads. In a tick, stream tables that it reads are newer than the snapshot: a query that
        PostgreSQL evaluates whole can be read where they are written; others are refreshed by themselves."""
        if decision.action is Action.DIFFERENTIAL or self.tick is None or not prepared.upstream:
            return Place.SNAPSHOT
        if self.together and stream.effective_mode == "FULL" and stream.is_populated:
            return Place.WRITER
        raise NotInTick(self.pgt_id, decision.reason)

    def _facts(self, prepared: Prepared, changes: Mapping[int, int]) -> Facts:
        return ask.gather(self.connections.reader, [table.oid for table in prepared.sources], changes)

    def _circumstances(
        self, stream: StreamTable, prepared: Prepared, facts: Facts, truncated: frozenset[int]
    ) -> Circumstances:
        sources = {
            table.oid: SourceChanges(
                str(table), facts.rows(table.oid), facts.changes.get(table.oid, 0), table.oid in truncated
            )
            for table in prepared.sources
        }
        many = stream.refresh_mode == "AUTO" and sum(facts.changes.values()) >= _MANY_CHANGES and not self.together
        return Circumstances(
            table=str(stream),
            refresh_mode=stream.refresh_mode,
            effective_mode=stream.effective_mode,
            mode_reason=stream.mode_reason,
            suspended=stream.status == "SUSPENDED",
            populated=stream.is_populated,
            reinitialize=stream.reinit_reason if stream.needs_reinit else None,
            initial=self.initiated_by == "INITIAL",
            full=self.full,
            max_change_ratio=math.inf if self.together else self.owner.settings.differential_max_change_ratio,
            sources=sources,
            last_full_ms=stream.last_full_ms if many else None,
            ms_per_change=catalog.ms_per_change(self.connections.aside, self.pgt_id, least=_MANY_CHANGES)
            if many
            else None,
        )

    def nothing(self, decision: Decision, window: Window, moment: Moment) -> RefreshResult:
        connection = self.connections.writer if self.together else self.connections.aside
        with connection.transaction():
            record.record_no_data(
                connection,
                self.pgt_id,
                initiated_by=self.initiated_by,
                reason=decision.reason,
                frontier=moment.snapshot,
                upstream_frontier=window.end_beyond,
                data_timestamp=moment.at,
                duration_ms=self._elapsed(),
            )
        return RefreshResult(decision.action, decision.reason, duration_ms=self._elapsed(), phases=self.phases)

    def _work(
        self,
        stream: StreamTable,
        prepared: Prepared,
        decision: Decision,
        facts: Facts,
        window: Window,
        moment: Moment,
        place: Place,
    ) -> RefreshResult:
        """Spark, then the one transaction."""
        facts = facts if facts.tables else self._facts(prepared, facts.changes)
        whole = decision.action is not Action.DIFFERENTIAL
        changed = Changed(frozenset()) if whole else self._changed(window, facts)
        try:
            physical = plan_full(prepared, facts, place) if whole else plan_delta(prepared, facts, window, changed)
        except Inseparable as error:
            raise NotInTick(self.pgt_id, "an aggregate is in the way") from error
        small = is_small(physical, facts, whole=whole)
        runner = self._runner(prepared, window, whole=whole, small=small, late=changed.late)
        self.lap("plan")
        writer = self.connections.writer
        self.refresh_id = record.start_refresh(self.connections.aside, self.pgt_id, initiated_by=self.initiated_by)
        try:
            with writer.transaction():
                relation = runner.run(physical)
                self.lap("spark")
                apply = merge.replace if whole else merge.apply_delta
                applied = apply(writer, prepared.storage, relation, result_columns(prepared))
                self.lap("apply")
                upstream_frontier = None if whole else window.end_beyond
                changes = sum(facts.changes.values())
                result = self.finish(writer, decision, applied, changes, moment, upstream_frontier)
                notify(writer, stream, result)
                failpoints.reach("before-commit")
            failpoints.reach("after-commit")
        finally:
            runner.drop_staging()
        return result

    def _changed(self, window: Window, facts: Facts) -> Changed:
        """The sources with changes before the snapshot, and those with some after it."""
        late = {oid: found.changes for oid, found in window.pending(Part.LATE).items()}
        early = (oid for oid, count in facts.changes.items() if count > late.get(oid, 0))
        return Changed(frozenset(early), frozenset(oid for oid, count in late.items() if count))

    def _runner(
        self, prepared: Prepared, window: Window, *, whole: bool, small: bool, late: frozenset[int]
    ) -> StageRunner:
        from pgtrickle.refresh.stages import StageRunner
        from pgtrickle.spark.worker import Snapshot

        snapshot = Snapshot.export(self.owner.dsn, self.connections.reader)
        return StageRunner(prepared, self.connections, self.owner.session(), snapshot, window, whole, small, late)

    def finish(
        self,
        writer: Connection,
        decision: Decision,
        applied: merge.Applied,
        changes: int,
        moment: Moment,
        upstream_frontier: str | None,
    ) -> RefreshResult:
        """Moves the frontier and closes the history row."""
        assert self.refresh_id is not None
        whole = decision.action is not Action.DIFFERENTIAL
        record.mark_refreshed(
            writer,
            self.pgt_id,
            frontier=moment.snapshot,
            upstream_frontier=upstream_frontier,
            data_timestamp=moment.at,
            full_ms=self._elapsed() if whole else None,
        )
        record.finish_refresh(
            writer,
            self.refresh_id,
            status="COMPLETED",
            action=decision.action,
            reason=decision.reason,
            rows_inserted=applied.inserted,
            rows_deleted=applied.deleted,
            changes_read=changes,
            snapshot=moment.snapshot,
            data_timestamp=moment.at,
            phases=self.phases,
        )
        counts = (applied.inserted, applied.deleted, changes)
        return RefreshResult(decision.action, decision.reason, *counts, self._elapsed(), self.phases)

    def fail(self, error: Error, kind: Kind) -> None:
        """Records a failure, and counts it if it does not pass by itself; if that fails too, the first error is the one
        to tell, with a note."""
        try:
            with self.connections.aside.transaction():
                self._record_failure(error, kind)
        except psycopg.Error as second:
            error.add_note(f"the failure could not be recorded: {second}")

    def _record_failure(self, error: Error, kind: Kind) -> None:
        aside = self.connections.aside
        refresh_id = self.refresh_id or record.start_refresh(aside, self.pgt_id, initiated_by=self.initiated_by)
        record.finish_refresh(
            aside,
            refresh_id,
            status="FAILED",
            action=self.decision.action if self.decision else None,
            reason=self.decision.reason if self.decision else None,
            phases=self.phases,
            error_code=error.code,
            error=error.message,
        )
        status = record.mark_failed(
            aside,
            self.pgt_id,
            str(error),
            max_consecutive_errors=self.owner.settings.max_consecutive_errors,
            broken=breaks_definition(error),
            counts=kind is not Kind.RETRY,
        )
        stream = self.read()
        facts = {"table": str(stream), "error_code": error.code, "error": error.message, "kind": kind.value}
        _alert(aside, {"event": "refresh_failed", **facts, "consecutive_errors": stream.consecutive_errors})
        if status == "SUSPENDED" and (self.stream is None or self.stream.status != "SUSPENDED"):
            _alert(aside, {"event": "auto_suspended", **facts, "consecutive_errors": stream.consecutive_errors})

    def undone(self, reason: str) -> None:
        """Says so, where the refresh itself was done and the transaction it was part of was not."""
        if self.refresh_id is not None:
            record.finish_refresh(
                self.connections.aside, self.refresh_id, status="SKIPPED", action=Action.SKIP, reason=reason
            )

    def clean(self) -> None:
        """After the commit, and after the snapshot, which would hold it back: removes from the buffers what every
        consumer has applied. Should it fail, that is a failure of its own."""
        if self.window is None or self.refresh_id is None:  # nothing was applied
            return
        self.refresh_id = self.decision = None
        try:
            for oid, span in self.window.spans.items():
                self.clean_buffer(oid, decoded=span.sides is not None)
        except psycopg.Error as error:
            raised = as_ours(error)
            self.fail(raised, classify(error))
            raise raised from error

    def clean_buffer(self, oid: int, *, decoded: bool) -> None:
        aside = self.connections.aside
        is_upstream = catalog.by_relation(aside, oid) is not None
        consumers = catalog.consumers_of(aside, oid)
        frontiers = [consumer.since(is_upstream) for consumer in consumers if consumer.effective_mode != "FULL"]
        buffer.clean(aside, oid, frontiers, use_truncate=self.owner.settings.cleanup_use_truncate)
        if decoded:
            handover.prune(aside, oid)

    def _elapsed(self) -> float:
        return (time.perf_counter() - self.started) * 1000

    def lap(self, phase: str) -> None:
        self.phases[phase] = round(self._elapsed() - sum(self.phases.values()), 3)


def at_hand(compiled: CompiledTables, stream: StreamTable) -> Prepared | None:
    """What is compiled for this definition of the stream table."""
    found = compiled.get(stream.pgt_id)
    return found[1] if found is not None and found[0] == _version(stream) else None


def _version(stream: StreamTable) -> str:
    """Of its definition."""
    return f"{stream.source_fingerprint}/{stream.updated_at}"


def skipped(connection: Connection, pgt_id: int, initiated_by: str, reason: str) -> RefreshResult:
    with connection.transaction():
        refresh_id = record.start_refresh(connection, pgt_id, initiated_by=initiated_by)
        duration = record.finish_refresh(connection, refresh_id, status="SKIPPED", action=Action.SKIP, reason=reason)
    return RefreshResult(Action.SKIP, reason, duration_ms=duration)


def _as_committed(writer: Connection) -> str:
    """The snapshot at which the writer is, as it will be once its transaction is committed."""
    row = writer.execute("SELECT pg_current_snapshot()::text, pg_current_xact_id_if_assigned()::text").fetchone()
    assert row is not None
    return str(row[0]) if row[1] is None else including(str(row[0]), int(str(row[1])))


def notify(connection: Connection, stream: StreamTable, result: RefreshResult) -> None:
    message = {
        "event": "refresh_completed",
        "table": str(stream),
        "action": result.action,
        "rows_inserted": result.rows_inserted,
        "rows_deleted": result.rows_deleted,
    }
    _alert(connection, message)


def _alert(connection: Connection, message: Mapping[str, object]) -> None:
    connection.execute("SELECT pg_notify('pg_trickle_alert', %s)", (json.dumps(message),))
