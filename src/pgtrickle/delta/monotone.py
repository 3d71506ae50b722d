"""Which queries only grow when what they read grows, and by which rows: what a circle of stream tables rests on. Pure.

Q is monotone in a table T if R ⊆ S implies Q(T:=R) ⊆ Q(T:=S), duplicates counted. Round by round, with ΔT the rows that
T has gained, After the table with them, and every ΔT at one place of the query or several:

    Q linear        Q′ = Q + Σ over sets of places, not empty, (−1)^(|set| + 1) · Q(ΔT at these, After elsewhere)
    Q distinct      Q′ = Q ∪ ⋃ over places Q(ΔT at this one, After elsewhere)

Called by `refresh/circle/rules.py` (may the circle be?) and `refresh/circle/fixpoint.py` (its rounds).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import combinations

from pgtrickle.delta.algebra import Changes
from pgtrickle.query.expression import referenced
from pgtrickle.query.operators import (
    Aggregate,
    Filter,
    InnerJoin,
    LeftJoin,
    Match,
    MatchKind,
    Operator,
    Project,
    Recursive,
    Repeat,
    RowWise,
    Scan,
    TopK,
    UnionAll,
    Window,
    walk,
)

_MOST_PLACES = 3
"""With more places the terms, one for each set of them, cost more than the whole query."""


@dataclass(frozen=True, slots=True)
class Term:
    """A query whose leaves may be `Changes`, and the weight of its rows."""

    sign: int
    tree: Operator


@dataclass(frozen=True, slots=True)
class Growth:
    """The rows a query gains: those of all terms; if it is `distinct`, each that is new to it, once."""

    terms: tuple[Term, ...]
    distinct: bool


def obstacle(tree: Operator, tables: Collection[int], *, left: bool = False) -> Operator | None:
    """The first operator, from the top, that is above a scan of one of the tables (oids) and not monotone. `left`:
    outer joins and anti-joins are taken for what they are, monotone in their left side."""
    if not _places(tree, tables):
        return None
    match tree:
        case Repeat():
            return tree
        case Scan() | RowWise() | InnerJoin() | Match(kind=MatchKind.SEMI) | UnionAll():
            pass
        case Aggregate(keys=keys, calls=()) if keys:  # DISTINCT
            pass
        case LeftJoin() | Match() if left and not _places(tree.right, tables):
            pass
        case _:
            return tree
    inputs = (obstacle(below, tables, left=left) for below in tree.inputs)
    return next((found for found in inputs if found is not None), None)


def name(operator: Operator) -> str:
    """What an operator is called where it is refused."""
    if isinstance(operator, Aggregate):
        functions = dict.fromkeys(call.function for call in operator.calls)
        return f"aggregate {', '.join(functions)}" if functions else "aggregate without GROUP BY"
    if isinstance(operator, Match):
        return f"{operator.kind.name.lower()} join"
    if isinstance(operator, TopK):
        return "first rows (LIMIT, DISTINCT ON)"
    if isinstance(operator, Window):
        return "window function"
    return re.sub(r"(?<!^)(?=[A-Z])", " ", type(operator).__name__).lower()


def growth(tree: Operator, changed: Collection[int]) -> Growth | None:
    """What a monotone query gains when these tables have gained rows; None if there is no cheap way to tell."""
    places = _places(tree, changed)
    if len(set(places)) < len(places):  # a part of the tree that is used twice: its places cannot be told apart
        return None
    if _is_distinct(tree):
        return Growth(tuple(_terms(tree, places, 1)), distinct=True)
    if len(places) <= _MOST_PLACES and _is_linear(tree, changed):
        return Growth(tuple(_terms(tree, places, len(places))), distinct=False)
    return None


def terms(tree: Operator, changed: Collection[int], *, once: bool) -> tuple[Term, ...]:
    """The terms of what changes in a monotone query with these tables: of a linear one, those of all sets of places;
    `once`: those of each place by itself, which give at least the rows that come, or go."""
    places = _places(tree, changed)
    return tuple(_terms(tree, places, 1 if once else len(places)))


def is_multilinear(tree: Operator, changed: Collection[int]) -> bool:
    """Whether a monotone query is the sum of the terms of all sets of places, and these are not too many."""
    places = _places(tree, changed)
    return len(set(places)) == len(places) <= _MOST_PLACES and _is_linear(tree, changed)


def _terms(tree: Operator, places: Collection[Scan], most: int) -> Iterator[Term]:
    for size in range(1, most + 1):
        for chosen in combinations(places, size):
            found = _with_changes(tree, chosen)
            if found is not None:
                yield Term(1 if size % 2 else -1, found)


def _with_changes(tree: Operator, chosen: Collection[Scan]) -> Operator | None:
    """The tree's rows that come from a change at each of the places; None if no row comes from all of them."""
    if not any(node in chosen for node in walk(tree)):
        return tree
    match tree:
        case Scan():
            return Changes(tree.columns, tree)
        case UnionAll(branches=branches):
            touched = [branch for branch in branches if any(node in chosen for node in walk(branch))]
            changed = _with_changes(touched[0], chosen) if len(touched) == 1 else None
            return None if changed is None else replace(tree, branches=(changed,))
        case InnerJoin() | LeftJoin() | Match() | RowWise() | Aggregate():
            below = [_with_changes(each, chosen) for each in tree.inputs]
            found = [each for each in below if each is not None]
            return tree.with_inputs(found) if len(found) == len(below) else None
    raise TypeError(f"{type(tree).__name__} is not monotone")


def _places(tree: Operator, tables: Collection[int]) -> tuple[Scan, ...]:
    return tuple(node for node in walk(tree) if isinstance(node, Scan) and node.table.oid in tables)


def _is_linear(tree: Operator, changed: Collection[int]) -> bool:
    """Whether each row comes from one row at each place: no duplicates are dropped on the way, and no row matches what
    it matched before."""
    return not any(
        (isinstance(node, Aggregate | Recursive) and _places(node, changed))
        or (isinstance(node, Match) and _places(node.right, changed))
        for node in walk(tree)
    )


def _is_distinct(tree: Operator) -> bool:
    """Whether the result has no duplicates, by DISTINCT at its top; columns may be chosen above it, and rows."""
    shown = set(tree.names)
    while isinstance(tree, Filter | Project):
        if isinstance(tree, Project):
            below = {name: referenced(part) for name, part in zip(tree.names, tree.expressions, strict=True)}
            if None in below.values():
                return False
            shown = {str(below[each]) for each in shown}
        tree = tree.input
    return isinstance(tree, Aggregate) and not tree.calls and bool(tree.keys) and shown >= set(tree.keys)
