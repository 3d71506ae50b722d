"""Repetition by a column: each row as often as it says.

    Δ(ρ R)  =  ρ ΔR

It looks at one row at a time: the weight is multiplied by the column, whether the row comes or goes. INTERSECT ALL
and EXCEPT ALL end with it, over the counts of an aggregate. No state.
"""

from __future__ import annotations

from pgtrickle.delta.algebra import empty, is_empty
from pgtrickle.delta.differentiate import differentiate
from pgtrickle.query.operators import Operator, Repeat


@differentiate.register
def repeat(op: Repeat, changed: frozenset[int] | None = None) -> Operator:
    delta = differentiate(op.input, changed)  # ΔR
    return empty(op) if is_empty(delta) else Repeat(op.columns, delta, op.times)
