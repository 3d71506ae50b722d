"""By which keys a correlated subquery is asked, and for which values it is built. Pure; a part of `build.py`."""

from __future__ import annotations

from collections.abc import Sequence, Set

from sqlglot import exp

from pgtrickle.query import gaps
from pgtrickle.query.builder import correlation, keyed_subquery
from pgtrickle.query.builder.context import BuildContext
from pgtrickle.query.builder.correlation import DomainValues
from pgtrickle.query.builder.keyed_subquery import Keyed
from pgtrickle.query.builder.scope import Scope
from pgtrickle.query.expression import columns_of
from pgtrickle.query.operators import Operator


def domain_of(context: BuildContext, query: exp.Expr, scope: Scope) -> tuple[Keyed, DomainValues]:
    """The values that a query reads of the query around it: by what they are asked for, and to be read."""
    read = correlation.read(query, scope)
    _check_near(context, read, scope)
    domain = keyed_subquery.domain(
        context.factory, scope.operator, read, correlation.never_null(query, scope, context.calls)
    )
    called = {name: domain.stand_in[column] for name, column in scope.names.items() if column in read}
    return domain, DomainValues(domain.operator, called)


def keyed(
    context: BuildContext, operator: Operator, correlated: Sequence[exp.Expr], scope: Scope, outside: Set[str]
) -> Keyed:
    """By the equalities of WHERE, if nothing else (`outside`: no expression above) reads the query around it."""
    if not outside:
        found = keyed_subquery.by_equalities(context.factory, operator, correlated, scope.columns())
        if found is not None:
            return found
    read = outside | (columns_of(correlated) - set(operator.names))
    _check_near(context, read, scope)
    return keyed_subquery.by_domain(context.factory, scope.operator, operator, correlated, read)


def _check_near(context: BuildContext, read: Set[str], scope: Scope) -> None:
    if not read <= set(scope.operator.names):
        raise context.refuse(gaps.SUBQUERY, "a subquery that reads a query further out than the one around it")
