"""Runs the stages of a physical plan: flows are evaluated, rows land, state is merged. Called by `table_refresh.py`,
inside its writing transaction; returns the SQL of the result's rows there.

Flows read the state as it was before the window. Where another session does that, at a snapshot, each stage writes its
new state at once. Where one session does all, state is written when all flows have been evaluated, and until then those
that need the new one read what it will be (`refresh/new_state.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from pgtrickle import tracing
from pgtrickle.apply.indexes import made_after
from pgtrickle.apply.run import run
from pgtrickle.db import Connection, execute, scalar
from pgtrickle.physical.flow import (
    Flow,
    KeepFirst,
    KeepRecursion,
    LandAggregate,
    Landing,
    LandResult,
    LandWindow,
    Physical,
    ReadResult,
    Stage,
)
from pgtrickle.physical.lower_full import copy_of
from pgtrickle.physical.window_parts import WindowPart
from pgtrickle.postgres.row_image import by_image
from pgtrickle.postgres.statements import first_rows, recursion, state, window_rows
from pgtrickle.postgres.statements.first_rows import FirstRows
from pgtrickle.postgres.statements.recursion import RecursiveRows
from pgtrickle.postgres.statements.script import Scratch, Script
from pgtrickle.postgres.statements.state import StateMerge, StateTable
from pgtrickle.postgres.statements.window_rows import WindowRows
from pgtrickle.postgres.weighted import run_steps
from pgtrickle.query.operators import Operator, Scan, TopK
from pgtrickle.refresh import new_state
from pgtrickle.refresh.connections import Connections
from pgtrickle.refresh.evaluate.evaluator import Evaluator
from pgtrickle.refresh.prepared import Prepared
from pgtrickle.refresh.window import Window, copy_to, moved


@dataclass(slots=True)
class StageRunner:
    """Runs one plan; `scratch` names its temporary tables, for the planner as well. `whole`: a full refresh, whose rows
    all have weight one and replace what is there.

    `late`: sources that have changes after the snapshot; `copies`: what stands for those that a full refresh reads
    as they are after it. `many_rows`: so many may be kept that indexes are better made afterwards.
    """

    prepared: Prepared
    connections: Connections
    evaluator: Evaluator
    window: Window
    scratch: Scratch
    whole: bool
    most_rounds: int
    late: frozenset[int] = frozenset()
    copies: Mapping[int, str] = field(default_factory=dict)
    many_rows: bool = False
    _late: dict[Scan, str] = field(default_factory=dict)
    _copied: set[Scan] = field(default_factory=set)
    _changed: dict[Scan, str] = field(default_factory=dict)
    _filled: set[str] = field(default_factory=set)
    _unwritten: dict[int, StateMerge] = field(default_factory=dict)

    def run(self, physical: Physical) -> str:
        """Runs all stages; returns SQL of the result's weighted rows on the writer."""
        self.begin(physical)
        try:
            for stage in physical.stages:
                result = self.stage(stage)
                if result is not None:
                    self._write()
                    return result
        finally:
            self.evaluator.release()
        raise AssertionError("a physical plan ends with its result")

    def begin(self, physical: Physical) -> None:
        """Tells the evaluator what will be asked for."""
        self.evaluator.expect([s.input for s in physical.stages if isinstance(s, Landing)])

    def stage(self, stage: Stage) -> str | None:
        """Runs one stage; returns SQL of the result's rows, if it is the last."""
        match stage:
            case LandAggregate(number=number, input=flow, steps=steps, careful=careful, grouped=grouped):
                if grouped:
                    self._fill(number, flow)
                else:
                    landed = run_steps(self._land(flow), steps)
                    with tracing.span("merge"):
                        self._merge(number, landed)
                if careful is not None and self._is_unusual(number):
                    self.stage(careful)
            case LandWindow(number=number, input=flow, steps=steps):
                landed = run_steps(self._land(flow), steps)
                with tracing.span("merge"):
                    self._recompute_partitions(number, landed)
            case KeepFirst(number=number, top=top):
                with tracing.span("merge"):
                    self._keep_first(number, top)
            case KeepRecursion(number=number, changed=changed):
                with tracing.span("merge"):
                    self._keep_recursion(number, changed)
            case LandResult(input=flow, steps=steps):
                return run_steps(self._land(flow, consolidate=not self.whole), steps)
            case ReadResult(sql=sql):
                return sql
        return None

    def _land(self, flow: Flow, *, consolidate: bool = False) -> str:
        with tracing.span("evaluate"):
            return self.evaluator.land(flow, consolidate=consolidate)

    def drop_staging(self) -> None:
        self.evaluator.drop_staging()

    def _fill(self, number: int, flow: Flow) -> None:
        """The state of groups that come whole: they go there as they are."""
        kept, writer = self.prepared.states[number], self.connections.writer
        assert isinstance(kept, StateTable)
        execute(writer, f"TRUNCATE {kept.name}")
        with self._indexed_after(kept.name), tracing.span("evaluate"):
            self.evaluator.fill(flow, kept)
        execute(writer, f"ANALYZE {kept.name}")

    def _merge(self, number: int, landed: str) -> None:
        kept = self.prepared.states[number]
        assert isinstance(kept, StateTable)
        if self.whole:
            self._rebuild(kept.name, state.rebuild(kept, landed))
        else:
            below = new_state.below(self.prepared, kept.aggregate, self._unwritten, self.scratch)
            self._keep(number, state.merge(kept, self.scratch.part(number), landed, below, self._after_window))

    def _rebuild(self, table: str, script: Script) -> None:
        with self._indexed_after(table):
            run(self.connections.writer, script)

    def _indexed_after(self, table: str) -> AbstractContextManager[None]:
        return made_after(self.connections.writer, table) if self.many_rows else nullcontext()

    def _is_unusual(self, number: int) -> bool:
        """Whether the state that was built has numbers that are not finite."""
        kept = self.prepared.states[number]
        assert isinstance(kept, StateTable)
        return bool(scalar(self.connections.writer, f"SELECT {state.is_unusual(kept)}"))

    def _recompute_partitions(self, number: int, landed: str) -> None:
        kept = self.prepared.states[number]
        assert isinstance(kept, WindowRows)
        if self.whole:
            self._rebuild(kept.name, window_rows.rebuild(kept, landed))
        else:
            self._keep(number, window_rows.merge(kept, self.scratch.part(number), landed))

    def _keep_first(self, number: int, top: TopK) -> None:
        kept = self.prepared.states[number]
        assert isinstance(kept, FirstRows)
        below = new_state.below(self.prepared, top, self._unwritten, self.scratch)
        self._keep(number, first_rows.keep(kept, self.scratch.part(number), below, self._after_window))

    def _keep_recursion(self, number: int, changed: frozenset[int] | None) -> None:
        kept = self.prepared.states[number]
        assert isinstance(kept, RecursiveRows)
        tables = recursion.Tables(self._after_window, self._changes, changed or frozenset())
        bring = recursion.rebuild if self.whole else recursion.again if changed is None else recursion.by_rounds
        self._keep(number, bring(kept, self.scratch.part(number), tables, self.most_rounds))

    def _keep(self, number: int, merge: StateMerge) -> None:
        run(self.connections.writer, merge.compute, self._tables)
        if self.connections.reader is self.connections.writer and not self.whole:
            self._unwritten[number] = merge
        else:
            run(self.connections.writer, merge.write)

    def _write(self) -> None:
        """Puts the new state in place that was waiting for flows to be evaluated."""
        for merge in self._unwritten.values():
            run(self.connections.writer, merge.write)
        self._unwritten.clear()

    def _after_window(self, operator: Operator) -> str | None:
        """A source as it is after the window, where the reader's snapshot is in the middle of it."""
        copy = copy_of(operator, self.copies)
        if copy is not None:
            return copy
        if not isinstance(operator, Scan) or operator.table.oid not in self.late:
            return None
        if operator not in self._late:
            self._late[operator] = self.scratch.part(len(self._late)).table("late")
        return moved(operator, f"SELECT * FROM {self._late[operator]}", 1)

    def _changes(self, scan: Scan) -> str:
        """The name of a table with all changes of a source, where the reader is."""
        if scan not in self._changed:
            self._changed[scan] = self.scratch.part(len(self._changed)).table("changes")
        return self._changed[scan]

    def _tables(self) -> Connection:
        """The reader, with what `_after_window` says is there."""
        for scan in self._late.keys() - self._copied:
            changes = self.window.changes_of(scan, WindowPart.LATE)
            source = self.window.connection(self.window.spans[scan.table.oid].place)
            copy_to(self.connections.reader, self._late[scan], source, changes)
            self._copied.add(scan)
        for scan, table in self._changed.items():
            if table not in self._filled:
                self._copy_changes(scan, table)
                self._filled.add(table)
        return self.connections.reader

    def _copy_changes(self, scan: Scan, table: str) -> None:
        changes = by_image(self.window.changes_of(scan), scan.columns)
        source, reader = self.window.connection(self.window.spans[scan.table.oid].place), self.connections.reader
        if source is reader:
            execute(reader, f"CREATE TEMPORARY TABLE {table} ON COMMIT DROP AS {changes}")
        else:
            copy_to(reader, table, source, changes)
        execute(reader, f"ANALYZE {table}")  # few, mostly: what they meet is to be found by index
