"""The parts of a SELECT on their way to operators: values only. Pure; for `select.py` and the parts it has."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlglot import exp

from pgtrickle.query.builder.correlation import DomainValues
from pgtrickle.query.builder.scope import Scope
from pgtrickle.query.builder.sublink_joins import Attachment
from pgtrickle.query.builder.top_k import Bounds
from pgtrickle.query.builder.with_queries import Names
from pgtrickle.query.operators import Operator


@dataclass(frozen=True, slots=True)
class Around:
    """What a subquery in an expression may use: WITH queries; and where it leaves what is to be joined."""

    names: Names
    attachments: list[Attachment] = field(default_factory=list)
    sets: bool = False  # whether functions that return sets may be called
    windows: bool = False  # whether functions may be called over windows


@dataclass(frozen=True, slots=True)
class Below:
    """The rows that FROM and WHERE give a SELECT; `carried` are the values that it is built for, `domain`.

    Those of them that are `sought` are not NULL in any row.
    """

    scope: Scope
    operator: Operator
    names: Names
    domain: DomainValues | None = None
    carried: tuple[str, ...] = ()
    sought: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class First:
    """The first row in `order` of each group of `keys` (DISTINCT ON), the first rows (`bounds`: LIMIT), or both."""

    keys: list[exp.Expr]
    order: list[exp.Expr]
    bounds: Bounds | None = None


@dataclass(frozen=True, slots=True)
class Parts:
    """What stands above the rows of a SELECT: labels and expressions of its list, HAVING, subqueries, the order that
    DISTINCT ON or LIMIT go by."""

    labels: list[str]
    selected: list[exp.Expr]
    conditions: list[exp.Expr]
    around: Around
    first: First | None
    carried: int = 0  # how many at the end of the list are values that the query is built for
    sought: frozenset[str] = frozenset()  # those of them that are not NULL in any row
