"""DISTINCT ON: the first row of each group, in an order. Pure; a part of `build.py`.

    DISTINCT ON (k) x ORDER BY k, o    =    GROUP BY k, each x the first of its values ordered by o

The aggregate has no inverse, so a touched group is read again. Rows that tie are ordered by all of the output, so that
each column comes from the same row.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from pgtrickle.model import Column, Expr
from pgtrickle.query import dialect
from pgtrickle.query.bench import Bench
from pgtrickle.query.expression import from_node, reference
from pgtrickle.query.operators import Aggregate, AggregateCall, Operator


def first_rows(
    bench: Bench, operator: Operator, keys: Sequence[str], order: Sequence[exp.Ordered], outputs: Sequence[str]
) -> Aggregate:
    """One row a group of `keys`: the columns `outputs` of the first in `order`; the output has them after the keys."""
    columns = {column.name: column for column in operator.columns}
    ties = [reference(name).sql for name in dict.fromkeys(outputs)]
    listed = ", ".join([*(dialect.text(part) for part in order), *ties])
    calls = tuple(_first(bench, columns[name], listed, operator) for name in outputs)
    grouped = tuple(dict.fromkeys(keys))
    return Aggregate(
        tuple(columns[key] for key in grouped) + tuple(call.output for call in calls), operator, grouped, calls
    )


def _first(bench: Bench, column: Column, order: str, operator: Operator) -> AggregateCall:
    collation = f" COLLATE {column.type.collation}" if column.type.collation else ""
    text = f"CAST((array_agg({reference(column).sql} ORDER BY {order}))[1] AS {column.type.name}){collation}"
    call = from_node(dialect.parse_expression(text))
    (type_,) = bench.types(operator, [call])
    return AggregateCall("first", Expr(text, call.columns), bench.column(type_, column.label), None, plain=False)
