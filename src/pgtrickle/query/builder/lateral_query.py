"""LATERAL subqueries to joins. Pure; a part of `build.py`.

plain rows               joined on what they are correlated by, whatever that is
one group (aggregates)   joined for each key, with the answer over no rows where there is no group
GROUP BY, DISTINCT,
LIMIT                    the rows of each key, joined by it (`grouped_subquery.py`)
no table in it           a function of the row before it (`row_function.py`)
"""

from __future__ import annotations

from sqlglot import exp

from pgtrickle.model import Expr
from pgtrickle.query import gaps
from pgtrickle.query.builder import correlation, row_function, scalar_subquery, subquery_keys
from pgtrickle.query.builder.context import BuildContext
from pgtrickle.query.builder.expressions import Expressions
from pgtrickle.query.builder.grouping import Grouping
from pgtrickle.query.builder.queries import Queries
from pgtrickle.query.builder.scope import Scope
from pgtrickle.query.builder.select_parts import Around
from pgtrickle.query.builder.subquery_shape import groups_rows, is_flat, is_plain, reads_in_list
from pgtrickle.query.builder.with_queries import Names, names_in
from pgtrickle.query.expression import column_node, columns_of, conjunction, from_node
from pgtrickle.query.operators import Aggregate, InnerJoin, LeftJoin, Operator
from pgtrickle.query.syntax import dialect, sublinks


class LateralQueries:
    """Builds `… LATERAL (SELECT …)` of the rows before it."""

    def __init__(self, context: BuildContext, queries: Queries, expressions: Expressions) -> None:
        self._context = context
        self._queries = queries
        self._expressions = expressions

    def build(self, scope: Scope, item: exp.Lateral, join: exp.Join, names: Names) -> Scope | None:
        """The rows before it beside the subquery's; None if it does not read them."""
        side = str(join.args.get("side") or "").upper()
        query = sublinks.bare(item.this)
        self._context.note_order(query)
        if side not in ("", "LEFT"):
            return None
        on = join.args.get("on")
        always = on is None or is_always(on)
        if (always or not side) and row_function.is_of_row(query, scope, self._context.calls):
            made = self._made(scope, item, query, join)
            if on is None or always:
                return made
            return made.over(
                self._context.factory.filter(made.operator, from_node(self._expressions.resolve(on, made)))
            )
        names = names_in(self._context, query, names)
        if isinstance(query, exp.Select) and not correlation.read_below(query, scope):
            if groups_rows(query, self._context.calls) and (always or not side) and is_flat(query, scope):
                return self._one_group(scope, item, query, join, names)
            if is_plain(query, self._context.calls) and (always or not side or not reads_in_list(query, scope)):
                return self._rows(scope, item, query, join, names)
        found = self._queries.by_key(query, scope, names)
        if found is None:
            return None
        keyed, outputs = found
        return self.beside(scope, self._own(keyed.operator, item, query, outputs), keyed.conjuncts(), join)

    def beside(self, scope: Scope, own: Scope, correlated: list[exp.Expr], join: exp.Join) -> Scope:
        """The two joined on what correlates them and on ON."""
        left, right = scope.operator, own.operator
        columns = left.columns + right.columns
        both = Scope(InnerJoin(columns, left, right, None), scope.fields + own.fields, {**scope.names, **own.names})
        on = join.args.get("on")
        parts = [*correlated, *([] if on is None or is_always(on) else [self._expressions.resolve(on, both)])]
        condition = conjunction(from_node(part) for part in parts)
        kind = LeftJoin if join.args.get("side") else InnerJoin
        return both.over(kind(columns, left, right, condition))

    def _own(self, operator: Operator, item: exp.Lateral, query: exp.Expr, outputs: list[str]) -> Scope:
        alias = item.args.get("alias")
        renamed = [] if alias is None else [column.name for column in alias.columns]
        return Scope.of(operator, list(zip(row_function.labels(query), outputs, strict=True)), item.alias, renamed)

    def _rows(self, scope: Scope, item: exp.Lateral, query: exp.Select, join: exp.Join, names: Names) -> Scope:
        """Rows as FROM and WHERE give them; what the select list reads of the row before is computed beside it."""
        inside, correlated = self._expressions.correlated(query, scope, names)
        around = Around(names)
        selected = [self._expressions.resolve(part.unalias(), inside, around) for part in query.expressions]
        operator = inside.operator
        for attachment in around.attachments:
            operator = self._expressions.attach(operator, attachment)
        known = set(operator.names)
        mixed = [not columns_of([node]) <= known for node in selected]
        there = Expr("true")
        below = [there if reads else from_node(node) for node, reads in zip(selected, mixed, strict=True)]
        operator, columns = self._context.factory.extend(operator, [(part, "") for part in below])
        if not any(mixed):
            return self.beside(scope, self._own(operator, item, query, columns), correlated, join)
        padded, on = bool(join.args.get("side")), join.args.get("on")
        bare = exp.Join(side=join.args.get("side"))  # ON may read what is not computed yet
        beside = self.beside(scope, self._own(operator, item, query, columns), correlated, bare)
        shown = [
            (_if(column, node) if padded else from_node(node)) if reads else from_node(column_node(column))
            for node, column, reads in zip(selected, columns, mixed, strict=True)
        ]
        extended, outputs = self._context.factory.extend(beside.operator, [(part, "") for part in shown])
        own = self._own(extended, item, query, outputs)
        both = Scope(extended, scope.fields + own.fields, {**scope.names, **own.names})
        if on is None or is_always(on):
            return both
        return both.over(self._context.factory.filter(extended, from_node(self._expressions.resolve(on, both))))

    def _one_group(self, scope: Scope, item: exp.Lateral, query: exp.Select, join: exp.Join, names: Names) -> Scope:
        """Aggregates over the rows of each key; there is always one row."""
        inside, correlated = self._expressions.correlated(query, scope, names)
        selected = [self._expressions.resolve(part.unalias(), inside) for part in query.expressions]
        outside = columns_of(selected) - set(inside.operator.names)
        keyed = subquery_keys.keyed(self._context, inside.operator, correlated, scope, outside)
        keys: list[exp.Expr] = [column_node(key.name) for key in keyed.keys]
        grouping = Grouping(self._context.factory, keyed.operator, self._context.calls.aggregate)
        aggregate, rewritten = grouping.build(keys, [*(keyed.inside(node) for node in selected), *keys])
        self._context.check_order(grouping.functions())
        values, groups = rewritten[: len(selected)], rewritten[len(selected) :]
        condition = keyed.condition(groups)
        aggregate = aggregate if condition is None else scalar_subquery.counted(self._context.factory, aggregate)
        joined = self._context.factory.join(scope.operator, aggregate)
        rows: Operator = (
            joined if condition is None else LeftJoin(joined.columns, scope.operator, aggregate, from_node(condition))
        )
        if condition is not None:
            values = [self._over_nothing(aggregate, keyed.outside(value, groups)) for value in values]
        rows, outputs = self._context.factory.extend(rows, [(from_node(value), "") for value in values])
        own = self._own(rows, item, query, outputs)
        both = Scope(rows, scope.fields + own.fields, {**scope.names, **own.names})
        on = join.args.get("on")
        if on is None or is_always(on):
            return both
        return both.over(self._context.factory.filter(rows, from_node(self._expressions.resolve(on, both))))

    def _made(self, scope: Scope, item: exp.Lateral, query: exp.Expr, join: exp.Join) -> Scope:
        """A query that reads nothing but the row before it."""
        made, labels = row_function.expanded(self._context, scope, query, outer=bool(join.args.get("side")))
        alias = item.args.get("alias")
        renamed = [] if alias is None else [column.name for column in alias.columns]
        fields = list(zip(labels, (column.name for column in made.made), strict=True))
        own = Scope.of(made, fields, item.alias, renamed)
        return Scope(made, scope.fields + own.fields, {**scope.names, **own.names})

    def _over_nothing(self, aggregate: Aggregate, value: exp.Expr) -> exp.Expr:
        try:
            return scalar_subquery.over_nothing(aggregate, value)
        except scalar_subquery.NotGroupedError as what:
            raise self._context.refuse(gaps.SUBQUERY, str(what)) from what


def is_always(on: exp.Expr) -> bool:
    """Whether ON is true of all rows."""
    return on.unnest() == exp.true()


def _if(column: str, node: exp.Expr) -> Expr:
    """The value where there is a row, else NULL."""
    case = exp.Case(ifs=[exp.If(this=column_node(column), true=exp.Paren(this=node.copy()))])
    return from_node(dialect.parse_expression(dialect.text(case)))
