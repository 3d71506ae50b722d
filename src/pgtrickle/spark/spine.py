"""A join of many tables, as what one changed table meets on its way up: a *spine* of a delta plan. Pure.

    Δ(A ⋈ B ⋈ C)  =  ΔA ⋈ B ⋈ C  +  A′ ⋈ ΔB ⋈ C  +  A′ ⋈ B′ ⋈ ΔC

Each term is one query: the changed rows travel once, PostgreSQL puts the other tables in the order that is best for
this one, and what comes back is already filtered, projected and grouped. Used by `lower.py` for windows that are small.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from pgtrickle.delta.algebra import After, Before, Plus, keeps_state
from pgtrickle.model import Column, Expr
from pgtrickle.postgres.weighted import Step, both, chain, rename
from pgtrickle.query.expression import conjunction, conjuncts, reference, referenced, substitute
from pgtrickle.query.operators import (
    Aggregate,
    Equality,
    InnerJoin,
    LeftJoin,
    Match,
    Operator,
    Project,
    TopK,
    UnionAll,
    walk,
)


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
            return [spine for apart in _terms(core, met) for spine in spines(delta, (*apart, *parts), whole)]
    return [Spine(core, parts)]


Shared = InnerJoin | LeftJoin | Match
"""What is shared if it is in a tree more than once: its delta is asked of PostgreSQL."""


def repeated(tree: Operator) -> frozenset[Shared]:
    """The joins that are in the tree more than once, such as those of a WITH query; not the parts of these."""
    often = {node for node, times in Counter(n for n in walk(tree) if isinstance(n, Shared)).items() if times > 1}
    return frozenset(_topmost(tree, often))


def _topmost(operator: Operator, wanted: Collection[Operator]) -> Iterator[Shared]:
    if isinstance(operator, Shared) and operator in wanted:
        yield operator
        return
    for below in operator.inputs:
        yield from _topmost(below, wanted)


def _terms(join: InnerJoin, met: Meeting) -> list[tuple[Meeting | Step, ...]]:
    """What a delta meets, where that mixes tables with state: a union branch by branch, a join side by side, and the
    projection on top of it done after."""
    if keeps_state(met.side.operator) or not any(isinstance(n, Aggregate | TopK) for n in walk(met.side.operator)):
        return [(met,)]
    core, steps = chain(met.side.operator)
    shown = _shown(core, steps)
    if isinstance(core, UnionAll) and shown is not None:
        branches = [_as_branch(branch, core, shown) for branch in core.branches]
        return [term for each in branches for term in _terms(join, _meets(met, each))]
    if isinstance(core, InnerJoin) and len(steps) == 1 and isinstance(steps[0], Project):
        return [(*_apart(_meets_below(met, steps[0])), _projected(join, steps[0]))]
    return [_apart(met)]


def _shown(core: Operator, steps: tuple[Step, ...]) -> dict[Column, str] | None:
    """The columns of `core` that steps show, as they call them; None if the steps do more than that."""
    if not steps:
        return {column: column.name for column in core.columns}
    if len(steps) > 1 or not isinstance(steps[0], Project):
        return None
    names = [referenced(expression) for expression in steps[0].expressions]
    known = {column: name for column, name in zip(steps[0].columns, names, strict=True) if name is not None}
    return known if len(known) == len(names) else None


def _as_branch(branch: Operator, union: UnionAll, shown: dict[Column, str]) -> Project:
    """A branch alone, with those of the union's columns that are shown."""
    assert isinstance(branch, Project)
    found = dict(zip(union.names, branch.expressions, strict=True))
    return Project(tuple(shown), branch.input, tuple(found[name] for name in shown.values()))


def _meets(met: Meeting, operand: Operator) -> Meeting:
    return Meeting(type(met.side)(operand.columns, operand), met.on)


def _meets_below(met: Meeting, project: Project) -> Meeting:
    """ΔX ⋈ π(R) as ΔX ⋈ R: the condition says of π's columns what they are."""
    meaning = dict(zip(project.names, project.expressions, strict=True))
    condition = None if met.on.condition is None else substitute(met.on.condition, meaning)
    equalities = tuple(Equality(e.left, substitute(e.right, meaning)) for e in met.on.equalities)
    return _meets(Meeting(met.side, On(condition, equalities)), project.input)


def _projected(join: InnerJoin, project: Project) -> Project:
    """The projection of what was met, beside the delta's columns."""
    meaning = dict(zip(project.names, project.expressions, strict=True))
    expressions = tuple(meaning.get(name, reference(name)) for name in join.names)
    return Project(join.columns, Operator(tuple(_read(join, project))), expressions)


def _read(join: InnerJoin, project: Project) -> Iterator[Column]:
    yield from (column for column in join.columns if column.name not in project.names)
    yield from project.input.columns


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
