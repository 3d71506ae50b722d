"""Inner and outer joins of two FROM items. Pure; a part of `build.py`.

L RIGHT JOIN R  =  R LEFT JOIN L
L FULL JOIN R   =  L LEFT JOIN R  +  the rows of R that match no row of L, padded
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pgtrickle.model import Column, Expr
from pgtrickle.query.builder.column_factory import ColumnFactory
from pgtrickle.query.builder.scope import Scope
from pgtrickle.query.expression import conjunction, reference
from pgtrickle.query.operators import InnerJoin, LeftJoin, Match, MatchKind, Operator, UnionAll

_MERGED = ""  # the label of a field that only USING looks at


def join(factory: ColumnFactory, side: str, both: Scope, condition: Expr | None) -> Scope:
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
            return _full(factory, both, LeftJoin(left.columns + right.columns, left, right, condition))
    return both.over(factory.join(left, right, condition))


def _full(factory: ColumnFactory, both: Scope, paired: LeftJoin) -> Scope:
    alone = Match(paired.right.columns, paired.right, paired.left, paired.condition, MatchKind.ANTI)
    return full(factory, both, paired, alone)


def full(factory: ColumnFactory, both: Scope, paired: Operator, alone: Operator) -> Scope:
    """A full join from its parts: the rows of the left side, and those of the right one that match none of them."""
    cross = both.operator
    assert isinstance(cross, InnerJoin)
    padded = [(null_of(column), column.label) for column in cross.left.columns]
    branches = (
        factory.exactly(paired, [(reference(column), column.label) for column in cross.columns]),
        factory.exactly(alone, [*padded, *((reference(column), column.label) for column in cross.right.columns)]),
    )
    columns = tuple(factory.column(column.type, column.label) for column in cross.columns)
    return both.over(UnionAll(columns, branches), dict(zip(cross.names, (c.name for c in columns), strict=True)))


def join_using(
    factory: ColumnFactory, side: str, both: Scope, using: Mapping[str, tuple[str, str]], same: tuple[Expr, ...] = ()
) -> Scope:
    """`JOIN … USING`: each name with its two columns. The merged column is the preserved side's, if there is one.

    `same` are further conditions.
    """
    equal = [Expr(" = ".join(reference(one).sql for one in pair), pair) for pair in using.values()]
    columns = [(_MERGED, one) for pair in using.values() for one in pair]
    scope = join(factory, side, replace(both, fields=(*both.fields, *columns)), conjunction([*same, *equal]))
    own, used = scope.fields[: len(both.fields)], iter(scope.fields[len(both.fields) :])
    pairs = {name: (next(used)[1], next(used)[1]) for name in using}
    return merged(factory, side, replace(scope, fields=own), pairs)


def merged(factory: ColumnFactory, side: str, scope: Scope, using: Mapping[str, tuple[str, str]]) -> Scope:
    """A join in which each name stands for its two columns."""
    operator = scope.operator
    made: list[tuple[str, str]] = []
    for name, (one, other) in using.items():
        known = {column.name: column for column in operator.columns}
        operator, column = _merge(factory, operator, (known[one], known[other]), name, side)
        made.append((name, column))
    rest = [field for field in scope.fields if field[0] not in using]
    names: dict[tuple[str | None, str], str] = {**scope.names}
    names.update({(None, name): column for name, column in made})
    return Scope(operator, (*made, *rest), names)


def _merge(
    factory: ColumnFactory, operator: Operator, sides: tuple[Column, Column], label: str, side: str
) -> tuple[Operator, str]:
    """The column of a merged pair, in the type common to both."""
    first, second = sides[::-1] if side == "RIGHT" else sides
    if first.type == second.type and side != "FULL":
        return operator, first.name
    both = Expr(f"COALESCE({reference(first).sql}, {reference(second).sql})", (first.name, second.name))
    (common,) = factory.types(operator, [both])
    candidates = {"": (first, second), "FULL": ()}.get(side, (first,))  # a side that is not NULL where it has a value
    for candidate in candidates:
        if (candidate.type.oid, candidate.type.name) == (common.oid, common.name):
            return operator, candidate.name
    operator, (name,) = factory.extend(operator, [(both, label)])
    return operator, name


def null_of(column: Column) -> Expr:
    """NULL of a column's type, where an outer join pads."""
    collation = "" if column.type.collation is None else f" COLLATE {column.type.collation}"
    return Expr(f"NULL::{column.type.name}{collation}")
