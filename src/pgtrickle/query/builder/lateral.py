"""LATERAL in FROM: a function or a subquery of the rows before it. Pure; a part of `build.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sqlglot import exp

from pgtrickle.query import gaps
from pgtrickle.query.builder import join_items, row_function, table_functions
from pgtrickle.query.builder.context import BuildContext
from pgtrickle.query.builder.expressions import Expressions
from pgtrickle.query.builder.lateral_query import LateralQueries, is_always
from pgtrickle.query.builder.scope import Scope
from pgtrickle.query.builder.select_parts import Around
from pgtrickle.query.builder.subquery_keys import domain_of
from pgtrickle.query.builder.with_queries import Names
from pgtrickle.query.expression import from_node
from pgtrickle.query.syntax import sublinks

#: Joins an item that reads nothing of the rows before it.
JoinItem = Callable[[Scope, exp.Lateral, exp.Join, Names], Scope]


class Laterals:
    """Builds LATERAL items beside the rows before them."""

    def __init__(
        self, context: BuildContext, expressions: Expressions, lateral_queries: LateralQueries, join_item: JoinItem
    ) -> None:
        self._context = context
        self._expressions = expressions
        self._lateral_queries = lateral_queries
        self._join_item = join_item

    def build(self, scope: Scope, item: exp.Lateral, join: exp.Join, names: Names) -> Scope:
        """A function or a subquery of the rows before it."""
        if join.args.get("using"):
            return self._using(scope, item, join, names)
        if join.args.get("on") is not None and sublinks.asks(join.args["on"]):
            return self._asking(scope, item, join, names)
        if isinstance(item.this, exp.Subquery):
            found = self._lateral_queries.build(scope, item, join, names)
            return found or self._join_item(scope, item, join, names)
        return self._function(scope, item, join, names)

    def _function(self, scope: Scope, item: exp.Lateral, join: exp.Join, names: Names) -> Scope:
        """The rows that a function makes of each row before it."""
        side, on = str(join.args.get("side") or "").upper(), join.args.get("on")
        always = on is None or is_always(on)
        if not table_functions.is_function(item.this) or side not in ("", "LEFT"):
            raise self._context.refuse(gaps.LATERAL, "", "lateral", "apply")
        if side and not always:
            return self._padded_function(scope, item, join, names)
        around = Around(names)
        call = table_functions.call_text(item, item.this, lambda node: self._expressions.resolve(node, scope, around))
        operator = scope.operator
        for attachment in around.attachments:
            operator = self._expressions.attach(operator, attachment)
        labels = table_functions.labels(item, item.this)
        made = table_functions.expand(self._context.factory, operator, call, labels, outer=side == "LEFT")
        own = Scope.of(made, list(zip(labels, (column.name for column in made.made), strict=True)), item.alias, [])
        both = Scope(made, scope.fields + own.fields, {**scope.names, **own.names})
        if on is None or always:
            return both
        return both.over(self._context.factory.filter(made, from_node(self._expressions.resolve(on, both))))

    def _asking(self, scope: Scope, item: exp.Lateral, join: exp.Join, names: Names) -> Scope:
        """LATERAL … ON that asks a subquery: it is a condition on the rows, or within LATERAL if others are padded."""
        side = str(join.args.get("side") or "").upper()
        if not side:
            return self._expressions.filtered(self.build(scope, item, exp.Join(), names), join.args["on"], names)
        if side != "LEFT":
            return self._join_item(scope, item, join, names)
        return self.build(scope, _kept_where(item, join.args["on"]), exp.Join(side=side), names)

    def _using(self, scope: Scope, item: exp.Lateral, join: exp.Join, names: Names) -> Scope:
        """USING is ON of equal columns, which are then one."""
        using = [name.name for name in join.args["using"]]
        called = {column: name for name, column in scope.names.items()}
        known = [called.get(scope.field(name) or "") for name in using]
        sides = [(one, (item.alias, name)) for one, name in zip(known, using, strict=True) if one is not None]
        if len(sides) != len(using):
            raise self._context.refuse(gaps.UNFAITHFUL, "USING was not understood", "using", "natural")
        equal = [exp.EQ(this=_column(one), expression=_column(other)) for one, other in sides]
        side = str(join.args.get("side") or "").upper()
        both = self.build(scope, item, exp.Join(side=side, on=exp.and_(*equal)), names)
        pairs = [(both.names[one], both.names.get(other)) for one, other in sides]
        found = [(one, other) for one, other in pairs if other is not None]
        if len(found) != len(using):
            raise self._context.refuse(gaps.UNFAITHFUL, "USING was not understood", "using", "natural")
        return join_items.merged(self._context.factory, side, both, dict(zip(using, found, strict=True)))

    def _padded_function(self, scope: Scope, item: exp.Lateral, join: exp.Join, names: Names) -> Scope:
        """LEFT JOIN LATERAL f(…) ON …: the function's rows for each value it is given, joined by these and ON."""
        domain, values = domain_of(self._context, item, scope)
        start = values.use(self._context.factory)
        made = self.build(start, item, exp.Join(), names)
        own = {name: column for name, column in made.names.items() if name not in start.names}
        by = domain.over(made.operator, start.operator.names)
        return self._lateral_queries.beside(scope, replace(made, names=own), by.conjuncts(), join)


def _kept_where(item: exp.Lateral, on: exp.Expr) -> exp.Lateral:
    """LATERAL with those of its rows that fulfil a condition, under the same names."""
    alias = item.args.get("alias")
    renamed = [] if alias is None else [column.name for column in alias.columns]
    is_function = table_functions.is_function(item.this)
    labels = table_functions.labels(item, item.this) if is_function else row_function.labels(sublinks.bare(item.this))
    names = [*renamed, *labels[len(renamed) :]]
    columns = [exp.column(*(exp.to_identifier(part, quoted=True) for part in (name, item.alias))) for name in names]
    query = exp.Select(
        expressions=[exp.Alias(this=column, alias=column.this.copy()) for column in columns],
        from_=exp.From(this=item.copy()),
        where=exp.Where(this=on.copy()),
    )
    called = exp.TableAlias(this=exp.to_identifier(item.alias, quoted=True))
    return exp.Lateral(this=exp.Subquery(this=query), alias=called)


def _column(name: tuple[str | None, str]) -> exp.Column:
    alias, column = name
    return exp.column(exp.to_identifier(column, quoted=True), alias and exp.to_identifier(alias, quoted=True))
