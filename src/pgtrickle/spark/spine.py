"""A join of many tables, as what one changed table meets on its way up: a *spine* of a delta plan. Pure.

    Δ(A ⋈ B ⋈ C)  =  ΔA ⋈ B ⋈ C  +  A′ ⋈ ΔB ⋈ C  +  A′ ⋈ B′ ⋈ ΔC

Each term is one query: the changed rows travel once, PostgreSQL puts the other tables in the order that is best for
this one, and what comes back is already filtered, projected and grouped. Used by `lower.py` for windows that are small.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from pgtrickle.delta.algebra import After, Before, Plus
from pgtrickle.model import Expr
from pgtrickle.postgres.weighted import Step, both, chain, rename
from pgtrickle.query.expression import conjunction, conjuncts
from pgtrickle.query.operators import Aggregate, Equality, InnerJoin, Operator, TopK, UnionAll, walk


@dataclass(frozen=True, slots=True)
class On:
    """How a delta (left) meets an operand (right)."""

    condition: Expr | None
    equalities: tuple[Equality, ...]


@dataclass(frozen=True, slots=True)
class Meeting:
    """A delta joined with an operand at one end of the window."""

    side: After | Before
    on: On


@dataclass(frozen=True, slots=True)
class Spine:
    """A delta and what is done with it, bottom first."""

    delta: Operator
    parts: tuple[Meeting | Step, ...]


def meeting(node: InnerJoin) -> tuple[Operator, Meeting]:
    """A join of a delta plan, as the delta and what it meets."""
    if isinstance(node.right, After | Before):
        return node.left, Meeting(node.right, On(node.condition, node.equalities))
    if isinstance(node.left, After | Before):
        return node.right, Meeting(node.left, On(node.condition, flipped(node.equalities)))
    raise TypeError("a join of a delta plan has one side that is not a delta")


def spines(plan: Operator, above: tuple[Meeting | Step, ...] = (), whole: Collection[Operator] = ()) -> list[Spine]:
    """The terms of a delta plan: joins, sums, unions and row-wise operators are taken apart, but for those in `whole`,
    which others need too."""
    core, steps = chain(plan)
    parts = (*steps, *above)
    if core in whole:
        return [Spine(core, parts)]
    match core:
        case Plus(terms=terms):
            return [spine for term in terms for spine in spines(term, parts, whole)]
        case UnionAll(branches=branches):
            return [spine for branch in branches for spine in spines(rename(branch, core), parts, whole)]
        case InnerJoin():
            delta, met = meeting(core)
            return spines(delta, (*_apart(met), *parts), whole)
    return [Spine(core, parts)]


def repeated(tree: Operator) -> frozenset[InnerJoin]:
    """The joins that are in the tree more than once, such as those of a WITH query; not the parts of these."""
    often = {node for node, times in Counter(n for n in walk(tree) if isinstance(n, InnerJoin)).items() if times > 1}
    return frozenset(_topmost(tree, often))


def _topmost(operator: Operator, wanted: Collection[Operator]) -> Iterator[InnerJoin]:
    if isinstance(operator, InnerJoin) and operator in wanted:
        yield operator
        return
    for below in operator.inputs:
        yield from _topmost(below, wanted)


def _apart(met: Meeting) -> tuple[Meeting, ...]:
    if not mixes_versions(met.side.operator):
        return (met,)
    first, second = halves(met)
    return (*_apart(first), *_apart(second))


def mixes_versions(operand: Operator) -> bool:
    """Whether the operand joins tables (read after the window) with state (kept from before it)."""
    return isinstance(operand, InnerJoin) and any(isinstance(node, Aggregate | TopK) for node in walk(operand))


def halves(met: Meeting) -> tuple[Meeting, Meeting]:
    """ΔX ⋈ (A ⋈ B) as (ΔX ⋈ A) ⋈ B: each part is read in its own way."""
    operand, version = met.side.operator, type(met.side)
    assert isinstance(operand, InnerJoin)
    near, far, equalities = operand.left, operand.right, operand.equalities
    if any(set(e.right.columns) <= set(far.names) for e in met.on.equalities):
        near, far, equalities = far, near, flipped(equalities)
    keys = tuple(e for e in met.on.equalities if set(e.right.columns) <= set(near.names))
    condition = both(met.on.condition, operand.condition)
    return (
        Meeting(version(near.columns, near), On(_about(met.on.condition, keys), keys)),
        Meeting(version(far.columns, far), On(condition, equalities)),
    )


def flipped(equalities: tuple[Equality, ...]) -> tuple[Equality, ...]:
    return tuple(Equality(equality.right, equality.left) for equality in equalities)


def _about(condition: Expr | None, keys: tuple[Equality, ...]) -> Expr | None:
    """The part of a condition that reads nothing but what `keys` compare: these, and what is said of NULLs in them."""
    read = {name for key in keys for side in (key.left, key.right) for name in side.columns}
    parts = () if condition is None else conjuncts(condition)
    return conjunction(part for part in parts if part.columns and read.issuperset(part.columns))
