"""The items of FROM and their joins. Pure; a part of `build.py`."""

from __future__ import annotations

from sqlglot import exp

from pgtrickle.model import Expr
from pgtrickle.query import gaps
from pgtrickle.query.builder import join_items, sublink_joins, table_functions
from pgtrickle.query.builder.context import BuildContext
from pgtrickle.query.builder.expressions import Expressions
from pgtrickle.query.builder.item_syntax import as_function, as_lateral, opened, taken_apart
from pgtrickle.query.builder.lateral import Laterals
from pgtrickle.query.builder.lateral_query import LateralQueries
from pgtrickle.query.builder.queries import Queries
from pgtrickle.query.builder.relations import Relations
from pgtrickle.query.builder.scope import Scope
from pgtrickle.query.builder.select_parts import Around
from pgtrickle.query.builder.subquery_keys import domain_of
from pgtrickle.query.builder.with_queries import Names
from pgtrickle.query.expression import conjunction, from_node, node_of, reference
from pgtrickle.query.syntax import sublinks
from pgtrickle.query.syntax.calls import function_name


class FromItems:
    """Builds the items of a FROM, and joins them."""

    def __init__(
        self,
        context: BuildContext,
        queries: Queries,
        expressions: Expressions,
        relations: Relations,
        lateral_queries: LateralQueries,
    ) -> None:
        self._context = context
        self._queries = queries
        self._expressions = expressions
        self._relations = relations
        self._laterals = Laterals(context, expressions, lateral_queries, self._join_item)
        self._lateral_queries = lateral_queries

    def joins(self, scope: Scope, joins: list[exp.Join], names: Names) -> Scope:
        """The rows before them joined with each item in turn."""
        for join in joins:
            lateral, inner = as_lateral(join.this, scope), taken_apart(join, scope)
            if lateral is not None:
                scope = self._laterals.build(scope, lateral, join, names)
            elif inner:
                scope = self.joins(scope, inner, names)
                on = join.args.get("on")
                scope = scope if on is None else self._expressions.filtered(scope, on, names)
            else:
                scope = self.join(scope, self.item(join.this, names), join, names)
        return scope

    def join(self, left: Scope, right: Scope, join: exp.Join, names: Names, same: tuple[Expr, ...] = ()) -> Scope:
        """One join, on its own condition and on `same`."""
        condition = join.args.get("on")
        if condition is not None and sublinks.asks(condition):
            return self._join_asking(left, right, join, names, same)
        both = self.crossed(left, right)
        side = str(join.args.get("side") or "").upper()
        using = [name.name for name in join.args.get("using") or []]
        if using:
            pairs = [(left.field(name), right.field(name)) for name in using]
            known = [(one, other) for one, other in pairs if one is not None and other is not None]
            if len(known) != len(using):
                raise self._context.refuse(gaps.UNFAITHFUL, "USING was not understood", "using", "natural")
            return join_items.join_using(self._context.factory, side, both, dict(zip(using, known, strict=True)), same)
        own = [] if condition is None else [from_node(self._expressions.resolve(condition, both))]
        return join_items.join(self._context.factory, side, both, conjunction([*same, *own]))

    def _join_asking(self, left: Scope, right: Scope, join: exp.Join, names: Names, same: tuple[Expr, ...]) -> Scope:
        """A join whose ON asks subqueries: each is joined first, to the side that it reads."""
        side = str(join.args.get("side") or "").upper()
        both = self.crossed(left, right)
        if not side:
            return self._expressions.filtered(both, join.args["on"], names)
        around = Around(names)
        condition = self._expressions.resolve(join.args["on"], both, around)
        for attachment in around.attachments:
            if not sublink_joins.reads_around(attachment, set(right.operator.names)):
                right = right.over(self._expressions.attach(right.operator, attachment))
            elif not sublink_joins.reads_around(attachment, set(left.operator.names)):
                left = left.over(self._expressions.attach(left.operator, attachment))
            else:
                if side == "FULL":
                    return self._full_by_value(left, right, join.args["on"], names, same)
                sides = (right, left) if side == "RIGHT" else (left, right)
                return self._join_by_value(*sides, join.args["on"], names, same)
        on = conjunction([*same, from_node(condition)])
        return join_items.join(self._context.factory, side, self.crossed(left, right), on)

    def _join_by_value(self, left: Scope, right: Scope, on: exp.Expr, names: Names, same: tuple[Expr, ...]) -> Scope:
        """A left join on anything: for the values that ON reads of the left side, the rows of the right one."""
        domain, values = domain_of(self._context, on, left)
        start = values.use(self._context.factory)
        found = self._expressions.filtered(self.crossed(start, right), on, names).operator
        by = domain.over(found, start.operator.names)
        joined = [*by.conjuncts(), *map(node_of, same)]
        return self._lateral_queries.beside(left, right.over(found), joined, exp.Join(side="LEFT"))

    def _full_by_value(self, left: Scope, right: Scope, on: exp.Expr, names: Names, same: tuple[Expr, ...]) -> Scope:
        """A full join on anything: a left join, and the rows of the right side beside which a left join has none."""
        factory = self._context.factory
        paired = self._join_by_value(left, right, on, names, same).operator
        marked, (mark,) = factory.extend(left.operator, [(Expr("true", ()), "")])
        beside = self._join_by_value(right, left.over(marked), on, names, same).operator
        alone = factory.filter(beside, Expr(f"{reference(mark).sql} IS NULL", (mark,)))
        return join_items.full(factory, self.crossed(left, right), paired, alone)

    def _join_item(self, scope: Scope, item: exp.Lateral, join: exp.Join, names: Names) -> Scope:
        """LATERAL that reads nothing before it: an item as any other."""
        return self.join(scope, self.item(item, names), join, names)

    def crossed(self, left: Scope, right: Scope) -> Scope:
        """Each row of one beside each of the other."""
        crossed = self._context.factory.join(left.operator, right.operator)
        return Scope(crossed, left.fields + right.fields, {**left.names, **right.names})

    def item(self, node: exp.Expr, names: Names) -> Scope:
        """One item: a table, a subquery, a function, VALUES, or joins in parentheses."""
        alias = node.args.get("alias")
        renamed = [column.name for column in alias.columns] if alias is not None else []
        match node:
            case exp.Table():
                return self._table(node, names, renamed)
            case exp.Subquery() if isinstance(node.this, exp.Query) and not isinstance(node.this, exp.Subquery):
                return self.joins(self._derived(node, names, renamed), node.args.get("joins") or [], names)
            case exp.Subquery():
                scope = self.joins(self.item(node.this, names), node.args.get("joins") or [], names)
                return Scope.of(scope.operator, scope.fields, node.alias, renamed) if node.alias else scope
            case exp.Lateral() | exp.Unnest() if node.args.get("joins"):
                item, joins = opened(node)
                return self.joins(self.item(item, names), joins, names)
            case exp.Lateral() if isinstance(node.this, exp.Subquery):
                rows = self._queries.query(node.this, names)
                return Scope.of(rows.operator, rows.outputs, node.alias, renamed)
            case exp.Lateral() if table_functions.is_function(node.this):
                return self._function(node, node.this, names)
            case exp.Lateral():
                raise self._context.refuse(gaps.LATERAL, "", "lateral", "apply")
            case exp.Values():
                rows = self._relations.values(node)
                return Scope.of(rows.operator, rows.outputs, node.alias, renamed)
            case exp.Unnest():
                return self._function(node, node, names)
        raise self._context.refuse(gaps.TABLE_FUNCTION, type(node).__name__.upper(), type(node).__name__.lower())

    def _derived(self, node: exp.Subquery, names: Names, renamed: list[str]) -> Scope:
        rows = self._queries.query(node.this, names)
        return Scope.of(rows.operator, rows.outputs, node.alias, renamed)

    def _table(self, node: exp.Table, names: Names, renamed: list[str]) -> Scope:
        if isinstance(node.this, exp.Values):
            rows = self._relations.values(node.this)
            scope = Scope.of(rows.operator, rows.outputs, node.alias, renamed)
            return self.joins(scope, node.args.get("joins") or [], names)
        if table_functions.is_function(node.this):
            return self.joins(self._function(node, node.this, names), node.args.get("joins") or [], names)
        if not isinstance(node.this, exp.Identifier):
            name = function_name(node.this) if node.this is not None else "ROWS FROM"
            raise self._context.refuse(gaps.TABLE_FUNCTION, name, name.lower())
        rows = self._relations.relation(node, names)
        scope = Scope.of(rows.operator, rows.outputs, node.alias_or_name, renamed)
        return self.joins(scope, node.args.get("joins") or [], names)

    def _function(self, item: exp.Expr, function: exp.Expr, names: Names) -> Scope:
        """A function of constants, or of what subqueries answer."""
        if sublinks.asks(function):
            return self._laterals.build(self._relations.nothing(), as_function(item), exp.Join(), names)
        call = table_functions.call_text(item, function, lambda node: node)
        if call.columns:
            raise self._context.refuse(gaps.LATERAL, "", function_name(function))
        labels = table_functions.labels(item, function)
        rows = table_functions.constant(self._context.factory, call.sql, labels)
        return Scope.of(rows, list(zip(labels, rows.names, strict=True)), item.alias, [])
