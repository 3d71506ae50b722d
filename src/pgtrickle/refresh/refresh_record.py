"""What a refresh under way leaves on record: its history row, the frontier, failures and alerts, and clean buffers.

The base of `TableRefresh` (`table_refresh.py`); `circle/circle_refresh.py` keeps one for each table of a circle.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING

import psycopg

from pgtrickle import tracing
from pgtrickle.apply import merge, storage
from pgtrickle.capture import buffer, handover
from pgtrickle.catalog import reader as catalog
from pgtrickle.catalog import writer as record
from pgtrickle.catalog.reader import StreamTable
from pgtrickle.db import Connection
from pgtrickle.errors import Error, StateError
from pgtrickle.refresh.choice import Choice
from pgtrickle.refresh.connections import Connections
from pgtrickle.refresh.decide import Action, Decision
from pgtrickle.refresh.failure import as_ours, breaks_definition
from pgtrickle.refresh.result import RefreshResult
from pgtrickle.refresh.retry import Kind, classify
from pgtrickle.refresh.tick import Moment
from pgtrickle.refresh.window import Window
from pgtrickle.refresh.work_time import ServerTime, WayTaken, WorkTime

if TYPE_CHECKING:
    from pgtrickle.refresh.refresher import Refresher


UNDER_WAY = "another refresh of the table is under way"
OTHER_GROUP = "what it reads, or what reads it, has changed, and with it who belongs together"
"""They are skipped then: who asks has to find out anew who must be of one version."""


@dataclass(slots=True)
class RefreshRecord:
    """Of the refresh of one stream table, whose lock the caller holds."""

    owner: Refresher
    connections: Connections
    pgt_id: int
    initiated_by: str
    _: KW_ONLY
    stream: StreamTable | None = None
    window: Window | None = None
    decision: Decision | None = None
    choice: Choice | None = None
    working: WorkTime = field(default_factory=WorkTime)
    refresh_id: int | None = None
    server: ServerTime | None = None
    """From its record on, if it has one."""
    phases: dict[str, float] = field(default_factory=dict)
    started: float = field(default_factory=time.perf_counter)
    marked: int = field(default_factory=time.time_ns)
    """When the step under way began, for its span."""

    def read(self) -> StreamTable:
        stream = catalog.by_id(self.connections.aside, self.pgt_id)
        if stream is None:
            raise StateError("the stream table was dropped", code="PT301", hint="`pgtrickle status` lists them all.")
        if stream.owner is None:
            raise storage.dropped(stream)
        return stream

    def start(self) -> None:
        """Puts it on record: from here on it works."""
        backends = self.owner.backends
        started = record.start_refresh(
            self.connections.aside, self.pgt_id, initiated_by=self.initiated_by, server_cpu=backends.sql
        )
        here_ms = backends.here_ms()
        self.server = ServerTime(backends, started.server_cpu_ms if here_ms is None else here_ms)
        self.refresh_id = started.refresh_id

    def nothing(self, connection: Connection, decision: Decision, window: Window, moment: Moment) -> RefreshResult:
        with connection.transaction():
            self.owner.hold_fence(connection)
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

    def finish(
        self,
        writer: Connection,
        decision: Decision,
        applied: merge.Applied,
        changes: int,
        moment: Moment,
        upstream_frontier: str | None,
        tasks_ms: float | None = 0.0,
    ) -> RefreshResult:
        """Moves the frontier and closes the history row. `tasks_ms`: of the server's CPU, what Spark's tasks had."""
        assert self.refresh_id is not None
        assert self.server is not None
        whole = decision.action in {Action.FULL, Action.REINITIALIZE}
        record.mark_refreshed(
            writer,
            self.pgt_id,
            frontier=moment.snapshot,
            upstream_frontier=upstream_frontier,
            data_timestamp=moment.at,
            full_ms=self._elapsed() if whole else None,
            since=None if self.stream is None else self.stream.frontier,
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
            **self._way(),
            server_cpu=self.server.sql(tasks_ms),
        )
        counts = (applied.inserted, applied.deleted, changes)
        return RefreshResult(decision.action, decision.reason, *counts, self._elapsed(), self.phases)

    def _way(self) -> WayTaken:
        """The way it took, what was expected, and what it took: nothing of the tables of a circle."""
        if self.choice is None:
            return WayTaken()
        expected = {way.value: round(ms, 1) for way, ms in self.choice.expected.items()}
        return WayTaken(way=self.choice.way.value, expected=expected, took_ms=round(self.working.ms, 3))

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
        refresh_id = self.refresh_id or _started(aside, self.pgt_id, self.initiated_by)
        record.finish_refresh(
            aside,
            refresh_id,
            status="FAILED",
            action=self.decision.action if self.decision else None,
            reason=self.decision.reason if self.decision else None,
            phases=self.phases,
            error_code=error.code,
            error=error.message,
            **self._way(),
            hint=error.hint,
        )
        status = record.mark_failed(
            aside,
            self.pgt_id,
            str(error),
            max_consecutive_errors=self.owner.settings.max_consecutive_errors,
            broken=breaks_definition(error) and kind is not Kind.RETRY,
            counts=kind is not Kind.RETRY,
        )
        if kind is Kind.SCHEMA and not breaks_definition(error):
            self._ask_anew(f"a refresh failed on what the table is built on: {error.message}")
        stream = self.read()
        facts = {"table": str(stream), "error_code": error.code, "error": error.message, "kind": kind.value}
        _alert(aside, {"event": "refresh_failed", **facts, "consecutive_errors": stream.consecutive_errors})
        if status == "SUSPENDED" and (self.stream is None or self.stream.status != "SUSPENDED"):
            _alert(aside, {"event": "auto_suspended", **facts, "consecutive_errors": stream.consecutive_errors})

    def _ask_anew(self, reason: str) -> None:
        """Something has changed that no fingerprint has: a function inside of another one's body, a table of ours. What
        was computed with it may be wrong too, so that the next try begins with the definition."""
        stream = self.read()
        record.mark_outdated(self.connections.aside, self.pgt_id, reason)
        if not stream.needs_reinit:
            message = {"event": "reinitialize_needed", "table": str(stream), "reason": reason}
            _alert(self.connections.aside, message)

    def undone(self, reason: str) -> None:
        """Says so, where the refresh had begun, or was even done, and the transaction it was part of was not."""
        if self.refresh_id is not None:
            self.skip(reason)

    def skip(self, reason: str) -> RefreshResult:
        """Closes what it has recorded, if anything, as skipped."""
        aside = self.connections.aside
        if self.refresh_id is None:
            return skipped(aside, self.pgt_id, self.initiated_by, reason)
        duration = record.finish_refresh(aside, self.refresh_id, status="SKIPPED", action=Action.SKIP, reason=reason)
        return RefreshResult(Action.SKIP, reason, duration_ms=duration)

    def clean(self) -> None:
        """After the commit, and after the snapshot, which would hold it back: removes from the buffers what every
        consumer has applied. Should it fail, that is a failure of its own."""
        if self.window is None or self.refresh_id is None:  # nothing was applied
            return
        self.refresh_id = self.decision = None
        try:
            self.clean_buffers({oid: span.sides is not None for oid, span in self.window.spans.items()})
        except psycopg.Error as error:
            raised = as_ours(error)
            self.fail(raised, classify(error))
            raise raised from error

    def clean_buffers(self, decoded: Mapping[int, bool]) -> None:
        """Of these sources; of each it is said whether some of its changes come from the decoder."""
        aside = self.connections.aside
        for oid, frontiers in catalog.frontiers_of(aside, decoded).items():
            buffer.clean(aside, oid, frontiers, use_truncate=self.owner.settings.cleanup_use_truncate)
        for oid in decoded:
            if decoded[oid]:
                handover.prune(aside, oid)

    def _elapsed(self) -> float:
        return (time.perf_counter() - self.started) * 1000

    def lap(self, phase: str) -> None:
        self.phases[phase] = round(self._elapsed() - sum(self.phases.values()), 3)
        if phase == "spark":  # its parts have spans of their own
            self.marked = time.time_ns()
        else:
            self.mark(phase)

    def mark(self, step: str) -> None:
        """Ends a step: there is a span of it, from where the last one ended."""
        self.marked = tracing.step(step, self.marked)


def skipped(connection: Connection, pgt_id: int, initiated_by: str, reason: str) -> RefreshResult:
    with connection.transaction():
        refresh_id = _started(connection, pgt_id, initiated_by)
        duration = record.finish_refresh(connection, refresh_id, status="SKIPPED", action=Action.SKIP, reason=reason)
    return RefreshResult(Action.SKIP, reason, duration_ms=duration)


def _started(connection: Connection, pgt_id: int, initiated_by: str) -> int:
    return record.start_refresh(connection, pgt_id, initiated_by=initiated_by).refresh_id


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
