"""Subqueries that read no table, for the interpreter: SELECT over VALUES, unnest and generate_series of a row.

Columns of such a query are known by alias and name (`v.x`), those of the row around it by name alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import zip_longest
from typing import Any

from sqlglot import exp

from tests.delta.expressions import Row, Value, rows_of, value_of

Tuple = tuple[Any, ...]

_AGGREGATE = exp.ArrayAgg | exp.Count | exp.Max | exp.Min | exp.Sum


def sorted_rows(order: list[exp.Expr], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows in an order, as PostgreSQL has NULLs in it."""
    for part in reversed(order):  # sorting is stable: the least significant first
        nulls_last = not part.args.get("nulls_first")
        descending = bool(part.args.get("desc"))
        present = [row for row in rows if value_of(part.this, row) is not None]
        absent = [row for row in rows if value_of(part.this, row) is None]
        present.sort(key=partial(value_of, part.this), reverse=descending)
        rows = present + absent if nulls_last else absent + present
    return rows


@rows_of.register(exp.Subquery)
@rows_of.register(exp.Paren)
def _(query: exp.Expr, row: Row) -> list[Tuple]:
    return rows_of(query.this, row)


@rows_of.register
def _(query: exp.Values, row: Row) -> list[Tuple]:
    return [tuple(value_of(item, row) for item in part.expressions) for part in query.expressions]


@rows_of.register
def _(query: exp.SetOperation, row: Row) -> list[Tuple]:
    found = _combined(query, Counter(rows_of(query.this, row)), Counter(rows_of(query.expression, row)))
    return _cut(query, [({}, values) for values in found])


@rows_of.register
def _(query: exp.Select, row: Row) -> list[Tuple]:
    if len(query.expressions) == 1 and isinstance(query.expressions[0], exp.Explode | exp.Unnest):
        return made_by(query.expressions[0], row)  # SELECT unnest(array)
    return _cut(query, _selected(query, row))


def made_by(call: exp.Expr, row: Row) -> list[Tuple]:
    """The rows that a function in FROM makes of a row: generate_series(first, last) and unnest(array, …) alone."""
    if isinstance(call, exp.GenerateSeries):
        start, end = (value_of(call.args[part], row) for part in ("start", "end"))
        return [] if start is None or end is None else [(value,) for value in range(start, end + 1)]
    if isinstance(call, exp.Unnest | exp.Explode):
        arrays = call.expressions if isinstance(call, exp.Unnest) else [call.this, *call.expressions]
        made = list(zip_longest(*(value_of(part, row) or () for part in arrays)))
        return [(*values, place) for place, values in enumerate(made, 1)] if call.args.get("offset") else made
    return rows_of(call, row)


def _combined(query: exp.SetOperation, left: Counter[Tuple], right: Counter[Tuple]) -> list[Tuple]:
    match query:
        case exp.Union():
            together = left + right
        case exp.Intersect():
            together = left & right
        case _:
            together = left - right if not query.args.get("distinct") else Counter(set(left) - set(right))
    return list(set(together)) if query.args.get("distinct") else list(together.elements())


def _selected(query: exp.Select, row: Row) -> list[tuple[dict[str, Any], Tuple]]:
    """The rows of FROM and WHERE, by name, each beside the output row it gives."""
    rows = [dict(row)]
    first = query.args.get("from_")
    for join in [*([] if first is None else [first]), *(query.args.get("joins") or [])]:
        rows = [{**left, **right} for left in rows for right in _item(join.this, left)]
        rows = [found for found in rows if join.args.get("on") is None or value_of(join.args["on"], found) is True]
    where = query.args.get("where")
    rows = [found for found in rows if where is None or value_of(where.this, found) is True]
    group, having = query.args.get("group"), query.args.get("having")
    if group is not None or having is not None or any(_calls(part) for part in query.expressions):
        return [found for of_group in _groups(group, rows) for found in _grouped(query, of_group, row)]
    found = [(named, tuple(value_of(part.unalias(), named) for part in query.expressions)) for named in rows]
    return list({output: (named, output) for named, output in found}.values()) if query.args.get("distinct") else found


def _groups(group: exp.Expr | None, rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    if group is None:
        return [rows]
    found: dict[Tuple, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(tuple(value_of(key, row) for key in group.expressions), []).append(row)
    return list(found.values())


def _grouped(query: exp.Select, rows: list[dict[str, Any]], around: Row) -> list[tuple[dict[str, Any], Tuple]]:
    """The row that a group gives, or none."""
    named = rows[0] if rows else dict(around)
    having = query.args.get("having")
    if having is not None and _over(having.this, rows, named) is not True:
        return []
    return [(named, tuple(_over(part.unalias(), rows, named) for part in query.expressions))]


def _item(item: exp.Expr, row: Row) -> list[dict[str, Any]]:
    core = item.this if isinstance(item, exp.Table | exp.Lateral) else item
    alias = item.args["alias"]
    names = [column.name for column in alias.columns]
    offset = core.args.get("offset")
    names += [offset.name] if isinstance(offset, exp.Identifier) else _labels(core)[len(names) :]
    return [
        {f"{alias.this.name}.{name}": value for name, value in zip(names, values, strict=False)}
        for values in made_by(core, row)
    ]


def _labels(query: exp.Expr) -> list[str]:
    """The names of a query's columns."""
    while isinstance(query, exp.Subquery | exp.SetOperation):
        query = query.this
    return [part.alias_or_name for part in query.expressions] if isinstance(query, exp.Select) else []


def _calls(node: exp.Expr) -> list[exp.Expr]:
    walk = node.walk(prune=lambda part: isinstance(part, exp.Query))
    return [part for part in walk if isinstance(part, _AGGREGATE)]


def _over(node: exp.Expr, rows: list[dict[str, Any]], row: Row) -> Value:
    """An expression with aggregates, over all rows."""
    if isinstance(node, _AGGREGATE):
        return _aggregated(node, rows)
    if not _calls(node):
        return value_of(node, row)
    values = {f"pgt{place}": _aggregated(call, rows) for place, call in enumerate(_calls(node))}
    node = node.copy()
    for name, call in zip(values, _calls(node), strict=True):
        call.replace(exp.column(name))
    return value_of(node, {**row, **values})


def _aggregated(call: exp.Expr, rows: list[dict[str, Any]]) -> Value:
    if isinstance(call, exp.ArrayAgg):
        return _gathered(call, rows)
    if isinstance(call.this, exp.Star):
        return len(rows)
    values = [value for row in rows if (value := value_of(call.this, row)) is not None]
    if isinstance(call, exp.Count):
        return len(values)
    apply: Callable[[list[Value]], Value] = (
        max if isinstance(call, exp.Max) else min if isinstance(call, exp.Min) else sum
    )
    return apply(values) if values else None


def _gathered(call: exp.ArrayAgg, rows: list[dict[str, Any]]) -> Value:
    order = call.this if isinstance(call.this, exp.Order) else exp.Order(this=call.this, expressions=[])
    return tuple(value_of(order.this, row) for row in sorted_rows(order.expressions, rows)) or None


def _cut(query: exp.Expr, found: list[tuple[dict[str, Any], Tuple]]) -> list[Tuple]:
    """Output rows in the order of the query, as many as it wants."""
    listed = [{**named, **{f"pgt_{place}": v for place, v in enumerate(out, 1)}, "out": out} for named, out in found]
    order = [] if query.args.get("order") is None else _by_place(query)
    listed = sorted_rows(order, listed)
    limit, offset = query.args.get("limit"), query.args.get("offset")
    start = int(offset.expression.unnest().name) if offset is not None else 0
    if limit is None:
        return [row["out"] for row in listed[start:]]
    end = start + int((limit.args.get("count") or limit.expression).unnest().name)
    while isinstance(limit, exp.Fetch) and start < end < len(listed):
        if any(value_of(part.this, listed[end]) != value_of(part.this, listed[end - 1]) for part in order):
            break
        end += 1
    return [row["out"] for row in listed[start:end]]


def _by_place(query: exp.Expr) -> list[exp.Expr]:
    """The parts of ORDER BY, by place where they are columns of the output."""
    outputs = query.expressions if isinstance(query, exp.Select) else []
    places = {part.unalias().unnest().sql(): place for place, part in enumerate(outputs, 1)}
    parts: list[exp.Expr] = query.args["order"].copy().expressions
    for part in parts:
        place = part.this.name if isinstance(part.this, exp.Literal) else places.get(part.this.unnest().sql())
        if place is not None:
            part.set("this", exp.column(f"pgt_{place}"))
    return parts
