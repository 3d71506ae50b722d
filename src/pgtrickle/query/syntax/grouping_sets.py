"""GROUPING SETS, ROLLUP and CUBE as a list of plain GROUP BYs. Pure; a part of `builder/build.py`.

    GROUP BY a, ROLLUP (b, c)    =    GROUP BY a, b, c  ⊎  GROUP BY a, b  ⊎  GROUP BY a

In each, the expressions grouped by in another only are NULL, and GROUPING(…) is a number. Which expression is which key
is a mark on it (`mark_grouping_keys.py`), as PostgreSQL has resolved it: no text is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from itertools import chain, combinations, product

from sqlglot import exp

from pgtrickle.query.syntax import dialect

KEY = "pgtrickle_key"
"""The mark of a syntax node: the number of the key that it is."""

Keys = tuple[exp.Expr, ...]


class UnknownKeyError(ValueError):
    """An expression of which it cannot be told what key of GROUP BY it is."""


def is_simple(group: exp.Group) -> bool:
    """Whether the clause is one list of expressions."""
    return not any(isinstance(part, exp.GroupingSets | exp.Cube | exp.Rollup | exp.Tuple) for part in group.expressions)


def expand(group: exp.Group) -> list[Keys]:
    """The sets of keys, one a GROUP BY, each key once; one that stands there twice counts twice, if not DISTINCT."""
    parts = product(*(_sets(part) for part in group.expressions))
    sets = [{_identity(key): key for key in chain.from_iterable(some)} for some in parts]
    if group.args.get("all") is False:  # GROUP BY DISTINCT
        sets = list({frozenset(keys): keys for keys in sets}.values())
    return [tuple(keys.values()) for keys in sets]


def key_of(node: exp.Expr) -> int | None:
    """The number of the key that a node was marked as."""
    found = node.meta_get(KEY)
    return found if isinstance(found, int) else None


def marked(node: exp.Expr, number: int) -> exp.Expr:
    """`node`, marked as this key."""
    node.meta[KEY] = number
    return node


def carried(node: exp.Expr, given: exp.Expr) -> exp.Expr:
    """`node`, which takes the place of `given`, with its mark."""
    number = key_of(given)
    return node if number is None else marked(node, number)


def is_grouping(node: exp.Expr) -> bool:
    """Whether it is GROUPING(…)."""
    return isinstance(node, exp.Anonymous) and node.name == "GROUPING"


def _identity(key: exp.Expr) -> int | str:
    """The number of a key; of one in a plain GROUP BY, where none is ever left out, its text will do."""
    number = key_of(key)
    return dialect.text(key) if number is None else number


def written(group: exp.Group) -> list[exp.Expr]:
    """The keys in the order in which they are written, as often as they are."""

    def keys_in(node: exp.Expr) -> list[exp.Expr]:
        if isinstance(node, exp.GroupingSets | exp.Cube | exp.Rollup):
            return [key for part in node.expressions for key in keys_in(part)]
        return list(_item(node))

    return [key for part in group.expressions for key in keys_in(part)]


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
    node: exp.Expr, keys: Keys, absent: Mapping[int, str], is_aggregate: Callable[[exp.Expr], object]
) -> exp.Expr:
    """An output expression in one of the GROUP BYs: `absent` keys, by number with their types, are NULL there."""
    present = {key_of(key) for key in keys}

    def replace(part: exp.Expr) -> exp.Expr:
        if is_aggregate(part) and part.find_ancestor(exp.Query) is None:
            return part.copy()  # a copy is not looked into: an aggregate sees its rows as they are
        if is_grouping(part):
            return exp.Literal.number(_grouping(part.expressions, present))
        number = key_of(part)
        if number is None:
            return part
        if number in present:
            return part.copy()  # nor is a key: it has its value though it reads a column that is an absent key
        return dialect.parse_expression(f"(NULL::{absent[number]})")

    return node.copy().transform(replace)


def _grouping(arguments: Sequence[exp.Expr], present: Set[int | None]) -> int:
    """One bit an argument, the last one lowest: set if this GROUP BY does not group by it."""
    bits = ["0" if key_of(argument) in present else "1" for argument in arguments]
    return int("".join(bits), 2)
