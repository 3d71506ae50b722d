"""Runs the stages of a physical plan: flows are evaluated, rows land, state is merged. Called by `underway.py`, inside
its writing transaction; returns the SQL of the result's rows there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pgtrickle.apply import first, state
from pgtrickle.physical.flow import KeepFirst, LandAggregate, LandResult, Physical, ReadResult
from pgtrickle.physical.full import copy_of
from pgtrickle.physical.parts import Part
from pgtrickle.postgres.weighted import run_steps
from pgtrickle.query.operators import Operator, Scan, TopK
from pgtrickle.refresh.connections import Connections
from pgtrickle.refresh.evaluator import Evaluator
from pgtrickle.refresh.prepared import Prepared
from pgtrickle.refresh.window import Window, copied, moved


@dataclass(slots=True)
class StageRunner:
    """Runs one plan. `whole`: a full refresh, whose rows all have weight one and replace what is there.

    `late`: sources that have changes after the snapshot; `copies`: what stands for those that a full refresh reads
    as they are after it.
    """

    prepared: Prepared
    connections: Connections
    evaluator: Evaluator
    window: Window
    whole: bool
    late: frozenset[int] = frozenset()
    copies: Mapping[int, str] = field(default_factory=dict)
    _moved: dict[Scan, str] = field(default_factory=dict)

    def run(self, physical: Physical) -> str:
        """Runs all stages; returns SQL of the result's weighted rows on the writer."""
        self.evaluator.expect([s.input for s in physical.stages if isinstance(s, LandAggregate | LandResult)])
        try:
            for step in physical.stages:
                match step:
                    case LandAggregate(number=number, input=flow, steps=steps):
                        self._merge(number, run_steps(self.evaluator.land(flow), steps))
                    case KeepFirst(number=number, top=top):
                        self._keep_first(number, top)
                    case LandResult(input=flow, steps=steps):
                        return run_steps(self.evaluator.land(flow, consolidate=not self.whole), steps)
                    case ReadResult(sql=sql):
                        return sql
        finally:
            self.evaluator.release()
        raise AssertionError("a physical plan ends with its result")

    def drop_staging(self) -> None:
        self.evaluator.drop_staging()

    def _merge(self, number: int, landed: str) -> None:
        kept = self.prepared.states[number]
        assert isinstance(kept, state.StateTable)
        writer, reader = self.connections.writer, self.connections.reader
        if self.whole:
            state.rebuild(writer, kept, landed)
        else:
            state.merge(writer, reader, kept, self.prepared.state_below(kept.aggregate), landed, self._after_window)

    def _after_window(self, operator: Operator) -> str | None:
        """A source as it is after the window, where the reader's snapshot is in the middle of it."""
        copy = copy_of(operator, self.copies)
        if copy is not None:
            return copy
        if not isinstance(operator, Scan) or operator.table.oid not in self.late:
            return None
        if operator not in self._moved:
            attributes = list(zip(operator.attributes, operator.names, strict=True))
            changes = self.window.changes_sql(operator.table.oid, attributes, Part.LATE)
            place = self.window.spans[operator.table.oid].place
            late = copied(self.window.connection(place), changes, self.connections.reader)
            self._moved[operator] = moved(operator, f"SELECT * FROM {late}", 1)
        return self._moved[operator]

    def _keep_first(self, number: int, top: TopK) -> None:
        kept = self.prepared.states[number]
        assert isinstance(kept, first.FirstRows)
        writer, reader = self.connections.writer, self.connections.reader
        first.keep(writer, reader, kept, self.prepared.table_below(top), self._after_window)
