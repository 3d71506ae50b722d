"""Scan of a source table.

    Δ(T)  =  the window's changes of T          ∅ if T did not change

An update is −old +new. Columns are those the scan reads, so an update of other columns cancels out.
Duplicates are weights. No state.
"""

from __future__ import annotations

from pgtrickle.delta.algebra import Changes, empty
from pgtrickle.delta.differentiate import differentiate
from pgtrickle.query.operators import Operator, Scan


@differentiate.register
def scan(op: Scan, changed: frozenset[int] | None = None) -> Operator:
    if changed is not None and op.table.oid not in changed:
        return empty(op)
    return Changes(op.columns, op)
