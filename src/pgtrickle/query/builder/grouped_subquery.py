"""A correlated subquery with GROUP BY, DISTINCT or LIMIT, for all of its keys at once. Pure; a part of `build.py`.

    l, LATERAL (SELECT r.x FROM r WHERE r.k = l.k ORDER BY r.x LIMIT 3)   =   l ⋈ (the first three x of each k of r)

What was done for the rows that one row asks for is done for the rows of each key: it groups by the keys too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from pgtrickle.model import Column
from pgtrickle.query.builder import correlation, first_per_group, set_operations, top_k
from pgtrickle.query.builder.context import BuildContext
from pgtrickle.query.builder.expressions import Expressions
from pgtrickle.query.builder.grouping import Grouping
from pgtrickle.query.builder.keyed_subquery import Keyed
from pgtrickle.query.builder.limits import Limits
from pgtrickle.query.builder.queries import BuiltQuery, Queries
from pgtrickle.query.builder.scope import Scope
from pgtrickle.query.builder.select_parts import Around, First
from pgtrickle.query.builder.set_queries import SetQueries
from pgtrickle.query.builder.subquery_keys import domain_of, keyed
from pgtrickle.query.builder.subquery_shape import has_windows
from pgtrickle.query.builder.with_queries import Names, names_in
from pgtrickle.query.expression import column_node, columns_of, conjunct_nodes, from_node
from pgtrickle.query.operators import Operator
from pgtrickle.query.syntax import dialect, grouping_sets, sublinks

Nodes = list[exp.Expr]


@dataclass(frozen=True, slots=True)
class _Above:
    """What stands above FROM and WHERE, as in a SELECT; `keys` are those that it is asked by."""

    selected: Nodes
    conditions: Nodes
    group: Nodes
    on: Nodes
    order: Nodes
    keys: Nodes

    def nodes(self) -> Nodes:
        return [*self.selected, *self.conditions, *self.group, *self.on, *self.order]

    def rewritten(self, nodes: Sequence[exp.Expr]) -> _Above:
        """The same with other nodes, in the order of `nodes()`, and then the keys."""
        take = iter(nodes)
        parts = (self.selected, self.conditions, self.group, self.on, self.order, self.keys)
        return _Above(*([next(take) for _ in part] for part in parts))


class GroupedSubqueries:
    """Builds the rows of a subquery for all that may be asked of it."""

    def __init__(
        self,
        context: BuildContext,
        queries: Queries,
        expressions: Expressions,
        limits: Limits,
        set_queries: SetQueries,
    ) -> None:
        self._context = context
        self._queries = queries
        self._expressions = expressions
        self._limits = limits
        self._set_queries = set_queries

    def by_key(self, query: exp.Expr, scope: Scope, names: Names) -> tuple[Keyed, list[str]] | None:
        """The rows of a query and its output columns; None if it does not read the query around it."""
        query = sublinks.bare(query)
        if not correlation.read(query, scope):
            return None
        if isinstance(query, exp.Select) and self._reads_in_where(query, scope):
            return self._select_by_key(query, scope, names)
        found = self._set_by_key(query, scope, names) if isinstance(query, exp.SetOperation) else None
        return found or self._by_value(query, scope, names)

    def _set_by_key(self, query: exp.SetOperation, scope: Scope, names: Names) -> tuple[Keyed, list[str]] | None:
        """A set operation whose sides are asked by = for the same: within each key it is what it is for one."""
        sides: list[tuple[Keyed, list[str]]] = []
        for side in (sublinks.bare(query.this), sublinks.bare(query.expression)):
            found: tuple[Keyed, list[str]] | None = None
            known = names_in(self._context, side, names)
            if isinstance(side, exp.SetOperation):
                found = self._set_by_key(side, scope, known)
            elif isinstance(side, exp.Select) and correlation.read(side, scope) and self._reads_in_where(side, scope):
                found = self._select_by_key(side, scope, known)
            if found is None or any(key.null_safe for key in found[0].keys):
                return None
            sides.append(found)
        one, other = (_asked(by) for by, _ in sides)
        if {text: column.type for text, column in one.items()} != {text: c.type for text, c in other.items()}:
            return None
        if any(len(by.keys) > len(one) for by, _ in sides):  # two columns that are asked for the same
            return None
        keys = [list(one.values()), [other[text] for text in one]]
        rows = [
            BuiltQuery(by.operator, tuple(("", name) for name in (*outputs, *(column.name for column in own))))
            for (by, outputs), own in zip(sides, keys, strict=True)
        ]
        together = self._set_queries.combined(query, rows, len(keys[0]))
        columns = [name for _, name in together.outputs]
        width = len(columns) - len(keys[0])
        return sides[0][0].over(together.operator, columns[width:]), columns[:width]

    def _by_value(self, query: exp.Expr, scope: Scope, names: Names) -> tuple[Keyed, list[str]]:
        """Any query, for each value of what it reads of the query around it."""
        domain, values = domain_of(self._context, query, scope)
        rows = self._queries.query(query, names, values)
        columns = [name for _, name in rows.outputs]
        width = len(columns) - len(domain.keys)
        return domain.over(rows.operator, columns[width:]), columns[:width]

    def _reads_in_where(self, query: exp.Select, scope: Scope) -> bool:
        """Whether the query's own clauses read the query around it, and none that must be built for a value each."""
        group, having, distinct = (query.args.get(part) for part in ("group", "having", "distinct"))
        above = [*query.expressions, *filter(None, (group, having, query.args.get("order")))]
        grouped = having is not None or self._context.calls.groups(query)
        return (
            query.args.get("from_") is not None
            and not correlation.read_below(query, scope)
            and not self._context.calls.any_set(query.expressions)
            and not has_windows(query)
            and (group is not None or not grouped)
            and (group is None or (grouping_sets.is_simple(group) and not any(map(sublinks.asks, above))))
            and (distinct is None or not _is_limited(query))
        )

    def _select_by_key(self, query: exp.Select, scope: Scope, names: Names) -> tuple[Keyed, list[str]]:
        """The rows of a SELECT by the keys that WHERE has, if it has some."""
        group = query.args.get("group")
        inside, correlated = self._expressions.correlated(query, scope, names)
        above, first, inside = self._above(query, inside, names)
        outside = columns_of(above.nodes()) - set(inside.operator.names)
        found = keyed(self._context, inside.operator, correlated, scope, outside)
        keys: Nodes = [column_node(key.name) for key in found.keys]
        above = above.rewritten([*(found.inside(node) for node in above.nodes()), *keys])
        operator: Operator = found.operator
        if group is not None:
            operator, above = self._grouped_by_key(operator, replace(above, keys=keys))
        else:
            above = replace(above, keys=keys)
        for condition in above.conditions:
            operator = self._context.factory.filter(operator, from_node(condition))
        operator, outputs, held = self._rows_by_key(operator, above, first, query)
        return found.over(operator, held), outputs

    def _above(self, query: exp.Select, inside: Scope, names: Names) -> tuple[_Above, First | None, Scope]:
        """What stands above the rows, its subqueries joined to them."""
        around = Around(names)
        selected = [self._expressions.resolve(part.unalias(), inside, around) for part in query.expressions]
        first = self._limits.first_of(query, inside, around)
        operator = inside.operator
        for attachment in around.attachments:
            operator = self._expressions.attach(operator, attachment)
        group, having = query.args.get("group"), query.args.get("having")
        keys = [] if group is None else [self._expressions.resolve(key, inside) for key in group.expressions]
        conditions = [] if having is None else conjunct_nodes(self._expressions.resolve(having.this, inside))
        on, order = ([], []) if first is None else (first.keys, first.order)
        self._context.note_order(query)
        return _Above(selected, conditions, keys, on, order, []), first, inside.over(operator)

    def _grouped_by_key(self, operator: Operator, above: _Above) -> tuple[Operator, _Above]:
        grouping = Grouping(self._context.factory, operator, self._context.calls.aggregate)
        aggregate, rewritten = grouping.build([*above.keys, *above.group], [*above.nodes(), *above.keys])
        self._context.check_order(grouping.functions())
        return aggregate, above.rewritten(rewritten)

    def _rows_by_key(
        self, operator: Operator, above: _Above, first: First | None, query: exp.Select
    ) -> tuple[Operator, list[str], list[str]]:
        """Output rows beside their keys: the operator, the columns of the output, and those of the keys."""
        width = len(above.selected)
        items = [(from_node(node), "") for node in (*above.selected, *above.keys)]
        if first is not None:
            on = [(from_node(node), "") for node in above.on]
            operator, columns = self._context.factory.extend(operator, [*items, *on])
            outputs, keys, more = columns[:width], columns[width : len(items)], columns[len(items) :]
            order = top_k.ordered(above.order)
            if first.bounds is not None:
                rows, made = first_per_group.first_few(
                    self._context.factory, operator, keys, order, outputs, first.bounds
                )
                return rows, made, keys
            once = first_per_group.first_rows(self._context.factory, operator, [*keys, *more], order, outputs)
            return once, list(once.names[len(once.keys) :]), keys
        if query.args.get("distinct") is not None:
            distinct = set_operations.distinct(self._context.factory.exactly(operator, items))
            return distinct, list(distinct.names[:width]), list(distinct.names[width:])
        operator, columns = self._context.factory.extend(operator, items)
        return operator, columns[:width], columns[width:]


def _is_limited(query: exp.Select) -> bool:
    return any(query.args.get(part) for part in ("limit", "offset"))


def _asked(by: Keyed) -> dict[str, Column]:
    """The column of each key, by the text of what it is asked for."""
    columns = {column.name: column for column in by.operator.columns}
    return {dialect.text(key.outside): columns[key.name] for key in by.keys}
