"""Columns that nothing above a join reads stay behind before its delta travels. Pure; a part of `lower_delta.py`.

    Δ(L ▷ R)  =  π(ΔL) ▷ R + …        π: the columns that the condition and the steps above read

What a join on no key makes of −old +new (a scalar subquery whose value moved, compared with every row) is then alike
but for the rows whose answer turned, and the others cancel out where they are read.
"""

from __future__ import annotations

from collections.abc import Sequence

from pgtrickle.model import Expr, quote
from pgtrickle.physical.join_path import JoinPath, JoinStep
from pgtrickle.postgres.weighted import GroupStep, Step
from pgtrickle.query.operators import Aggregate, Filter, LeftJoin, Match, Project


def without_unread(join: LeftJoin | Match, steps: Sequence[Step]) -> LeftJoin | Match:
    """The join of a delta, without those of the delta's columns that neither it nor the steps above it read."""
    read = _read(steps)
    if read is None:
        return join
    read |= set(join.condition.columns if join.condition is not None else ())
    kept = tuple(column for column in join.left.columns if column.name in read) or join.left.columns[:1]
    if len(kept) == len(join.left.columns):
        return join
    left = Project(kept, join.left, tuple(Expr(quote(column.name), (column.name,)) for column in kept))
    return join.with_inputs((left, join.right))


def cancels(path: JoinPath) -> bool:
    """Whether many of the rows that come of a delta may be alike, with opposite weights: it met all rows of a table.

    What the rows contribute to groups is summed already, and matters even where their number is the same.
    """
    if not path.parts or isinstance(path.parts[-1], GroupStep):
        return False
    return any(not part.on.equalities for part in path.parts if isinstance(part, JoinStep))


def _read(steps: Sequence[Step]) -> set[str] | None:
    """The columns that the steps read of what is below them; None if they pass all of them on."""
    read: set[str] = set()
    for step in steps:
        match step:
            case Project(expressions=expressions):
                return read.union(*(expression.columns for expression in expressions))
            case GroupStep(aggregate=aggregate):
                return read | _grouped(aggregate)
            case Filter(condition=condition):
                read.update(condition.columns)
            case _:  # copies and expansions of rows name all of their columns
                return None
    return None


def _grouped(aggregate: Aggregate) -> set[str]:
    return set(aggregate.keys).union(*(call.call.columns for call in aggregate.calls))
