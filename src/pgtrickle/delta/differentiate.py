"""`differentiate(operator)`: the delta plan of an operator tree. One rule per file beside this one.

Called by `refresh/` for each window and by `explain`. Every rule keeps one law, which the tests hold it to:

    R′  =  R + ΔR

and differentiates each input exactly once, so an aggregate's delta stands once in a plan.
"""

from __future__ import annotations

from functools import singledispatch

from pgtrickle.query.operators import MalformedTree, Operator


@singledispatch
def differentiate(op: Operator, changed: frozenset[int] | None = None) -> Operator:
    """The plan of Δop. `changed`: oids of the source tables with changes in this window (None: any may have some).

    The delta of what did not change is ∅, and ∅ is simplified away on the spot: a window that changed one table
    of five gives one term. A plan that is ∅ altogether is `algebra.empty(op)`.
    """
    raise MalformedTree(f"no delta rule for {type(op).__name__}")
