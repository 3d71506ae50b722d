"""The first rows in an order.

    Δ(τ R)  =  − τ R  +  τ R′          ∅ if R did not change

The rows that were first go and those that are first now come; those that stay cancel. They are few, and read off R′ by
its order, so a row that leaves them is replaced by the next. NULLs are ordered as the query says.
Duplicates count one by one. State: the rows as they were before the window.
"""

from __future__ import annotations

from pgtrickle.delta.algebra import StatefulDelta, empty, is_empty
from pgtrickle.delta.differentiate import differentiate
from pgtrickle.query.operators import Operator, TopK


@differentiate.register
def top_k(op: TopK, changed: frozenset[int] | None = None) -> Operator:
    delta = differentiate(op.input, changed)  # ΔR
    return empty(op) if is_empty(delta) else StatefulDelta(op.columns, delta, op)
