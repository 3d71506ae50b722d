"""Window functions.

    Δ(ω R)  =  − ω R|p  +  ω (R + ΔR)|p          p: the partitions of ΔR's rows

Each partition that the delta touches goes with what its rows had and comes with what they have; rows that are alike
cancel. NULL keys are equal and form a partition; without keys there is one. Duplicates count one by one.
State: the rows with what the calls made of them, as they were before the window. They are R|p too, so that no table is
read. Rows beyond the first places, which a filter above drops (`first`), may be left out on both sides.
"""

from __future__ import annotations

from pgtrickle.delta.algebra import StatefulDelta, empty, is_empty
from pgtrickle.delta.differentiate import differentiate
from pgtrickle.query.operators import Operator, Window


@differentiate.register
def window(op: Window, changed: frozenset[int] | None = None) -> Operator:
    delta = differentiate(op.input, changed)  # ΔR
    return empty(op) if is_empty(delta) else StatefulDelta(op.columns, delta, op)
