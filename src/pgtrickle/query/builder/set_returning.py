"""Functions that return sets in a select list: SELECT id, unnest(tags). Pure; a part of `build.py`.

SELECT f(a), g(b) FROM r    =    r beside ROWS FROM (f(a), g(b)): side by side, the shorter padded with NULLs
SELECT f(g(b)) FROM r       =    (r beside g(b) as x) beside f(x): the calls within first, and all of these side by side
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlglot import exp

from pgtrickle.model import Expr
from pgtrickle.query.builder.column_factory import ColumnFactory
from pgtrickle.query.expression import column_node, from_node
from pgtrickle.query.operators import Expand, Operator
from pgtrickle.query.syntax import dialect
from pgtrickle.query.syntax.calls import Calls


class NotExpandedError(ValueError):
    """A call whose rows have not one column."""


def expand(
    factory: ColumnFactory, calls: Calls, operator: Operator, selected: Sequence[exp.Expr]
) -> tuple[Operator, list[exp.Expr]]:
    """The rows that the calls in `selected` make of each row, and `selected` over their columns."""
    found = {dialect.text(call): call for node in selected for call in _innermost(calls, node)}
    if not found:
        return operator, list(selected)
    texts = [from_node(call) for call in found.values()]
    read = tuple(dict.fromkeys(name for text in texts for name in text.columns))
    listed = ", ".join(text.sql for text in texts)
    made = Expr(listed if len(texts) == 1 else f"ROWS FROM ({listed})", read)
    types = factory.types_of_call(operator, made, len(texts))
    if len(types) != len(texts):
        raise NotExpandedError
    columns = tuple(factory.column(type_) for type_ in types)
    places = {text: column.name for text, column in zip(found, columns, strict=True)}

    def replace(node: exp.Expr) -> exp.Expr:
        name = places.get(dialect.text(node)) if calls.returns_set(node) else None
        return node if name is None else column_node(name)

    expanded = Expand(operator.columns + columns, operator, made)
    return expand(factory, calls, expanded, [node.copy().transform(replace) for node in selected])


def _innermost(calls: Calls, node: exp.Expr) -> Iterator[exp.Expr]:
    """The calls in an expression that have no other such call in them."""
    if isinstance(node, exp.Query):
        return  # it reads no table, and calls them for itself
    within = [call for part in node.iter_expressions() for call in _innermost(calls, part)]
    yield from within
    if not within and calls.returns_set(node):
        yield node
