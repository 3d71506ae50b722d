"""Window calls above FROM, WHERE, GROUP BY and HAVING to `Window` nodes. Pure; a part of `build.py`.

One node for each set of partition keys: calls over the same partitions share it. A node passes on what is below it, so
nodes stack. A query that is built for given values has them as keys of each partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from pgtrickle.model import Expr, PgType
from pgtrickle.query import gaps
from pgtrickle.query.builder.context import BuildContext
from pgtrickle.query.builder.select_parts import Parts
from pgtrickle.query.builder.window_order import EXACT_SUMS, goes_on, sort_parts
from pgtrickle.query.expression import column_node, from_node
from pgtrickle.query.operators import Operator, SortPart, Ties, Window, WindowCall
from pgtrickle.query.syntax import dialect

#: What ignores the frame, and takes rows in their order, peers too.
_BY_ROW = frozenset({"row_number", "ntile", "lag", "lead"})
#: What ignores the frame, and gives peers the same.
_RANKS = frozenset({"rank", "dense_rank", "percent_rank", "cume_dist"})
#: What EXCLUDE may say that needs to know which rows are peers.
_OF_PEERS = frozenset({"GROUP", "TIES"})


def computed(context: BuildContext, operator: Operator, parts: Parts) -> tuple[Operator, Parts]:
    """The rows with a column for each window call, and what stands above them over these columns."""
    first = parts.first
    above = [*parts.selected, *([] if first is None else [*first.keys, *first.order])]
    windows = {dialect.text(window): window for node in above for window in _own(node)}
    if not windows:
        return operator, parts
    carried = parts.selected[len(parts.selected) - parts.carried :]
    places: dict[str, str] = {}
    left = dict(windows)
    while left:
        keys = _keys(next(iter(left.values())), carried)
        together = {text: window for text, window in left.items() if _keys(window, carried).keys() == keys.keys()}
        operator, names = _windowed(context, operator, list(keys.values()), list(together.values()))
        places.update(zip(together, names, strict=True))
        left = {text: window for text, window in left.items() if text not in together}

    def replace_call(part: exp.Expr) -> exp.Expr:
        if isinstance(part, exp.Query):
            return part.copy()  # a copy is not looked into
        return column_node(places[dialect.text(part)]) if isinstance(part, exp.Window) else part

    def replaced(node: exp.Expr) -> exp.Expr:
        return node.copy().transform(replace_call)

    first = first and replace(first, keys=[*map(replaced, first.keys)], order=[*map(replaced, first.order)])
    return operator, replace(parts, selected=[*map(replaced, parts.selected)], first=first)


def _own(node: exp.Expr) -> list[exp.Window]:
    """The window calls in an expression, but for those of a query within, which reads no table."""
    parts = node.walk(prune=lambda part: isinstance(part, exp.Query))
    return [part for part in parts if isinstance(part, exp.Window)]


def _keys(window: exp.Window, carried: Sequence[exp.Expr]) -> dict[str, exp.Expr]:
    """What it partitions by, by its text."""
    keys = [*carried, *(window.args.get("partition_by") or [])]
    return {from_node(key).sql: key for key in keys}


def _windowed(
    context: BuildContext, operator: Operator, keys: list[exp.Expr], windows: list[exp.Window]
) -> tuple[Operator, list[str]]:
    """One node for calls over the same partitions, and the column of each."""
    operator, names = context.factory.extend(operator, [(from_node(key), "") for key in keys])
    types = context.factory.types(operator, [from_node(window) for window in windows])
    calls = tuple(_call(context, window, type_) for window, type_ in zip(windows, types, strict=True))
    outputs = tuple(call.output for call in calls)
    node = Window((*operator.columns, *outputs), operator, tuple(dict.fromkeys(names)), calls)
    return node, [output.name for output in outputs]


def _call(context: BuildContext, window: exp.Window, type_: PgType) -> WindowCall:
    function = context.calls.window_function(window)
    name = function[1] if function is not None and function[0] == "pg_catalog" else ""
    spec, order = window.args.get("spec"), window.args.get("order")
    ties = _ties(name, spec, type_)
    takes_rows = ties is Ties.ORDERED and context.ordered
    if order is None and ties is not Ties.NONE and (takes_rows or context.shows_order(name)):
        raise context.refuse(gaps.SUBQUERY_ORDER, f"{name or 'a window function'}()", "order by")
    sorted_by, sorts = None, tuple[SortPart, ...]()
    if order is not None:
        columns = dict.fromkeys(column for part in order.expressions for column in from_node(part.this).columns)
        sorted_by = Expr(", ".join(dialect.text(part) for part in order.expressions), tuple(columns))
        sorts = sort_parts(order.expressions)
    frame = "" if spec is None or name in _BY_ROW | _RANKS else dialect.text(spec)
    output = context.factory.column(type_)
    going, reach = goes_on(name, window, type_)
    return WindowCall(from_node(window.this), sorted_by, frame, ties, output, sorts, going, reach)


def _ties(name: str, spec: exp.WindowSpec | None, type_: PgType) -> Ties:
    """What the order of peers does to a built-in function of that name, or to any other."""
    if name in _BY_ROW:
        return Ties.ORDERED
    if name in _RANKS:
        return Ties.NONE
    if spec is not None and spec.args.get("kind") == "ROWS":
        exclude = spec.args.get("exclude")
        return Ties.SORTED if exclude is not None and exclude.name in _OF_PEERS else Ties.ORDERED
    exact = (name in ("sum", "avg") and type_.oid in EXACT_SUMS) or (name in ("min", "max") and type_.has_one_look)
    return Ties.NONE if name == "count" or exact else Ties.SORTED
