"""A join of many tables, as what one changed table meets on its way up: a *path* of a delta plan. Pure.

    Δ(A ⋈ B ⋈ C)  =  ΔA ⋈ B ⋈ C  +  A′ ⋈ ΔB ⋈ C  +  A′ ⋈ B′ ⋈ ΔC

Each term is one query: the changed rows travel once, PostgreSQL puts the other tables in the order that is best for
this one, and what comes back is already filtered, projected and grouped. Used by `lower_delta.py` for windows that are
small.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from pgtrickle.delta.algebra import After, Before, Plus, keeps_state
from pgtrickle.model import Column, Expr
from pgtrickle.postgres.weighted import GroupStep, Step, both, chain, rename
from pgtrickle.query.expression import conjunction, conjuncts, reference, substitute
from pgtrickle.query.operators import (
    Equality,
    Filter,
    InnerJoin,
    Joined,
    Operator,
    Project,
    Stateful,
    UnionAll,
    Use,
    walk,
)


@dataclass(frozen=True, slots=True)
class On:
    """How a delta (left) meets an operand (right)."""

    condition: Expr | None
    equalities: tuple[Equality, ...]

    def below(self, meaning: Mapping[str, Expr]) -> On:
        """The same, of what the operand's columns are."""
        condition = None if self.condition is None else substitute(self.condition, meaning)
        return On(condition, tuple(Equality(e.left, substitute(e.right, meaning)) for e in self.equalities))


@dataclass(frozen=True, slots=True)
class JoinStep:
    """A delta joined with an operand at one end of the window."""

    side: After | Before
    on: On


@dataclass(frozen=True, slots=True)
class JoinPath:
    """A delta and what is done with it, bottom first."""

    delta: Operator
    parts: tuple[JoinStep | Step, ...]


def join_step(node: InnerJoin) -> tuple[Operator, JoinStep]:
    """A join of a delta plan, as the delta and what it meets."""
    if isinstance(node.right, After | Before):
        return node.left, JoinStep(node.right, On(node.condition, node.equalities))
    if isinstance(node.left, After | Before):
        return node.right, JoinStep(node.left, On(node.condition, flipped(node.equalities)))
    raise TypeError("a join of a delta plan has one side that is not a delta")


def join_paths(
    plan: Operator, above: tuple[JoinStep | Step, ...] = (), whole: Collection[Operator] = ()
) -> list[JoinPath]:
    """The terms of a delta plan: joins, sums, unions and row-wise operators are taken apart, but for those in `whole`,
    which others need too."""
    core, steps = chain(plan, whole)
    parts = (*steps, *above)
    if core in whole:
        return [JoinPath(core, parts)]
    match core:
        case Plus(terms=terms):
            return [path for term in terms for path in join_paths(term, parts, whole)]
        case UnionAll(branches=branches):
            return [path for branch in branches for path in join_paths(rename(branch, core), parts, whole)]
        case InnerJoin():
            delta, met = join_step(core)
            return [path for apart in _terms(core, met) for path in join_paths(delta, (*apart, *parts), whole)]
    return [JoinPath(core, parts)]


def repeated(tree: Operator) -> frozenset[Operator]:
    """What has several uses in the tree and joins: once for those that are so only as parts of another such one."""
    uses = Counter(node.input for node in walk(tree) if isinstance(node, Use))
    topmost = set(_topmost(tree, {node for node, times in uses.items() if times > 1}))
    return frozenset(topmost).union(*map(repeated, topmost))


def _joins(operator: Operator) -> bool:
    """Whether it joins, above all that keeps state: the delta of that stands in a table."""
    return isinstance(operator, Joined) or (not isinstance(operator, Stateful) and any(map(_joins, operator.inputs)))


def _topmost(operator: Operator, wanted: Collection[Operator]) -> Iterator[Operator]:
    if operator in wanted:
        if _joins(operator):
            yield operator
        return
    for below in operator.inputs:
        yield from _topmost(below, wanted)


def _terms(join: InnerJoin, met: JoinStep) -> list[tuple[JoinStep | Step, ...]]:
    """What a delta meets, where that mixes tables with state: a union branch by branch, a join side by side, and the
    projections and filters on top of it done after."""
    if keeps_state(met.side.operator) or not any(isinstance(n, Stateful) for n in walk(met.side.operator)):
        return [(met,)]
    core, steps = chain(met.side.operator)
    if isinstance(core, UnionAll):
        branches = (_redone(rename(branch, core), steps) for branch in core.branches)
        return [term for branch in branches for term in _terms(join, _meets(met, branch))]
    if not isinstance(core, InnerJoin) or not all(isinstance(step, Project | Filter) for step in steps):
        return [(met,)]
    if not steps:
        return [_apart(met)]
    meaning, conditions = _meaning(core, steps)
    below = _meets_below(met, core, meaning, conditions)
    return [(*_apart(below), _projected(join.columns, core, meaning))]


def opened(met: JoinStep, columns: tuple[Column, ...]) -> tuple[JoinStep | Step, ...]:
    """A join that a delta of these columns meets by a key, as its sides, one after the other; () if it meets none."""
    core, steps = chain(met.side.operator)
    if not isinstance(core, InnerJoin) or not all(isinstance(step, Project | Filter) for step in steps):
        return ()
    meaning, conditions = _meaning(core, steps)
    below = _meets_below(met, core, meaning, conditions)
    if not any(keys_of(side, below.on).equalities for side in (core.left, core.right)):
        return ()
    return (*halves(below), _projected((*columns, *met.side.columns), core, meaning))


def _redone(operator: Operator, steps: tuple[Step, ...]) -> Operator:
    """The steps on top of another operator of the same columns."""
    for step in steps:
        assert not isinstance(step, GroupStep), "groups are above all joins of a delta"
        operator = step.with_inputs((operator,))
    return operator


def _meaning(core: Operator, steps: tuple[Step, ...]) -> tuple[dict[str, Expr], list[Expr]]:
    """What the columns on top of projections and filters are over `core`, and the conditions that rows must meet."""
    meaning = {name: reference(name) for name in core.names}
    conditions: list[Expr] = []
    for step in steps:
        if isinstance(step, Project):
            parts = zip(step.names, step.expressions, strict=True)
            meaning = {name: substitute(expression, meaning) for name, expression in parts}
        elif isinstance(step, Filter):
            conditions.append(substitute(step.condition, meaning))
    return meaning, conditions


def _meets(met: JoinStep, operand: Operator) -> JoinStep:
    return JoinStep(type(met.side)(operand.columns, operand), met.on)


def _meets_below(met: JoinStep, core: Operator, meaning: Mapping[str, Expr], conditions: list[Expr]) -> JoinStep:
    """ΔX ⋈ π(σ(R)) as σ(ΔX ⋈ R): the condition says of π's columns what they are."""
    on = met.on.below(meaning)
    return _meets(JoinStep(met.side, On(both(conjunction(conditions), on.condition), on.equalities)), core)


def _projected(columns: tuple[Column, ...], core: Operator, meaning: Mapping[str, Expr]) -> Project:
    """Of what was met the columns on top, beside the delta's."""
    delta = [column for column in columns if column.name not in meaning]
    expressions = tuple(meaning.get(column.name, reference(column)) for column in columns)
    return Project(columns, Operator((*delta, *core.columns)), expressions)


def _apart(met: JoinStep) -> tuple[JoinStep, ...]:
    if not mixes_versions(met.side.operator):
        return (met,)
    first, second = halves(met)
    return (*_apart(first), *_apart(second))


def mixes_versions(operand: Operator) -> bool:
    """Whether the operand joins tables (read after the window) with state (kept from before it)."""
    return isinstance(operand, InnerJoin) and any(isinstance(node, Stateful) for node in walk(operand))


def halves(met: JoinStep) -> tuple[JoinStep, JoinStep]:
    """ΔX ⋈ (A ⋈ B) as (ΔX ⋈ A) ⋈ B: each part is read in its own way."""
    operand, version = met.side.operator, type(met.side)
    assert isinstance(operand, InnerJoin)
    near, far, equalities = operand.left, operand.right, operand.equalities
    if keys_of(far, met.on).equalities:
        near, far, equalities = far, near, flipped(equalities)
    first, also = keys_of(near, met.on), keys_of(far, met.on)
    then = On(both(operand.condition, left_over(met.on, first)), equalities + also.equalities)
    return JoinStep(version(near.columns, near), first), JoinStep(version(far.columns, far), then)


def keys_of(side: Operator, on: On) -> On:
    """The part of a condition that finds the rows of one side of what is met."""
    names = set(side.names)
    keys = tuple(key for key in on.equalities if key.right.columns and names.issuperset(key.right.columns))
    return On(_about(on.condition, keys), keys)


def left_over(on: On, done: On) -> Expr | None:
    """What a condition says beside the part that is done."""
    known = () if done.condition is None else conjuncts(done.condition)
    parts = () if on.condition is None else conjuncts(on.condition)
    return conjunction(part for part in parts if part not in known)


def flipped(equalities: tuple[Equality, ...]) -> tuple[Equality, ...]:
    return tuple(Equality(equality.right, equality.left) for equality in equalities)


def _about(condition: Expr | None, keys: tuple[Equality, ...]) -> Expr | None:
    """The part of a condition that reads nothing but what `keys` compare: these, and what is said of NULLs in them."""
    read = {name for key in keys for side in (key.left, key.right) for name in side.columns}
    parts = () if condition is None else conjuncts(condition)
    return conjunction(part for part in parts if part.columns and read.issuperset(part.columns))
