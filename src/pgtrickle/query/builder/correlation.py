"""What a subquery reads of the query around it, and that as a relation of its own. Pure; for `grouped_subquery.py`,
`build.py`.

    Q(l)  for each row of L    =    L ⋈ Q(D)        D = the distinct values of what Q reads of L

Q(D) is Q with D in the FROM of each SELECT, its columns carried to the output: grouped by, compared by set operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlglot import exp

from pgtrickle.query.builder.column_factory import ColumnFactory
from pgtrickle.query.builder.scope import Scope
from pgtrickle.query.expression import reference
from pgtrickle.query.operators import Operator
from pgtrickle.query.syntax import query_levels, sublinks
from pgtrickle.query.syntax.calls import Calls

_BELOW = (exp.Query, exp.From, exp.Join, exp.With, exp.Values)


@dataclass(frozen=True, slots=True)
class DomainValues:
    """The values (D), and the names by which the query around calls their first columns."""

    values: Operator
    names: Mapping[tuple[str | None, str], str]

    def use(self, factory: ColumnFactory) -> Scope:
        """The values under column names of their own: the uses have one state and one delta."""
        used = factory.exactly(self.values, [(reference(column), column.label) for column in self.values.columns])
        called = dict(zip(self.values.names, used.names, strict=True))
        return Scope(used, (), {name: called[column] for name, column in self.names.items()})


def read(query: exp.Expr, scope: Scope) -> set[str]:
    """The columns of `scope` that a query in it reads, at any depth.

    PostgreSQL writes every column with its table's alias, and no alias twice from a query to those within; without one
    are only columns that USING merged.
    """
    return {found for column in query.find_all(exp.Column) if (found := _found(column, scope, query)) is not None}


def read_below(query: exp.Expr, scope: Scope) -> set[str]:
    """Those of them that are read in FROM or in a query further down."""
    columns = (column for column in query.find_all(exp.Column) if _is_below(column, query))
    return {found for column in columns if (found := _found(column, scope, query)) is not None}


def never_null(query: exp.Expr, scope: Scope, calls: Calls) -> set[str]:
    """The columns of `scope` for which the query has no rows where they are NULL: it looks for what equals them."""
    query = sublinks.bare(query)
    if isinstance(query, exp.SetOperation):
        left, right = (never_null(side, scope, calls) for side in (query.this, query.expression))
        return left & right if isinstance(query, exp.Union) else left if isinstance(query, exp.Except) else left | right
    if not isinstance(query, exp.Select):
        return set()
    if query.args.get("having") is not None or calls.groups(query):
        group = query.args.get("group")
        if group is None or not all(isinstance(key, exp.Column) for key in group.expressions):
            return set()  # there may be a group over no rows
    return sought(query, scope)


def sought(query: exp.Select, scope: Scope) -> set[str]:
    """The columns of `scope` that WHERE wants something to be equal to: no row is found where they are NULL."""
    where = query.args.get("where")
    parts = [] if where is None else sublinks.conjuncts(where.this)
    equal = [part for part in parts if type(part) is exp.EQ and not _is_of_all(part.right)]
    sides = [side.unnest() for part in equal for side in (part.left, part.right)]
    columns = (side for side in sides if isinstance(side, exp.Column))
    return {found for column in columns if (found := _found(column, scope, query)) is not None}


def _is_of_all(node: exp.Expr) -> bool:
    """Whether it is ALL (…) or the like, which may be true of NULL."""
    return isinstance(node, exp.Any | exp.All | exp.Anonymous)


def _found(column: exp.Column, scope: Scope, query: exp.Expr) -> str | None:
    found = scope.names.get((column.table or None, column.name))
    return None if found is None or query_levels.is_own(column, query) else found


def _is_below(column: exp.Column, query: exp.Expr) -> bool:
    node = column.parent
    while node is not None and node is not query:
        if isinstance(node, _BELOW):
            return True
        node = node.parent
    return False
