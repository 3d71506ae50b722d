"""Rows beside what a set-returning function makes of each.

    Δ(ε R)  =  ε ΔR

The function is immutable and looks at one row, so a row that goes takes along what it made when it came.
Weights pass on to each row made. With `outer`, a row of which nothing is made stays, padded with NULLs. No state.
"""

from __future__ import annotations

from pgtrickle.delta.algebra import empty, is_empty
from pgtrickle.delta.differentiate import differentiate
from pgtrickle.query.operators import Expand, Operator


@differentiate.register
def expand(op: Expand, changed: frozenset[int] | None = None) -> Operator:
    delta = differentiate(op.input, changed)  # ΔR
    return empty(op) if is_empty(delta) else Expand(op.columns, delta, op.call, op.outer)
