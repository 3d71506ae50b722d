"""Functions that return sets in a select list: SELECT id, unnest(tags). Pure; a part of `build.py`.

SELECT f(a), g(b) FROM r    =    r beside ROWS FROM (f(a), g(b)): side by side, the shorter padded with NULLs
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlglot import exp

from pgtrickle.model import Expr
from pgtrickle.query import dialect
from pgtrickle.query.bench import Bench
from pgtrickle.query.calls import Calls
from pgtrickle.query.expression import column_node, from_node
from pgtrickle.query.operators import Expand, Operator


class NotExpandedError(ValueError):
    """A call whose rows have not one column, or which stands in another."""


def expand(
    bench: Bench, calls: Calls, operator: Operator, selected: Sequence[exp.Expr]
) -> tuple[Operator, list[exp.Expr]]:
    """The rows that the calls in `selected` make of each row, and `selected` over their columns."""
    found = {dialect.text(call): call for node in selected for call in _outermost(calls, node)}
    if not found:
        return operator, list(selected)
    if any(len(list(_outermost(calls, part))) for call in found.values() for part in call.iter_expressions()):
        raise NotExpandedError
    texts = [from_node(call) for call in found.values()]
    read = tuple(dict.fromkeys(name for text in texts for name in text.columns))
    listed = ", ".join(text.sql for text in texts)
    made = Expr(listed if len(texts) == 1 else f"ROWS FROM ({listed})", read)
    types = bench.types_of_call(operator, made, len(texts))
    if len(types) != len(texts):
        raise NotExpandedError
    columns = tuple(bench.column(type_) for type_ in types)
    places = {text: column.name for text, column in zip(found, columns, strict=True)}

    def replace(node: exp.Expr) -> exp.Expr:
        return column_node(places[dialect.text(node)]) if calls.returns_set(node) else node

    return Expand(operator.columns + columns, operator, made), [node.copy().transform(replace) for node in selected]


def _outermost(calls: Calls, node: exp.Expr) -> Iterator[exp.Expr]:
    """The calls in an expression that are in no other such call."""
    if calls.returns_set(node):
        yield node
        return
    for part in node.iter_expressions():
        yield from _outermost(calls, part)
