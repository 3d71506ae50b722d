"""Inner and outer joins of two FROM items. Pure; a part of `build.py`.

L RIGHT JOIN R  =  R LEFT JOIN L
L FULL JOIN R   =  L LEFT JOIN R  +  the rows of R that match no row of L, padded
"""

from __future__ import annotations

from pgtrickle.model import Column, Expr
from pgtrickle.query.bench import Bench
from pgtrickle.query.expression import reference
from pgtrickle.query.operators import InnerJoin, LeftJoin, Match, MatchKind, UnionAll
from pgtrickle.query.scope import Scope


def join(bench: Bench, side: str, both: Scope, condition: Expr | None) -> Scope:
    """`both` holds the two sides crossed; `side` is LEFT, RIGHT, FULL or empty for an inner join."""
    cross = both.operator
    assert isinstance(cross, InnerJoin)
    left, right = cross.left, cross.right
    match side:
        case "LEFT":
            return both.over(LeftJoin(left.columns + right.columns, left, right, condition))
        case "RIGHT":
            return both.over(LeftJoin(right.columns + left.columns, right, left, condition))
        case "FULL":
            return _full(bench, both, LeftJoin(left.columns + right.columns, left, right, condition))
    return both.over(bench.join(left, right, condition))


def _full(bench: Bench, both: Scope, paired: LeftJoin) -> Scope:
    alone = Match(paired.right.columns, paired.right, paired.left, paired.condition, MatchKind.ANTI)
    padded = [(null_of(column), column.label) for column in paired.left.columns]
    branches = (
        bench.exactly(paired, [(reference(column), column.label) for column in paired.columns]),
        bench.exactly(alone, [*padded, *((reference(column), column.label) for column in alone.columns)]),
    )
    columns = tuple(bench.column(column.type, column.label) for column in paired.columns)
    return both.over(UnionAll(columns, branches), dict(zip(paired.names, (c.name for c in columns), strict=True)))


def null_of(column: Column) -> Expr:
    """NULL of a column's type, where an outer join pads."""
    collation = "" if column.type.collation is None else f" COLLATE {column.type.collation}"
    return Expr(f"NULL::{column.type.name}{collation}")
