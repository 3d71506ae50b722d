"""Which columns of a query's result tell its rows apart, as far as the tree shows it. Pure; called by
`apply/update_key.py`.

    scan                the primary key of the table, if all of it is used
    filter, first rows, window  that of the input; so of all that is row-wise and makes at most one row of each
    projection          that of the input, if all of it is passed on
    grouping            its keys; one row for all: no column
    join                those of both sides; only one's, where each of its rows meets at most one row of the other
    match               that of the left side

It says which row became which: two rows of one key, one that goes and one that comes, are one row that stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import TypeAlias

from pgtrickle.model import Expr, quote
from pgtrickle.query.operators import (
    Aggregate,
    Equality,
    InnerJoin,
    LeftJoin,
    Match,
    Operator,
    Project,
    RowWise,
    Scan,
    TopK,
    Window,
)

Names: TypeAlias = frozenset[str]


def row_key(tree: Operator, primary_keys: Mapping[int, Set[str]]) -> frozenset[int] | None:
    """The positions of those columns; None if none are known. `primary_keys` are of tables, by oid."""
    names = _key(tree, primary_keys)
    return None if names is None else frozenset(place for place, name in enumerate(tree.names) if name in names)


def _key(node: Operator, primary_keys: Mapping[int, Set[str]]) -> Names | None:
    match node:
        case Scan():
            key = primary_keys.get(node.table.oid)
            named = dict(zip(node.attributes, node.names, strict=True))
            return frozenset(named[each] for each in key) if key and key <= named.keys() else None
        case Aggregate():
            return frozenset(node.keys)
        case Match():
            return _key(node.left, primary_keys)
        case Project():
            return _passed_on(node, _key(node.input, primary_keys))
        case RowWise(REPEATS=False) | TopK() | Window():
            return _key(node.input, primary_keys)
        case InnerJoin() | LeftJoin():
            return _of_join(node, _key(node.left, primary_keys), _key(node.right, primary_keys))
    return None


def _passed_on(node: Project, key: Names | None) -> Names | None:
    """The key under the names that it has after a projection."""
    plain = {_column(each): name for each, name in zip(node.expressions, node.names, strict=True)}
    return frozenset(plain[each] for each in key) if key is not None and key <= plain.keys() else None


def _of_join(node: InnerJoin | LeftJoin, left: Names | None, right: Names | None) -> Names | None:
    if left is not None and right is not None and right <= {_column(each.right) for each in node.equalities}:
        return left
    if isinstance(node, InnerJoin) and left is not None and right is not None and _meets_one(node.equalities, left):
        return right
    return left | right if left is not None and right is not None else None


def _meets_one(equalities: tuple[Equality, ...], left: Names) -> bool:
    """Whether a row of the right side meets at most one of the left."""
    return left <= {_column(each.left) for each in equalities}


def _column(expression: Expr) -> str | None:
    """The column that an expression is, if it is nothing but that."""
    only = expression.columns[0] if len(expression.columns) == 1 else None
    return only if only is not None and expression.sql == quote(only) else None
