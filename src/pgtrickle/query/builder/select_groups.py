"""The groups of a SELECT: GROUP BY, grouping sets, aggregates of all rows. Pure; a part of `build.py`."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from sqlglot import exp

from pgtrickle.query import gaps
from pgtrickle.query.builder import scalar_subquery, set_operations
from pgtrickle.query.builder.context import BuildContext
from pgtrickle.query.builder.correlation import DomainValues
from pgtrickle.query.builder.expressions import Expressions
from pgtrickle.query.builder.grouping import Grouping
from pgtrickle.query.builder.keyed_subquery import Key, renamed
from pgtrickle.query.builder.queries import BuiltQuery
from pgtrickle.query.builder.scope import Scope
from pgtrickle.query.builder.select_output import SelectOutput
from pgtrickle.query.builder.select_parts import Around, Parts
from pgtrickle.query.builder.sublink_joins import Attachment
from pgtrickle.query.expression import column_node, columns_of, conjunction, from_node, reference
from pgtrickle.query.operators import Aggregate, LeftJoin, Operator, Project, UnionAll, Use, is_joined
from pgtrickle.query.syntax import grouping_sets


class SelectGroups:
    """Groups the rows of a SELECT, and rewrites what stands above them over the columns of the groups."""

    def __init__(self, context: BuildContext, expressions: Expressions, output: SelectOutput) -> None:
        self._context = context
        self._expressions = expressions
        self._output = output

    def joined_below(self, operator: Operator, parts: Parts) -> tuple[Operator, Parts]:
        """Subqueries in the arguments of aggregates are joined to the rows that are grouped."""
        first = [] if parts.first is None else [*parts.first.keys, *parts.first.order]
        nodes = [part for node in (*parts.selected, *parts.conditions, *first) for part in node.walk()]
        read = columns_of(node for node in nodes if self._context.calls.aggregate(node) is not None)
        above: list[Attachment] = []
        below: list[Attachment] = []
        for attachment in reversed(parts.around.attachments):  # one may read those before it
            made = {*attachment.right.names, *((attachment.mark.name,) if attachment.mark else ())}
            (below if made & read else above).insert(0, attachment)
            if made & read and attachment.condition is not None:
                read |= columns_of([attachment.condition])
        for attachment in below:
            operator = self._expressions.attach(operator, attachment)
        return operator, replace(parts, around=replace(parts.around, attachments=above))

    def group(
        self, operator: Operator, keys: list[exp.Expr], parts: Parts, domain: DomainValues | None
    ) -> tuple[Operator, Parts]:
        """The aggregate, and what stands above it rewritten over its columns; subqueries are joined above it too."""
        carried = parts.selected[len(parts.selected) - parts.carried :]
        attachments = parts.around.attachments
        on, order = ([], []) if parts.first is None else (parts.first.keys, parts.first.order)
        above = [
            *parts.selected,
            *parts.conditions,
            *(exp.Null() if a.condition is None else a.condition for a in attachments),
            *on,
            *order,
        ]
        own = {name for a in attachments for name in (*a.right.names, *((a.mark.name,) if a.mark else ()))}
        grouping = Grouping(self._context.factory, operator, self._context.calls.aggregate, frozenset(own))
        aggregate, rewritten = grouping.build([*keys, *carried], above)
        self._context.check_order(grouping.functions())
        groups: Operator = aggregate
        if domain is not None and not keys:
            groups, names = self._for_every(domain, aggregate, parts.sought)
            rewritten = [renamed(node, names) for node in rewritten]
        take = iter(rewritten)
        selected = [next(take) for _ in parts.selected]
        conditions = [next(take) for _ in parts.conditions]
        found = [(attachment, next(take)) for attachment in attachments]
        joined = [replace(a, condition=None if a.condition is None else node) for a, node in found]
        first = parts.first and replace(parts.first, keys=[next(take) for _ in on], order=[next(take) for _ in order])
        around = Around(parts.around.names, joined)
        return groups, Parts(parts.labels, selected, conditions, around, first, parts.carried)

    def _for_every(
        self, domain: DomainValues, aggregate: Aggregate, sought: Set[str]
    ) -> tuple[Operator, dict[str, str]]:
        """A group for each value that is given, also where it has no rows; and how the aggregate's columns are called.

        Without GROUP BY there is a group over no rows too. There is none in the aggregate where `sought` keys are NULL.
        """
        every = domain.use(self._context.factory).operator
        if len(every.columns) != len(aggregate.keys):
            raise self._context.refuse(gaps.SUBQUERY, "a key of GROUP BY that asks a query further out")
        aggregate = scalar_subquery.counted(self._context.factory, aggregate)
        keys = [
            Key(key, column_node(column.name), True, key not in sought, column.type.has_one_look)
            for key, column in zip(aggregate.keys, every.columns, strict=True)
        ]
        same = conjunction(from_node(key.asked(column_node(key.name))) for key in keys)
        joined = LeftJoin(every.columns + aggregate.columns, every, aggregate, same)
        calls = [call.output.name for call in aggregate.calls]
        try:
            values = [scalar_subquery.over_nothing(aggregate, column_node(name)) for name in calls]
        except scalar_subquery.NotGroupedError as what:
            raise self._context.refuse(gaps.SUBQUERY, str(what)) from what
        operator, names = self._context.factory.extend(joined, [(from_node(value), "") for value in values])
        return operator, dict(zip([*aggregate.keys, *calls], [*every.names, *names], strict=True))

    def grouping_sets(self, node: exp.Select, scope: Scope, parts: Parts, domain: DomainValues | None) -> BuiltQuery:
        """A branch for each set of keys; what asks for more than that of the groups is apart from them."""
        operator, parts = self.joined_below(scope.operator, parts)
        assert not parts.around.attachments
        assert parts.first is None
        if is_joined(operator):
            operator = Use(operator.columns, operator, tuple(map(reference, operator.columns)))
        scope = scope.over(operator)
        found = [
            tuple(self._expressions.resolve(k, scope) for k in keys)
            for keys in grouping_sets.expand(node.args["group"])
        ]
        every = {number: key for keys in found for key in keys if (number := grouping_sets.key_of(key)) is not None}
        types = self._context.factory.types(scope.operator, [from_node(key) for key in every.values()])
        named = {number: type_.name for number, type_ in zip(every, types, strict=True)}
        branches: list[Project] = []
        for keys in found:
            present = {grouping_sets.key_of(key) for key in keys}
            absent = {number: name for number, name in named.items() if number not in present}
            selected, conditions = (
                [grouping_sets.within(part, keys, absent, self._context.calls.aggregate) for part in nodes]
                for nodes in (parts.selected, parts.conditions)
            )
            above = Parts(parts.labels, selected, conditions, parts.around, None, parts.carried)
            operator, above = self.group(scope.operator, list(keys), above, domain)
            rows = self._output.output(operator, above, distinct=False)
            branches.append(
                self._context.factory.exactly(rows.operator, [(reference(name), label) for label, name in rows.outputs])
            )
        columns = tuple(self._context.factory.column(column.type, column.label) for column in branches[0].columns)
        union = UnionAll(columns, tuple(branches))
        together = set_operations.distinct(union) if node.args.get("distinct") is not None else union
        return BuiltQuery(together, tuple(zip(parts.labels, together.names, strict=True)))
