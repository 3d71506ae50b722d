"""The refresh side of the service: in each round, the stream tables that are due are brought to one snapshot.

    catalog ─▶ due, halted ─▶ selected ─▶ snapshot S ─▶ nothing to do: settled all at once, without Spark
                                             └────────▶ the others: units, side by side, each after what it reads

A unit that fails is tried again later; what reads it waits for the next tick, the rest goes on.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING, Final

import psycopg

from pgtrickle import db
from pgtrickle.catalog import reader as catalog
from pgtrickle.catalog import serving
from pgtrickle.catalog import writer as record
from pgtrickle.catalog.reader import StreamTable
from pgtrickle.config import Settings
from pgtrickle.errors import Error
from pgtrickle.fence import Fence
from pgtrickle.refresh import idle, tick
from pgtrickle.refresh.decide import Action
from pgtrickle.refresh.definition import dropped
from pgtrickle.refresh.prepared import Prepared
from pgtrickle.refresh.refresher import CompiledTables, Refresher, at_hand
from pgtrickle.refresh.result import RefreshResult
from pgtrickle.refresh.retry import Kind, classify
from pgtrickle.refresh.tick import Tick
from pgtrickle.scheduler import dag, diamonds, jobs, staleness
from pgtrickle.scheduler.attempts import Attempts
from pgtrickle.scheduler.capture_loop import ALERT_CHANNEL
from pgtrickle.scheduler.dag import Dag
from pgtrickle.scheduler.diamonds import AtomicGroup, Unit
from pgtrickle.scheduler.events import say, trouble
from pgtrickle.scheduler.filling import to_fill
from pgtrickle.scheduler.heartbeat import Activity, Busy
from pgtrickle.scheduler.membership import still_together
from pgtrickle.scheduler.recovery import recover
from pgtrickle.scheduler.retention import Retention
from pgtrickle.scheduler.timing import Timing, timing_of
from pgtrickle.scheduler.unit import Refreshed, fill, refresh_alone, refresh_circle, refresh_group
from pgtrickle.scheduler.worker_pool import Outcome, WorkerPool

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONGEST_TICK_S: Final = 60.0
"""After that no further unit begins on a snapshot: held for long, it keeps PostgreSQL from cleaning up."""


@dataclass(frozen=True, slots=True)
class KnownTables:
    """The stream tables that can be refreshed, who reads whom, and the groups; worked out when the catalog changes."""

    catalog: Dag
    dag: Dag
    groups: tuple[AtomicGroup, ...]
    asked: tuple[str, str]
    """The settings that the groups depend on."""


@dataclass(slots=True)
class _Running:
    """A tick under way: its jobs, the tables that are not of its snapshot, and those that were not begun in time. What
    is filled for the first time is of no tick."""

    at: Tick | None
    streams: Mapping[int, StreamTable]
    since: float = field(default_factory=time.monotonic)
    jobs: dict[Unit, int] = field(default_factory=dict)
    blocked: set[int] = field(default_factory=set)
    left: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Sessions:
    """Those of the rounds. `record` reads the catalog and keeps the record, which is not worth waiting for the disk;
    `tick` holds the snapshot of a tick, and `look` looks at it for a moment."""

    record: db.Connection
    tick: db.Connection
    look: db.Connection

    @classmethod
    def open(cls, dsn: str) -> Sessions:
        record = db.connect(dsn, application_name="pgtrickle scheduler")
        record.execute("SET synchronous_commit = off")
        return cls(record, tick.connect(dsn), tick.connect(dsn))

    def __iter__(self) -> Iterator[db.Connection]:
        return iter((self.record, self.tick, self.look))

    def close(self) -> None:
        for each in self:
            each.close()


class RefreshLoop:
    """Refreshes of one database. Its rounds are for one thread; `stop` and `backend_pids` are for any."""

    def __init__(self, dsn: str, fence: Fence | None = None) -> None:
        self._dsn = dsn
        self._fence = fence
        self._settings = Settings()
        self._compiled: CompiledTables = {}
        self._workers: WorkerPool[Refreshed] = WorkerPool(self._refresher)
        self._sessions: Sessions | None = None
        self._known: KnownTables | None = None
        self._definitions = idle.Definitions()
        self._attempts = Attempts()
        self._retention = Retention()
        self._recovered = False
        self._left: frozenset[int] = frozenset()
        self._stale: frozenset[int] = frozenset()
        self._stopping = threading.Event()
        self._running: _Running | None = None
        self._paused = False
        self._turned_at = 0.0
        self._cron_runs: dict[int, tuple[str, datetime]] = {}

    @property
    def activity(self) -> Activity:
        """The tick under way, by the tables that are being refreshed in it."""
        running, inner = self._running, self._workers.loops(self._names)
        at_work = sorted(each.busy.what for each in inner if each.busy is not None)
        busy = Busy(f"refreshing {', '.join(at_work)}", running.since) if running is not None and at_work else None
        return Activity(busy, self._paused, self._turned_at, inner)

    def _names(self, unit: Unit) -> str:
        """The tables of a unit under way."""
        running = self._running
        streams: Mapping[int, StreamTable] = {} if running is None else running.streams
        return ", ".join(str(streams.get(pgt_id, pgt_id)) for pgt_id in unit)

    @property
    def backend_pids(self) -> tuple[int, ...]:
        """The sessions in which a round may be waiting."""
        own = (each for each in self._sessions or () if not each.closed)
        return (*(each.info.backend_pid for each in own), *self._workers.backend_pids)

    def stop(self) -> None:
        """Begin nothing more."""
        self._stopping.set()

    def close(self) -> None:
        self._workers.close()
        if self._sessions is not None:
            self._sessions.close()

    def round(self, settings: Settings) -> bool:
        """One tick, if something is due; true if something that is due had to be left to the next."""
        self._paused = not settings.enabled
        if self._paused:
            return False
        self._settings = settings
        sessions = self._opened()
        conn = sessions.record
        if not self._recovered:
            self._recover(conn)
        self._retention.keep(conn)
        self._look(conn)
        ours = serving.served(conn)  # tables of others are not our business: not refreshed, and not marked
        found = catalog.list_tables(conn)
        streams = {each.pgt_id: each for each in found if each.is_populated and each.pgt_id in ours}
        unfilled = {each.pgt_id: each for each in found if each.is_to_be_filled and each.pgt_id in ours}
        known = self._learn(conn, streams.keys(), settings)
        now = _now(conn)
        timing = self._timing(conn, {**streams, **unfilled}, now)
        self._note_cron_runs(conn, timing)
        self._tell_stale(conn, [streams[pgt_id] for pgt_id in sorted(timing.stale)], now)
        filled = frozenset(each.pgt_id for each in found if each.is_populated)
        first_time = self._to_fill(known, unfilled, filled, timing.due, now)
        selected = self._select(known, streams, timing.due, now)
        self._left = self._tick(sessions, known, selected, streams) if selected else frozenset()
        self._fill(conn, unfilled, first_time)
        return bool(self._left)

    def _tick(
        self, sessions: Sessions, known: KnownTables, selected: frozenset[int], streams: Mapping[int, StreamTable]
    ) -> frozenset[int]:
        """Brings the selected tables to one snapshot; returns those that were not begun in time."""
        with tick.held(sessions.tick) as at:
            running = _Running(at, streams)
            working = self._settle_idle(sessions, known, selected, running)
            if working:
                with self._under_way(running):
                    self._work(sessions.record, known, working, running)
        return frozenset(running.left)

    def _look(self, conn: db.Connection) -> None:
        """Takes up what became of stream tables by plain SQL."""
        found = dropped.look(conn)
        if found.tables:
            say("stream_table_dropped", logging.WARNING, tables=list(found.tables))
        if found.left:
            say("stream_table_not_removed", logging.WARNING, left=list(found.left))

    def _learn(self, conn: db.Connection, populated: Collection[int], settings: Settings) -> KnownTables:
        """What the catalog says; the groups are worked out, and stored, only when that has changed. A table that is not
        populated yet, or not ours, is no part of it: who creates it also fills it, or says that it is to stay empty."""
        known = self._known
        found = dag.read(conn, known.catalog if known else None)
        live = frozenset(found.tables.keys() & populated)
        asked = (settings.diamond_consistency, settings.diamond_schedule_policy)
        if known is None or (known.catalog, frozenset(known.dag.tables), known.asked) != (found, live, asked):
            return self._work_out(conn, found, found.only(live), settings)
        return known

    def _work_out(self, conn: db.Connection, found: Dag, live: Dag, settings: Settings) -> KnownTables:
        asked = (settings.diamond_consistency, settings.diamond_schedule_policy)
        self._known = KnownTables(found, live, diamonds.groups(live, settings), asked)
        diamonds.store(conn, self._known.groups, others=serving.others(conn))
        self._forget_dropped(found.tables.keys())
        return self._known

    def _forget_dropped(self, known: AbstractSet[int]) -> None:
        for gone in self._compiled.keys() - known:
            del self._compiled[gone]
        self._attempts.keep(known)

    def _timing(self, conn: db.Connection, streams: Mapping[int, StreamTable], now: datetime) -> Timing:
        """Which tables are due and which stale. One whose row makes no sense is in ERROR, and the others go on."""
        tried = {
            pgt_id: self._attempts.since(pgt_id, each.data_timestamp or each.created_at)
            for pgt_id, each in streams.items()
        }
        timing = timing_of(streams.values(), tried, now, min_seconds=self._settings.min_schedule_seconds)
        for pgt_id, error in timing.wrong.items():
            stream = streams[pgt_id]
            if stream.status not in {"ERROR", "SUSPENDED"} or stream.last_error != str(error):
                record.mark_unreadable(conn, pgt_id, str(error))
                say("table_not_understood", logging.ERROR, table=str(stream), error=error)
        return timing

    def _select(
        self, known: KnownTables, streams: Mapping[int, StreamTable], asked: AbstractSet[int], now: datetime
    ) -> frozenset[int]:
        """What to refresh in this tick, of what is due; what the last one left comes first, or it might be left for
        ever. If that cannot be refreshed now, the others do not wait for it."""
        due = asked & known.dag.tables.keys()
        suspended = {pgt_id for pgt_id, stream in streams.items() if stream.status == "SUSPENDED"}
        forbidden = frozenset[int]() if self._settings.allow_circular else known.dag.cyclic
        halted = suspended | self._attempts.waiting(now) | forbidden | (known.dag.tables.keys() - streams.keys())
        left = self._left & known.dag.tables.keys()
        first = diamonds.select(known.dag, known.groups, left, halted)
        return first or diamonds.select(known.dag, known.groups, due, halted)

    def _to_fill(
        self,
        known: KnownTables,
        unfilled: Mapping[int, StreamTable],
        filled: frozenset[int],
        due: AbstractSet[int],
        now: datetime,
    ) -> frozenset[int]:
        if not unfilled:
            return frozenset()
        suspended = {pgt_id for pgt_id, stream in unfilled.items() if stream.status == "SUSPENDED"}
        forbidden = frozenset[int]() if self._settings.allow_circular else known.catalog.cyclic
        halted = suspended | self._attempts.waiting(now) | forbidden
        return to_fill(known.catalog, unfilled.keys(), filled, due, halted)

    def _fill(self, conn: db.Connection, unfilled: Mapping[int, StreamTable], chosen: AbstractSet[int]) -> None:
        """Fills tables that were made without rows, each by itself, or with the atomic group that it comes into."""
        if not chosen:
            return
        running = _Running(None, unfilled)
        units: TopologicalSorter[Unit] = TopologicalSorter({(pgt_id,): () for pgt_id in sorted(chosen)})
        units.prepare()

        def may_begin(unit: Unit) -> bool:
            if self._stopping.is_set():
                return False
            running.jobs[unit] = jobs.begin(conn, _now(conn), unit)
            return True

        with self._under_way(running):
            self._workers.work(units, self._prepared_width(), fill, may_begin, partial(self._ended, conn, running))

    @contextmanager
    def _under_way(self, running: _Running) -> Iterator[None]:
        """For as long, the heartbeat tells of its tables."""
        self._running = running
        try:
            yield
        finally:
            self._running = None

    def _settle_idle(
        self, sessions: Sessions, known: KnownTables, selected: frozenset[int], running: _Running
    ) -> frozenset[int]:
        """Records all that have nothing to do; returns the others."""
        assert running.at is not None
        asked = [stream for stream in running.streams.values() if idle.may_be_idle(stream)]
        compiled = {stream: found for stream in asked if (found := at_hand(self._compiled, stream)) is not None}
        quiet = self._without_changes(sessions, compiled, selected, running.at)
        working = diamonds.reached(known.dag, known.groups, selected, selected - quiet)
        resting = [running.streams[pgt_id] for pgt_id in sorted(selected - working)]
        if resting:
            self._attempts.succeeded(idle.settle(sessions.record, running.at, resting, running.since, self._fence))
        return working

    def _without_changes(
        self, sessions: Sessions, compiled: Mapping[StreamTable, Prepared], selected: frozenset[int], at: Tick
    ) -> frozenset[int]:
        """Those with nothing to do, asked for all at once. Where one table's part fails (a buffer dropped by hand),
        each is left to its own refresh, which finds what is wrong with it, and with no other."""
        try:
            with tick.seen(sessions.look, at):
                unchanged = self._definitions.unchanged(sessions.look, compiled) & selected
                candidates = {stream: ready for stream, ready in compiled.items() if stream.pgt_id in unchanged}
                return idle.without_changes(sessions.look, sessions.record, at, candidates)
        except psycopg.Error as error:
            if not all(db.is_usable(each) for each in sessions):
                raise
            say("idle_not_asked", logging.WARNING, error=error)
            return frozenset()

    def _work(self, conn: db.Connection, known: KnownTables, working: frozenset[int], running: _Running) -> None:
        """Refreshes these, unit by unit."""
        atomic = [group for group in known.groups if group.atomic]
        group_of = {diamonds.order(known.dag, group, group.members): group for group in atomic}
        at = running.at
        assert at is not None

        def carry_out(refresher: Refresher, unit: Unit) -> Refreshed:
            if unit in group_of and group_of[unit].circular:
                return refresh_circle(refresher, unit, at)

            def still(aside: db.Connection) -> bool:
                return still_together(aside, unit, refresher.settings, known.catalog, known.dag)

            if unit in group_of:
                return refresh_group(refresher, unit, at, group_of[unit], still)
            return refresh_alone(refresher, unit, at, still)

        self._workers.work(
            diamonds.units(known.dag, known.groups, working),
            self._prepared_width(),
            carry_out,
            partial(self._may_begin, conn, known.dag, running, at),
            partial(self._ended, conn, running),
        )
        jobs.prune(conn)

    def _prepared_width(self) -> int:
        """How many may refresh side by side; those that do have the settings of now."""
        for refresher in self._workers.refreshers:
            refresher.settings = self._settings
        return self._settings.max_concurrent_refreshes if self._settings.parallel_refresh_mode == "on" else 1

    def _may_begin(self, conn: db.Connection, graph: Dag, running: _Running, at: Tick, unit: Unit) -> bool:
        """Whether the unit is run in this tick: what it reads is of the tick's snapshot, and that is not too old."""
        self._turned_at = time.monotonic()
        if self._stopping.is_set():
            return False
        sources = frozenset(source for pgt_id in unit for source in graph.upstream(pgt_id))
        if time.monotonic() - running.since > LONGEST_TICK_S:
            running.left.update(unit)
            return False
        if not running.blocked.isdisjoint(sources - frozenset(unit)):
            names = sorted(str(running.streams[pgt_id]) for pgt_id in running.blocked & sources)
            running.blocked.update(unit)
            jobs.skip(conn, at.moment.at, unit, f"not refreshed in this tick: {', '.join(names)}")
            return False
        running.jobs[unit] = jobs.begin(conn, at.moment.at, unit)
        return True

    def _ended(self, conn: db.Connection, running: _Running, outcome: Outcome[Refreshed]) -> None:
        """Notes what became of a unit, for the rest of the tick, for the next ones, and for people."""
        self._turned_at = time.monotonic()
        unit, done = outcome.unit, outcome.answer
        job, names = running.jobs[unit], {pgt_id: str(running.streams[pgt_id]) for pgt_id in unit}
        if done is None:
            assert outcome.error is not None
            self._failed(conn, unit, list(names.values()), outcome.error)
            running.blocked.update(unit)
            jobs.finish(conn, job, "FAILED", {}, str(outcome.error))
            return
        for pgt_id, result in done.results.items():
            _tell(names[pgt_id], result)
        self._attempts.succeeded(done.results.keys() - done.skipped)
        if done.skipped:
            self._attempts.failed(done.skipped, _now(conn), passing=True)
            running.blocked.update(done.skipped)
        actions = {names[pgt_id]: str(result.action) for pgt_id, result in done.results.items()}
        reasons = [done.results[pgt_id].reason for pgt_id in sorted(done.skipped)]
        jobs.finish(conn, job, "SKIPPED" if reasons else "DONE", actions, next(iter(reasons), None))

    def _failed(self, conn: db.Connection, unit: Unit, names: list[str], error: Exception) -> None:
        kind = classify(error)
        self._attempts.failed(unit, _now(conn), passing=kind is Kind.RETRY)
        if isinstance(error, Error | psycopg.Error):
            say("refresh_failed", logging.WARNING, tables=names, error=error, kind=kind.value)
        else:
            trouble("refresh_failed", error, tables=names, kind=kind.value)

    def _note_cron_runs(self, conn: db.Connection, timing: Timing) -> None:
        """Has the catalog show when tables with a cron schedule run next; written only when that is news."""
        news = {pgt_id: run for pgt_id, run in timing.cron_runs.items() if self._cron_runs.get(pgt_id) != run}
        if news:
            record.note_cron_runs(conn, news)
        self._cron_runs = dict(timing.cron_runs)

    def _tell_stale(self, conn: db.Connection, found: Iterable[StreamTable], now: datetime) -> None:
        stale = {stream.pgt_id: stream for stream in found}
        for pgt_id in sorted(stale.keys() - self._stale):
            alert = staleness.alert(stale[pgt_id], now)
            conn.execute("SELECT pg_notify(%s, %s)", (ALERT_CHANNEL, json.dumps(alert)))
            say("alert", logging.WARNING, alert=alert)
        self._stale = frozenset(stale)

    def _opened(self) -> Sessions:
        """Its sessions, opened if they are not, or not any more."""
        known = self._sessions
        if known is not None and all(db.is_usable(each) for each in known):
            return known
        if known is not None:
            known.close()
        self._sessions = Sessions.open(self._dsn)
        return self._sessions

    def _recover(self, conn: db.Connection) -> None:
        """Puts right what was left behind, until that is all: PostgreSQL may take a while to end a dead session."""
        found = recover(conn)
        self._recovered = not found.busy
        if found:
            say("recovered", refreshes=found.refreshes, jobs=found.jobs, staging=list(found.staging))

    def _refresher(self) -> Refresher:
        return Refresher(self._dsn, self._settings, self._session, self._compiled, self._fence)

    def _session(self) -> SparkSession:
        from pgtrickle.spark import session  # here: with nothing to do, Spark is not loaded

        found = session.configured(self._settings)
        session.use_pool(found, threading.current_thread().name)
        return found


def _tell(table: str, result: RefreshResult) -> None:
    """A line for each refresh that did something, or could not."""
    if result.action is Action.SKIP:
        say("refresh_skipped", table=table, reason=result.reason)
    elif result.action is not Action.NO_DATA:
        say(
            "refreshed",
            table=table,
            action=str(result.action),
            reason=result.reason,
            rows_inserted=result.rows_inserted,
            rows_deleted=result.rows_deleted,
            duration_ms=round(result.duration_ms),
            phases={name: round(ms) for name, ms in result.phases.items()},
        )


def _now(conn: db.Connection) -> datetime:
    now = db.scalar(conn, "SELECT clock_timestamp()")
    assert isinstance(now, datetime)
    return now
