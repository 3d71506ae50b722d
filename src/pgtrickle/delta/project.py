"""Projection.

    Δ(π R)  =  π ΔR

Expressions are immutable functions of one row, so a row that goes computes what it computed when it came.
Rows that become equal add their weights; −old +new of an update that the projection cannot see cancels. No state.
"""

from __future__ import annotations

from pgtrickle.delta.algebra import empty, is_empty
from pgtrickle.delta.differentiate import differentiate
from pgtrickle.query.operators import Operator, Project


@differentiate.register
def project(op: Project, changed: frozenset[int] | None = None) -> Operator:
    delta = differentiate(op.input, changed)  # ΔR
    return empty(op) if is_empty(delta) else Project(op.columns, delta, op.expressions)
