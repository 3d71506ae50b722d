"""From a delta plan to the physical plan: which rows Spark's tasks read, look up, join and land. Pure.

Filters and projections are written into the query that reads the rows below them, so PostgreSQL evaluates them.
A delta meets the other side of a join by lookup (its rows travel to PostgreSQL in batches) or by a scan that Spark
joins, whichever `facts` say is cheaper. A side that keeps state is read from its state table, which is the side
before the window; any other side is read at the snapshot, which is after it. Where a rule asks for the other
version, the difference is the join with that side's own delta. Called by `refresh/plan.py`.

Of stream tables as sources the window may reach beyond the snapshot: they were refreshed after it. The snapshot
then divides the window in an early and a late part, and a table as it is at the snapshot is after the one and before
the other: it lacks the late part to be "after" the window, and has the early part too much to be "before" it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from pgtrickle.delta.algebra import After, AggregateDelta, Before, Changes, Plus, is_empty
from pgtrickle.delta.differentiate import differentiate
from pgtrickle.model import Expr, Table
from pgtrickle.postgres import aggregate as aggregate_sql
from pgtrickle.postgres.weighted import Group, Step, both, chain, join, rename, run_steps, weigh
from pgtrickle.postgres.wire import receive_arrays, send_rows
from pgtrickle.query import render
from pgtrickle.query.operators import Aggregate, Equality, InnerJoin, Operator, Scan, UnionAll, walk
from pgtrickle.spark.facts import Facts, ReadCost, read_cost
from pgtrickle.spark.flow import (
    Choice,
    Flow,
    HashJoin,
    LandAggregate,
    LandResult,
    Lookup,
    Merged,
    Pair,
    Physical,
    Place,
    Read,
    ReadResult,
    Stage,
)
from pgtrickle.spark.full import FullLowering, concat, evaluate_steps, numbered, residual, spark_keys

LARGE_WINDOW = 40_000
"""Weighted rows (two an update) above which each task's query joins its share of the buffer with the table it meets."""


class Part(StrEnum):
    """The window, or what of it came before or after the snapshot that tables are read at."""

    WHOLE = "whole"
    EARLY = "early"
    LATE = "late"


class Inseparable(Exception):
    """The plan would need an aggregate as it was at the snapshot, in the middle of the window: no state has that."""


@dataclass(frozen=True, slots=True)
class Names:
    """Where things are in PostgreSQL: a source's window and buffer, and the place where that is read; an aggregate's
    state, its stage's output."""

    changes: Callable[[Scan, Part], str]
    buffer: Callable[[Scan], str]
    place: Callable[[Scan], Place]
    state: Callable[[int], str]
    merged: Callable[[int], str]


@dataclass(frozen=True, slots=True)
class Changed:
    """The tables that have changes up to the snapshot, and those that have some after it."""

    early: frozenset[int]
    late: frozenset[int] = frozenset()

    def within(self, part: Part) -> frozenset[int]:
        return {Part.WHOLE: self.early | self.late, Part.EARLY: self.early, Part.LATE: self.late}[part]


def lower_delta(tree: Operator, changed: Changed, facts: Facts, names: Names) -> Physical:
    """The physical plan of a differential refresh in which the tables `changed` have changes."""
    return _DeltaLowering(tree, changed, facts, names).physical()


@dataclass(frozen=True, slots=True)
class _On:
    """How a delta (left) meets an operand (right)."""

    condition: Expr | None
    equalities: tuple[Equality, ...]


@dataclass(slots=True)
class _DeltaLowering:
    tree: Operator
    changed: Changed
    facts: Facts
    names: Names
    stages: list[Stage] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    landed: set[int] = field(default_factory=set)

    def physical(self) -> Physical:
        plan = differentiate(self.tree, self.changed.within(Part.WHOLE))
        core, steps = chain(plan)
        if isinstance(core, AggregateDelta):
            number = self._land(core)
            self.stages.append(ReadResult(run_steps(self.names.merged(number), steps), number))
        else:
            self.stages.append(LandResult(self._flow(plan, ())))
        return Physical(tuple(self.stages), tuple(dict.fromkeys(self.choices)))

    def _land(self, node: AggregateDelta) -> int:
        number = numbered(self.tree)[node.aggregate]
        if number not in self.landed:
            self.landed.add(number)
            flow = self._flow(node.delta, (Group.of(node.aggregate),))
            self.stages.append(LandAggregate(number, node.aggregate, flow))
        return number

    def _flow(self, plan: Operator, above: tuple[Step, ...], part: Part = Part.WHOLE) -> Flow:
        """The rows of a delta plan of that part of the window, after the steps `above` it."""
        core, steps = chain(plan)
        steps += above
        columns = steps[-1].columns if steps else core.columns
        match core:
            case Changes(scan=scan):
                rows = 2.0 * self.facts.changes.get(scan.table.oid, 0)
                relation = run_steps(self.names.changes(scan, part), steps)
                buffer, place = self.names.buffer(scan), self.names.place(scan)
                return Read(columns, rows, relation, f"changes of {scan.table}", buffer, place)
            case Plus(terms=terms):
                return concat(columns, tuple(self._flow(term, steps, part) for term in terms))
            case UnionAll(branches=branches):
                return concat(columns, tuple(self._flow(rename(branch, core), steps, part) for branch in branches))
            case AggregateDelta():
                if part is not Part.WHOLE:
                    raise Inseparable
                number = self._land(core)
                sql = send_rows(run_steps(self.names.merged(number), steps), columns)
                return Merged(columns, 1000.0, sql, number)
            case InnerJoin():
                return self._join(core, steps, part)
        raise TypeError(f"not a delta plan: {type(core).__name__}")

    def _join(self, node: InnerJoin, steps: tuple[Step, ...], part: Part) -> Flow:
        if isinstance(node.right, After | Before):
            delta, side, equalities = node.left, node.right, node.equalities
        elif isinstance(node.left, After | Before):
            delta, side, equalities = node.right, node.left, _flipped(node.equalities)
        else:
            raise TypeError("a join of a delta plan has one side that is not a delta")
        return self._against(self._flow(delta, (), part), side, _On(node.condition, equalities), steps, part)

    def _against(self, flow: Flow, side: After | Before, on: _On, steps: tuple[Step, ...], part: Part) -> Flow:
        """ΔX ⋈ side: the version at hand, corrected by ΔX ⋈ Δside where the rule asks for another one."""
        operand, wants_after = side.operator, isinstance(side, After)
        core, own_steps = chain(operand)
        if isinstance(core, Aggregate):
            if part is not Part.WHOLE:
                raise Inseparable
            at_hand, gap = self._state(flow, core, own_steps, operand, on, steps), Part.WHOLE if wants_after else None
        elif _mixes_versions(operand):
            return self._split(flow, side, on, steps, part)
        else:
            at_hand, gap = self._tables(flow, operand, on, steps), _gap(part, wants_after=wants_after)
        own_delta = None if gap is None else differentiate(operand, self.changed.within(gap))
        if gap is None or own_delta is None or is_empty(own_delta):
            return at_hand
        correction = self._pair(flow, self._flow(own_delta, (), gap), on, steps, sign=1 if wants_after else -1)
        return concat(at_hand.columns, (at_hand, correction))

    def _state(
        self,
        flow: Flow,
        core: Aggregate,
        own_steps: tuple[Step, ...],
        operand: Operator,
        on: _On,
        steps: tuple[Step, ...],
    ) -> Flow:
        """The delta joined with what an aggregate was before the window."""
        kept = f"SELECT * FROM {self.names.state(numbered(self.tree)[core])}"
        relation = run_steps(weigh(aggregate_sql.outputs(core, kept), core.names), own_steps)
        self.choices.append(Choice(_tables(operand), "lookup", "in the aggregate's state"))
        return self._lookup(flow, relation, operand, on, steps, rows_per_key=1.0)

    def _tables(self, flow: Flow, operand: Operator, on: _On, steps: tuple[Step, ...]) -> Flow:
        """The delta joined with an operand at the snapshot, by lookup or scan."""
        scans = tuple(node for node in walk(operand) if isinstance(node, Scan))
        cost = read_cost(self.facts, flow.rows, scans, on.equalities)
        keys = spark_keys(on.equalities, flow.columns + operand.columns)
        if any(isinstance(node, Aggregate) for node in walk(operand)):
            keys = ()  # its groups are PostgreSQL's to compute: a scan is of tables
        if keys and not cost.prefers_lookup:
            self._choose(operand, "scan", cost, flow)
            scanned = FullLowering(self.tree, self.facts, self.names.merged).evaluated(operand)
            joined = HashJoin(flow.columns + operand.columns, flow.rows, flow, scanned, keys)
            return evaluate_steps(joined, (*residual(on.condition, joined.columns, keys, on.equalities), *steps))
        self._choose(operand, "lookup", cost, flow)
        relation = weigh(render.select(operand), operand.names)
        return self._lookup(flow, relation, operand, on, steps, cost.rows_per_key)

    def _choose(self, operand: Operator, method: str, cost: ReadCost, flow: Flow) -> None:
        index = f"index on {cost.index}" if cost.index else "no index on the key"
        estimate = f"lookup {cost.by_lookup:.3f} s, scan {cost.by_scan:.3f} s"
        self.choices.append(
            Choice(_tables(operand), method, f"{index}; about {flow.rows:.0f} rows to match; {estimate}")
        )

    def _lookup(
        self, flow: Flow, relation: str, operand: Operator, on: _On, steps: tuple[Step, ...], rows_per_key: float
    ) -> Flow:
        """The delta's rows travel to the operand; from a large window, whose tasks read the buffer, they need not."""
        names = [column.name for column in flow.columns]
        columns = steps[-1].columns if steps else flow.columns + operand.columns
        what = ", ".join(str(table) for table in _tables(operand))
        rows = flow.rows * max(rows_per_key, 1.0)
        if isinstance(flow, Read) and flow.rows > LARGE_WINDOW and flow.place is Place.SNAPSHOT:
            joined = join(flow.relation, names, relation, operand.names, on.condition)
            whole = f"{flow.what}, joined with {what}"
            return Read(columns, rows, run_steps(joined, steps), whole, flow.split_by)
        joined = join(receive_arrays(flow.columns), names, relation, operand.names, on.condition)
        return Lookup(columns, rows, flow, send_rows(run_steps(joined, steps), columns), what)

    def _pair(self, left: Flow, right: Flow, on: _On, steps: tuple[Step, ...], sign: int) -> Flow:
        """ΔX ⋈ Δside, both sent to PostgreSQL, which evaluates the condition."""
        first = receive_arrays(left.columns)
        second = receive_arrays(right.columns, first=len(left.columns) + 2)
        names = [column.name for column in left.columns], [column.name for column in right.columns]
        joined = join(first, names[0], second, names[1], on.condition, sign)
        columns = steps[-1].columns if steps else left.columns + right.columns
        return Pair(columns, left.rows, left, right, send_rows(run_steps(joined, steps), columns))

    def _split(self, flow: Flow, side: After | Before, on: _On, steps: tuple[Step, ...], part: Part) -> Flow:
        """ΔX ⋈ (A ⋈ B) as (ΔX ⋈ A) ⋈ B: each part is read in its own way."""
        operand, version = side.operator, type(side)
        assert isinstance(operand, InnerJoin)
        near, far, equalities = operand.left, operand.right, operand.equalities
        if any(set(e.right.columns) <= set(far.names) for e in on.equalities):
            near, far, equalities = far, near, _flipped(equalities)
        keys = tuple(e for e in on.equalities if set(e.right.columns) <= set(near.names))
        halfway = self._against(flow, version(near.columns, near), _On(_all_hold(keys), keys), (), part)
        condition = both(on.condition, operand.condition)
        return self._against(halfway, version(far.columns, far), _On(condition, equalities), steps, part)


def _gap(part: Part, *, wants_after: bool) -> Part | None:
    """What tables at the snapshot lack to be after that part of the window, or have too much to be before it."""
    if wants_after:
        return None if part is Part.EARLY else Part.LATE
    return None if part is Part.LATE else Part.EARLY


def _mixes_versions(operand: Operator) -> bool:
    """Whether the operand joins tables (read after the window) with state (kept from before it)."""
    return isinstance(operand, InnerJoin) and any(isinstance(node, Aggregate) for node in walk(operand))


def _flipped(equalities: tuple[Equality, ...]) -> tuple[Equality, ...]:
    return tuple(Equality(equality.right, equality.left) for equality in equalities)


def _all_hold(equalities: tuple[Equality, ...]) -> Expr | None:
    condition: Expr | None = None
    for equality in equalities:
        columns = equality.left.columns + equality.right.columns
        condition = both(condition, Expr(f"{equality.left.sql} = {equality.right.sql}", columns))
    return condition


def _tables(operand: Operator) -> tuple[Table, ...]:
    return tuple(node.table for node in walk(operand) if isinstance(node, Scan))
