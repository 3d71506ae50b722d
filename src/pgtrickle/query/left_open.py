"""What a query leaves open of its answer: which of several rows that tie in an order comes first. Pure.

Our tree orders such rows by all of their columns; PostgreSQL, asked again, may take them in another order. So where a
stream table and its query differ, this may be why. For `refresh/verification/verify.py`.
"""

from __future__ import annotations

from pgtrickle.query.operators import Aggregate, Operator, Ties, TopK, Window, walk

_FIRST = "first"
"""The call by which the builder takes the first row of a group."""


def left_open(tree: Operator) -> str | None:
    """In whose order rows may tie, if it matters which of them comes first."""
    for node in walk(tree):
        match node:
            case Window(calls=calls) if any(call.ties is not Ties.NONE for call in calls):
                return "a window function"
            case TopK():
                return "LIMIT"
            case Aggregate(calls=calls) if any(call.function == _FIRST for call in calls):
                return "DISTINCT ON, or of the first rows of each group"
    return None
