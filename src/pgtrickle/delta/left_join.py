"""Left join.

    Δ(L ⟕ R)  =  ΔL ⟕ R   +  (L′ ⟕ R′ − L′ ⟕ R)          L, R before the window; L′, R′ after it
              =  ΔL ⟕ R′  +  (L ⟕ R′ − L ⟕ R)           the same, chosen when L keeps state

The first term looks at the rows of ΔL one by one. In the second, only rows of L′ that match a row of ΔR differ: they
gain and lose pairs, L′ ⋈ ΔR, and their padded row comes with the last match lost and goes with the first one gained.
Weights multiply. NULL keys match nothing, so such a row of L is padded. Any condition will do. No state.
"""

from __future__ import annotations

from pgtrickle.delta.algebra import Rematch, after, before, empty, is_empty, keeps_state, plus
from pgtrickle.delta.differentiate import differentiate
from pgtrickle.query.operators import LeftJoin, Operator


@differentiate.register
def left_join(op: LeftJoin, changed: frozenset[int] | None = None) -> Operator:
    delta_left = differentiate(op.left, changed)  # ΔL
    delta_right = differentiate(op.right, changed)  # ΔR
    left, right = (before(op.left), after(op.right)) if keeps_state(op.left) else (after(op.left), before(op.right))
    terms: list[Operator] = []
    if not is_empty(delta_left):
        terms.append(op.with_inputs((delta_left, right)))  # ΔL ⟕ R
    if not is_empty(delta_right):
        terms.append(Rematch(op.columns, op, left, delta_right))  # L′ ⟕ R′ − L′ ⟕ R
    return plus(*terms) if terms else empty(op)
