"""A SELECT: FROM and WHERE, groups, output; and a SELECT whose subqueries read its groups, taken apart. Pure; a part of
`build.py`."""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from pgtrickle.query import gaps
from pgtrickle.query.builder import split_grouping
from pgtrickle.query.builder.context import BuildContext
from pgtrickle.query.builder.correlation import DomainValues, sought
from pgtrickle.query.builder.expressions import Expressions
from pgtrickle.query.builder.limits import Limits
from pgtrickle.query.builder.queries import BuiltQuery, Queries
from pgtrickle.query.builder.scope import Scope
from pgtrickle.query.builder.select_groups import SelectGroups
from pgtrickle.query.builder.select_output import SelectOutput
from pgtrickle.query.builder.select_parts import Around, Below, Parts
from pgtrickle.query.builder.subquery_shape import has_windows
from pgtrickle.query.builder.with_queries import Names
from pgtrickle.query.expression import column_node, conjunct_nodes, from_node
from pgtrickle.query.syntax import grouping_sets, sublinks


class Selects:
    """Builds SELECTs."""

    def __init__(
        self,
        context: BuildContext,
        queries: Queries,
        expressions: Expressions,
        limits: Limits,
        groups: SelectGroups,
        output: SelectOutput,
    ) -> None:
        self._context = context
        self._queries = queries
        self._expressions = expressions
        self._limits = limits
        self._groups = groups
        self._output = output

    def select(self, node: exp.Select, names: Names, domain: DomainValues | None) -> BuiltQuery:
        if node.args.get("from_") is None and not self._context.analysis.sources:
            raise self._context.refuse(gaps.NO_FROM, "", "select")
        start = None if domain is None else domain.use(self._context.factory)
        below = Below(*self._expressions.where(node, self._queries.rows(node, names, start), names), names)
        if start is not None:
            carried, found = start.operator.names, frozenset(sought(node, start))
            below = replace(below, domain=domain, carried=carried, sought=found)
        node, below = self._keys_below(node, below)
        return self._apart(node, below) if self._reads_groups_within(node) else self._over(node, below)

    def _over(self, node: exp.Select, below: Below) -> BuiltQuery:
        """What a SELECT makes of the rows of its FROM and WHERE."""
        scope, around = below.scope, Around(below.names, sets=True, windows=True)
        carried = [column_node(name) for name in below.carried]
        labels = [*(part.alias_or_name for part in node.expressions), *("" for _ in carried)]
        selected = [*(self._expressions.resolve(part.unalias(), scope, around) for part in node.expressions), *carried]
        having = node.args.get("having")
        conditions = [] if having is None else conjunct_nodes(self._expressions.resolve(having.this, scope, around))
        first = self._limits.first_of(node, scope, replace(around, sets=False))
        parts = Parts(labels, selected, conditions, around, first, len(carried), below.sought)
        rows = self._grouped(node, below, parts)
        self._context.note_order(node)  # of a subquery; its own groups are not in this order
        return rows

    def _grouped(self, node: exp.Select, below: Below, parts: Parts) -> BuiltQuery:
        scope, operator, having, group = below.scope, below.operator, node.args.get("having"), node.args.get("group")
        if group is not None and not grouping_sets.is_simple(group):
            return self._groups.grouping_sets(node, scope.over(operator), parts, below.domain)
        if having is not None or group is not None or self._context.calls.groups(node):
            keys = [] if group is None else [self._expressions.resolve(key, scope) for key in group.expressions]
            operator, parts = self._groups.joined_below(operator, parts)
            operator, parts = self._groups.group(operator, keys, parts, below.domain)
        return self._output.output(operator, parts, distinct=node.args.get("distinct") is not None)

    def _keys_below(self, node: exp.Select, below: Below) -> tuple[exp.Select, Below]:
        """GROUP BY of a subquery's answer: it is a column of the rows, called so wherever it stands."""
        group = node.args.get("group")
        asked = {split_grouping.text(key): key for key in grouping_sets.keys(group) if sublinks.asks(key)}
        if not asked:
            return node, below
        around = Around(below.names)
        keys = [self._expressions.resolve(sublinks.as_value(key), below.scope, around) for key in asked.values()]
        operator = below.operator
        for attachment in around.attachments:
            operator = self._expressions.attach(operator, attachment)
        operator, columns = self._context.factory.extend(operator, [(from_node(key), "") for key in keys])
        called: dict[tuple[str | None, str], str] = {(split_grouping.ALIAS, column): column for column in columns}
        scope = replace(below.scope, operator=operator, names={**below.scope.names, **called})
        node = split_grouping.called(node, dict(zip(asked, columns, strict=True)), self._context.calls)
        return node, replace(below, scope=scope, operator=operator)

    def _reads_groups_within(self, node: exp.Select) -> bool:
        """Whether a subquery, a window, or the order of first rows, reads what only groups that are there can tell."""
        group, distinct = node.args.get("group"), node.args.get("distinct")
        if group is None or grouping_sets.is_simple(group):
            return self._context.calls.groups(node, within=True)
        first = (node.args.get("limit"), node.args.get("offset"), None if distinct is None else distinct.args.get("on"))
        above = [*node.expressions, *filter(None, (node.args.get("having"),))]
        asks = any(map(sublinks.asks, above)) or has_windows(node)
        return asks or any(part is not None for part in first)

    def _apart(self, node: exp.Select, below: Below) -> BuiltQuery:
        """The groups, and then what reads them, as if they were in its FROM."""
        self._limits.bounds(node)  # refused, if its first rows are not definite: what reads the groups has no FROM
        names = below.scope.names
        own = {
            name
            for (alias, name), column in names.items()
            if alias == split_grouping.ALIAS and column not in below.carried
        }
        try:
            above, made = split_grouping.apart(node, self._context.calls, self._context.factory.name, below.scope, own)
        except grouping_sets.UnknownKeyError as what:
            raise self._context.refuse(gaps.GROUPING_KEYS, str(what), "grouping") from what
        rows = self._over(made, below)
        shown = rows.outputs[: len(made.expressions)]
        carried = [name for _, name in rows.outputs[len(shown) :]]
        now = dict(zip(below.carried, carried, strict=True))
        called = {name: now[column] for name, column in names.items() if column in now}
        scope = Scope(rows.operator, (), {**called, **{(split_grouping.ALIAS, label): name for label, name in shown}})
        kept = self._expressions.where(above, scope, below.names)
        return self._over(above, Below(*kept, below.names, None, tuple(carried)))
