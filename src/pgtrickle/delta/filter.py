"""Filter.

    Δ(σ R)  =  σ ΔR

A filter looks at one row at a time, so it does not care whether the row comes or goes.
A NULL condition drops the row, in either direction. Weights pass through. No state.
"""

from __future__ import annotations

from pgtrickle.delta.algebra import empty, is_empty
from pgtrickle.delta.differentiate import differentiate
from pgtrickle.query.operators import Filter, Operator


@differentiate.register
def filter_(op: Filter, changed: frozenset[int] | None = None) -> Operator:
    delta = differentiate(op.input, changed)  # ΔR
    return empty(op) if is_empty(delta) else Filter(op.columns, delta, op.condition)
