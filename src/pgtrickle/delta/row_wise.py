"""What looks at one row at a time: filters, projections, repetitions, expansions.

    Δ(f R)  =  f ΔR

Such an operator does not care whether the row comes or goes: it is immutable, so a row that goes takes along what it
made when it came. A NULL condition of a filter drops the row, in either direction; an expansion with `outer` pads a row
of which nothing is made with NULLs. Weights pass through; a repetition multiplies them. Rows that a projection makes
equal add their weights, so −old +new of an update that it cannot see cancels. No state.

What reads the clock is f₀ before the window and f after it, of other rows too than those that changed:

    Δ(f R)  =  f₀ ΔR + (f R′ − f₀ R′)          R before the window, R′ after it
            =  f ΔR  + (f R − f₀ R)            the same, chosen when R keeps state

Only rows between the old and the new value of what they are compared with differ (`query/clock.py`).
"""

from __future__ import annotations

from pgtrickle.delta.algebra import After, Before, Turned, after, before, empty, is_empty, keeps_state, plus
from pgtrickle.delta.differentiate import differentiate
from pgtrickle.query.clock import before_window, values_of
from pgtrickle.query.operators import Operator, RowWise


@differentiate.register
def row_wise(op: RowWise, changed: frozenset[int] | None = None) -> Operator:
    delta = differentiate(op.input, changed)  # ΔR
    if not _moved(op, changed):
        return empty(op) if is_empty(delta) else op.with_inputs((delta,))
    is_state = keeps_state(op.input)
    rows: After | Before = before(op.input) if is_state else after(op.input)
    then = op if is_state else before_window(op)
    turned = Turned(op.columns, op, rows)  # f R′ − f₀ R′
    return turned if is_empty(delta) else plus(then.with_inputs((delta,)), turned)


def _moved(op: RowWise, changed: frozenset[int] | None) -> bool:
    """Whether a value of the clock that it reads may have moved."""
    return any(changed is None or value.number in changed for value in values_of(op))
