"""Each conjunct of WHERE and ON goes down to the lowest operator that has its columns.

    σ_p(L ⋈ R)  =  σ_p(L) ⋈ R            p reads columns of L only
    σ_p(π(R))   =  π(σ_p∘π(R))
    σ_p(A + B)  =  σ_p(A) + σ_p(B)
    σ_p(ω(R))   =  ω(σ_p(R))             p reads keys of the partitions only
    σ_p(L ⟕ R)  =  σ_p(L) ⟕ R            p reads columns of L only; the same for ⋉, ▷ and the mark
    L ⟕_q R     =  L ⟕ σ_q(R)            q reads columns of R only; the same for ⋉, ▷ and the mark

It stops above aggregates, LIMIT and what has other uses. Conjuncts keep their order, as PostgreSQL does when it pushes
them down itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pgtrickle.model import Expr
from pgtrickle.query.expression import conjunction, conjuncts, reference, substitute
from pgtrickle.query.operators import (
    Filter,
    InnerJoin,
    LeftJoin,
    Match,
    Operator,
    Project,
    RowWise,
    Stateful,
    UnionAll,
    Use,
    Window,
)


def push_filters(tree: Operator) -> Operator:
    return _push(tree, ())


def _push(operator: Operator, pending: Sequence[Expr]) -> Operator:
    """`operator` filtered by `pending`, with all filters in it as low as they go."""
    match operator:
        case Filter():
            return _push(operator.input, (*conjuncts(operator.condition), *pending))
        case Window():
            return _push_window(operator, pending)
        case Use() | Stateful():
            return _filtered(operator.with_inputs([_push(below, ()) for below in operator.inputs]), pending)
        case Project():
            meaning = dict(zip(operator.names, operator.expressions, strict=True))
            return operator.with_inputs([_push(operator.input, [substitute(part, meaning) for part in pending])])
        case RowWise():
            return _push_row_wise(operator, pending)
        case UnionAll():
            return operator.with_inputs([_push_branch(operator, branch, pending) for branch in operator.branches])
        case InnerJoin():
            return _push_join(operator, pending)
        case LeftJoin() | Match():
            return _push_one_sided(operator, pending)
    return _filtered(operator, pending)


def _push_row_wise(operator: RowWise, pending: Sequence[Expr]) -> Operator:
    """Filters of the input's columns go below; where there are others, one of no column stays with these."""
    known = set(operator.input.names)
    below = [part for part in pending if known.issuperset(part.columns) and (part.columns or not operator.made)]
    pushed = operator.with_inputs([_push(operator.input, below)])
    return _filtered(pushed, [part for part in pending if part not in below])


def _push_window(window: Window, pending: Sequence[Expr]) -> Operator:
    """A condition on keys leaves whole partitions; not so one on how a key looks (1.0 and 1.00 are one partition)."""
    keys = {column.name for column in window.columns if column.name in window.keys and column.type.has_one_look}
    below = [part for part in pending if part.columns and keys.issuperset(part.columns)]
    pushed = window.with_inputs([_push(window.input, below)])
    return _filtered(pushed, [part for part in pending if part not in below])


def _push_branch(union: UnionAll, branch: Operator, pending: Sequence[Expr]) -> Operator:
    renamed = {name: reference(given) for name, given in zip(union.names, branch.names, strict=True)}
    return _push(branch, [substitute(condition, renamed) for condition in pending])


def _push_join(join: InnerJoin, pending: Sequence[Expr]) -> Operator:
    own = () if join.condition is None else conjuncts(join.condition)
    left: list[Expr] = []
    right: list[Expr] = []
    both: list[Expr] = []
    for condition in (*own, *pending):
        read = set(condition.columns)
        if read and read <= set(join.left.names):
            left.append(condition)
        elif read and read <= set(join.right.names):
            right.append(condition)
        else:
            both.append(condition)
    pushed_left, pushed_right = _push(join.left, left), _push(join.right, right)
    columns = pushed_left.columns + pushed_right.columns
    return InnerJoin(columns, pushed_left, pushed_right, conjunction(both))


def _push_one_sided(join: LeftJoin | Match, pending: Sequence[Expr]) -> Operator:
    """Filters above go to the left side, conjuncts of the condition to the right; neither may go the other way."""
    own = () if join.condition is None else conjuncts(join.condition)
    inner = [part for part in own if part.columns and set(part.columns) <= set(join.right.names)]
    below = [part for part in pending if part.columns and set(part.columns) <= set(join.left.names)]
    left, right = _push(join.left, below), _push(join.right, inner)
    condition = conjunction(part for part in own if part not in inner)
    pushed = replace(join, condition=condition, equalities=()).with_inputs([left, right])
    return _filtered(pushed, [part for part in pending if part not in below])


def _filtered(operator: Operator, conditions: Sequence[Expr]) -> Operator:
    condition = conjunction(conditions)
    return operator if condition is None else Filter(operator.columns, operator, condition)
