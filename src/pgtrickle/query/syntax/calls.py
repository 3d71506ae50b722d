"""Which syntax nodes are calls of aggregates and of set-returning functions. Pure; a part of `builder/build.py`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from typing import Final

from sqlglot import exp

from pgtrickle.query.syntax import dialect, grouping_sets, named_windows, query_levels, sublinks
from pgtrickle.query.syntax.special_calls import JSON_AGGREGATES, SpecialCall

GATHER = ("pg_catalog", "array_agg")
"""The aggregate that gathers the values of a scalar subquery; the user need not have written it."""


_REGRESSIONS: Final = frozenset(
    {"avgx", "avgy", "count", "intercept", "r2", "slope", "sxx", "sxy", "syy"},
)
WITHOUT_ORDER: Final = (
    frozenset({"count", "sum", "avg", "min", "max"})
    | frozenset({"every", "bool_and", "bool_or", "bit_and", "bit_or", "bit_xor"})
    | frozenset({"stddev", "stddev_pop", "stddev_samp", "variance", "var_pop", "var_samp"})
    | frozenset({"corr", "covar_pop", "covar_samp", *(f"regr_{name}" for name in _REGRESSIONS)})
)
"""Aggregates whose value does not show in which order they took their rows."""


class Calls:
    """Knows the functions of one query, as PostgreSQL resolved them: (schema, name) of each."""

    def __init__(self, aggregates: Iterable[tuple[str, str]], set_returning: Iterable[tuple[str, str]]) -> None:
        self._aggregates = frozenset(aggregates) | {("pg_catalog", name) for name in JSON_AGGREGATES}
        self._set_returning = frozenset(set_returning)

    def returns_set(self, node: exp.Expr) -> bool:
        return _name(node) in self._set_returning

    def is_aggregate(self, node: exp.Expr) -> bool:
        return _name(node) in self._aggregates and not _is_windowed(node)

    def window_function(self, window: exp.Window) -> tuple[str, str] | None:
        """(schema, name) of what is called over a window."""
        core = window.this
        return _name(core.this if isinstance(core, exp.Filter) else core)

    def groups(self, select: exp.Select, *, within: bool = False) -> bool:
        """Whether an aggregate goes over the rows of a SELECT: called by itself, or (only, `within`) by a subquery."""
        having, order = select.args.get("having"), select.args.get("order")
        clauses = [*select.expressions, *(clause for clause in (having, order) if clause is not None)]
        calls = (part for clause in clauses for part in clause.walk() if self.is_aggregate(part))
        own = (call for call in calls if query_levels.owner(_whole(call)) is select)
        return any(not within or query_levels.enclosing(call) is not select for call in own)

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
        return name if name in self._aggregates and not _is_windowed(core) else None

    def whole_aggregates(self, query: exp.Expr) -> Iterator[exp.Expr]:
        """The aggregate calls in a query, at any depth, each as a whole."""
        calls = (part for part in query.walk() if self.aggregate(part) is not None)
        return (call for call in calls if not isinstance(call.parent, exp.Filter | exp.WithinGroup | exp.Dot))

    def takes_in_order(self, call: exp.Expr) -> bool:
        """Whether a whole aggregate call shows in which order it took its rows."""
        schema, name = self.aggregate(call) or ("", "")
        return schema != "pg_catalog" or name not in WITHOUT_ORDER

    def aggregate_or_gather(self, node: exp.Expr) -> tuple[str, str] | None:
        return self.aggregate(node) or (GATHER if _name(node) == GATHER else None)

    def are(self, number: int, query: exp.Expr) -> bool:
        """Whether the aggregate calls of a query are as many as PostgreSQL has counted.

        What ORDER BY and its like repeat it stores once; from PostgreSQL 18 on, so it does with a key of GROUP BY,
        wherever that stands.
        """
        return number in (self._count(query, keys_once=False), self._count(query, keys_once=True))

    def _count(self, query: exp.Expr, *, keys_once: bool) -> int:
        query = query.copy()
        for select in list(query.find_all(exp.Select)):
            keys, order = grouping_sets.keys(select.args.get("group")), sorted_by(select)
            known = {dialect.text(part.unalias().unnest()) for part in select.expressions}
            asked = {dialect.text(key.unnest()) for key in keys if sublinks.asks(key)}
            if keys_once and asked:
                known -= asked
                self._forget(select, asked)
            for part in (*keys, *order, *named_windows.sorted_by(select)):
                text = dialect.text(part.unnest())
                if text in known:
                    part.pop()
                known.add(text)
        return sum(1 for part in query.walk() if self.is_aggregate(part))

    def _forget(self, select: exp.Select, keys: Set[str]) -> None:
        """Takes keys, given by their text, out of all but GROUP BY; an aggregate reads rows, which have them not."""
        having = select.args.get("having")
        for clause in [*select.expressions, *filter(None, (having, *sorted_by(select)))]:
            for part in list(clause.walk(prune=lambda node: self.aggregate(node) is not None)):
                values = query_levels.enclosing(part) is select and sublinks.is_value(part)
                if values and dialect.text(part.unnest()) in keys:
                    part.pop()


def sorted_by(select: exp.Select) -> list[exp.Expr]:
    """The expressions of ORDER BY and DISTINCT ON."""
    order, distinct = select.args.get("order"), select.args.get("distinct")
    on = None if distinct is None else distinct.args.get("on")
    return [
        *([] if order is None else (part.this for part in order.expressions)),
        *([] if on is None else on.expressions),
    ]


def function_name(node: exp.Expr) -> str:
    """A function call's bare name."""
    call = node.expression if isinstance(node, exp.Dot) else node
    return call.name if isinstance(call, exp.Anonymous | SpecialCall) else type(call).__name__.lower()


def _name(node: exp.Expr) -> tuple[str, str] | None:
    """(schema, name) of a function call."""
    if isinstance(node, exp.Anonymous):
        return None if isinstance(node.parent, exp.Dot) else ("pg_catalog", node.name)
    if isinstance(node, exp.Unnest):
        return "pg_catalog", "unnest"
    if isinstance(node, SpecialCall):
        return "pg_catalog", node.name
    if isinstance(node, exp.Dot) and isinstance(node.expression, exp.Anonymous):
        return node.this.name, node.expression.name
    return None


def _is_windowed(call: exp.Expr) -> bool:
    """Whether a call is over a window, which does not group the rows."""
    whole = call.parent if isinstance(call.parent, exp.Dot) else call
    whole = _whole(whole)
    return isinstance(whole.parent, exp.Window) and whole.arg_key == "this"


def _whole(call: exp.Expr) -> exp.Expr:
    """A call with its FILTER and WITHIN GROUP."""
    while isinstance(call.parent, exp.Filter | exp.WithinGroup) and call.arg_key == "this":
        call = call.parent
    return call
