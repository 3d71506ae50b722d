"""One refresh under way, from snapshot to commit: the only place that wires capture, Spark, apply and catalog together.

    lock  →  snapshot S  →  decide  →  plan  →  Spark  →  one transaction: state, result, frontier, history  →  clean up

A crash anywhere leaves the old state or the new one: nothing is visible before the one commit, and what is left
outside it (staging tables, RUNNING history rows) is removed by the next refresh of the table, under its lock.

Spark is imported where work begins: a refresh with nothing to do, and all that only reads the catalog, load none of it.
What comes before and after, locks and further attempts, is in `loop.py`. Used in parts by `circle/circle_refresh.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import psycopg

from pgtrickle import db, failpoints, tracing
from pgtrickle.apply import declared_indexes, merge, staging_tables, storage, update_key
from pgtrickle.apply.indexes import MANY_ROWS
from pgtrickle.capture.change_window import NotCaptured, Pending
from pgtrickle.catalog import reader as catalog
from pgtrickle.catalog import serving
from pgtrickle.catalog import writer as record
from pgtrickle.catalog.reader import StreamTable
from pgtrickle.errors import Error, Refused
from pgtrickle.fence import fenced
from pgtrickle.index_text import parse_indexes
from pgtrickle.model import Table
from pgtrickle.physical.flow import Place
from pgtrickle.physical.table_facts import TableFactsMap
from pgtrickle.physical.window_parts import Changed, Inseparable, WindowPart
from pgtrickle.postgres.statements.result import Storage
from pgtrickle.postgres.statements.script import Scratch
from pgtrickle.query.analyse.fingerprint import fingerprint, same_names, still_holds
from pgtrickle.query.analyse.table_copies import NotCopied
from pgtrickle.refresh import gather_facts as ask
from pgtrickle.refresh.choice import Bounds, Choice, choose, on_spark_after_all
from pgtrickle.refresh.clock import ClockMoves, moves, settings_at
from pgtrickle.refresh.decide import Action, Circumstances, Decision, SourceChanges, decide
from pgtrickle.refresh.definition import reshape
from pgtrickle.refresh.definition.binding import compile_bound
from pgtrickle.refresh.definition.define import redefine, take_up_views
from pgtrickle.refresh.evaluate.evaluator import Evaluator
from pgtrickle.refresh.evaluate.on_postgres import OnPostgres
from pgtrickle.refresh.evaluate.stages import StageRunner
from pgtrickle.refresh.failure import ValueProblem, as_ours, is_known, known_failures
from pgtrickle.refresh.group.members import RefreshGroup
from pgtrickle.refresh.group.upstream import AS_THEY_ARE, Upstream, at_hand, forget, over_views
from pgtrickle.refresh.immediate import install
from pgtrickle.refresh.learned import Learned
from pgtrickle.refresh.outcome import Again, Redefine, Skip, Stop
from pgtrickle.refresh.plan import is_small, plan_delta, plan_full, result_columns
from pgtrickle.refresh.prepared import Prepared
from pgtrickle.refresh.refresh_record import RefreshRecord, notify
from pgtrickle.refresh.result import RefreshResult
from pgtrickle.refresh.retry import Kind, classify
from pgtrickle.refresh.tick import Moment, Tick, now
from pgtrickle.refresh.ways import Size, Way
from pgtrickle.refresh.window import Window, at_snapshot, await_decoder, extended, from_decoder, opened_until_now
from pgtrickle.refresh.work_time import WorkTime

_MOST_PREPARATIONS = 3
KEPT_BY_WRITERS = "it is kept in the writers' own transactions"
CHANGED = "the definition of a source changed"
KEPT_OTHERWISE = "this version of pgtrickle keeps its state in another way"
NOT_AT_HAND = "a stream table that it reads is not captured by triggers alone"
INSEPARABLE = "what keeps state over changes before and after the snapshot is in the way of a differential refresh"


@dataclass(slots=True)
class TableRefresh(RefreshRecord):
    """One refresh under way; the caller holds the stream table's lock."""

    full: str | None
    tick: Tick | None = None
    group: RefreshGroup | None = None
    runner: StageRunner | None = None
    scratch: Scratch = field(default_factory=merge.unique_names)
    settings: Mapping[str, str] = field(default_factory=dict)
    """What its query is evaluated under: what is stored with the table, and the time if it reads the clock."""
    clock: ClockMoves = field(default_factory=ClockMoves)
    failure: tuple[Error, Kind] | None = None
    """Of a member of a group: recorded once the group's transaction is over, which may have the row to record it in."""

    def run(self) -> RefreshResult:
        with tracing.span("refresh", Stop, pgt_id=self.pgt_id, initiated_by=self.initiated_by) as span:
            self.marked = time.time_ns()
            try:
                result = self._run_or_record()
                self._tell(span, result.action, result.reason)
                span.note(
                    rows_inserted=result.rows_inserted,
                    rows_deleted=result.rows_deleted,
                    changes_read=result.changes_read,
                )
            except Stop as stop:
                self._tell(span, None, str(stop))
                raise
            except BaseException:
                decided = self.decision
                self._tell(
                    span, None if decided is None else decided.action, None if decided is None else decided.reason
                )
                raise
        return result

    def _tell(self, span: tracing.Span, action: Action | None, reason: str | None) -> None:
        table = None if self.stream is None else str(self.stream)
        span.note(table=table, action=None if action is None else action.value, reason=reason)

    def _run_or_record(self) -> RefreshResult:
        try:
            return self._run()
        except (Refused, serving.NotServed):
            raise
        except Stop as stop:
            if not isinstance(stop.outcome, Skip):
                self.undone(str(stop))
            raise
        except Exception as error:
            raised = as_ours(error)
            known = is_known(error)
            reason = f"a differential refresh could not be computed: {raised.message}"
            by_full = known and isinstance(raised, ValueProblem) and self._may_run_full()
            if by_full and self.group is not None:
                return self._anew_in_full(reason)
            self.failure = (raised, classify(error))
            if self.group is None:
                self.record_failure()
            if by_full:
                return TableRefresh(self.owner, self.connections, self.pgt_id, self.initiated_by, reason).run()
            if raised is error or not known:
                raise
            raise raised from error

    def record_failure(self) -> None:
        """If there was one."""
        if self.failure is not None:
            self.fail(*self.failure)

    def _anew_in_full(self, reason: str) -> RefreshResult:
        """What it has done of its part in the group is undone, and the part done in another way."""
        self.undone(reason)
        self.drop_staging()
        self.refresh_id = self.decision = self.runner = self.choice = None
        self.full = reason
        return self.run()

    def _may_run_full(self) -> bool:
        """AUTO may, and says so: a delta can meet values and pairs of rows that the present no longer has."""
        differential = self.decision is not None and self.decision.action is Action.DIFFERENTIAL
        auto = self.stream is not None and self.stream.refresh_mode == "AUTO"
        return differential and auto

    def _run(self) -> RefreshResult:
        prepared = self.owner.known(self.pgt_id) or self.owner.prepared(self.read())
        for _ in range(_MOST_PREPARATIONS):
            try:
                with self.snapshot(prepared.lockable, [self.pgt_id]) as moment:
                    self.stream = stream = self.read()
                    serving.require(self.connections.aside, stream)
                    if self.owner.prepared(stream) is not prepared:
                        prepared = self.owner.prepared(stream)
                        continue
                    if stream.is_immediate:
                        return self._kept_by_writers(stream, prepared, moment)
                    self.require_in_tick(stream)
                    with self._window(stream, prepared, moment) as window:
                        self.window = window
                        if window.waited and self.read() != stream:  # changed while we waited
                            continue
                        pending = window.pending()
                        self.mark("window")
                        failpoints.reach("window-read")
                        outdated = self.outdated(stream, prepared, pending)
                        if outdated is None:
                            return self._refresh(stream, prepared, pending, window, moment)
            except NotCaptured:  # if the query no longer holds, PostgreSQL's word on it is the clearest
                outdated = CHANGED
            raise Stop(Redefine({self.pgt_id: outdated}))
        raise Stop(Again("its definition was changed meanwhile"))

    def _kept_by_writers(self, stream: StreamTable, prepared: Prepared, moment: Moment) -> RefreshResult:
        """There is nothing to do but to look whether that still holds."""
        aside = self.connections.aside
        anew = self.full or stream.reinit_reason or self.outdated(stream, prepared, {})
        anew = anew or install.defect(aside, stream, prepared)
        if anew is not None:  # it is computed from scratch as others are, and then taken back
            raise Stop(Redefine({self.pgt_id: anew}))
        with fenced(aside, self.owner.fence):
            if not install.renew(aside, stream, prepared, self.owner.settings):
                raise Stop(Redefine({self.pgt_id: "its writers take turns in another way by now"}))
        self.decision = decision = Decision(Action.NO_DATA, KEPT_BY_WRITERS)
        recorder = self.connections.aside if self.group is None else self.connections.writer
        return self.nothing(recorder, decision, Window(moment.snapshot, self.connections, {}), moment)

    def define_anew(self, reason: str, *, for_readers: bool = False) -> None:
        """Defines the table anew; if that fails, so has its refresh. Not while a transaction is open that may hold what
        is to be changed. `for_readers`: others are refreshed in the same transaction, and read its columns."""
        try:
            self._redefine(self.read(), reason)
            stream = self.read()
            prepared = self.owner.prepared(stream)  # now: the next attempt begins with what is known
            if for_readers:
                self._reshape_for_readers(stream, prepared)
        except (Refused, serving.NotServed):
            raise
        except known_failures() as error:
            raised = as_ours(error)
            self.fail(raised, classify(error))
            if raised is error:
                raise
            raise raised from error

    def _redefine(self, stream: StreamTable, reason: str) -> None:
        why = stream.reinit_reason or reason  # what DDL was noted says more than a fingerprint
        settings, fence = self.owner.settings, self.owner.fence
        before = self.owner.first(stream)
        if before is not None and take_up_views(self.connections.aside, stream, before, settings=settings, fence=fence):
            return
        redefine(self.connections.aside, stream, settings=settings, reason=why, locked=True, fence=fence)

    def require_in_tick(self, stream: StreamTable) -> None:
        """The tick's snapshot must have the table's last refresh, and its last definition: state is read there. One
        that began before the tick may have committed after it, so frontiers alone do not tell."""
        if self.tick is None:
            return
        then = catalog.by_id(self.connections.reader, self.pgt_id)
        if then != stream:
            raise Stop(Again("it was refreshed or altered since the tick began"))

    @contextmanager
    def _window(self, stream: StreamTable, prepared: Prepared, moment: Moment) -> Iterator[Window]:
        """The changes since the last refresh; all of them, if it may depend on them what is done."""
        sources = [] if stream.effective_mode in {"FULL", "IMMEDIATE"} else [table.oid for table in prepared.sources]
        since = {oid: stream.since(oid in prepared.stacked) for oid in sources}
        window = at_snapshot(self.connections, since, moment.snapshot)
        by_changes = stream.is_populated and not stream.needs_reinit and self.full is None
        if not by_changes or stream.status == "SUSPENDED":
            yield window
            return
        if not window.is_complete:
            window = await_decoder(window, self.owner.settings.decoder_wait_timeout)
            self.lap("wait")
        upstream = prepared.upstream.intersection(sources) if self.tick is not None else frozenset()
        if self.group is not None and from_decoder(window, upstream):
            self.full = NOT_AT_HAND
            yield window
            return
        self.require_at_hand(window, upstream)
        if upstream and self.group is not None:
            window, upstream = extended(window, upstream, Place.WRITER, self.group.until()), frozenset()
        with opened_until_now(window, upstream) as window:
            yield window

    def require_at_hand(self, window: Window, upstream: Collection[int]) -> None:
        """What stream tables have changed after the tick's snapshot must be there once it is visible: it is not waited
        for. So it is, unless one still comes back from the WAL, where none should be."""
        if from_decoder(window, upstream):
            raise Stop(Again(NOT_AT_HAND))

    def outdated(self, stream: StreamTable, prepared: Prepared, pending: dict[int, Pending]) -> str | None:
        """Why the table must be defined anew on its sources, if it must."""
        if not prepared.fits:
            return KEPT_OTHERWISE
        dependencies = prepared.compiled.analysis.dependencies
        found = [fingerprint(self.connections.reader, dependencies)]
        if self.tick is not None:  # its snapshot is older than our locks, so DDL may have come in between
            found.append(fingerprint(self.connections.aside, dependencies))
        if not all(still_holds(stream.source_fingerprint, each) for each in found):
            truncated = [
                str(table) for table in prepared.sources if table.oid in pending and pending[table.oid].truncated
            ]
            return f"{', '.join(truncated)} was truncated or altered" if truncated else CHANGED
        if not same_names(stream.source_fingerprint, found[-1]) and self._means_otherwise(stream, prepared):
            return CHANGED
        if found[-1] != stream.source_fingerprint:
            record.set_fingerprint(self.connections.aside, self.pgt_id, found[-1])
        lost = [str(table) for table in prepared.sources if table.oid in pending and not pending[table.oid].captured]
        return f"changes of {', '.join(lost)} were not captured for a time" if lost else None

    def _means_otherwise(self, stream: StreamTable, prepared: Prepared) -> bool:
        """Whether PostgreSQL, asked again, finds other objects for the names in the query."""
        aside = self.connections.aside
        with aside.transaction():
            db.execute(aside, f"SET LOCAL lock_timeout = '{db.LOCK_TIMEOUT}'")  # whoever waits for us is in our way
            again = compile_bound(aside, stream, with_tree=False).compiled.analysis
        return again.dependencies != prepared.compiled.analysis.dependencies

    @contextmanager
    def snapshot(self, lockable: Collection[Table], members: Collection[int]) -> Iterator[Moment]:
        """A transaction at one snapshot, with the sources protected from DDL while it is read. Those that read them,
        `members`, must be defined anew if one is not there, or not for us."""
        reader = self.connections.reader
        with reader.transaction():
            if lockable:
                tables = ", ".join(table.qualified for table in lockable)
                db.execute(reader, f"SET LOCAL lock_timeout = '{db.LOCK_TIMEOUT}'")  # utility: takes no snapshot yet
                try:
                    db.execute(reader, f"LOCK TABLE {tables} IN ACCESS SHARE MODE")
                except (
                    psycopg.errors.UndefinedTable,
                    psycopg.errors.InvalidSchemaName,
                    psycopg.errors.WrongObjectType,
                    psycopg.errors.InsufficientPrivilege,  # what may not be read any more is as good as gone
                ) as error:
                    raise Stop(Redefine(dict.fromkeys(members, CHANGED))) from error
            if self.tick is None:
                moment = now(reader)
            else:
                db.execute(reader, f"SET TRANSACTION SNAPSHOT '{self.tick.exported}'")
                moment = self.tick.moment
            failpoints.reach("snapshot-taken")
            yield self.owner.timed(moment)

    def _refresh(
        self, stream: StreamTable, prepared: Prepared, pending: dict[int, Pending], window: Window, moment: Moment
    ) -> RefreshResult:
        changes = {oid: found.changes for oid, found in pending.items()}
        self.settings = prepared.settings
        if prepared.reads_clock:
            self.settings = settings_at(prepared.settings, moment.at, stream.data_timestamp)
            self.clock = self._clock(stream, prepared)
            changes |= self.clock.rows
        facts = self._facts(prepared, changes) if any(changes.values()) else TableFactsMap({}, changes)
        truncated = frozenset(oid for oid, found in pending.items() if found.truncated)
        self.decision = decision = decide(self._circumstances(stream, prepared, facts, truncated))
        self.lap("decide")
        if decision.action is Action.SKIP:
            raise Stop(Skip(decision.reason if self.group is None else f"{stream}: {decision.reason}"))
        if decision.action is Action.NO_DATA:
            recorder = self.connections.aside if self.group is None else self.connections.writer
            return self.nothing(recorder, decision, window, moment)
        staging_tables.drop_orphans(self.connections.aside, self.pgt_id)
        return self._work(stream, prepared, decision, facts, window, moment)

    def _clock(self, stream: StreamTable, prepared: Prepared) -> ClockMoves:
        """What the clock has moved since the last refresh, if that is of account."""
        if prepared.compiled.tree is None or not stream.is_populated:
            return ClockMoves()
        db.use_settings(self.connections.reader, self.settings)
        return moves(self.connections.reader, prepared.tree)

    def _upstream(self, prepared: Prepared) -> Upstream:
        """Where a full refresh reads stream tables. In a tick they are newer than the snapshot, and there is no one
        place to read them and others: in a group this is made up for, by itself it is refreshed at a later snapshot."""
        at_once = self.tick is None or not prepared.upstream
        if self.group is None and not at_once:
            assert self.decision is not None
            raise Stop(Again(self.decision.reason))
        try:
            return over_views(self.connections, prepared) if at_once else at_hand(self.connections, prepared)
        except NotCopied as problem:
            where = "in full with its group" if self.group is not None else "as of the refresh's own time"
            raise Stop(Skip(f"{self.stream} cannot be computed {where}: {problem}")) from problem

    def _facts(self, prepared: Prepared, changes: Mapping[int, int]) -> TableFactsMap:
        oids = [table.oid for table in prepared.sources]
        return ask.gather(self.connections.reader, oids, changes, self.owner.tables)

    def _circumstances(
        self, stream: StreamTable, prepared: Prepared, facts: TableFactsMap, truncated: frozenset[int]
    ) -> Circumstances:
        sources = {
            table.oid: SourceChanges(
                str(table), facts.rows(table.oid), facts.changes.get(table.oid, 0), table.oid in truncated
            )
            for table in prepared.sources
        }
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
            max_change_ratio=self.owner.settings.differential_max_change_ratio,
            sources=sources,
            clock=self.clock.reason,
            unfilled=self._unfilled(prepared),
            by_service=self.initiated_by == "SCHEDULER",
        )

    def _unfilled(self, prepared: Prepared) -> tuple[str, ...]:
        """The stream tables it reads that were never filled; those of its group are filled before it."""
        if not prepared.upstream:
            return ()
        with_it = frozenset(self.group.members) if self.group is not None else frozenset()
        found = catalog.unfilled(self.connections.aside, prepared.upstream)
        return tuple(name for pgt_id, name in found.items() if pgt_id not in with_it)

    def _work(
        self,
        stream: StreamTable,
        prepared: Prepared,
        decision: Decision,
        facts: TableFactsMap,
        window: Window,
        moment: Moment,
    ) -> RefreshResult:
        """Spark, then the one transaction."""
        self.working = WorkTime()
        self.connections.use_settings(self.settings)
        facts = facts if facts.tables else self._facts(prepared, facts.changes)
        size = Size(sum(facts.changes.values()), sum(t.rows for t in facts.tables.values()), len(prepared.states) + 1)
        learned = Learned.stored(*catalog.refresh_costs(self.connections.aside, self.pgt_id))
        choice = self._choose(stream, prepared, size, learned, whole=decision.action is not Action.DIFFERENTIAL)
        if choice.way.whole and decision.action is Action.DIFFERENTIAL:
            decision = Decision(Action.FULL, decision.reason)
        whole = decision.action is not Action.DIFFERENTIAL
        if whole and self.group is not None and self._reshape_for_readers(stream, prepared):
            raise Stop(Again("it has other columns by now"))
        changed = Changed(frozenset()) if whole else self._changed(window, facts)
        upstream = self._upstream(prepared) if whole else AS_THEY_ARE
        try:
            if whole:
                facts = facts if choice.way.on_postgres else replace(facts, tasks=self._tasks())
                spare = self.owner.settings.spare_source
                physical = plan_full(prepared, facts, upstream, in_one=choice.way.on_postgres, spare=spare)
            else:
                physical = plan_delta(prepared, facts, window, changed, self.scratch)
        except Inseparable as error:
            if self.tick is None:
                raise  # a plan of one part has nothing to divide
            if self.group is None:
                raise Stop(Again(INSEPARABLE)) from error
            self.decision = in_full = Decision(Action.FULL, INSEPARABLE)
            return self._work(stream, prepared, in_full, facts, window, moment)
        small = is_small(physical, facts, whole=whole)
        if choice.way is Way.CHANGES_BY_POSTGRESQL and not small and not self.owner.is_told_how:
            choice = on_spark_after_all(choice, "too many rows are expected to land")
        self.choice = choice
        self.decision = decision = decision.noting((*physical.notes, *choice.reasons))
        evaluator = self._evaluator(window, choice.way, small=small)
        self.runner = runner = self._runner(prepared, evaluator, window, changed.late, upstream, whole=whole)
        runner.many_rows = size.rows >= MANY_ROWS
        self.lap("plan")
        writer = self.connections.writer
        self.start()
        try:
            with writer.transaction():
                db.use_settings(writer, self.settings)
                relation = runner.run(physical)
                self.decision = decision = decision.noting(evaluator.notes)
                forget(self.connections, prepared, upstream)
                if upstream is not AS_THEY_ARE:
                    self._require_as_seen(prepared)
                self.lap("spark")
                applied = self.apply(stream, prepared, lambda _: relation, whole=whole)
                self.lap("apply")
                until = self.group.until() if whole and self.group and prepared.upstream else None
                upstream_frontier = until if whole else window.end_beyond
                changes = sum(count for oid, count in facts.changes.items() if oid not in self.clock.moved)
                if not (whole or changes or applied.inserted or applied.deleted):
                    decision = Decision(Action.NO_DATA, f"{decision.reason}, and no row with it")
                result = self.finish(writer, decision, applied, changes, moment, upstream_frontier, evaluator.server_ms)
                self._learn(writer, stream, size, learned)
                if result.action is not Action.NO_DATA:
                    notify(writer, stream, result)
                failpoints.reach("before-commit")
                if self.group is None:
                    self.owner.hold_fence(writer)
                    failpoints.reach("fenced")
                self.marked = time.time_ns()
            if self.group is None:
                self.mark("commit")
            failpoints.reach("after-commit")
        finally:
            if self.group is None:
                self.drop_staging()
        return result

    def apply(
        self, stream: StreamTable, prepared: Prepared, relation: Callable[[Storage], str], *, whole: bool
    ) -> merge.Applied:
        """Writes the rows to the columns that the query has now; `relation` says where they are, given the table."""
        writer, relid = self.connections.writer, stream.pgt_relid
        apply = merge.replace if whole else merge.apply_delta
        other_columns = whole and reshape.needed(writer, relid, prepared.storage.columns).needed
        mode = "ACCESS EXCLUSIVE" if other_columns else "ROW EXCLUSIVE"
        with storage.held(writer, relid, prepared.storage, mode) as target:
            serving.require(writer, stream)  # under the lock: no one gives it away before the commit
            emptied = reshape.carry_out(writer, relid, str(stream), target) if other_columns else 0
            key = update_key.key_of(
                writer, relid, target.columns, prepared.compiled.tree, self.owner.settings.user_triggers
            )
            applied = apply(writer, target, relation(target), result_columns(prepared), key)
            if whole:
                declared_indexes.make_missing(writer, relid, parse_indexes(stream.indexes))
            return replace(applied, deleted=applied.deleted + emptied)

    def _reshape_for_readers(self, stream: StreamTable, prepared: Prepared) -> bool:
        """Others of the group were compiled on the columns that the table has, and are refreshed in the same
        transaction: so it gets its new ones before, and they are defined anew on these. Whether it got some."""
        aside = self.connections.aside
        if not catalog.consumers_of(aside, stream.pgt_relid):
            return False
        if not reshape.needed(aside, stream.pgt_relid, prepared.storage.columns).needed:
            return False
        reshape.reshape_now(aside, stream, prepared.storage)
        return True

    def _require_as_seen(self, prepared: Prepared) -> None:
        """Stream tables were read as they are now: those outside must still be as the others of the group see them."""
        if self.group is not None and not self.group.moved().isdisjoint(prepared.upstream):
            raise Stop(Again("a stream table that it reads was refreshed meanwhile"))

    def _changed(self, window: Window, facts: TableFactsMap) -> Changed:
        """The sources with changes before the snapshot, and those with some after it."""
        late = {oid: found.changes for oid, found in window.pending(WindowPart.LATE).items()}
        early = (oid for oid, count in facts.changes.items() if count > late.get(oid, 0))
        return Changed(frozenset(early), frozenset(oid for oid, count in late.items() if count), self.clock.unknown)

    def _choose(self, stream: StreamTable, prepared: Prepared, size: Size, learned: Learned, *, whole: bool) -> Choice:
        """Tests may tell the way (`Refresher`)."""
        owner, settings = self.owner, self.owner.settings
        may_full = self.group is None and (self.tick is None or not prepared.upstream)
        if owner.is_told_how:
            told = owner.way or Way.of(whole=whole, on_postgres=True)
            return Choice(Way.of(whole=whole or (told.whole and may_full), on_postgres=told.on_postgres))
        bounds = Bounds(
            settings.learn_costs, settings.postgres_rows, settings.spare_source, may_full, owner.spark_is_warm
        )
        return choose(stream.refresh_mode, size, learned, bounds, whole=whole)

    def _learn(self, writer: db.Connection, stream: StreamTable, size: Size, learned: Learned) -> None:
        """Keeps what the refresh took, for the next choice; but a first one on Spark tells how long Spark warms up."""
        assert self.choice is not None
        warm = self.choice.way.on_postgres or self.owner.spark_is_warm
        if stream.refresh_mode == "AUTO" and self.owner.settings.learn_costs and warm:
            now_known = learned.after(self.choice.way, size, self.working.ms, tried=self.choice.tried)
            record.note_costs(writer, self.pgt_id, now_known.to_store(), now_known.since_try_ms)
        self.owner.spark_is_warm |= not self.choice.way.on_postgres

    def _runner(
        self,
        prepared: Prepared,
        evaluator: Evaluator,
        window: Window,
        late: frozenset[int],
        upstream: Upstream,
        *,
        whole: bool,
    ) -> StageRunner:
        most = self.owner.settings.ivm_recursive_max_depth
        return StageRunner(
            prepared, self.connections, evaluator, window, self.scratch, whole, most, late, upstream.copies
        )

    def _tasks(self) -> int:
        """How many tasks of Spark's run at once."""
        from pgtrickle.spark.parallelism import tasks_at_once

        with self.working.apart():
            return tasks_at_once(self.owner.session())

    def _evaluator(self, window: Window, way: Way, *, small: bool) -> Evaluator:
        if way.on_postgres:
            return OnPostgres(self.scratch, self.connections, window)
        from pgtrickle.refresh.evaluate.on_spark import OnSpark
        from pgtrickle.spark.connections import server_for
        from pgtrickle.spark.worker import Snapshot

        with self.working.apart():
            session = self.owner.session()
        server = server_for(session, self.connections.reader, self.owner.settings.spark_connections)
        snapshot = Snapshot.export(server, self.connections.reader, self.settings)
        return OnSpark(self.pgt_id, self.scratch, self.connections, window, session, snapshot, small)

    def drop_staging(self) -> None:
        if self.runner is not None:
            self.runner.drop_staging()
