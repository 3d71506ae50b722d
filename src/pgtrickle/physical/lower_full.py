"""From an operator tree to the physical plan of a full refresh: Spark scans, joins and lands whole tables. Pure.

A join runs on Spark where both engines compare its keys alike; any other operand is one query of PostgreSQL's that
Spark carries. Steps over a join are left to the landing, or sent to PostgreSQL when a join is above. Where PostgreSQL
evaluates the plan by itself, each stage is one query over the tables and the states below (`in_one`). Used by
`refresh/plan.py`, and by `lower_delta.py` for the operands it scans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from pgtrickle.model import BIGINT, Column, quote
from pgtrickle.physical.flow import (
    WHOLE,
    Concat,
    Flow,
    HashJoin,
    JointLookup,
    KeepFirst,
    KeepRecursion,
    LandAggregate,
    LandResult,
    LandWindow,
    Merged,
    Native,
    Physical,
    Place,
    Read,
    ReadResult,
    Share,
    Stage,
    input_name,
    is_native,
)
from pgtrickle.physical.spark_joins import (
    all_keys,
    evaluate_steps,
    is_on_spark,
    natively,
    pairing,
    residual,
)
from pgtrickle.physical.spark_sql import NotListedError
from pgtrickle.physical.table_facts import TableFactsMap, prefers_tasks
from pgtrickle.postgres.aggregate import is_additive, unusual
from pgtrickle.postgres.weighted import GroupStep, Step, chain, kept_rows, rename, run_steps, weigh
from pgtrickle.postgres.wire import WEIGHT
from pgtrickle.query import render
from pgtrickle.query.operators import (
    Aggregate,
    Constant,
    InnerJoin,
    LeftJoin,
    Match,
    Operator,
    Recursive,
    Scan,
    Stateful,
    TopK,
    UnionAll,
    Window,
    walk,
)

_ONE_ROW = Read((Column("one", BIGINT),), 1.0, f"SELECT 1::bigint AS one, 1::bigint AS {WEIGHT}", "one row")


def lower_full(
    tree: Operator,
    facts: TableFactsMap,
    merged: Callable[[int], str],
    copies: Mapping[int, str] | None = None,
    *,
    in_one: bool = False,
    spare: bool = False,
) -> Physical:
    """The physical plan of a full refresh; `merged` names the new state of an aggregate once landed, `copies` the
    tables that stand for some of the sources where the reader's transaction is. `in_one`: for PostgreSQL alone, a query
    a stage. `spare`: what Spark can join and group by itself is read only, whatever that takes."""
    lowering = FullLowering(tree, facts, merged, copies or {}, in_one, spare)
    core, steps = chain(tree)
    if isinstance(core, Stateful):
        number = lowering.land(core)
        lowering.stages.append(ReadResult(run_steps(lowering.finished(core, number), steps), number))
    else:
        lowering.stages.append(LandResult(*lowering.to_land(tree)))
    return Physical(tuple(lowering.stages), ())


def whole_query(sql: str, columns: tuple[Column, ...], place: Place) -> Physical:
    """The physical plan for a query that only PostgreSQL can evaluate: Spark carries its rows."""
    read = Read(columns, 0.0, weigh(sql, [column.name for column in columns]), "the whole query", place=place)
    return Physical((LandResult(read),), ())


def numbered(tree: Operator) -> dict[Stateful, int]:
    """What keeps state in a tree, with the numbers the state tables bear."""
    stateful = dict.fromkeys(_stateful(tree))
    return {node: number for number, node in enumerate(stateful, start=1)}


def _stateful(operator: Operator) -> Iterator[Stateful]:
    """What keeps state, top first; what is in a recursion keeps none, since its rounds read tables."""
    if isinstance(operator, Stateful):
        yield operator
    for below in () if isinstance(operator, Recursive) else operator.inputs:
        yield from _stateful(below)


@dataclass(slots=True)
class FullLowering:
    """Lowers one tree; `stages` are the landings its aggregates need.

    `copies` stand for tables, by oid, that are not as the snapshot has them: what reads one is read by the driver.
    """

    tree: Operator
    facts: TableFactsMap
    merged: Callable[[int], str]
    copies: Mapping[int, str] = field(default_factory=dict)
    in_one: bool = False
    spare: bool = False
    stages: list[Stage] = field(default_factory=list)
    landed: set[int] = field(default_factory=set)

    def land(self, node: Stateful) -> int:
        """A stage that makes the node's state, unless there is one."""
        number = numbered(self.tree)[node]
        if number not in self.landed:
            self.landed.add(number)
            match node:
                case Aggregate():
                    self._land_aggregate(number, node)
                case Window():
                    self.stages.append(LandWindow(number, node, *self.to_land(node.input)))
                case TopK():
                    self._land_below(node.input)
                    self.stages.append(KeepFirst(number, node))
                case Recursive():
                    self.stages.append(KeepRecursion(number, node))
                case _:
                    raise TypeError(f"no state of {type(node).__name__}")
        return number

    def _land_below(self, operator: Operator) -> None:
        for below in _stateful(operator):
            self.land(below)

    def _land_aggregate(self, number: int, aggregate: Aggregate) -> None:
        """Additive ones are grouped where their rows are read, so that groups travel."""
        if not is_additive(aggregate):
            self.stages.append(LandAggregate(number, aggregate, *self.to_land(aggregate.input)))
            return
        plain, careful = (GroupStep.of(aggregate, plain=True),), (GroupStep.of(aggregate),)
        if self.in_one:
            stage, again = (
                LandAggregate(number, aggregate, self.flow(aggregate.input, group)[0], grouped=True)
                for group in (plain, careful)
            )
        elif (native := self._native_groups(number, aggregate, careful)) is not None:
            self.stages.append(native)
            return
        elif self._splits(aggregate.input):
            stage = LandAggregate(number, aggregate, self._grouped(aggregate, plain))
            again = LandAggregate(number, aggregate, self._grouped(aggregate, careful))
        else:
            stage, again = (
                LandAggregate(number, aggregate, *self.to_land(aggregate.input, group)) for group in (plain, careful)
            )
        self.stages.append(stage if unusual(aggregate) is None else replace(stage, careful=again))

    def _native_groups(self, number: int, aggregate: Aggregate, careful: tuple[Step, ...]) -> LandAggregate | None:
        """The groups of rows that Spark has joined. Where tasks' queries could group their ranges of a table, Spark
        groups only with `spare`, and only if nothing is left to PostgreSQL. What is not a finite number is
        PostgreSQL's, and so carefully."""
        splits = self._splits(aggregate.input)
        if splits and not self.spare:
            return None
        rows, left = self.to_land(aggregate.input, careful)
        return LandAggregate(number, aggregate, rows, left) if is_native(rows) and not (splits and left) else None

    def _splits(self, operator: Operator) -> bool:
        """Whether the rows are a join of tables, one of which tasks can share among them."""
        if any(isinstance(node, Stateful | UnionAll) for node in walk(operator)) or not _shareable(operator):
            return False
        if self._place(operator).is_private:
            return False
        return self.facts.tables[self._largest(operator).table.oid].splittable

    def _largest(self, operator: Operator) -> Scan:
        return max(_shareable(operator), key=lambda scan: self.facts.rows(scan.table.oid))

    def _grouped(self, aggregate: Aggregate, group: tuple[Step, ...]) -> Flow:
        """Each task lets PostgreSQL join its share of the largest table with the others, and group."""
        split = self._largest(aggregate.input)

        def grouped(within: str) -> str:
            rows = render.select(aggregate.input, leaf=lambda node: _in_range(split, within) if node == split else None)
            return run_steps(weigh(rows, aggregate.input.names), group)

        size, share = self.facts.rows(split.table.oid), Share(split.table.qualified, grouped)
        return Read(group[-1].columns, size, grouped(WHOLE), f"groups of {split.table}", share)

    def finished(self, node: Stateful, number: int) -> str:
        return weigh(kept_rows(node, self.merged(number)), node.names)

    def to_land(self, operator: Operator, above: tuple[Step, ...] = ()) -> tuple[Flow, tuple[Step, ...]]:
        """The operator's rows after the steps `above` it, and the steps that are left to where they land: those that
        Spark cannot do."""
        flow, pending = self.flow(operator, above)
        if not is_on_spark(flow):
            return flow, pending
        by_spark, left, _ = natively(flow, pending)
        return by_spark, left

    def evaluated(self, operator: Operator) -> Flow:
        """The operator's rows with nothing pending."""
        flow, pending = self.flow(operator)
        return evaluate_steps(flow, pending)

    def flow(self, operator: Operator, above: tuple[Step, ...] = ()) -> tuple[Flow, tuple[Step, ...]]:
        """The rows of the operator after the steps `above` it, and those of the steps on top that were left to do."""
        core, steps = chain(operator)
        steps += above
        columns = steps[-1].columns if steps else core.columns
        if self.in_one and not isinstance(core, Scan | Constant | Stateful):
            return self._query(core, columns, steps), ()
        match core:
            case Scan():
                return self._scan(core, columns, steps), ()
            case Constant():
                relation = run_steps(weigh(render.select(core), core.names), steps)
                return Read(columns, 10.0, relation, "constants"), ()
            case UnionAll(branches=branches):
                found = tuple(self.to_land(rename(branch, core), steps) for branch in branches)
                if not any(left for _, left in found):
                    return concat(columns, tuple(flow for flow, _ in found)), ()
                return concat(core.columns, tuple(self.evaluated(rename(branch, core)) for branch in branches)), steps
            case Stateful():
                number = self.land(core)
                relation = run_steps(self.finished(core, number), steps)
                return Merged(columns, 1000.0, relation, number), ()
            case InnerJoin():
                return self._join(core, columns, steps)
            case LeftJoin() | Match():
                return self._match(core, columns, steps)
        raise TypeError(f"no full evaluation of {type(core).__name__}")

    def _query(self, core: Operator, columns: tuple[Column, ...], steps: tuple[Step, ...]) -> Flow:
        """All of it as one query of PostgreSQL's, over the tables and what the states below are by then."""
        below: dict[Merged, None] = {}

        def leaf(node: Operator) -> str | None:
            top, over = chain(node)
            if not isinstance(top, Stateful):
                return copy_of(node, self.copies)
            number = self.land(top)
            kept = Merged(node.columns, 1000.0, run_steps(self.finished(top, number), over), number)
            below.setdefault(kept)
            return f"SELECT {', '.join(map(quote, node.names))} FROM {input_name(2 + list(below).index(kept))}"

        relation = run_steps(weigh(render.select(core, leaf=leaf), core.names), steps)
        if not below:
            return Read(columns, 1000.0, relation, "a query of PostgreSQL's", place=self._place(core))
        return JointLookup(columns, 1000.0, (_ONE_ROW, *below), relation)  # nothing comes of it without a first row

    def _scan(self, scan: Scan, columns: tuple[Column, ...], steps: tuple[Step, ...]) -> Flow:
        facts, place = self.facts.tables[scan.table.oid], self._place(scan)
        shared = facts.splittable and not place.is_private

        def relation(within: str) -> str:
            rows = _in_range(scan, within) if shared else self._select(scan)
            return run_steps(weigh(rows, scan.names), steps)

        split_by = Share(scan.table.qualified, relation) if shared else None
        return Read(columns, facts.rows, relation(WHOLE), f"table {scan.named(str(scan.table))}", split_by, place)

    def _select(self, operator: Operator, shared: Scan | None = None, within: str = WHOLE) -> str:
        """The operator's rows as one query; `shared` is the table of which a task reads its share."""

        def leaf(node: Operator) -> str | None:
            if shared is not None and node is shared:
                return _in_range(shared, within)
            return copy_of(node, self.copies)

        return render.select(operator, leaf=leaf)

    def _place(self, operator: Operator) -> Place:
        """Where its rows can be read by one query."""
        copied = any(isinstance(node, Scan) and node.table.oid in self.copies for node in walk(operator))
        return Place.READER if copied else Place.SNAPSHOT

    def _join(
        self, node: InnerJoin, columns: tuple[Column, ...], steps: tuple[Step, ...]
    ) -> tuple[Flow, tuple[Step, ...]]:
        keys, by_null = all_keys(node.equalities, node.columns)
        has_state = any(isinstance(below, Stateful) for below in walk(node))
        if not keys and not has_state:
            relation = run_steps(weigh(self._select(node), node.names), steps)
            return Read(columns, 1000.0, relation, "a join evaluated by PostgreSQL", place=self._place(node)), ()
        if node.equalities and not keys and not by_null:
            return self._asked(node, columns, steps), ()  # PostgreSQL can join by them, and Spark cannot
        left, right = self.evaluated(node.left), self.evaluated(node.right)
        joined = HashJoin(node.columns, max(left.rows, right.rows), left, right, keys, by_null)
        return joined, (*residual(node.condition, node.columns, keys, by_null), *steps)

    def _match(
        self, node: LeftJoin | Match, columns: tuple[Column, ...], steps: tuple[Step, ...]
    ) -> tuple[Flow, tuple[Step, ...]]:
        """By PostgreSQL if tasks can share a table of the left side, which costs less than to move both sides. If not,
        one query does it all, or Spark, if it can: with `spare`, or where its tasks are faster together."""
        if self._splits(node):
            return self._asked(node, columns, steps), ()
        scans = (below for below in walk(node) if isinstance(below, Scan))
        if not self.spare and not prefers_tasks(self.facts, scans):
            return self._asked(node, columns, steps, " in one query"), ()
        try:
            pairs = pairing(node.condition, node.equalities, (*node.left.columns, *node.right.columns))
        except NotListedError as why:
            return self._asked(node, columns, steps, f" in one query ({why})"), ()
        made = pairs.match(node, self.evaluated(node.left), self.evaluated(node.right))
        return Native(node.columns, made.rows, made, self._asked(node, node.columns, ())), steps

    def _asked(
        self,
        node: InnerJoin | LeftJoin | Match,
        columns: tuple[Column, ...],
        steps: tuple[Step, ...],
        why: str = "",
    ) -> Flow:
        """Each task lets PostgreSQL join its share of a table that the left side reads; state below is built too."""
        self._land_below(node)
        shared = self._largest(node) if self._splits(node) else None

        def relation(within: str) -> str:
            return run_steps(weigh(self._select(node, shared, within), node.names), steps)

        size = 1000.0 if shared is None else self.facts.rows(shared.table.oid)
        split_by = None if shared is None else Share(shared.table.qualified, relation)
        return Read(columns, size, relation(WHOLE), f"a join evaluated by PostgreSQL{why}", split_by, self._place(node))


def _shareable(operator: Operator) -> list[Scan]:
    """The tables of whose parts the operator's rows are the sum: not those on the right of a left or semi-join."""
    if isinstance(operator, Scan):
        return [operator]
    inputs = (operator.left,) if isinstance(operator, LeftJoin | Match) else operator.inputs
    return [scan for below in inputs for scan in _shareable(below)]


def _in_range(scan: Scan, within: str) -> str:
    """A task's share of a table."""
    return f"{_from(scan, scan.table.qualified)} WHERE {within}"


def copy_of(operator: Operator, copies: Mapping[int, str]) -> str | None:
    """A table's rows, read from the copy that stands for it, if there is one: a leaf of `render.select`."""
    if not isinstance(operator, Scan) or operator.table.oid not in copies:
        return None
    return _from(operator, copies[operator.table.oid])


def _from(scan: Scan, table: str) -> str:
    attributes = [f"{quote(attribute)} AS {quote(name)}" for attribute, name in scan.pairs]
    return f"SELECT {', '.join(attributes)} FROM {scan.named(table)}"


def concat(columns: tuple[Column, ...], flows: tuple[Flow, ...]) -> Flow:
    if len(flows) == 1:
        return flows[0]
    return Concat(columns, sum(flow.rows for flow in flows), flows)
