"""Rows that stand in the query: VALUES, or a function of constants.

    Δ(C)  =  ∅

Nothing that is captured changes them. No state.
"""

from __future__ import annotations

from pgtrickle.delta.algebra import empty
from pgtrickle.delta.differentiate import differentiate
from pgtrickle.query.operators import Constant, Operator


@differentiate.register
def constant(op: Constant, changed: frozenset[int] | None = None) -> Operator:
    return empty(op)
