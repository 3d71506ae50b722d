"""A join with many tables, written from the rows that look them up outward. Pure; used by `lower_delta.py`.

PostgreSQL puts up to `AT_ONCE` tables in the order that is best, and takes more than these as they are written: of
`k JOIN (a JOIN b JOIN … JOIN i)` it computes what is in parentheses whole. So the rows `k` go to where their keys are:

    k ⋈ (A ⋈ B)  =  (k ⋈ A) ⋈ B        keys of A
    k ⋈ (A ⟕ B)  =  (k ⋈ A) ⟕ B        keys of A
    k ⋈ (A ⟕ B)  =  (k ⋈ B) ⋈ A        keys of B: what is padded with NULLs has none of them
    k ⋈ (A ▷ B)  =  (k ⋈ A) ▷ B
"""

from __future__ import annotations

from pgtrickle.physical.join_path import On, flipped, keys_of, left_over
from pgtrickle.postgres.weighted import both
from pgtrickle.query.expression import reference, referenced
from pgtrickle.query.operators import Filter, InnerJoin, LeftJoin, Match, Operator, Project

AT_ONCE = 8
"""PostgreSQL's `join_collapse_limit` and `from_collapse_limit`, as tasks set them."""


def join_from_keys(keys: Operator, operand: Operator, on: On) -> Operator:
    """The rows `keys` joined with an operand: the columns of both, in any order."""
    match operand:
        case Filter(input=below, condition=condition):
            joined = join_from_keys(keys, below, on)
            return Filter(joined.columns, joined, condition)
        case Project():
            return _below(keys, operand, on)
        case InnerJoin(left=left, right=right):
            if keys_of(left, on).equalities:
                return _then(keys, left, right, operand, on)
            if keys_of(right, on).equalities:
                return _then(keys, right, left, operand, on)
        case LeftJoin(left=left, right=right):
            if keys_of(left, on).equalities:
                return _beside(keys, operand, on)
            if any(referenced(key.right) for key in keys_of(right, on).equalities):
                return _then(keys, right, left, operand, on)
        case Match(left=left):
            if keys_of(left, on).equalities:
                return _beside(keys, operand, on)
    return InnerJoin(keys.columns + operand.columns, keys, operand, on.condition, on.equalities)


def _below(keys: Operator, operand: Project, on: On) -> Operator:
    """Joined below a projection, of whose columns the condition says what they are."""
    meaning = dict(zip(operand.names, operand.expressions, strict=True))
    joined = join_from_keys(keys, operand.input, on.below(meaning))
    passed = tuple(reference(column) for column in keys.columns)
    return Project(keys.columns + operand.columns, joined, passed + operand.expressions)


def _then(keys: Operator, near: Operator, far: Operator, join: InnerJoin | LeftJoin, on: On) -> Operator:
    """Joined with one side, and then with the other."""
    first = keys_of(near, on)
    equalities = join.equalities if near is join.left else flipped(join.equalities)
    then = On(both(join.condition, left_over(on, first)), equalities + keys_of(far, on).equalities)
    return join_from_keys(join_from_keys(keys, near, first), far, then)


def _beside(keys: Operator, join: LeftJoin | Match, on: On) -> Operator:
    """Joined with the left side, of which the right one says more."""
    first = keys_of(join.left, on)
    left = join_from_keys(keys, join.left, first)
    joined, rest = join.with_inputs((left, join.right)), left_over(on, first)
    return joined if rest is None else Filter(joined.columns, joined, rest)
