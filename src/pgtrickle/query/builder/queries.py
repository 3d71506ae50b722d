"""A subquery is a query again: what the parts of the builder ask of the whole, which is `build.py`. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sqlglot import exp

from pgtrickle.query.analyse.analysis import Body
from pgtrickle.query.builder.correlation import DomainValues
from pgtrickle.query.builder.keyed_subquery import Keyed
from pgtrickle.query.builder.scope import Scope
from pgtrickle.query.builder.with_queries import Names
from pgtrickle.query.operators import Operator


@dataclass(frozen=True, slots=True)
class BuiltQuery:
    """A query built: its rows, and its output as (label, column)."""

    operator: Operator
    outputs: tuple[tuple[str, str], ...]


class Queries(Protocol):
    """Builds the queries within a query."""

    def body(self, body: Body) -> BuiltQuery:
        """The query of the user, or of a view."""

    def query(self, node: exp.Expr, names: Names, domain: DomainValues | None = None) -> BuiltQuery:
        """Any query; the output of one that is built for the values `domain` ends with these."""

    def by_key(self, query: exp.Expr, scope: Scope, names: Names) -> tuple[Keyed, list[str]] | None:
        """A query that reads the one around it, for all that may be asked of it, and its output columns; None if it
        reads nothing around it."""

    def rows(self, node: exp.Select, names: Names, start: Scope | None = None) -> Scope:
        """The rows of a FROM clause, beside those of `start`."""
