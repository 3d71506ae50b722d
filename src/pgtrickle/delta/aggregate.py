"""Aggregate.

    Δ(γ R)  =  − γ R|g  +  γ (R + ΔR)|g          g: the groups of ΔR's rows

Each group that the delta touches goes with its old values and comes with its new ones; equal ones cancel.
NULL keys are equal and form a group. A group without rows has no row, except the one group of an aggregate
without keys, which always has one. Weights of ΔR count rows; the result's are −1 and +1.
State: per group its row count, partial sums and last output, as they were before the window.
"""

from __future__ import annotations

from pgtrickle.delta.algebra import StatefulDelta, empty, is_empty
from pgtrickle.delta.differentiate import differentiate
from pgtrickle.query.operators import Aggregate, Operator


@differentiate.register
def aggregate(op: Aggregate, changed: frozenset[int] | None = None) -> Operator:
    delta = differentiate(op.input, changed)  # ΔR
    return empty(op) if is_empty(delta) else StatefulDelta(op.columns, delta, op)
