"""`plan(operator)`: an operator tree or a delta plan as indented text. Called by `explain` and by failing tests.

Δ marks what changed in the window, ′ the state at its end; a node without a mark is the state at its start
(or, in a plain operator tree, at any one moment).
"""

from __future__ import annotations

from functools import singledispatch

from pgtrickle.delta.algebra import After, AggregateDelta, Before, Changes, Plus, Rematch, TopKDelta
from pgtrickle.model import Column
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
    Repeat,
    Scan,
    TopK,
    UnionAll,
)


def plan(delta: Operator) -> str:
    """One line a node, inputs indented below it; no newline at the end."""
    return "\n".join(_lines(delta, "", 0))


def _lines(op: Operator, mark: str, depth: int) -> list[str]:
    if isinstance(op, After):
        return _lines(op.operator, "′", depth)
    if isinstance(op, Before):
        return _lines(op.operator, "", depth)
    lines = ["  " * depth + describe(op, mark)]
    for child in op.inputs:
        lines += _lines(child, mark, depth + 1)
    return lines


@singledispatch
def describe(op: Operator, mark: str = "") -> str:
    """One node in one line, without its inputs."""
    raise MalformedTree(f"no description of {type(op).__name__}")


@describe.register
def _(op: Scan, mark: str = "") -> str:
    return f"{op.table}{mark} ({_columns(op)})"


@describe.register
def _(op: Changes, mark: str = "") -> str:
    return f"Δ{op.scan.table} ({_columns(op.scan)})"


@describe.register
def _(op: Filter, mark: str = "") -> str:
    return f"filter{mark} {op.condition.sql}"


@describe.register
def _(op: Project, mark: str = "") -> str:
    pairs = zip(op.columns, op.expressions, strict=True)
    return f"project{mark} " + ", ".join(f"{column.name} = {expression.sql}" for column, expression in pairs)


@describe.register
def _(op: InnerJoin, mark: str = "") -> str:
    return f"join{mark} on {op.condition.sql}" if op.condition else f"cross join{mark}"


@describe.register
def _(op: LeftJoin, mark: str = "") -> str:
    return f"left join{mark} on {op.condition.sql if op.condition else 'true'}"


@describe.register
def _(op: Match, mark: str = "") -> str:
    return f"{op.kind.name.lower()} join{mark} on {op.condition.sql if op.condition else 'true'}"


@describe.register
def _(op: Rematch, mark: str = "") -> str:
    return f"rematch, {describe(op.join)}"


@describe.register
def _(op: TopK, mark: str = "") -> str:
    limit = "" if op.limit is None else f" {op.limit}"
    limit += "" if op.ties is None else " with ties"
    return f"first{mark}{limit} after {op.offset} by {', '.join(op.order)}"


@describe.register
def _(op: TopKDelta, mark: str = "") -> str:
    return "Δ" + describe(op.top)


@describe.register
def _(op: Constant, mark: str = "") -> str:
    return f"constant {op.sql}"


@describe.register
def _(op: Expand, mark: str = "") -> str:
    return f"expand{mark} by {op.call.sql}"


@describe.register
def _(op: Repeat, mark: str = "") -> str:
    return f"repeat{mark} {op.times} times"


@describe.register
def _(op: UnionAll, mark: str = "") -> str:
    return f"union all{mark} ({_names(op.columns)})"


@describe.register
def _(op: Aggregate, mark: str = "") -> str:
    by = f" by {', '.join(op.keys)}" if op.keys else ""
    calls = ", ".join(f"{call.output.name} = {call.call.sql}" for call in op.calls)
    return f"aggregate{mark}{by}" + (f": {calls}" if calls else "")


@describe.register
def _(op: AggregateDelta, mark: str = "") -> str:
    return "Δ" + describe(op.aggregate)


@describe.register
def _(op: Plus, mark: str = "") -> str:
    return f"sum ({_names(op.columns)})" if op.terms else "∅"


def _names(columns: tuple[Column, ...]) -> str:
    return ", ".join(column.name for column in columns)


def _columns(op: Scan) -> str:
    pairs = zip(op.columns, op.attributes, strict=True)
    return ", ".join(f"{column.name} = {attribute}" for column, attribute in pairs)
