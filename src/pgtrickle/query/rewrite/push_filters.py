"""Each conjunct of WHERE and ON goes down to the lowest operator that has its columns.

    σ_p(L ⋈ R)  =  σ_p(L) ⋈ R            p reads columns of L only
    σ_p(π(R))   =  π(σ_p∘π(R))
    σ_p(A + B)  =  σ_p(A) + σ_p(B)
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
    Aggregate,
    Expand,
    Filter,
    InnerJoin,
    LeftJoin,
    Match,
    Operator,
    Project,
    Repeat,
    TopK,
    UnionAll,
    Use,
)


def push_filters(tree: Operator) -> Operator:
    return _push(tree, ())


def _push(operator: Operator, pending: Sequence[Expr]) -> Operator:
    """`operator` filtered by `pending`, with all filters in it as low as they go."""
    match operator:
        case Filter():
            return _push(operator.input, (*conjuncts(operator.condition), *pending))
        case Use():
            return _filtered(replace(operator, input=_push(operator.input, ())), pending)
        case Project():
            meaning = dict(zip(operator.names, operator.expressions, strict=True))
            below = [substitute(condition, meaning) for condition in pending]
            return replace(operator, input=_push(operator.input, below))
        case UnionAll():
            return replace(operator, branches=tuple(_push_branch(operator, b, pending) for b in operator.branches))
        case InnerJoin():
            return _push_join(operator, pending)
        case Expand():
            known = set(operator.input.names)
            lower = [part for part in pending if part.columns and known.issuperset(part.columns)]
            made = _push(operator.input, lower)
            pushed = Expand(made.columns + operator.made, made, operator.call, operator.outer)
            return _filtered(pushed, [part for part in pending if part not in lower])
        case LeftJoin() | Match():
            return _push_one_sided(operator, pending)
        case Repeat():
            filtered = _push(operator.input, pending)
            return Repeat(filtered.columns, filtered, operator.times)
        case Aggregate() | TopK():
            return _filtered(replace(operator, input=_push(operator.input, ())), pending)
    return _filtered(operator, pending)


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
    pushed: Operator
    if isinstance(join, LeftJoin):
        pushed = LeftJoin(left.columns + right.columns, left, right, condition)
    else:
        mark = () if join.mark is None else (join.mark,)
        pushed = Match(left.columns + mark, left, right, condition, join.kind)
    return _filtered(pushed, [part for part in pending if part not in below])


def _filtered(operator: Operator, conditions: Sequence[Expr]) -> Operator:
    condition = conjunction(conditions)
    return operator if condition is None else Filter(operator.columns, operator, condition)
