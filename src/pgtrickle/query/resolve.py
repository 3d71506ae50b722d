"""WHERE and expressions: names resolved to columns, subqueries to joins. Pure; a part of `build.py`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sqlglot import exp

from pgtrickle.query import given, groupingsets, ofrow, scalar, sublinks, support, topk
from pgtrickle.query.building import Around, Building, Names
from pgtrickle.query.calls import function_name
from pgtrickle.query.expression import column_node, conjunct_nodes, from_node, tree_columns
from pgtrickle.query.keyed import Keyed
from pgtrickle.query.operators import Operator
from pgtrickle.query.scope import Scope
from pgtrickle.query.sublinks import Attachment, Inner

_SYSTEM_COLUMNS = frozenset({"ctid", "xmin", "xmax", "cmin", "cmax", "tableoid"})
_PLAIN_SELECT = frozenset({"expressions", "from_", "joins", "where", "order"})


class Resolving(Building):
    """Resolves expressions; a subquery in one becomes something to join."""

    def _where(self, node: exp.Select, scope: Scope, names: Names) -> Operator:
        """The rows of FROM that WHERE keeps: plain conditions first, then those that ask a subquery."""
        operator = scope.operator
        where = node.args.get("where")
        parts = [] if where is None else sublinks.conjuncts(where.this)
        for part in [part for part in parts if not sublinks.asks(part)]:
            operator = self._bench.filter(operator, from_node(self._resolve(part, scope)))
        for part in [part for part in parts if sublinks.asks(part)]:
            around = Around(names)
            conditions = self._asked(part, scope, around)
            for attachment in around.attachments:
                operator = self._attach(operator, attachment)
            for condition in conditions:
                operator = self._bench.filter(operator, from_node(condition))
        return operator

    def _attach(self, operator: Operator, attachment: Attachment) -> Operator:
        if sublinks.reads_around(attachment, set(operator.names)):
            raise self._refuse(support.SUBQUERY, "a subquery that reads a query further out than the one around it")
        return sublinks.attach(operator, attachment)

    def _resolve(self, node: exp.Expr, scope: Scope, around: Around | None = None) -> exp.Expr:
        """`node` with its column names replaced by tree columns; refuses what no expression may hold.

        Subqueries are built and replaced by their answer if there is a place, `around`, to leave them for joining.
        """

        def replace(part: exp.Expr) -> exp.Expr:
            return groupingsets.carried(resolved(part), part)

        def resolved(part: exp.Expr) -> exp.Expr:
            if self._is_answered(part, scope):
                return ofrow.resolved(part, scope)
            if self._is_answered(sublinks.asked(part), scope):
                return part
            if around is not None:
                answer = self._answer(part, scope, around)
                if answer is not None:
                    return answer
            self._check_expression(part, sets=around is not None and around.sets)
            if not isinstance(part, exp.Column):
                return part
            found = scope.find(part.table or None, part.name)
            if found is not None:
                return column_node(found)
            if part.name in _SYSTEM_COLUMNS:
                raise self._refuse(support.SYSTEM_COLUMN, part.name, part.name)
            raise self._refuse(support.UNFAITHFUL, f"column {part.sql()} was not understood")

        return node.copy().transform(replace)

    def _is_answered(self, query: exp.Expr | None, scope: Scope) -> bool:
        """Whether it is a query that stays in the expression it stands in, since it reads no table."""
        return isinstance(query, exp.Query | exp.Values) and ofrow.is_answered(query, scope, self._calls)

    def _asked(self, part: exp.Expr, scope: Scope, around: Around) -> list[exp.Expr]:
        """A conjunct of WHERE that holds a subquery: what is left to filter by once the attachments are joined."""
        node, isnt = sublinks.negated(part)
        test = sublinks.recognise(node)
        if test is None or self._is_answered(test.query, scope):
            return conjunct_nodes(self._resolve(part, scope, around))
        operands = [self._resolve(operand, scope, around) for operand in test.operands]
        inner = self._inner(test.query, scope, around.names, listed=bool(test.operands))
        around.attachments.extend(sublinks.filters(test, inner, operands, wanted=not isnt))
        return []

    def _answer(self, node: exp.Expr, scope: Scope, around: Around) -> exp.Expr | None:
        """The value of a sublink over columns still to be joined; None for any other node."""
        test = sublinks.recognise(node)
        if test is not None:
            operands = [self._resolve(operand, scope, around) for operand in test.operands]
            found, answer = sublinks.marks(
                test, self._inner(test.query, scope, around.names, listed=bool(test.operands)), operands, self._bench
            )
            around.attachments.extend(found)
            return answer
        if isinstance(node, exp.Subquery) and isinstance(sublinks.bare(node), exp.Query):
            (value,) = self._values_of(sublinks.bare(node), scope, around)
            return value
        row = sublinks.row_query(node)
        if row is not None:
            operands = [self._resolve(operand, scope, around) for operand in node.this.expressions]
            return sublinks.compared_rows(node, operands, self._values_of(row, scope, around))
        query = sublinks.array_query(node)
        return None if query is None else self._array(query, scope, around)

    def _array(self, query: exp.Expr, scope: Scope, around: Around) -> exp.Expr:
        """ARRAY(SELECT …): the values in the order that the subquery puts them in."""
        if query.args.get("order") is None:
            raise self._refuse(support.ARRAY, "", "array")
        sorted_by = scalar.with_its_order(query)
        names = self._with(sorted_by, around.names)
        ordered, self._ordered = self._ordered, False  # its order is not lost
        rows = self._by_key(sorted_by, scope, names)
        if rows is None:
            whole = self._query(sorted_by, names)
            rows = Keyed(whole.operator, ()), [name for _, name in whole.outputs]
        self._ordered = ordered
        keyed, columns = rows
        try:
            order = [topk.sorted_by(part, columns[place]) for part, place in scalar.places(query)]
            found = scalar.array(self._bench, self._calls, keyed, columns[0], order)
        except scalar.NotGroupedError as what:
            raise self._refuse(support.SUBQUERY, str(what)) from what
        around.attachments.append(found.attachment)
        return found.values[0]

    def _inner(self, query: exp.Expr, scope: Scope, names: Names, *, listed: bool = True) -> Inner:
        """A subquery of IN, ANY or ALL, or of EXISTS, which does not look at the select list (`listed`)."""
        query = query if listed else self._any_row(query)
        names = self._with(query, names)
        if isinstance(query, exp.Select) and self._is_plain(query) and not listed:
            query = query.copy()
            query.set("expressions", [])
        if (
            not isinstance(query, exp.Select)
            or not self._is_plain(query)
            or not self._is_flat(query, scope)
            or self._reads_in_list(query, scope)
        ):
            return self._inner_by_key(query, scope, names)
        inside, correlated = self._correlated(query, scope, names)
        items = [(from_node(self._resolve(part.unalias(), inside)), "") for part in query.expressions]
        operator, outputs = self._bench.extend(inside.operator, items)
        return Inner(operator, tuple(outputs), tuple(correlated))

    def _any_row(self, query: exp.Expr) -> exp.Expr:
        try:
            return topk.any_row(query)
        except topk.UnknownBoundError as what:
            raise self._refuse(support.LIMIT, str(what), "limit", "offset", "fetch first", "fetch next") from what

    def _inner_by_key(self, query: exp.Expr, scope: Scope, names: Names) -> Inner:
        """A subquery with GROUP BY and the like: for each key, if it is correlated."""
        found = self._by_key(query, scope, names)
        if found is not None:
            keyed, outputs = found
            return Inner(keyed.operator, tuple(outputs), tuple(keyed.conjuncts()), keyed)
        rows = self._query(query, names)
        return Inner(rows.operator, tuple(name for _, name in rows.outputs))

    def _is_flat(self, query: exp.Select, scope: Scope) -> bool:
        """Whether no query in its FROM or select list is asked, nor one that reads the query around it."""
        return not given.read_below(query, scope) and not any(map(sublinks.asks, query.expressions))

    @staticmethod
    def _reads_in_list(query: exp.Select, scope: Scope) -> bool:
        return any(given.read(part, scope) for part in query.expressions)

    def _is_plain(self, query: exp.Select) -> bool:
        """Whether the query selects rows as FROM and WHERE give them."""
        if any(value for part, value in query.args.items() if part not in _PLAIN_SELECT):
            return False
        calls = self._calls.groups(query) or self._calls.any_set(query.expressions)
        return query.args.get("from_") is not None and not calls

    def _correlated(self, query: exp.Select, scope: Scope, names: Names) -> tuple[Scope, list[exp.Expr]]:
        """FROM and WHERE of a subquery: its own rows, and the conjuncts that read the query around it."""
        inside = replace(self._from(query, names), outer=scope)
        operator = inside.operator
        where = query.args.get("where")
        parts = [] if where is None else sublinks.conjuncts(where.this)
        correlated: list[exp.Expr] = []
        for part in sorted(parts, key=sublinks.asks):  # plain conditions first
            around = Around(names)
            conditions = self._asked(part, inside, around) if sublinks.asks(part) else [self._resolve(part, inside)]
            for attachment in around.attachments:
                operator = self._attach(operator, attachment)
            for condition in conditions:
                if columns_of([condition]) <= set(operator.names):
                    operator = self._bench.filter(operator, from_node(condition))
                else:
                    correlated.append(condition)
        return inside.over(operator), correlated

    def _values_of(self, query: exp.Expr, scope: Scope, around: Around) -> list[exp.Expr]:
        """A subquery that is one value, or one row of them."""
        names = self._with(query, around.names)
        try:
            if isinstance(query, exp.Select) and self._groups_rows(query) and self._is_flat(query, scope):
                inside, correlated = self._correlated(query, scope, names)
                selected = [self._resolve(part.unalias(), inside) for part in query.expressions]
                keyed = self._keyed(inside.operator, correlated, scope, self._read_by_calls(selected, inside))
                found = scalar.values(self._bench, self._calls, keyed, [keyed.inside(part) for part in selected])
            else:
                inner = self._inner(query, scope, names)
                keyed = inner.keyed or self._keyed(inner.operator, list(inner.correlated), scope, set())
                one_each = inner.keyed is not None and isinstance(query, exp.Select) and self._is_one_group(query)
                found = (
                    scalar.values_of_each(keyed, inner.outputs)
                    if one_each
                    else scalar.only_values(self._bench, self._calls, keyed, inner.outputs)
                )
        except scalar.NotGroupedError as what:
            raise self._refuse(support.SUBQUERY, str(what)) from what
        self._check_order(found.functions)
        around.attachments.append(found.attachment)
        return found.values

    def _read_by_calls(self, nodes: list[exp.Expr], inside: Scope) -> set[str]:
        """The columns of the query around that aggregate calls read."""
        calls = [part for node in nodes for part in node.walk() if self._calls.aggregate(part) is not None]
        return columns_of(calls) - set(inside.operator.names)

    def _is_one_group(self, query: exp.Select) -> bool:
        """Whether the query is sure to have one row: aggregates of all its rows."""
        rest = ("group", "having", "distinct", "limit", "offset")
        return self._calls.groups(query) and not any(query.args.get(part) for part in rest)

    def _groups_rows(self, query: exp.Select) -> bool:
        """Whether it is aggregates of all rows of its FROM."""
        return query.args.get("from_") is not None and self._is_one_group(query)

    def _check_expression(self, node: exp.Expr, *, sets: bool) -> None:
        if isinstance(node, exp.Window):
            raise self._refuse(support.WINDOW_FUNCTION, "", "over")
        test = sublinks.recognise(node)
        if test is not None or isinstance(node, exp.Query) or sublinks.array_query(node) is not None:
            raise self._refuse(support.SUBQUERY, "a subquery in this place")
        if isinstance(node, exp.Column) and isinstance(node.this, exp.Star):
            raise self._refuse(support.WHOLE_ROW, node.table or "a table", node.table)
        if self._calls.returns_set(node) and not sets:
            name = function_name(node)
            raise self._refuse(support.SET_RETURNING, f"{name}()", name)


def columns_of(nodes: Iterable[exp.Expr]) -> set[str]:
    """The tree's columns that expressions read."""
    return {column.name for node in nodes for column in tree_columns(node)}
