"""Which syntax nodes are calls of aggregates and of set-returning functions. Pure; a part of `build.py`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sqlglot import exp

from pgtrickle.query import dialect
from pgtrickle.query.analysis import Analysis

GATHER = ("pg_catalog", "array_agg")
"""The aggregate that gathers the values of a scalar subquery; the user need not have written it."""


class Calls:
    """Knows the functions of one query, as PostgreSQL resolved them."""

    def __init__(self, analysis: Analysis) -> None:
        self._aggregates = {(f.schema, f.name) for f in analysis.functions if f.kind == "a"}
        self._set_returning = {(f.schema, f.name) for f in analysis.functions if f.returns_set}

    def returns_set(self, node: exp.Expr) -> bool:
        return _name(node) in self._set_returning

    def is_aggregate(self, node: exp.Expr) -> bool:
        return _name(node) in self._aggregates

    def any_aggregate(self, nodes: Iterable[exp.Expr]) -> bool:
        """Whether an aggregate is called, other than by a subquery within."""
        walks = (node.walk(prune=lambda inner: isinstance(inner, exp.Query)) for node in nodes)
        return any(self.is_aggregate(part) for walk in walks for part in walk)

    def any_set(self, nodes: Iterable[exp.Expr]) -> bool:
        """Whether a function is called that returns a set, other than by a subquery within."""
        walks = (node.walk(prune=lambda inner: isinstance(inner, exp.Query)) for node in nodes)
        return any(self.returns_set(part) for walk in walks for part in walk)

    def aggregate(self, node: exp.Expr) -> tuple[str, str] | None:
        """(schema, name) if `node` is a whole aggregate call, its FILTER and WITHIN GROUP included."""
        core = node
        while isinstance(core, exp.Filter | exp.WithinGroup):
            core = core.this
        name = _name(core)
        return name if name in self._aggregates else None

    def whole_aggregates(self, query: exp.Expr) -> Iterator[exp.Expr]:
        """The aggregate calls in a query, at any depth, each as a whole."""
        calls = (part for part in query.walk() if self.aggregate(part) is not None)
        return (call for call in calls if not isinstance(call.parent, exp.Filter | exp.WithinGroup | exp.Dot))

    def aggregate_or_gather(self, node: exp.Expr) -> tuple[str, str] | None:
        return self.aggregate(node) or (GATHER if _name(node) == GATHER else None)

    def count(self, query: exp.Expr) -> int:
        """The number of aggregate calls, as PostgreSQL counts them: what ORDER BY repeats it stores once."""
        query = query.copy()
        for select in query.find_all(exp.Select):
            order = select.args.get("order")
            listed = {dialect.text(part.unalias().unnest()) for part in select.expressions}
            for part in [] if order is None else list(order.expressions):
                if dialect.text(part.this.unnest()) in listed:
                    part.pop()
        return sum(1 for part in query.walk() if self.is_aggregate(part))


def function_name(node: exp.Expr) -> str:
    """A function call's bare name."""
    call = node.expression if isinstance(node, exp.Dot) else node
    return call.name if isinstance(call, exp.Anonymous) else type(call).__name__.lower()


def _name(node: exp.Expr) -> tuple[str, str] | None:
    """(schema, name) of a function call."""
    if isinstance(node, exp.Anonymous):
        return None if isinstance(node.parent, exp.Dot) else ("pg_catalog", node.name)
    if isinstance(node, exp.Unnest):
        return "pg_catalog", "unnest"
    if isinstance(node, exp.Dot) and isinstance(node.expression, exp.Anonymous):
        return node.this.name, node.expression.name
    return None
