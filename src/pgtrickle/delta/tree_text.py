"""Prints trees as indented text, one line a node: operator trees (`tree`) and delta plans (`plan`). Pure; called by
`explain` and by failing tests.

An operator tree is shown with the labels of its columns; a delta plan with their generated names. There Δ marks what
changed in the window, ′ the state at its end; a node without a mark is the state at its start.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import singledispatch

from pgtrickle.delta.algebra import After, Before, Changes, Plus, Rematch, StatefulDelta, Turned
from pgtrickle.model import Column, Expr
from pgtrickle.query.labels import labelled, labels, timed
from pgtrickle.query.operators import (
    Aggregate,
    Constant,
    Expand,
    Filter,
    InnerJoin,
    LeftJoin,
    MalformedTree,
    Match,
    Operator,
    Project,
    Recursive,
    Repeat,
    Scan,
    TopK,
    UnionAll,
    Window,
    WindowCall,
    WorkingTable,
)


@dataclass(frozen=True, slots=True)
class Style:
    """How nodes are shown: with the labels of an operator tree; or without, and with the mark of a delta plan."""

    labels: Mapping[str, str] | None
    mark: str = ""

    def word(self, name: str) -> str:
        """What a node is called."""
        return name if self.labels is not None else f"{name.lower()}{self.mark}"

    def sql(self, text: str) -> str:
        return timed(text if self.labels is None else labelled(text, self.labels))

    def expression(self, expression: Expr) -> str:
        return self.sql(expression.sql)

    def column(self, name: str) -> str:
        return name if self.labels is None else self.labels.get(name, name)

    def on(self, condition: Expr | None) -> str:
        if self.labels is not None and condition is None:
            return ""
        return f" on {'true' if condition is None else self.expression(condition)}"


def tree(operator: Operator) -> str:
    """An operator tree, top first, each level indented by two spaces; no newline at the end."""
    return "\n".join(_lines(operator, Style(labels(operator)), 0))


def plan(delta: Operator) -> str:
    """A delta plan, in the same way."""
    return "\n".join(_lines(delta, Style(None), 0))


def _lines(op: Operator, style: Style, depth: int) -> Iterator[str]:
    match op:
        case After(operator=shown):
            yield from _lines(shown, replace(style, mark="′"), depth)
        case Before(operator=shown):
            yield from _lines(shown, replace(style, mark=""), depth)
        case _:
            yield "  " * depth + line(op, style)
            for below in (op.rows,) if isinstance(op, Turned) else op.inputs:
                yield from _lines(below, style, depth + 1)


@singledispatch
def line(op: Operator, style: Style) -> str:
    """One node in one line, without its inputs."""
    raise MalformedTree(f"no text of {type(op).__name__}")


@line.register
def _(op: Scan, style: Style) -> str:
    if style.labels is not None:
        return f"Scan {op.named(str(op.table))} ({', '.join(op.attributes)})"
    return f"{op.named(str(op.table))}{style.mark} ({_attributes(op)})"


@line.register
def _(op: Constant, style: Style) -> str:
    return f"{replace(style, mark='').word('Constant')} {op.sql}"


@line.register
def _(op: Filter, style: Style) -> str:
    return f"{style.word('Filter')} {style.expression(op.condition)}"


@line.register
def _(op: Project, style: Style) -> str:
    pairs = zip(op.columns, op.expressions, strict=True)
    return f"{style.word('Project')} {', '.join(_computed(column, made, style) for column, made in pairs)}"


@line.register
def _(op: Repeat, style: Style) -> str:
    return f"{style.word('Repeat')} {style.column(op.times)} times"


@line.register
def _(op: Expand, style: Style) -> str:
    return f"{style.word('Expand')} by {style.expression(op.call)}"


@line.register
def _(op: InnerJoin, style: Style) -> str:
    if style.labels is not None:
        return f"InnerJoin{_unequal(op)}{style.on(op.condition)}"
    return f"join{style.mark}{style.on(op.condition)}" if op.condition else f"cross join{style.mark}"


@line.register
def _(op: LeftJoin, style: Style) -> str:
    if style.labels is not None:
        return f"LeftJoin{_unequal(op)}{style.on(op.condition)}"
    return f"left join{style.mark}{style.on(op.condition)}"


@line.register
def _(op: Match, style: Style) -> str:
    if style.labels is not None:
        return f"{op.kind.name.title()}Join{_unequal(op)}{style.on(op.condition)}"
    return f"{op.kind.name.lower()} join{style.mark}{style.on(op.condition)}"


@line.register
def _(op: Aggregate, style: Style) -> str:
    keys = f" by {', '.join(map(style.column, op.keys))}" if op.keys else ""
    if style.labels is not None:
        calls = ", ".join(style.expression(call.call) for call in op.calls)
        return f"Aggregate{f' {calls}' if calls else ''}{keys or ' (one row)'}"
    calls = ", ".join(f"{call.output.name} = {style.expression(call.call)}" for call in op.calls)
    return f"aggregate{style.mark}{keys}{f': {calls}' if calls else ''}"


@line.register
def _(op: TopK, style: Style) -> str:
    order, ties = ", ".join(map(style.sql, op.order)), "" if op.ties is None else " with ties"
    if style.labels is not None:
        limit = "" if op.limit is None else f" limit {op.limit}"
        return f"TopK{limit}{ties} offset {op.offset} by {order}"
    limit = "" if op.limit is None else f" {op.limit}"
    return f"first{style.mark}{limit}{ties} after {op.offset} by {order}"


@line.register
def _(op: Window, style: Style) -> str:
    calls = ", ".join(_windowed(call, style) for call in op.calls)
    by = f"by {', '.join(map(style.column, op.keys))}" if op.keys else "(one partition)"
    first = "" if op.first is None else f", the first {op.first.last}"
    return f"{style.word('Window')} {calls} {by}{first}"


@line.register
def _(op: Recursive, style: Style) -> str:
    union = "union" if op.distinct else "union all"
    shown = ", ".join(column.label or column.name for column in op.columns)
    return f"{style.word('Recursion')} by {union} ({shown if style.labels is not None else _names(op.columns)})"


@line.register
def _(op: WorkingTable, style: Style) -> str:
    return f"{style.word('Working table')} ({', '.join(style.column(name) for name in op.names)})"


@line.register
def _(op: UnionAll, style: Style) -> str:
    if style.labels is not None:
        return f"UnionAll ({', '.join(column.label or column.name for column in op.columns)})"
    return f"union all{style.mark} ({_names(op.columns)})"


@line.register
def _(op: Changes, style: Style) -> str:
    return f"Δ{op.scan.table} ({_attributes(op.scan)})"


@line.register
def _(op: Plus, style: Style) -> str:
    return f"sum ({_names(op.columns)})" if op.terms else "∅"


@line.register
def _(op: StatefulDelta, style: Style) -> str:
    return f"Δ{line(op.kept, replace(style, mark=''))}"


@line.register
def _(op: Rematch, style: Style) -> str:
    return f"rematch, {line(op.join, replace(style, mark=''))}"


@line.register
def _(op: Turned, style: Style) -> str:
    return f"turned by the clock, {line(op.operator, replace(style, mark=''))}"


def _computed(column: Column, made: Expr, style: Style) -> str:
    """A column and what it is computed by."""
    shown = style.expression(made)
    if style.labels is None:
        return f"{column.name} = {shown}"
    return shown if not column.label or column.label == shown else f"{shown} as {column.label}"


def _windowed(call: WindowCall, style: Style) -> str:
    """A window call; that its order ends with all columns is not shown."""
    order = "" if call.order is None else f"order by {style.expression(call.order)}"
    over = " ".join(filter(None, (order, call.frame)))
    name = "" if style.labels is not None else f"{call.output.name} = "
    return f"{name}{style.expression(call.call)}{f' over ({over})' if over else ''}"


def _unequal(join: InnerJoin | LeftJoin | Match) -> str:
    return "" if join.equalities else " (no equality)"


def _names(columns: Iterable[Column]) -> str:
    return ", ".join(column.name for column in columns)


def _attributes(op: Scan) -> str:
    pairs = zip(op.columns, op.attributes, strict=True)
    return ", ".join(f"{column.name} = {attribute}" for column, attribute in pairs)
