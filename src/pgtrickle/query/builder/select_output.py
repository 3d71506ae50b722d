"""What is above FROM, WHERE and GROUP BY of a SELECT. Pure; a part of `build.py`."""

from __future__ import annotations

from pgtrickle.query import gaps
from pgtrickle.query.builder import set_operations, set_returning, window_calls
from pgtrickle.query.builder.context import BuildContext
from pgtrickle.query.builder.expressions import Expressions
from pgtrickle.query.builder.limits import Limits
from pgtrickle.query.builder.queries import BuiltQuery
from pgtrickle.query.builder.select_parts import Parts
from pgtrickle.query.expression import from_node
from pgtrickle.query.operators import Operator


class SelectOutput:
    """Builds the output of a SELECT."""

    def __init__(self, context: BuildContext, expressions: Expressions, limits: Limits) -> None:
        self._context = context
        self._expressions = expressions
        self._limits = limits

    def output(self, operator: Operator, parts: Parts, *, distinct: bool) -> BuiltQuery:
        """What is above FROM, WHERE and GROUP BY: subqueries joined, HAVING, the select list, DISTINCT."""
        for attachment in parts.around.attachments:
            operator = self._expressions.attach(operator, attachment)
        for condition in parts.conditions:
            operator = self._context.factory.filter(operator, from_node(condition))
        operator, parts = window_calls.computed(self._context, operator, parts)
        try:
            operator, selected = set_returning.expand(
                self._context.factory, self._context.calls, operator, parts.selected
            )
        except set_returning.NotExpandedError as error:
            raise self._context.refuse(gaps.SET_RETURNING, "in this place", "select") from error
        items = [(from_node(part), label) for label, part in zip(parts.labels, selected, strict=True)]
        first = parts.first
        if first is not None and first.bounds is None:
            return self._limits.firsts(operator, items, first, parts.carried)
        if first is not None and first.keys:
            return self._limits.first_of_firsts(operator, items, first, parts.carried)
        if first is not None:
            return self._limits.limited(operator, items, first, parts.carried, distinct=distinct)
        if distinct:
            once = set_operations.distinct(self._context.factory.exactly(operator, items))
            return BuiltQuery(once, tuple(zip(parts.labels, once.names, strict=True)))
        operator, columns = self._context.factory.extend(operator, items)
        return BuiltQuery(operator, tuple(zip(parts.labels, columns, strict=True)))
