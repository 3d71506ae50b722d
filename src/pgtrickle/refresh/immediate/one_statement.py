"""A plan as one statement, for a writer's statement that changes few rows: planned once a session, and no temporary
table made. Pure; called by `install.py`.

    WITH rows of flows, changes of state, of the result, …, what is written SELECT whether all is as it should be
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pgtrickle.physical.flow import (
    Flow,
    KeepFirst,
    LandAggregate,
    Landing,
    LandResult,
    LandWindow,
    Physical,
    ReadResult,
    Stage,
    uses,
)
from pgtrickle.physical.flow_sql import flow_sql, in_order
from pgtrickle.postgres.statements import first_rows, result, state, window_rows
from pgtrickle.postgres.statements.at_once import AtOnce, NotAtOnce, Part, PartNames, at_once
from pgtrickle.postgres.statements.first_rows import FirstRows
from pgtrickle.postgres.statements.script import Require
from pgtrickle.postgres.statements.state import StateTable
from pgtrickle.postgres.statements.window_rows import WindowRows
from pgtrickle.postgres.weighted import chain, run_steps
from pgtrickle.query.operators import Aggregate, Expand, Operator, Repeat
from pgtrickle.refresh import new_state
from pgtrickle.refresh.immediate.turns import shown
from pgtrickle.refresh.plan import result_columns
from pgtrickle.refresh.prepared import Prepared


@dataclass(frozen=True, slots=True)
class OneStatement:
    """Its text, and what each of the columns of its one row must be true for."""

    sql: str
    checks: tuple[Require, ...]


@dataclass(slots=True)
class Composer:
    """Composes one plan."""

    prepared: Prepared
    names: PartNames
    _parts: list[Part] = field(default_factory=list)
    _checks: list[Require] = field(default_factory=list)
    _relations: dict[Flow, str] = field(default_factory=dict)
    _merged: set[int] = field(default_factory=set)
    _landed: int = 0

    def compose(self, physical: Physical) -> OneStatement:
        counted = uses([stage.input for stage in physical.stages if isinstance(stage, Landing)])
        relation = ""
        for stage in physical.stages:
            if isinstance(stage, Landing):
                self._share(stage.input, counted)
            relation = self._stage(stage) or relation
        self._add(
            result.apply_at_once(
                self.prepared.storage,
                relation,
                result_columns(self.prepared),
                self.names,
                are_unlike=isinstance(physical.stages[-1], ReadResult) and shows_its_keys(self.prepared.tree),
            )
        )
        return OneStatement(self._text(), tuple(self._checks))

    def _text(self) -> str:
        parts = [
            f"{part.name} AS {'' if part.writes else 'MATERIALIZED '}({part.query})"
            for part in [*(p for p in self._parts if not p.writes), *(p for p in self._parts if p.writes)]
        ]
        together = ",\n     ".join(parts)
        return f"WITH {together}\nSELECT {', '.join(check.condition for check in self._checks)}"

    def _add(self, at_once: AtOnce) -> None:
        self._parts += at_once.parts
        self._checks += at_once.checks

    def _share(self, flow: Flow, counted: Mapping[Flow, int]) -> None:
        for each in in_order([flow], self._relations):
            if counted[each] > 1:
                name = self.names.part(len(self._relations)).table("flow")
                self._parts.append(Part(name, flow_sql(each, self._relations)))
                self._relations[each] = name

    def _land(self, flow: Flow) -> str:
        self._landed += 1
        name = self.names.part(self._landed).table("land")
        self._parts.append(Part(name, flow_sql(flow, self._relations)))
        return f"SELECT * FROM {name}"

    def _stage(self, stage: Stage) -> str | None:
        match stage:
            case LandAggregate(number=number, input=flow, steps=steps):
                kept = self.prepared.states[number]
                assert isinstance(kept, StateTable)
                landed = run_steps(self._land(flow), steps)
                below = new_state.below(self.prepared, kept.aggregate, self._merged, self.names)
                self._add(state.merge_at_once(kept, self.names.part(number), landed, below, _as_it_is))
                self._merged.add(number)
            case KeepFirst(number=number, top=top):
                kept = self.prepared.states[number]
                assert isinstance(kept, FirstRows)
                below = new_state.below(self.prepared, top, self._merged, self.names)
                self._add(first_rows.keep_at_once(kept, self.names.part(number), below, _as_it_is))
                self._merged.add(number)
            case LandWindow(number=number, input=flow, steps=steps):
                kept = self.prepared.states[number]
                assert isinstance(kept, WindowRows)
                names = self.names.part(number)
                merge = window_rows.merge(kept, names, run_steps(self._land(flow), steps))
                self._add(at_once((*merge.compute, *merge.write), names))
                self._merged.add(number)
            case LandResult(input=flow, steps=steps):
                return run_steps(self._land(flow), steps)
            case ReadResult(sql=sql):
                return sql
            case _:
                raise NotAtOnce
        return None


def shows_its_keys(tree: Operator) -> bool:
    """Whether the result is that of a grouping with all its keys: no two of its rows are alike, and no two changes."""
    core, steps = chain(tree)
    repeats = any(isinstance(step, Repeat | Expand) for step in steps)
    return isinstance(core, Aggregate) and not repeats and set(core.keys) <= shown(tree, core)


def _as_it_is(_: Operator) -> str | None:
    return None
