"""Prints an operator tree for people: one line a node, labels instead of generated names where there is one."""

from __future__ import annotations

import re

from pgtrickle.model import Expr
from pgtrickle.query.operators import (
    Aggregate,
    Constant,
    Expand,
    Filter,
    InnerJoin,
    LeftJoin,
    Match,
    Operator,
    Project,
    Repeat,
    Scan,
    TopK,
    UnionAll,
    walk,
)

_NAME = re.compile(r"""[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|"(c\d+)\"""")
"""A column of the tree; or a literal, which may look like one."""


def tree(operator: Operator) -> str:
    """The tree, top first, each level indented by two spaces."""
    labels = _labels(operator)
    lines: list[str] = []
    _print(operator, labels, 0, lines)
    return "\n".join(lines)


def condition(operator: Operator, part: Expr) -> str:
    """A condition somewhere in the tree, in the words of `tree`."""
    return _shown(part, _labels(operator))


def _labels(operator: Operator) -> dict[str, str]:
    """What to call each column: its label, else the expression that computes it."""
    labels: dict[str, str] = {}
    for node in reversed(list(walk(operator))):  # inputs before what reads them
        computed: dict[str, Expr] = {}
        if isinstance(node, Aggregate):
            computed = {call.output.name: call.call for call in node.calls}
        elif isinstance(node, Project):
            computed = dict(zip(node.names, node.expressions, strict=True))
        for column in node.columns:
            if column.label:
                labels[column.name] = column.label
            elif column.name in computed and column.name not in labels:
                labels[column.name] = _shown(computed[column.name], labels)
    return labels


def _print(operator: Operator, labels: dict[str, str], depth: int, lines: list[str]) -> None:
    lines.append("  " * depth + _line(operator, labels))
    for child in operator.inputs:
        _print(child, labels, depth + 1, lines)


def _line(operator: Operator, labels: dict[str, str]) -> str:
    match operator:
        case Scan():
            return f"Scan {operator.table} ({', '.join(operator.attributes)})"
        case Filter():
            return f"Filter {_shown(operator.condition, labels)}"
        case Project():
            return f"Project {', '.join(_output(operator, index, labels) for index in range(len(operator.columns)))}"
        case InnerJoin() | LeftJoin() | Match():
            condition = "" if operator.condition is None else f" on {_shown(operator.condition, labels)}"
            name = f"{operator.kind.name.title()}Join" if isinstance(operator, Match) else type(operator).__name__
            return (name if operator.equalities else f"{name} (no equality)") + condition
        case TopK():
            limit = "" if operator.limit is None else f" limit {operator.limit}"
            order = ", ".join(_labelled(part, labels) for part in operator.order)
            ties = "" if operator.ties is None else " with ties"
            return f"TopK{limit}{ties} offset {operator.offset} by {order}"
        case Constant():
            return f"Constant {operator.sql}"
        case Expand():
            return f"Expand by {_shown(operator.call, labels)}"
        case Repeat():
            return f"Repeat {labels.get(operator.times, operator.times)} times"
        case Aggregate():
            keys = ", ".join(labels.get(key, key) for key in operator.keys)
            calls = ", ".join(_shown(call.call, labels) for call in operator.calls)
            return f"Aggregate{f' {calls}' if calls else ''}{f' by {keys}' if keys else ' (one row)'}"
        case UnionAll():
            return f"UnionAll ({', '.join(column.label or column.name for column in operator.columns)})"
    return type(operator).__name__


def _output(operator: Project, index: int, labels: dict[str, str]) -> str:
    shown = _shown(operator.expressions[index], labels)
    label = operator.columns[index].label
    return shown if not label or label == shown else f"{shown} as {label}"


def _shown(expression: Expr, labels: dict[str, str]) -> str:
    return _labelled(expression.sql, labels)


def _labelled(sql: str, labels: dict[str, str]) -> str:
    return _NAME.sub(lambda match: match[0] if match[1] is None else labels.get(match[1], match[1]), sql)
