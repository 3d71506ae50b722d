"""What looks at one row at a time: filters, projections, repetitions, expansions.

    Δ(f R)  =  f ΔR

Such an operator does not care whether the row comes or goes: it is immutable, so a row that goes takes along what it
made when it came. A NULL condition of a filter drops the row, in either direction; an expansion with `outer` pads a row
of which nothing is made with NULLs. Weights pass through; a repetition multiplies them. Rows that a projection makes
equal add their weights, so −old +new of an update that it cannot see cancels. No state.
"""

from __future__ import annotations

from pgtrickle.delta.algebra import empty, is_empty
from pgtrickle.delta.differentiate import differentiate
from pgtrickle.query.operators import Operator, RowWise


@differentiate.register
def row_wise(op: RowWise, changed: frozenset[int] | None = None) -> Operator:
    delta = differentiate(op.input, changed)  # ΔR
    return empty(op) if is_empty(delta) else op.with_inputs((delta,))
