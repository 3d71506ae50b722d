"""How the rows of a recursion are brought up to date: by rounds over what has changed, or evaluated again. Pure; used
by `lower_delta.py`.

Rounds over changes need a recursive term that makes each of its rows of one row of its working table, and sources that
it is monotone in. Of a UNION the rows must also be told apart as sets are, whose equal values look the same.
"""

from __future__ import annotations

from collections.abc import Collection

from pgtrickle.delta import monotone
from pgtrickle.query.clock import values_in
from pgtrickle.query.operators import (
    Aggregate,
    InnerJoin,
    LeftJoin,
    Match,
    Operator,
    Recursive,
    RowWise,
    WorkingTable,
    walk,
)

SETS = "rounds over what was added, and deletion and rederivation of what was removed"
WEIGHTS = "rounds over what was added and removed, with weights"


def method(node: Recursive, changed: Collection[int]) -> str:
    """What is done in a window in which these tables have changes, for people."""
    why = obstacle(node, changed)
    if why is not None:
        return f"evaluated again, and compared with the rows kept: {why}"
    return SETS if node.distinct else WEIGHTS


def obstacle(node: Recursive, changed: Collection[int]) -> str | None:
    """Why the recursion is evaluated again in such a window, if it is."""
    if node.distinct and not all(column.type.has_one_look for column in node.columns):
        return "equal values of its columns may look different"
    if any(value.number in changed for value in values_in(node)):
        return "the clock, which it reads, has moved"
    mixing = _mixes(node.step, distinct=node.distinct)
    if mixing is not None:
        return f"{monotone.name(mixing)} over the rows of the round before"
    for term in node.inputs:
        found = monotone.obstacle(term, changed, left=True)
        if found is not None:
            return f"it is not monotone in what changed: {monotone.name(found)}"
        if not node.distinct and not monotone.is_multilinear(term, changed):
            return "it is not linear in what changed"
    return None


def _mixes(tree: Operator, *, distinct: bool) -> Operator | None:
    """What makes a row of several rows of the working table, if anything does, or makes rows beside them."""
    if sum(_reads(each) for each in tree.inputs) > 1:
        return tree
    match tree:
        case WorkingTable():
            return None
        case RowWise() | InnerJoin():
            pass
        case LeftJoin() | Match() if _reads(tree.left):
            pass
        case Aggregate(calls=()) if distinct:
            pass
        case _:
            return tree
    return next(found for found in (_mixes(each, distinct=distinct) for each in tree.inputs if _reads(each)))


def _reads(tree: Operator) -> bool:
    return any(isinstance(node, WorkingTable) for node in walk(tree))
