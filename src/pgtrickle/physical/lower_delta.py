"""From a delta plan to the physical plan: which rows are read, looked up, joined and landed. Pure.

Filters and projections are written into the query that reads the rows below them, so PostgreSQL evaluates them.
A delta meets the other side of a join by lookup (PostgreSQL joins its rows, in batches) or by a scan that Spark
joins, whichever `facts` say is cheaper. A side that keeps state is read from its state table, which is the side
before the window; any other side is read at the snapshot, which is after it. Where a rule asks for the other
version, the difference is the join with that side's own delta. Called by `refresh/plan.py`.

Of stream tables as sources the window may reach beyond the snapshot, which then divides it in an early and a late part
(`window_parts.py`): a table as it is at the snapshot is after the one and before the other. An aggregate's delta cannot
be divided, since its state is merged once: where that would be needed, the plan is `Inseparable`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from pgtrickle.delta.algebra import (
    After,
    Before,
    Changes,
    Plus,
    Rematch,
    StatefulDelta,
    Turned,
    after,
    before,
    is_empty,
    keeps_state,
)
from pgtrickle.delta.differentiate import differentiate
from pgtrickle.model import BIGINT, Column, quote
from pgtrickle.physical import recursion, spark_joins
from pgtrickle.physical.early_projection import cancels, without_unread
from pgtrickle.physical.estimate import delta_rows
from pgtrickle.physical.flow import (
    WHOLE,
    Choice,
    Flow,
    HashJoin,
    JointLookup,
    KeepFirst,
    KeepRecursion,
    LandAggregate,
    LandResult,
    LandWindow,
    Lookup,
    Merged,
    Native,
    Physical,
    Place,
    Read,
    ReadResult,
    Share,
    Stage,
    from_input,
)
from pgtrickle.physical.join_path import (
    JoinPath,
    JoinStep,
    On,
    flipped,
    halves,
    join_paths,
    join_step,
    mixes_versions,
    opened,
    repeated,
)
from pgtrickle.physical.lookup_order import AT_ONCE, join_from_keys
from pgtrickle.physical.lower_full import FullLowering, concat, numbered
from pgtrickle.physical.operands import Operands, at_hand, held, scans, table_names, tables, weighed
from pgtrickle.physical.spark_joins import (
    Correction,
    Pairing,
    all_keys,
    evaluate_steps,
    null_safe,
    pairing,
    residual,
    spark_keys,
)
from pgtrickle.physical.spark_sql import NotListedError
from pgtrickle.physical.table_facts import SMALL_CHANGES, TableFactsMap, read_cost
from pgtrickle.physical.window_parts import Changed, Inseparable, WindowPart, WindowPoint, end_of, version_gap
from pgtrickle.postgres import matching
from pgtrickle.postgres.turned import rows_that_turn, turned
from pgtrickle.postgres.weighted import GroupStep, Step, chain, join, join_each, negated, rename, run_steps, weigh
from pgtrickle.postgres.wire import WEIGHT
from pgtrickle.query import render
from pgtrickle.query.clock import values_in
from pgtrickle.query.continued_windows import extent
from pgtrickle.query.operators import (
    Aggregate,
    Constant,
    Equality,
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

SHARED_ROWS = 20_000
"""Up to so many rows of a delta travel for the sake of several uses."""
LARGE_WINDOW = 2 * SMALL_CHANGES
"""Weighted rows (two an update) up to which one query takes a delta through all its joins. Above, tasks join table by
table, each its share of the buffer."""


@dataclass(frozen=True, slots=True)
class Names:
    """Where things are in PostgreSQL: a source's window, among those rows of its buffer that meet a condition; that
    buffer, and the place where it is read; an aggregate's state, its stage's output."""

    changes: Callable[[Scan, WindowPart, str], str]
    buffer: Callable[[Scan], str]
    place: Callable[[Scan], Place]
    state: Callable[[int], str]
    merged: Callable[[int], str]


def lower_delta(tree: Operator, changed: Changed, facts: TableFactsMap, names: Names) -> Physical:
    """The physical plan of a differential refresh in which the tables `changed` have changes."""
    return _DeltaLowering(tree, changed, facts, names).physical()


@dataclass(frozen=True, slots=True)
class _Correction:
    """Rows to add to a version at hand (sign 1), or to take from it (sign −1); `steps` are still to be done with them,
    where others need them as they are."""

    flow: Flow
    sign: int
    steps: tuple[Step, ...] = ()

    def as_input(self, position: int) -> str:
        """The rows, where their flow is that input."""
        return run_steps(from_input(position), self.steps)


@dataclass(slots=True)
class _Grown:
    """A query that grows with each operand that a delta meets: of so many tables, and with these rows sent to it."""

    relation: str
    columns: tuple[Column, ...]
    sent: list[Flow]
    tables: int = 1

    def is_large_with(self, operand: Operator) -> bool:
        return _is_large(self.tables, operand)


@dataclass(slots=True)
class _DeltaLowering:
    tree: Operator
    changed: Changed
    facts: TableFactsMap
    names: Names
    stages: list[Stage] = field(default_factory=list)
    landed: set[int] = field(default_factory=set)
    operands: Operands = field(init=False)
    repeated: frozenset[Operator] = field(init=False)
    shared: dict[WindowPart, frozenset[Operator]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.operands = Operands(self.tree, self.facts, self.names.state)
        self.repeated = repeated(self.tree)

    def physical(self) -> Physical:
        plan = differentiate(self.tree, self.changed.within(WindowPart.WHOLE))
        core, steps = chain(plan)
        if isinstance(core, StatefulDelta):
            number = self._land(core)
            self.stages.append(ReadResult(run_steps(self.names.merged(number), steps), number))
        else:
            self.stages.append(LandResult(self._flow(plan, ())))
        return Physical(tuple(self.stages), tuple(dict.fromkeys(self.operands.choices)))

    def _land(self, node: StatefulDelta) -> int:
        """A stage that merges the delta into the node's state, unless there is one."""
        number = numbered(self.tree)[node.kept]
        if number not in self.landed:
            self.landed.add(number)
            match node.kept:
                case Aggregate() as aggregate:
                    flow = self._flow(node.delta, (GroupStep.of(aggregate),))
                    self.stages.append(LandAggregate(number, aggregate, flow))
                case Window() as window:
                    self.stages.append(LandWindow(number, window, self._flow(node.delta, ()), (), extent(window)))
                case TopK() as top:
                    for below in _stateful_deltas(node.delta):
                        self._land(below)
                    self.stages.append(KeepFirst(number, top))
                case Recursive() as recursive:
                    self._land_recursion(number, recursive)
                case _:
                    raise TypeError(f"no state of {type(node.kept).__name__}")
        return number

    def _land_recursion(self, number: int, node: Recursive) -> None:
        changed = self.changed.within(WindowPart.WHOLE)
        why = recursion.obstacle(node, changed)
        self.stages.append(KeepRecursion(number, node, changed if why is None else None, why))
        self.operands.choices.append(
            Choice(tuple(dict.fromkeys(tables(node))), "recursion over", recursion.method(node, changed))
        )

    def _flow(self, plan: Operator, above: tuple[Step, ...], part: WindowPart = WindowPart.WHOLE) -> Flow:
        """The rows of a delta plan of that part of the window, after the steps `above` it."""
        shared = self._shared(part)
        core, steps = chain(plan, shared)
        steps += above
        if core in shared and not steps:
            core, steps = chain(core, shared - {core})
        if core in shared and steps:
            return evaluate_steps(self._flow(core, (), part), steps)
        columns = steps[-1].columns if steps else core.columns
        match core:
            case Changes(scan=scan):
                rows = 2.0 * self.facts.changes.get(scan.table.oid, 0)

                def changes(within: str) -> str:
                    return run_steps(self.names.changes(scan, part, within), steps)

                share, place = Share(self.names.buffer(scan), changes), self.names.place(scan)
                return Read(columns, rows, changes(WHOLE), f"changes of {scan.table}", share, place)
            case Plus(terms=terms):
                return concat(columns, tuple(self._flow(term, steps, part) for term in terms))
            case UnionAll(branches=branches):
                return concat(columns, tuple(self._flow(rename(branch, core), steps, part) for branch in branches))
            case StatefulDelta():
                return self._merged(core, steps, part)
            case InnerJoin():
                return self._join(core, steps, part)
            case LeftJoin() | Match():
                return self._probe(core, steps, part)
            case Rematch():
                return self._rematch(core, steps, part)
            case Turned():
                return self._turned(core, steps, part)
        raise TypeError(f"not a delta plan: {type(core).__name__}")

    def _merged(self, node: StatefulDelta, steps: tuple[Step, ...], part: WindowPart) -> Flow:
        """What the stage of a node with state left: its delta of the whole window, and of no less."""
        kept = node.kept
        reads = (*(table.oid for table in tables(kept)), *(value.number for value in values_in(kept)))
        if self.changed.divides(reads, part):
            raise Inseparable
        number = self._land(node)
        columns = steps[-1].columns if steps else node.columns
        relation = run_steps(self.names.merged(number), steps)
        rows = 2.0 if isinstance(kept, Aggregate) and not kept.keys else 1000.0  # −old +new
        return Merged(columns, rows, relation, number)

    def _join(self, node: InnerJoin, steps: tuple[Step, ...], part: WindowPart) -> Flow:
        """Small windows: a query for each term. Large ones: join by join, so that tasks share the work."""
        if 2.0 * sum(self.facts.changes.values()) <= LARGE_WINDOW:
            terms = tuple(self._join_path(term, part) for term in join_paths(node, steps, self._shared(part) - {node}))
            return concat(terms[0].columns, terms)
        delta, met = join_step(node)
        return self._against(self._flow(delta, (), part), met, steps, part)

    def _shared(self, part: WindowPart) -> frozenset[Operator]:
        """The deltas that the plan has more than once, each to be asked for once; but for large ones, of which
        PostgreSQL had better make for each use what this needs."""
        if part not in self.shared:
            deltas = (differentiate(node, self.changed.within(part)) for node in self.repeated)
            small = (d for d in deltas if not is_empty(d) and delta_rows(d, self.facts) <= SHARED_ROWS)
            self.shared[part] = frozenset(small)
        return self.shared[part]

    def _join_path(self, path: JoinPath, part: WindowPart) -> Flow:
        """A delta, all it meets, and the steps between and above, in one query."""
        flow = self._flow(path.delta, (), part)
        grown = _Grown(from_input(1), flow.columns, [flow])
        to_do = list(path.parts)
        while to_do:
            met = to_do.pop(0)
            if not isinstance(met, JoinStep):
                grown.relation, grown.columns = run_steps(grown.relation, (met,)), met.columns
            elif apart := self._opened(met, grown, part):
                to_do[:0] = apart
            else:
                self._meet(met, grown, part)
        return JointLookup(grown.columns, flow.rows, tuple(grown.sent), grown.relation, cancels(path))

    def _opened(self, met: JoinStep, grown: _Grown, part: WindowPart) -> Sequence[JoinStep | Step]:
        """A join that is met as it was at another time than what is at hand: side by side, if it is of many tables."""
        operand = met.side.operator
        if not grown.is_large_with(operand) or self._between(operand, _wanted(met.side, part)) is None:
            return ()
        return opened(met, grown.columns)

    def _meet(self, met: JoinStep, grown: _Grown, part: WindowPart) -> None:
        """Joins what has grown with an operand."""
        operand, flow, on = met.side.operator, grown.sent[0], met.on
        leaf = self.operands.leaf(operand, flow.rows, on.equalities)
        self.operands.choose_lookup(operand, flow.rows, on.equalities)
        own = self._to(met.side, part)
        names = [column.name for column in grown.columns]
        if own is not None:
            grown.sent.append(own.flow)
            others = (weighed(operand, leaf), _sent_last(grown.sent, own, operand))
            if self.operands.finds_by_key(operand, flow.rows, on.equalities):
                grown.relation = join_each(grown.relation, names, others, operand.names, on.condition)
            else:
                grown.relation = join(grown.relation, names, " UNION ALL ".join(others), operand.names, on.condition)
        elif grown.is_large_with(operand):
            rows = Constant((*grown.columns, Column(WEIGHT, BIGINT)), f"({grown.relation})")
            found = render.select(join_from_keys(rows, at_hand(operand), on), leaf=leaf)
            outputs = ", ".join(map(quote, (*names, *operand.names, WEIGHT)))
            grown.relation = f"SELECT {outputs} FROM ({found}) AS found"
        else:
            grown.relation = join(grown.relation, names, weighed(operand, leaf), operand.names, on.condition)
        grown.columns += operand.columns
        grown.tables += len(scans(operand))

    def _against(self, flow: Flow, met: JoinStep, steps: tuple[Step, ...], part: WindowPart) -> Flow:
        """ΔX ⋈ side: the version at hand, corrected by ΔX ⋈ Δside where the rule asks for another one."""
        operand = met.side.operator
        is_state = keeps_state(operand)
        if not is_state and mixes_versions(operand):
            first, second = halves(met)
            return self._against(self._against(flow, first, (), part), second, steps, part)
        joined = self._state(flow, operand, met.on, steps) if is_state else self._tables(flow, operand, met.on, steps)
        own = self._to(met.side, part)
        if own is None:
            return joined
        return concat(joined.columns, (joined, self._pair(flow, own, operand, met.on, steps)))

    def _probe(self, node: LeftJoin | Match, steps: tuple[Step, ...], part: WindowPart) -> Flow:
        """The rows of a delta, each with what the other side has for it."""
        side = node.right
        if not isinstance(side, After | Before):
            raise TypeError("the right side of a join of a delta is no delta")
        node = without_unread(node, steps)
        flow, operand = self._flow(node.left, (), part), side.operator
        own, pairs = self._to(side, part), self._pairs(node, flow.rows, (operand, node.equalities))
        if pairs is None:
            return self._probe_asked(node, operand, flow, own, steps)
        made = spark_joins.probe(node, pairs, flow, self._scanned(operand), _signed(own))
        return evaluate_steps(Native(node.columns, flow.rows, made, self._probe_asked(node, operand, flow, own)), steps)

    def _probe_asked(
        self,
        node: LeftJoin | Match,
        operand: Operator,
        flow: Flow,
        own: _Correction | None,
        steps: tuple[Step, ...] = (),
    ) -> Flow:
        right = weighed(operand, self.operands.leaf(operand, flow.rows, node.equalities))
        columns = steps[-1].columns if steps else node.columns
        if own is None:
            joined = run_steps(matching.probe(node, from_input(1), right), steps)
            return Lookup(columns, flow.rows, flow, joined, table_names(operand))
        joined = run_steps(matching.probe(node, from_input(1), right, own.as_input(2), own.sign), steps)
        apart = divided_by(node, [(flow, True), (own.flow, False)])
        return JointLookup(columns, flow.rows, (flow, own.flow), joined, apart=apart)

    def _rematch(self, node: Rematch, steps: tuple[Step, ...], part: WindowPart) -> Flow:
        """What a delta of the right side changes for the rows of the left side that it matches."""
        flow, join = self._flow(node.delta, (), part), node.join
        left, right = (node.left.operator, flipped(join.equalities)), (join.right, join.equalities)
        pairs = self._pairs(join, flow.rows, left, right)
        if pairs is None:
            return self._rematch_asked(node, flow, steps, part)
        versions = (_signed(self._to(after(join.right), part)), _signed(self._to(before(join.right), part)))
        scanned = (self._scanned(left[0]), _signed(self._to(node.left, part)))
        made = spark_joins.rematch(join, pairs, scanned, flow, self._scanned(join.right), versions)
        return evaluate_steps(Native(node.columns, flow.rows, made, self._rematch_asked(node, flow, (), part)), steps)

    def _rematch_asked(self, node: Rematch, flow: Flow, steps: tuple[Step, ...], part: WindowPart) -> Flow:
        sent = [flow]
        keys = matching.usable_keys(node.join)
        lefts = [self._candidates(node, flow, keys)]
        own = self._to(node.left, part)
        if own is not None:
            sent.append(own.flow)
            lefts.append(matching.candidates(_sent_last(sent, own, node.left.operator), keys))
        right = node.join.right
        leaf = self.operands.leaf(right, flow.rows, node.join.equalities)
        lacking = self._lacking(right, part, sent)
        joined = matching.rematch(node.join, lefts, weighed(right, leaf), from_input(1), lacking)
        columns = steps[-1].columns if steps else node.columns
        relation = run_steps(joined, steps)
        sides = [(each, own is not None and place == 1) for place, each in enumerate(sent)]
        apart = divided_by(node.join, sides) if keys else ()
        if len(sent) > 1:
            return JointLookup(columns, flow.rows, tuple(sent), relation, apart=apart)
        return Lookup(
            columns, flow.rows, flow, relation, table_names(node.join), whole=True, apart=apart[0] if apart else ()
        )

    def _turned(self, node: Turned, steps: tuple[Step, ...], part: WindowPart) -> Flow:
        """The rows that the clock changes, found by what they are compared with, of the version that is asked for."""
        operand = node.rows.operator
        among = rows_that_turn(node.operator, self.changed.unknown)
        rows = weighed(operand, self.operands.leaf(operand, 1.0, ()))
        self.operands.choose_turned(operand, among)
        columns = steps[-1].columns if steps else node.columns
        relation = run_steps(turned(node.operator, rows, among), steps)
        found = Read(
            columns, delta_rows(node, self.facts), relation, f"what the clock changes of {table_names(operand)}"
        )
        own = self._to(node.rows, part)
        if own is None:
            return found
        changes = own.as_input(1) if own.sign > 0 else negated(own.as_input(1), operand.names)
        changed = run_steps(turned(node.operator, changes, among), steps)
        return concat(columns, (found, Lookup(columns, own.flow.rows, own.flow, changed, "the clock")))

    def _pairs(
        self, join: LeftJoin | Match, rows: float, *operands: tuple[Operator, tuple[Equality, ...]]
    ) -> Pairing | None:
        """How Spark matches so many rows of a delta with operands that it scans, found by these keys: if they are many,
        and it can. Else PostgreSQL looks them up."""
        is_large = 2.0 * sum(self.facts.changes.values()) > LARGE_WINDOW
        costs = [read_cost(self.facts, rows, scans(operand), keys) for operand, keys in operands]
        stateful = (isinstance(node, Stateful) for operand, _ in operands for node in walk(operand))
        why = None
        if is_large and not any(cost.prefers_lookup for cost in costs) and not any(stateful):
            try:
                pairs = pairing(join.condition, join.equalities, (*join.left.columns, *join.right.columns))
            except NotListedError as found:
                why = str(found)
            else:
                for (operand, _), cost in zip(operands, costs, strict=True):
                    self.operands.choose(operand, "scan", cost, rows)
                return pairs
        (operand, keys), *_ = operands
        self.operands.choose_lookup(operand, rows, keys, why)
        return None

    def _scanned(self, operand: Operator) -> Flow:
        """All rows of an operand of tables, for Spark to join."""
        return FullLowering(self.tree, self.facts, self.names.merged).evaluated(operand)

    def _candidates(self, node: Rematch, flow: Flow, keys: Sequence[matching.MatchKey]) -> str:
        """The left side's rows at hand, or those that have a key of the delta."""
        left, keys_of_left = node.left.operator, flipped(node.join.equalities)
        leaf = self.operands.leaf(left, flow.rows, keys_of_left)
        if not keys or not _is_large(1, left):
            return matching.candidates(weighed(left, leaf), keys)
        asked, condition, equalities = matching.asked(node.join, keys)
        found = render.select(join_from_keys(asked, at_hand(left), On(condition, equalities)), leaf=leaf)
        return f"({weigh(found, left.names)}) AS l"

    def _lacking(self, right: Operator, part: WindowPart, sent: list[Flow]) -> str | None:
        """What the right side at hand lacks to be as after that part: nothing, its whole delta, or what is sent too."""
        if self._between(right, end_of(part, after=True)) is None:
            return None
        if self._between(right, end_of(part, after=False)) is None:
            return matching.OWN
        own = self._to(after(right), part)
        assert own is not None
        sent.append(own.flow)
        return _sent_last(sent, own, right)

    def _to(self, side: After | Before, part: WindowPart) -> _Correction | None:
        """What makes the version at hand the one that a plan of that part asks for."""
        found = self._between(side.operator, _wanted(side, part))
        if found is None:
            return None
        plan, between, sign = found
        shared = self._shared(between)
        core, steps = chain(plan, shared)
        if core in shared:
            return _Correction(self._flow(core, (), between), sign, steps)
        return _Correction(self._flow(plan, (), between), sign)

    def _between(self, operand: Operator, wanted: WindowPoint) -> tuple[Operator, WindowPart, int] | None:
        """The delta plan from the version at hand to another, its part of the window, and its sign; None if ∅."""
        between = version_gap(held(operand), wanted)
        if between is None:
            return None
        plan = differentiate(operand, self.changed.within(between.part))
        return None if is_empty(plan) else (plan, between.part, between.sign)

    def _state(self, flow: Flow, operand: Operator, on: On, steps: tuple[Step, ...]) -> Flow:
        """The delta joined with what an aggregate was before the window."""
        leaf = self.operands.leaf(operand, flow.rows, on.equalities)
        self.operands.choose_lookup(operand, flow.rows, on.equalities)
        return self._lookup(flow, weighed(operand, leaf), operand, on, steps, rows_per_key=1.0)

    def _tables(self, flow: Flow, operand: Operator, on: On, steps: tuple[Step, ...]) -> Flow:
        """The delta joined with an operand at the snapshot, by lookup or scan."""
        cost = read_cost(self.facts, flow.rows, scans(operand), on.equalities)
        both = flow.columns + operand.columns
        keys, by_null = all_keys(on.equalities, both)
        # groups are PostgreSQL's to compute: a scan is of tables
        is_scannable = (keys or by_null) and not any(isinstance(node, Stateful) for node in walk(operand))
        if is_scannable and not cost.prefers_lookup:
            self.operands.choose(operand, "scan", cost, flow.rows)
            joined = HashJoin(both, flow.rows, flow, self._scanned(operand), keys, by_null)
            return evaluate_steps(joined, (*residual(on.condition, both, keys, by_null), *steps))
        self.operands.choose(operand, "lookup", cost, flow.rows)
        relation = weigh(render.select(operand), operand.names)
        return self._lookup(flow, relation, operand, on, steps, cost.rows_per_key)

    def _lookup(
        self, flow: Flow, relation: str, operand: Operator, on: On, steps: tuple[Step, ...], rows_per_key: float
    ) -> Flow:
        """The delta's rows travel to the operand; from a large window, whose tasks read the buffer, they need not."""
        names = [column.name for column in flow.columns]
        columns = steps[-1].columns if steps else flow.columns + operand.columns
        what = table_names(operand)
        rows = flow.rows * max(rows_per_key, 1.0)
        if isinstance(flow, Read) and flow.rows > LARGE_WINDOW and flow.place is Place.SNAPSHOT:

            def met(delta: str) -> str:
                return run_steps(join(delta, names, relation, operand.names, on.condition), steps)

            share = None if flow.split_by is None else flow.split_by.then(met)
            return Read(columns, rows, met(flow.relation), f"{flow.what}, joined with {what}", share)
        joined = join(from_input(1), names, relation, operand.names, on.condition)
        return Lookup(columns, rows, flow, run_steps(joined, steps), what)

    def _pair(self, left: Flow, own: _Correction, operand: Operator, on: On, steps: tuple[Step, ...]) -> Flow:
        """ΔX ⋈ Δside: by Spark, where it compares the keys as PostgreSQL does, so that tasks share the work."""
        both = left.columns + operand.columns
        keys, by_null = all_keys(on.equalities, both)
        if keys or by_null:
            joined = HashJoin(both, left.rows, left, evaluate_steps(own.flow, own.steps), keys, by_null, own.sign)
            return evaluate_steps(joined, (*residual(on.condition, both, keys, by_null), *steps))
        names = [column.name for column in left.columns]
        columns = steps[-1].columns if steps else both
        relation = join(from_input(1), names, own.as_input(2), operand.names, on.condition, own.sign)
        return JointLookup(columns, left.rows, (left, own.flow), run_steps(relation, steps))


def _signed(own: _Correction | None) -> Correction:
    """The same for Spark."""
    return None if own is None else (own.sign, evaluate_steps(own.flow, own.steps))


def divided_by(join: LeftJoin | Match, sides: Sequence[tuple[Flow, bool]]) -> tuple[tuple[str, ...], ...]:
    """The columns of flows, each of the left side or not, in which rows that match are alike; () if there are none."""
    equalities = (*join.equalities, *null_safe(join.equalities))
    keys = spark_keys(equalities, (*join.left.columns, *join.right.columns))
    found = tuple(tuple(pair[0 if is_left else 1] for pair in keys) for _, is_left in sides)
    known = ({column.name for column in flow.columns} for flow, _ in sides)
    return found if keys and all(names.issuperset(wanted) for names, wanted in zip(known, found, strict=True)) else ()


def _stateful_deltas(plan: Operator) -> Iterator[StatefulDelta]:
    """The deltas that have stages; what is in a recursion has none."""
    if isinstance(plan, StatefulDelta):
        yield plan
    for below in () if isinstance(plan, StatefulDelta) and isinstance(plan.kept, Recursive) else plan.inputs:
        yield from _stateful_deltas(below)


def _is_large(tables: int, operand: Operator) -> bool:
    """Whether so many tables and the operand's are more than PostgreSQL puts in order."""
    return tables + len(scans(operand)) > AT_ONCE


def _wanted(side: After | Before, part: WindowPart) -> WindowPoint:
    """Of when a plan of that part asks for a side."""
    return end_of(part, after=isinstance(side, After))


def _sent_last(sent: list[Flow], own: _Correction, operand: Operator) -> str:
    """The rows of the delta that was sent last, to be added to the operand's or taken away: in its order of columns,
    which that of a delta that begins on the right of a join is not."""
    columns = [*map(quote, operand.names), f"{own.sign} * {WEIGHT} AS {WEIGHT}"]
    return f"SELECT {', '.join(columns)} FROM ({own.as_input(len(sent))}) AS own"
