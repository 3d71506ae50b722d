"""Union of bags.

    Δ(A ⊎ B ⊎ …)  =  ΔA ⊎ ΔB ⊎ …          branches that did not change drop out

Rows of different branches that are equal add their weights, so a row leaving one branch leaves one copy fewer.
A union of one branch stays a union: it is what names the columns. No state.
"""

from __future__ import annotations

from pgtrickle.delta.algebra import empty, is_empty
from pgtrickle.delta.differentiate import differentiate
from pgtrickle.query.operators import Operator, UnionAll


@differentiate.register
def union_all(op: UnionAll, changed: frozenset[int] | None = None) -> Operator:
    deltas = (differentiate(branch, changed) for branch in op.branches)  # ΔA, ΔB, …
    branches = tuple(delta for delta in deltas if not is_empty(delta))
    return UnionAll(op.columns, branches) if branches else empty(op)
