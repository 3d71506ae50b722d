"""GROUPING SETS, ROLLUP and CUBE as a list of plain GROUP BYs. Pure; a part of `build.py`.

    GROUP BY a, ROLLUP (b, c)    =    GROUP BY a, b, c  ⊎  GROUP BY a, b  ⊎  GROUP BY a

In each, the expressions grouped by in another only are NULL, and GROUPING(…) is a number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, combinations, product

from sqlglot import exp

from pgtrickle.query import dialect

Keys = tuple[exp.Expr, ...]


def is_simple(group: exp.Group) -> bool:
    """Whether the clause is one list of expressions."""
    return not any(isinstance(part, exp.GroupingSets | exp.Cube | exp.Rollup | exp.Tuple) for part in group.expressions)


def expand(group: exp.Group) -> list[Keys]:
    """The sets of keys, one a GROUP BY, each key once; one that stands there twice counts twice, if not DISTINCT."""
    parts = product(*(_sets(part) for part in group.expressions))
    sets = [{dialect.text(key): key for key in chain.from_iterable(some)} for some in parts]
    if group.args.get("all") is False:  # GROUP BY DISTINCT
        sets = list({frozenset(keys): keys for keys in sets}.values())
    return [tuple(keys.values()) for keys in sets]


def keys(group: exp.Group | None) -> list[exp.Expr]:
    """All keys of a GROUP BY, if there is one, as often as they are written."""
    return [] if group is None else list({id(key): key for keys in expand(group) for key in keys}.values())


def _sets(node: exp.Expr) -> list[Keys]:
    items = [_item(part) for part in node.expressions] if isinstance(node, exp.Rollup | exp.Cube) else []
    match node:
        case exp.GroupingSets():
            return [keys for part in node.expressions for keys in _sets(part)]
        case exp.Rollup():
            return [tuple(chain.from_iterable(items[:length])) for length in range(len(items), -1, -1)]
        case exp.Cube():
            lengths = range(len(items), -1, -1)
            return [tuple(chain.from_iterable(some)) for length in lengths for some in combinations(items, length)]
    return [_item(node)]


def _item(node: exp.Expr) -> Keys:
    node = node.unnest()
    return tuple(part.unnest() for part in node.expressions) if isinstance(node, exp.Tuple) else (node,)


def within(
    node: exp.Expr, keys: Keys, absent: Mapping[str, str], is_aggregate: Callable[[exp.Expr], object]
) -> exp.Expr:
    """An output expression in one of the GROUP BYs: `absent` keys, by text with their types, are NULL there."""
    present = {dialect.text(key) for key in keys}

    def replace(part: exp.Expr) -> exp.Expr:
        if is_aggregate(part) and part.find_ancestor(exp.Query) is None:
            return part.copy()  # a copy is not looked into: an aggregate sees its rows as they are
        if dialect.text(part) in present:
            return part.copy()  # nor is a key: it has its value though it reads a column that is an absent key
        if isinstance(part, exp.Anonymous) and part.name == "GROUPING":
            return exp.Literal.number(_grouping(part.expressions, keys))
        if not isinstance(part, exp.Paren) and dialect.text(part) in absent:
            return dialect.parse_expression(f"(NULL::{absent[dialect.text(part)]})")
        return part

    return node.copy().transform(replace)


def _grouping(arguments: Sequence[exp.Expr], keys: Keys) -> int:
    """One bit an argument, the last one lowest: set if this GROUP BY does not group by it."""
    present = {dialect.text(key) for key in keys}
    bits = ["0" if dialect.text(argument.unnest()) in present else "1" for argument in arguments]
    return int("".join(bits), 2)
