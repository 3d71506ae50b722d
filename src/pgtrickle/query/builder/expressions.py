"""WHERE and expressions: names resolved to columns, subqueries to joins. Pure; a part of `build.py`."""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from pgtrickle.query import gaps
from pgtrickle.query.builder import row_function, scalar_subquery, sublink_joins, subquery_keys, top_k
from pgtrickle.query.builder.context import BuildContext
from pgtrickle.query.builder.keyed_subquery import Keyed
from pgtrickle.query.builder.queries import Queries
from pgtrickle.query.builder.scope import Scope
from pgtrickle.query.builder.select_parts import Around
from pgtrickle.query.builder.sublink_joins import Attachment, Inner
from pgtrickle.query.builder.subquery_shape import groups_rows, is_flat, is_one_group, is_plain, reads_in_list
from pgtrickle.query.builder.with_queries import Names, names_in
from pgtrickle.query.expression import column_node, columns_of, conjunct_nodes, from_node
from pgtrickle.query.operators import Operator
from pgtrickle.query.syntax import grouping_sets, sublinks
from pgtrickle.query.syntax.calls import function_name

_SYSTEM_COLUMNS = frozenset({"ctid", "xmin", "xmax", "cmin", "cmax", "tableoid"})


class Expressions:
    """Resolves expressions; a subquery in one becomes something to join."""

    def __init__(self, context: BuildContext, queries: Queries) -> None:
        self._context = context
        self._queries = queries

    def where(self, node: exp.Select, scope: Scope, names: Names) -> tuple[Scope, Operator]:
        """The names of FROM over the rows that plain conditions of WHERE keep, and the rows that those which ask a
        subquery keep of these. A subquery is built for the values of these rows: of FROM a, b not for all pairs."""
        operator = scope.operator
        where = node.args.get("where")
        parts = [] if where is None else sublinks.conjuncts(where.this)
        for part in [part for part in parts if not sublinks.asks(part)]:
            operator = self._context.factory.filter(operator, from_node(self.resolve(part, scope)))
        asking = scope.over(operator)
        for part in [part for part in parts if sublinks.asks(part)]:
            around = Around(names)
            conditions = self._asked(part, asking, around)
            for attachment in around.attachments:
                operator = self.attach(operator, attachment)
            for condition in conditions:
                operator = self._context.factory.filter(operator, from_node(condition))
        return asking, operator

    def filtered(self, scope: Scope, condition: exp.Expr, names: Names) -> Scope:
        """The rows of a scope for which a condition is true, which may ask subqueries."""
        _, operator = self.where(exp.Select(where=exp.Where(this=condition.copy())), scope, names)
        return scope.over(operator)

    def attach(self, operator: Operator, attachment: Attachment) -> Operator:
        if sublink_joins.reads_around(attachment, set(operator.names)):
            raise self._context.refuse(
                gaps.SUBQUERY, "a subquery that reads a query further out than the one around it"
            )
        return sublink_joins.attach(operator, attachment)

    def resolve(self, node: exp.Expr, scope: Scope, around: Around | None = None) -> exp.Expr:
        """`node` with its column names replaced by tree columns; refuses what no expression may hold.

        Subqueries are built and replaced by their answer if there is a place, `around`, to leave them for joining.
        """

        def replace(part: exp.Expr) -> exp.Expr:
            return grouping_sets.carried(resolved(part), part)

        def resolved(part: exp.Expr) -> exp.Expr:
            if self._is_answered(part, scope):
                return row_function.resolved(part, scope)
            if self._is_answered(sublinks.asked(part), scope):
                return part
            if around is not None:
                answer = self._answer(part, scope, around)
                if answer is not None:
                    return answer
            if isinstance(part, exp.Window) and not (around is not None and around.windows):
                raise self._context.refuse(gaps.WINDOW_FUNCTION, "", "over")
            self._check_expression(part, sets=around is not None and around.sets)
            if not isinstance(part, exp.Column):
                return part
            found = scope.find(part.table or None, part.name)
            if found is not None:
                return column_node(found)
            if part.name in _SYSTEM_COLUMNS:
                raise self._context.refuse(gaps.SYSTEM_COLUMN, part.name, part.name)
            raise self._context.refuse(gaps.UNFAITHFUL, f"column {part.sql()} was not understood")

        return node.copy().transform(replace)

    def _is_answered(self, query: exp.Expr | None, scope: Scope) -> bool:
        """Whether it is a query that stays in the expression it stands in, since it reads no table."""
        return isinstance(query, exp.Query | exp.Values) and row_function.is_answered(query, scope, self._context.calls)

    def _asked(self, part: exp.Expr, scope: Scope, around: Around) -> list[exp.Expr]:
        """A conjunct of WHERE that holds a subquery: what is left to filter by once the attachments are joined."""
        node, isnt = sublinks.negated(part)
        test = sublinks.recognise(node)
        if test is None or self._is_answered(test.query, scope):
            return conjunct_nodes(self.resolve(part, scope, around))
        operands = [self.resolve(operand, scope, around) for operand in test.operands]
        inner = self._inner(test.query, scope, around.names, listed=bool(test.operands))
        around.attachments.extend(sublink_joins.filters(test, inner, operands, wanted=not isnt))
        return []

    def _answer(self, node: exp.Expr, scope: Scope, around: Around) -> exp.Expr | None:
        """The value of a sublink over columns still to be joined; None for any other node."""
        test = sublinks.recognise(node)
        if test is not None:
            operands = [self.resolve(operand, scope, around) for operand in test.operands]
            found, answer = sublink_joins.marks(
                test,
                self._inner(test.query, scope, around.names, listed=bool(test.operands)),
                operands,
                self._context.factory,
            )
            around.attachments.extend(found)
            return answer
        if isinstance(node, exp.Subquery) and isinstance(sublinks.bare(node), exp.Query):
            (value,) = self._values_of(sublinks.bare(node), scope, around)
            return value
        row = sublinks.row_query(node)
        if row is not None:
            operands = [self.resolve(operand, scope, around) for operand in node.this.expressions]
            return sublinks.compared_rows(node, operands, self._values_of(row, scope, around))
        query = sublinks.array_query(node)
        return None if query is None else self._array(query, scope, around)

    def _array(self, query: exp.Expr, scope: Scope, around: Around) -> exp.Expr:
        """ARRAY(SELECT …): the values in the order that the subquery puts them in."""
        if query.args.get("order") is None:
            raise self._context.refuse(gaps.ARRAY, "", "array")
        sorted_by = scalar_subquery.with_its_order(query)
        names = names_in(self._context, sorted_by, around.names)
        ordered, self._context.ordered = self._context.ordered, False  # its order is not lost
        rows = self._queries.by_key(sorted_by, scope, names)
        if rows is None:
            whole = self._queries.query(sorted_by, names)
            rows = Keyed(whole.operator, ()), [name for _, name in whole.outputs]
        self._context.ordered = ordered
        keyed, columns = rows
        try:
            order = [top_k.sorted_by(part, columns[place]) for part, place in scalar_subquery.places(query)]
            found = scalar_subquery.array(self._context.factory, self._context.calls, keyed, columns[0], order)
        except scalar_subquery.NotGroupedError as what:
            raise self._context.refuse(gaps.SUBQUERY, str(what)) from what
        around.attachments.append(found.attachment)
        return found.values[0]

    def _inner(self, query: exp.Expr, scope: Scope, names: Names, *, listed: bool = True) -> Inner:
        """A subquery of IN, ANY or ALL, or of EXISTS, which does not look at the select list (`listed`)."""
        query = query if listed else self._any_row(query)
        names = names_in(self._context, query, names)
        if isinstance(query, exp.Select) and is_plain(query, self._context.calls) and not listed:
            query = query.copy()
            query.set("expressions", [])
        if (
            not isinstance(query, exp.Select)
            or not is_plain(query, self._context.calls)
            or not is_flat(query, scope)
            or reads_in_list(query, scope)
        ):
            return self._inner_by_key(query, scope, names)
        inside, correlated = self.correlated(query, scope, names)
        items = [(from_node(self.resolve(part.unalias(), inside)), "") for part in query.expressions]
        operator, outputs = self._context.factory.extend(inside.operator, items)
        return Inner(operator, tuple(outputs), tuple(correlated))

    def _any_row(self, query: exp.Expr) -> exp.Expr:
        try:
            return top_k.any_row(query)
        except top_k.UnknownBoundError as what:
            raise self._context.refuse(gaps.LIMIT, str(what), "limit", "offset", "fetch first", "fetch next") from what

    def _inner_by_key(self, query: exp.Expr, scope: Scope, names: Names) -> Inner:
        """A subquery with GROUP BY and the like: for each key, if it is correlated."""
        found = self._queries.by_key(query, scope, names)
        if found is not None:
            keyed, outputs = found
            return Inner(keyed.operator, tuple(outputs), tuple(keyed.conjuncts()), keyed)
        rows = self._queries.query(query, names)
        return Inner(rows.operator, tuple(name for _, name in rows.outputs))

    def correlated(self, query: exp.Select, scope: Scope, names: Names) -> tuple[Scope, list[exp.Expr]]:
        """FROM and WHERE of a subquery: its own rows, and the conjuncts that read the query around it."""
        inside = replace(self._queries.rows(query, names), outer=scope)
        operator = inside.operator
        where = query.args.get("where")
        parts = [] if where is None else sublinks.conjuncts(where.this)
        correlated: list[exp.Expr] = []
        for part in sorted(parts, key=sublinks.asks):  # plain conditions first
            around = Around(names)
            rows = inside.over(operator)  # a subquery in it is built for the values of no others
            conditions = self._asked(part, rows, around) if sublinks.asks(part) else [self.resolve(part, inside)]
            for attachment in around.attachments:
                operator = self.attach(operator, attachment)
            for condition in conditions:
                if columns_of([condition]) <= set(operator.names):
                    operator = self._context.factory.filter(operator, from_node(condition))
                else:
                    correlated.append(condition)
        return inside.over(operator), correlated

    def _values_of(self, query: exp.Expr, scope: Scope, around: Around) -> list[exp.Expr]:
        """A subquery that is one value, or one row of them."""
        names = names_in(self._context, query, around.names)
        try:
            if isinstance(query, exp.Select) and groups_rows(query, self._context.calls) and is_flat(query, scope):
                inside, correlated = self.correlated(query, scope, names)
                selected = [self.resolve(part.unalias(), inside) for part in query.expressions]
                keyed = subquery_keys.keyed(
                    self._context, inside.operator, correlated, scope, self._read_by_calls(selected, inside)
                )
                found = scalar_subquery.values(
                    self._context.factory, self._context.calls, keyed, [keyed.inside(part) for part in selected]
                )
            else:
                inner = self._inner(query, scope, names)
                keyed = inner.keyed or subquery_keys.keyed(
                    self._context, inner.operator, list(inner.correlated), scope, set()
                )
                one_each = (
                    inner.keyed is not None
                    and isinstance(query, exp.Select)
                    and is_one_group(query, self._context.calls)
                )
                found = (
                    scalar_subquery.values_of_each(keyed, inner.outputs)
                    if one_each
                    else scalar_subquery.only_values(self._context.factory, self._context.calls, keyed, inner.outputs)
                )
        except scalar_subquery.NotGroupedError as what:
            raise self._context.refuse(gaps.SUBQUERY, str(what)) from what
        self._context.check_order(found.functions)
        around.attachments.append(found.attachment)
        return found.values

    def _read_by_calls(self, nodes: list[exp.Expr], inside: Scope) -> set[str]:
        """The columns of the query around that aggregate calls read."""
        calls = [part for node in nodes for part in node.walk() if self._context.calls.aggregate(part) is not None]
        return columns_of(calls) - set(inside.operator.names)

    def _check_expression(self, node: exp.Expr, *, sets: bool) -> None:
        test = sublinks.recognise(node)
        if test is not None or isinstance(node, exp.Query) or sublinks.array_query(node) is not None:
            raise self._context.refuse(gaps.SUBQUERY, "a subquery in this place")
        if isinstance(node, exp.Column) and isinstance(node.this, exp.Star):
            raise self._context.refuse(gaps.WHOLE_ROW, node.table or "a table", node.table)
        if self._context.calls.returns_set(node) and not sets:
            name = function_name(node)
            raise self._context.refuse(gaps.SET_RETURNING, f"{name}()", name)
