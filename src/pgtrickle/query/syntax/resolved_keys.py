"""Which expressions of a SELECT are keys of its grouping sets: values that `analyse/grouping_keys.py` reads from
PostgreSQL's node tree, and `mark_grouping_keys.py` puts on the syntax tree. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Above:
    """An expression above the groups: the key that it is; or the keys in it, and those that its GROUPING(…) name."""

    key: int | None
    within: tuple[int, ...] = ()
    named: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Grouped:
    """A SELECT with grouping sets: its keys in the order in which they are written, numbered as they first come.

    Of `constants` no other mention than by its place is a key. It is `definite` unless PostgreSQL's answer is not. A
    key that is a subquery is NULL within an expression, too, in a set that leaves it out, if `nulls_subqueries`:
    PostgreSQL before 18 asks it anew there, of some row of the group.
    """

    keys: tuple[int, ...]
    constants: frozenset[int]
    selected: tuple[Above, ...]
    having: Above | None
    order: tuple[Above, ...]
    on: tuple[Above, ...]
    names: tuple[str, ...]
    definite: bool = True
    nulls_subqueries: bool = True
