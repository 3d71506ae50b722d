"""What a trigger does to state and stream table, as scripts: the plan of every other mode, in one session. Pure.

    rows of flows  →  changes of state, stage by stage  →  changes of the result  →  state, then the table, is written

Flows read state as it was before the statement, so state is written when all of them have been computed; what is made
of a state below reads what it will be. Called by `functions.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pgtrickle.model import BIGINT, Column
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
    uses,
)
from pgtrickle.physical.flow_sql import flow_sql, in_order
from pgtrickle.postgres.statements import first_rows, recursion, result, state, window_rows
from pgtrickle.postgres.statements.first_rows import FirstRows
from pgtrickle.postgres.statements.recursion import RecursiveRows
from pgtrickle.postgres.statements.result import Key
from pgtrickle.postgres.statements.script import Run, Scratch, Script, When, empty_temporary
from pgtrickle.postgres.statements.state import StateMerge, StateTable
from pgtrickle.postgres.statements.window_rows import WindowRows
from pgtrickle.postgres.weighted import run_steps
from pgtrickle.postgres.wire import WEIGHT
from pgtrickle.query.operators import Operator, Scan
from pgtrickle.refresh import new_state
from pgtrickle.refresh.plan import result_columns
from pgtrickle.refresh.prepared import Prepared


@dataclass(frozen=True, slots=True)
class Keys:
    """By which columns rows of the stream table stay themselves, and the condition under which that counts."""

    key: Key = None
    when: str | None = None


@dataclass(slots=True)
class Scripts:
    """The scripts of one plan. `changes` is a query of what has changed in a source; `whole`: all is computed again.
    `most_rounds` of a recursion are its limit."""

    prepared: Prepared
    scratch: Scratch
    changes: Callable[[Scan], str]
    most_rounds: int
    whole: bool = False
    _tables: dict[Flow, str] = field(default_factory=dict)
    _landed: int = 0
    _compute: list[Script] = field(default_factory=list)
    _write: dict[int, Script] = field(default_factory=dict)
    _changed: dict[Scan, str] = field(default_factory=dict)

    def of(self, physical: Physical, keys: Keys) -> tuple[Script, Script]:
        """What is done up to the new state, and what is done to the stream table then."""
        counted = uses([stage.input for stage in physical.stages if isinstance(stage, Landing)])
        relation = ""
        for stage in physical.stages:
            if isinstance(stage, Landing):
                self._share(stage.input, counted)
            relation = self._stage(stage) or relation
        changes = self._changes_first()
        writes = tuple(command for script in self._write.values() for command in script)
        computed = tuple(command for script in self._compute for command in script)
        if self.whole:  # its state is in place already
            return (*changes, *computed), self._apply(relation, keys)
        found = self.scratch.table("result")
        columns = result_columns(self.prepared)
        landed = (
            empty_temporary(found, (*columns, Column(WEIGHT, BIGINT))),
            Run(f"INSERT INTO {found} {relation}"),
        )
        return (*changes, *computed, *landed, *writes), self._apply(f"SELECT * FROM {found}", keys)

    def _apply(self, relation: str, keys: Keys) -> Script:
        def applied(key: Key) -> Script:
            bring = result.replace_all if self.whole else result.apply_delta
            return bring(self.prepared.storage, relation, result_columns(self.prepared), self.scratch, key)

        if keys.when is None or keys.key is None:
            return applied(keys.key)
        return (When(keys.when, applied(keys.key), applied(None)),)

    def _share(self, flow: Flow, counted: dict[Flow, int]) -> None:
        """Puts the rows of flows that are asked for more than once into tables."""
        for each in in_order([flow], self._tables):
            if counted[each] > 1:
                self._tables[each] = self._table(each, "flow", len(self._tables))

    def _land(self, flow: Flow) -> str:
        self._landed += 1
        return f"SELECT * FROM {self._table(flow, 'land', self._landed)}"

    def _table(self, flow: Flow, what: str, number: int) -> str:
        table = self.scratch.part(number).table(what)
        columns = (*flow.columns, Column(WEIGHT, BIGINT))
        fill = Run(f"INSERT INTO {table} {flow_sql(flow, self._tables)}")
        self._compute.append((empty_temporary(table, columns), fill, Run(f"ANALYZE {table}")))
        return table

    def _stage(self, stage: Stage) -> str | None:
        match stage:
            case LandAggregate(number=number, input=flow, steps=steps):
                self._merge(number, run_steps(self._land(flow), steps))
            case LandWindow(number=number, input=flow, steps=steps):
                self._recompute_partitions(number, run_steps(self._land(flow), steps))
            case KeepFirst(number=number, top=top):
                kept = self.prepared.states[number]
                assert isinstance(kept, FirstRows)
                below = new_state.below(self.prepared, top, self._write, self.scratch)
                self._keep(number, first_rows.keep(kept, self.scratch.part(number), below, as_it_is))
            case KeepRecursion(number=number, changed=changed):
                self._keep_recursion(number, changed)
            case LandResult(input=flow, steps=steps):
                return run_steps(self._land(flow), steps)
            case ReadResult(sql=sql):
                return sql
        return None

    def _merge(self, number: int, landed: str) -> None:
        kept = self.prepared.states[number]
        assert isinstance(kept, StateTable)
        if self.whole:
            self._compute.append(state.rebuild(kept, landed))
        else:
            below = new_state.below(self.prepared, kept.aggregate, self._write, self.scratch)
            self._keep(number, state.merge(kept, self.scratch.part(number), landed, below, as_it_is))

    def _recompute_partitions(self, number: int, landed: str) -> None:
        kept = self.prepared.states[number]
        assert isinstance(kept, WindowRows)
        if self.whole:
            self._compute.append(window_rows.rebuild(kept, landed))
        else:
            self._keep(number, window_rows.merge(kept, self.scratch.part(number), landed))

    def _keep_recursion(self, number: int, changed: frozenset[int] | None) -> None:
        kept = self.prepared.states[number]
        assert isinstance(kept, RecursiveRows)
        tables = recursion.Tables(as_it_is, self._changes_of, changed or frozenset())
        bring = recursion.rebuild if self.whole else recursion.again if changed is None else recursion.by_rounds
        self._keep(number, bring(kept, self.scratch.part(number), tables, self.most_rounds))

    def _keep(self, number: int, merge: StateMerge) -> None:
        self._compute.append(merge.compute)
        if self.whole:
            self._compute.append(merge.write)
        else:
            self._write[number] = merge.write

    def _changes_of(self, scan: Scan) -> str:
        """The name of a table with all changes of a source."""
        if scan not in self._changed:
            self._changed[scan] = self.scratch.part(len(self._changed)).table("changes")
        return self._changed[scan]

    def _changes_first(self) -> Script:
        """Makes these tables."""
        return tuple(
            command
            for scan, table in self._changed.items()
            for command in (
                empty_temporary(table, (*scan.columns, Column(WEIGHT, BIGINT))),
                Run(f"INSERT INTO {table} {self.changes(scan)}"),
                Run(f"ANALYZE {table}"),
            )
        )


def as_it_is(_: Operator) -> str | None:
    """A source after the statement: as the trigger sees it."""
    return None
