"""A dry run: what a differential refresh would do now, computed by plain SQL in one session, measured, and undone.

    lock  →  snapshot  →  window  →  plan  →  its stages, each flow by itself in a temporary table  →  rollback

Nothing is written but temporary tables: neither state nor the stream table, whose triggers would see it. What the next
refresh does is decided by itself; this is the plan for the changes that are waiting. Called by `explain.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pgtrickle import db
from pgtrickle.apply.merge import unique_names
from pgtrickle.capture.change_window import Pending
from pgtrickle.catalog import reader as catalog
from pgtrickle.catalog.reader import StreamTable
from pgtrickle.db import Connection
from pgtrickle.errors import StateError
from pgtrickle.physical.flow import Flow, KeepFirst, KeepRecursion, LandAggregate, LandWindow, Physical
from pgtrickle.physical.flow_text import Measured
from pgtrickle.physical.window_parts import Changed
from pgtrickle.postgres.row_image import by_image
from pgtrickle.postgres.statements import state
from pgtrickle.postgres.wire import WEIGHT
from pgtrickle.refresh import gather_facts as ask
from pgtrickle.refresh.clock import ClockMoves, moves, settings_at
from pgtrickle.refresh.connections import Connections
from pgtrickle.refresh.evaluate.on_postgres import OnPostgres
from pgtrickle.refresh.evaluate.stages import StageRunner
from pgtrickle.refresh.lock import PATIENCE_S, refresh_locks, under_way
from pgtrickle.refresh.outcome import Stop
from pgtrickle.refresh.plan import plan_delta, result_columns
from pgtrickle.refresh.prepared import Prepared
from pgtrickle.refresh.refresher import Refresher
from pgtrickle.refresh.tick import now
from pgtrickle.refresh.window import Window, at_snapshot, await_decoder, opened


@dataclass(frozen=True, slots=True)
class DryRun:
    """What was done: the plan, what was measured of its flows and stages, and the result's weighted rows, consolidated,
    as a query of the `session`."""

    physical: Physical
    flows: Mapping[Flow, Measured]
    stages: tuple[Measured, ...]
    session: Connection
    result: str

    def changes(self) -> tuple[int, int]:
        """How many rows would go in and out."""
        weights = f"coalesce(sum({WEIGHT}) FILTER (WHERE {WEIGHT} > 0), 0), coalesce(sum({WEIGHT}), 0)"
        row = self.session.execute(db.statement(f"SELECT {weights} FROM ({self.result}) AS changes")).fetchone()
        assert row is not None
        inserted, more = int(str(row[0])), int(str(row[1]))
        return inserted, inserted - more


@dataclass(frozen=True, slots=True)
class NoRun:
    """Why there is nothing to run."""

    reason: str


@contextmanager
def dry_run(refresher: Refresher, pgt_id: int) -> Iterator[DryRun | NoRun]:
    """What the changes that are waiting come to, for as long as it is looked at."""
    with refresh_locks(refresher.connections().locks, [pgt_id], PATIENCE_S) as locked:
        stream = catalog.by_id(refresher.connections().aside, pgt_id)
        if stream is None:
            raise StateError("the stream table was dropped", code="PT301", hint="`pgtrickle status` lists them all.")
        if not locked:
            raise under_way(str(stream))
        if catalog.circle(refresher.connections().aside, pgt_id):
            yield NoRun("the tables of a circle are refreshed together, in rounds")
        elif (reason := _by_definition(stream)) is not None:
            yield NoRun(reason)
        else:
            with _undone(refresher, stream, refresher.prepared(stream)) as found:
                yield found


def _by_definition(stream: StreamTable) -> str | None:
    """Why the next refresh is none by changes, whatever has changed."""
    if stream.status == "SUSPENDED":
        return "the stream table is suspended"
    if stream.is_immediate:
        return "it is kept in the writers' own transactions"
    if stream.effective_mode == "FULL":
        return f"it is computed in full: {stream.mode_reason or 'refresh mode is FULL'}"
    if not stream.is_populated:
        return "it was not populated yet"
    return f"it is to be computed again: {stream.reinit_reason}" if stream.needs_reinit else None


@contextmanager
def _undone(refresher: Refresher, stream: StreamTable, prepared: Prepared) -> Iterator[DryRun | NoRun]:
    connections = refresher.connections()
    session = connections.reader
    one = replace(connections, writer=session)
    with session.transaction(force_rollback=True):
        _lock(session, prepared)
        moment = refresher.timed(now(session))
        since = {table.oid: stream.since(table.oid in prepared.stacked) for table in prepared.sources}
        window = _complete(at_snapshot(one, since, moment.snapshot), stream, refresher.settings.decoder_wait_timeout)
        with opened(window) as window:
            connections.use_settings(settings_at(prepared.settings, moment.at, stream.data_timestamp))
            pending = window.pending()
            clock = moves(session, prepared.tree)
            reason = _by_window(prepared, pending, clock)
            changes = {oid: found.changes for oid, found in pending.items()} | dict(clock.rows)
            most = refresher.settings.ivm_recursive_max_depth
            yield NoRun(reason) if reason is not None else _measured(one, prepared, window, changes, clock, most)


def _lock(session: Connection, prepared: Prepared) -> None:
    """Keeps DDL away from the sources, before there is a snapshot."""
    db.execute(session, f"SET LOCAL lock_timeout = '{db.LOCK_TIMEOUT}'")
    if prepared.lockable:
        tables = ", ".join(table.qualified for table in prepared.lockable)
        db.execute(session, f"LOCK TABLE {tables} IN ACCESS SHARE MODE")


def _complete(window: Window, stream: StreamTable, patience_s: float) -> Window:
    try:
        return window if window.is_complete else await_decoder(window, patience_s)
    except Stop as behind:
        hint = "`pgtrickle cdc` shows how far the decoder is."
        raise StateError(f"the changes of {stream} are not all there: {behind}", code="PT354", hint=hint) from behind


def _by_window(prepared: Prepared, pending: Mapping[int, Pending], clock: ClockMoves) -> str | None:
    """Why the next refresh is none by changes, as far as these tell."""
    if not prepared.fits:
        return "it is to be computed again: this version of pgtrickle keeps its state in another way"
    names = {table.oid: str(table) for table in prepared.sources}
    for problem, oids in (
        ("was truncated", [oid for oid, found in pending.items() if found.truncated]),
        ("was not captured for a time", [oid for oid, found in pending.items() if not found.captured]),
    ):
        if oids:
            return f"it is to be computed again: {', '.join(names[oid] for oid in oids)} {problem}"
    if clock.moved or any(found.changes for found in pending.values()):
        return None
    return "no changes are waiting"


def _measured(
    connections: Connections,
    prepared: Prepared,
    window: Window,
    changes: Mapping[int, int],
    clock: ClockMoves,
    most: int,
) -> DryRun:
    session, scratch = connections.writer, unique_names()
    facts = ask.gather(session, [table.oid for table in prepared.sources], changes)
    changed = Changed(frozenset(oid for oid, count in changes.items() if count), unknown=clock.unknown)
    physical = plan_delta(prepared, facts, window, changed, scratch)
    flows: dict[Flow, Measured] = {}
    evaluator = OnPostgres(scratch, connections, window, flows)
    runner = StageRunner(prepared, connections, evaluator, window, scratch, whole=False, most_rounds=most)
    runner.begin(physical)
    stages, relation = list[Measured](), ""
    for stage in physical.stages:
        begun = time.perf_counter()
        relation = runner.stage(stage) or ""
        took = (time.perf_counter() - begun) * 1000
        left = relation
        if isinstance(stage, LandAggregate | LandWindow | KeepFirst | KeepRecursion):
            left = state.changes(scratch.part(stage.number))
        stages.append(Measured(int(str(db.scalar(session, f"SELECT count(*) FROM ({left}) AS left_rows"))), took))
    return DryRun(physical, flows, tuple(stages), session, by_image(relation, result_columns(prepared)))
