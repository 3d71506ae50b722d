"""What people call the columns of a tree: expressions with labels in place of generated names. Pure; for messages and
`delta/tree_text.py`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pgtrickle.answers import BEFORE, NOW
from pgtrickle.model import Expr
from pgtrickle.query.operators import Aggregate, Operator, Project, Window, walk

_NAME = re.compile(r"""[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|"(c\d+)\"""")
"""A column of the tree; or a literal, which may look like one."""


_TIME = re.compile(
    rf"""[eE]'(?:[^'\\]|\\.|'')*'|'(?:[^']|'')*'|CAST\(current_setting\('(?:({re.escape(NOW)})|{re.escape(BEFORE)})'\)"""
    r""" AS TIMESTAMPTZ\)"""
)
"""The time of a refresh, or of the one before; or a literal."""


def labels(operator: Operator) -> dict[str, str]:
    """What to call each column: its label, else the expression that computes it."""
    known: dict[str, str] = {}
    for node in reversed(list(walk(operator))):  # inputs before what reads them
        computed: dict[str, Expr] = {}
        if isinstance(node, Aggregate | Window):
            computed = {call.output.name: call.call for call in node.calls}
        elif isinstance(node, Project):
            computed = dict(zip(node.names, node.expressions, strict=True))
        for column in node.columns:
            if column.label:
                known[column.name] = column.label
            elif column.name in computed and column.name not in known:
                known[column.name] = labelled(computed[column.name].sql, known)
    return known


def timed(sql: str) -> str:
    """An expression with now() for the time of the refresh, and then() for that of the one before."""
    return _TIME.sub(_timed, sql)


def _timed(found: re.Match[str]) -> str:
    if not found[0].startswith("CAST"):
        return found[0]
    return "now()" if found[1] else "then()"


def labelled(sql: str, known: Mapping[str, str]) -> str:
    """An expression with labels for the names that are known."""
    return _NAME.sub(lambda match: match[0] if match[1] is None else known.get(match[1], match[1]), sql)
