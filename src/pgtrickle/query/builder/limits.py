"""DISTINCT ON and LIMIT: the first rows of a query, of each key if it has some. Pure; a part of `build.py`."""

from __future__ import annotations

from sqlglot import exp

from pgtrickle.model import Expr
from pgtrickle.query import gaps
from pgtrickle.query.builder import first_per_group, set_operations, top_k
from pgtrickle.query.builder.context import BuildContext
from pgtrickle.query.builder.expressions import Expressions
from pgtrickle.query.builder.queries import BuiltQuery
from pgtrickle.query.builder.scope import Scope
from pgtrickle.query.builder.select_parts import Around, First
from pgtrickle.query.builder.top_k import Bounds
from pgtrickle.query.expression import from_node, reference
from pgtrickle.query.operators import Operator


class Limits:
    """Reads what DISTINCT ON, LIMIT and OFFSET say, and builds the rows that they leave."""

    def __init__(self, context: BuildContext, expressions: Expressions) -> None:
        self._context = context
        self._expressions = expressions

    def first_of(self, node: exp.Select, scope: Scope, around: Around) -> First | None:
        """What DISTINCT ON or LIMIT say, and the order that makes a row the first."""
        distinct = node.args.get("distinct")
        on = None if distinct is None else distinct.args.get("on")
        bounds = self.bounds(node)
        if on is None and bounds is None:
            return None
        order = node.args.get("order")
        keys = [] if on is None else [self._expressions.resolve(part, scope, around) for part in on.expressions]
        parts = [] if order is None else order.expressions
        return First(keys, [self._expressions.resolve(part, scope, around) for part in parts], bounds)

    def bounds(self, node: exp.Expr) -> Bounds | None:
        """LIMIT and OFFSET; the first rows are known only in an order."""
        try:
            bounds = top_k.bounds(node)
        except top_k.UnknownBoundError as what:
            raise self._context.refuse(gaps.LIMIT, str(what), "limit", "offset", "fetch first", "fetch next") from what
        one_row = top_k.is_one_row(node, self._context.calls)
        if bounds is not None and node.args.get("order") is None and not one_row:
            raise self._context.refuse(
                gaps.LIMIT, "LIMIT without ORDER BY", "limit", "offset", "fetch first", "fetch next"
            )
        return bounds

    def limited(
        self,
        operator: Operator,
        items: list[tuple[Expr, str]],
        first: First,
        carried: int,
        *,
        distinct: bool,
    ) -> BuiltQuery:
        """The first rows, of each key if there are some; DISTINCT may sort by its output only, which adds no column."""
        assert first.bounds is not None
        sorted_by = [(part, from_node(part.this)) for part in top_k.ordered(first.order)]
        more = {by.sql: (by, "") for _, by in sorted_by if by.sql not in {item.sql for item, _ in items}}
        rows: Operator = self._context.factory.exactly(operator, [*items, *more.values()])
        places = {item.sql: name for (item, _), name in zip([*items, *more.values()], rows.names, strict=True)}
        rows = set_operations.distinct(rows) if distinct else rows
        order = [top_k.sorted_by(part, places[by.sql]) for part, by in sorted_by]
        labels = [label for _, label in items]
        if carried == 0:
            top = top_k.top(self._context.factory, rows, order, first.bounds)
            return BuiltQuery(top, tuple(zip(labels, top.names, strict=False)))
        outputs, keys = rows.names[: len(items) - carried], rows.names[len(items) - carried : len(items)]
        few, made = first_per_group.first_few(self._context.factory, rows, keys, order, outputs, first.bounds)
        return BuiltQuery(few, tuple(zip(labels, [*made, *keys], strict=True)))

    def first_of_firsts(
        self, operator: Operator, items: list[tuple[Expr, str]], first: First, carried: int
    ) -> BuiltQuery:
        """DISTINCT ON with LIMIT: the first of the rows that are the first ones of their groups, in the same order."""
        parts = top_k.ordered(first.order)
        own, kept = items[: len(items) - carried], items[len(items) - carried :]
        rows = self.firsts(operator, [*own, *((from_node(part.this), "") for part in parts), *kept], first, carried)
        shown = [(reference(name), label) for label, name in rows.outputs]
        by = [name for _, name in rows.outputs[len(own) : len(own) + len(parts)]]
        order: list[exp.Expr] = [top_k.sorted_by(part, name) for part, name in zip(parts, by, strict=True)]
        outputs = [*shown[: len(own)], *shown[len(own) + len(parts) :]]
        return self.limited(rows.operator, outputs, First([], order, first.bounds), carried, distinct=False)

    def firsts(self, operator: Operator, items: list[tuple[Expr, str]], first: First, carried: int) -> BuiltQuery:
        """DISTINCT ON: the first row of each group."""
        on = [(from_node(key), "") for key in first.keys]
        operator, columns = self._context.factory.extend(operator, [*items, *on])
        outputs, keys = columns[: len(items) - carried], columns[len(items) - carried :]
        aggregate = first_per_group.first_rows(
            self._context.factory, operator, keys, top_k.ordered(first.order), outputs
        )
        names = [*aggregate.names[len(aggregate.keys) :], *keys[:carried]]
        return BuiltQuery(aggregate, tuple(zip((label for _, label in items), names, strict=True)))
