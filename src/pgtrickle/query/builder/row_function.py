"""Subqueries that read no table: functions of the row around them. Pure; a part of `build.py`.

    (SELECT max(v.x) FROM (VALUES (t.a), (t.b)) v(x))    is an expression, as f(t.a, t.b) is

It stays as it is written, with the tree's columns for those of the query around, and PostgreSQL evaluates it.
"""

from __future__ import annotations

import re

from sqlglot import exp

from pgtrickle.model import Expr
from pgtrickle.query import gaps
from pgtrickle.query.builder import table_functions
from pgtrickle.query.builder.context import BuildContext
from pgtrickle.query.builder.scope import Scope
from pgtrickle.query.expression import column_node, from_node
from pgtrickle.query.operators import Expand
from pgtrickle.query.syntax import query_levels, sublinks
from pgtrickle.query.syntax.calls import Calls
from pgtrickle.query.syntax.inline_ctes import definition

_TREE_COLUMN = re.compile(r"c\d+")
_QUERY = exp.Query | exp.Values


def is_of_row(query: exp.Expr, scope: Scope, calls: Calls) -> bool:
    """Whether the query is a function of the rows of `scope` (and of those around it) and of nothing else."""
    outside = [column for column in query.find_all(exp.Column) if not query_levels.is_own(column, query)]
    if any(scope.find(column.table or None, column.name) is None for column in outside):
        return False
    if any(join.args.get("using") for join in query.find_all(exp.Join)):
        return False  # a column without an alias could be of either query
    if any(isinstance(table.this, exp.Identifier) and not _is_own(table, query) for table in query.find_all(exp.Table)):
        return False
    return not _may_capture(query, outside) and _has_definite_rows(query) and not _calls_outside(query, outside, calls)


def is_answered(query: exp.Expr, scope: Scope, calls: Calls) -> bool:
    """Whether a subquery in an expression is to be left there: a constant relation that has rows is joined instead."""
    reads = any(not query_levels.is_own(column, query) for column in query.find_all(exp.Column))
    core = sublinks.bare(query)
    return (reads or (isinstance(core, exp.Select) and not core.args.get("from_"))) and is_of_row(query, scope, calls)


def resolved(query: exp.Expr, scope: Scope) -> exp.Expr:
    """The query over the tree's columns."""
    core = query.copy()
    for column in [column for column in core.find_all(exp.Column) if not query_levels.is_own(column, core)]:
        found = scope.find(column.table or None, column.name)
        assert found is not None
        column.replace(column_node(found))
    return core


def expanded(context: BuildContext, scope: Scope, query: exp.Expr, *, outer: bool = False) -> tuple[Expand, list[str]]:
    """Each row of `scope` beside those of a query that reads nothing but it, and their labels."""
    if not is_of_row(query, scope, context.calls):
        raise context.refuse(gaps.LATERAL, "", "lateral")
    core = resolved(query, scope)
    core.set("alias", None)
    call = from_node(core)
    text = Expr(f"({call.sql})", call.columns)
    names = labels(query)
    return table_functions.expand(context.factory, scope.operator, text, names, outer=outer), names


def labels(query: exp.Expr) -> list[str]:
    """The names of a query's columns."""
    while isinstance(query, exp.SetOperation):
        query = sublinks.bare(query.this)
    if isinstance(query, exp.Values):
        return [f"column{place}" for place in range(1, len(query.expressions[0].expressions) + 1)]
    return [part.alias_or_name for part in query.expressions]


def _is_own(table: exp.Table, query: exp.Expr) -> bool:
    """Whether a name in FROM is that of a WITH query within the query."""
    found = None if table.db else definition(table.name, table)
    return found is not None and any(part is found for part in query.find_all(exp.CTE))


def _may_capture(query: exp.Expr, outside: list[exp.Column]) -> bool:
    """Whether a name in the query could be taken for one of the tree's columns."""
    theirs = {id(part) for column in outside for part in column.find_all(exp.Identifier)}
    names = (part.name for part in query.find_all(exp.Identifier) if id(part) not in theirs)
    return any(_TREE_COLUMN.fullmatch(name) for name in names)


def _has_definite_rows(query: exp.Expr) -> bool:
    """Whether each LIMIT in it has an order to go by, and no row is locked."""
    parts = [part for part in query.walk() if isinstance(part, _QUERY)]
    limited = (part for part in parts if part.args.get("limit") or part.args.get("offset"))
    return all(part.args.get("order") for part in limited) and not any(part.args.get("locks") for part in parts)


def _calls_outside(query: exp.Expr, outside: list[exp.Column], calls: Calls) -> bool:
    """Whether an aggregate reads nothing but the query around: it is one of that query then."""
    theirs = {id(column) for column in outside}
    for call in calls.whole_aggregates(query):
        read = [id(column) for column in call.find_all(exp.Column)]
        if read and theirs.issuperset(read):
            return True
    return False
