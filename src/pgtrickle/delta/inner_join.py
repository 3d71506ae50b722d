"""Inner join.

    Δ(L ⋈ R)  =  ΔL ⋈ R   +  L′ ⋈ ΔR          L, R before the window; L′, R′ after it
              =  ΔL ⋈ R′  +  L ⋈ ΔR           the same, chosen when L keeps state and R does not

One side must be "before": with both "after", ΔL ⋈ ΔR would count twice. The side that is read off a state table is
"before", for that is what the table holds; base tables are read at the end of the window. Of two tables it is R, whose
delta is simple where joins are left-deep: ΔL, which is not, stands once in the plan. If one input did not change, one
term is left and R = R′: the other side is read where it is cheap.
Weights multiply. NULL keys match nothing. No state.
"""

from __future__ import annotations

from pgtrickle.delta.algebra import after, before, empty, is_empty, keeps_state, plus
from pgtrickle.delta.differentiate import differentiate
from pgtrickle.query.operators import InnerJoin, Operator


@differentiate.register
def inner_join(op: InnerJoin, changed: frozenset[int] | None = None) -> Operator:
    delta_left = differentiate(op.left, changed)  # ΔL
    delta_right = differentiate(op.right, changed)  # ΔR
    if is_empty(delta_left) and is_empty(delta_right):
        return empty(op)
    if is_empty(delta_right):
        return op.with_inputs((delta_left, _unchanged(op.right)))
    if is_empty(delta_left):
        return op.with_inputs((_unchanged(op.left), delta_right))
    if keeps_state(op.left) and not keeps_state(op.right):
        from_left = op.with_inputs((delta_left, after(op.right)))  # ΔL ⋈ R′
        from_right = op.with_inputs((before(op.left), delta_right))  # L ⋈ ΔR
    else:
        from_left = op.with_inputs((delta_left, before(op.right)))  # ΔL ⋈ R
        from_right = op.with_inputs((after(op.left), delta_right))  # L′ ⋈ ΔR
    return plus(from_left, from_right)


def _unchanged(side: Operator) -> Operator:
    """R = R′, read off the state table where there is one."""
    return before(side) if keeps_state(side) else after(side)
