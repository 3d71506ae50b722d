"""Recursion: μ W. B + f(W), rounds of B, f(B), f(f(B)) … until one adds nothing.

    Δ(μ W. B + f(W))  =  R′ − R          ∅ if neither B nor f changed

What R′ − R is made of depends on the recursion and on the window (`physical/recursion.py`):

    UNION, all monotone     D = the closure of what −ΔB and f(R; −ΔS) took away, under f, within R;
                            then what of D is still in B′ or f′(R − D), what +ΔB and f(R − D; +ΔS) add, and the
                            closure of these under f′
    UNION ALL, all linear   round by round, with the number k of the round kept beside each row:
                            ΔR_0 = ΔB,  ΔR_k+1 = f′(ΔR_k) + Δf(R_k)
    else                    R′, evaluated again

A UNION ALL needs the rounds apart: of rows on a cycle that nothing reaches any more, each would keep the other alive.
Duplicates are weights in a UNION ALL, and none in a UNION; NULLs are equal there. State: the rows as they were before
the window, of a UNION ALL each with its round and how often it is there.
"""

from __future__ import annotations

from pgtrickle.delta.algebra import StatefulDelta, empty, is_empty
from pgtrickle.delta.differentiate import differentiate
from pgtrickle.query.operators import Operator, Recursive, UnionAll, WorkingTable


@differentiate.register
def recursive(op: Recursive, changed: frozenset[int] | None = None) -> Operator:
    terms = (differentiate(term, changed) for term in op.inputs)  # ΔB, and Δf(R)
    deltas = tuple(delta for delta in terms if not is_empty(delta))
    return StatefulDelta(op.columns, UnionAll(op.columns, deltas), op) if deltas else empty(op)


@differentiate.register
def _(op: WorkingTable, changed: frozenset[int] | None = None) -> Operator:
    return empty(op)  # what the rounds add to it is theirs to say
