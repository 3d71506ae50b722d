"""The first row, or rows, of each group, in an order: DISTINCT ON, LIMIT by key. Pure; a part of `build.py`.

    DISTINCT ON (k) x ORDER BY k, o    =    GROUP BY k, each x the first of its values ordered by o

The aggregate has no inverse, so a touched group is read again. Rows that tie are ordered by all of the output, so that
each column comes from the same row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlglot import exp

from pgtrickle.model import Column, Expr
from pgtrickle.query.builder.column_factory import ColumnFactory
from pgtrickle.query.builder.top_k import Bounds
from pgtrickle.query.expression import from_node, reference
from pgtrickle.query.looks import tie_breaks
from pgtrickle.query.operators import Aggregate, AggregateCall, Expand, Operator
from pgtrickle.query.syntax import dialect


def first_rows(
    factory: ColumnFactory,
    operator: Operator,
    keys: Sequence[str],
    order: Sequence[exp.Ordered],
    outputs: Sequence[str],
) -> Aggregate:
    """One row a group of `keys`: the columns `outputs` of the first in `order`; the output has them after the keys."""
    columns = {column.name: column for column in operator.columns}
    listed = _listed(factory, operator, order, dict.fromkeys(outputs))
    calls = tuple(_first(factory, columns[name], listed, operator) for name in outputs)
    grouped = tuple(dict.fromkeys(keys))
    return Aggregate(
        tuple(columns[key] for key in grouped) + tuple(call.output for call in calls), operator, grouped, calls
    )


def first_few(
    factory: ColumnFactory,
    operator: Operator,
    keys: Sequence[str],
    order: Sequence[exp.Ordered],
    outputs: Sequence[str],
    bounds: Bounds,
) -> tuple[Operator, list[str]]:
    """The first rows in `order` of each group of `keys`, and where the columns `outputs` are in them.

    They are gathered in one array a column, cut to the bounds, and taken out again side by side.
    """
    columns = {column.name: column for column in operator.columns}
    wanted = list(dict.fromkeys(outputs or keys[:1]))
    listed = _listed(factory, operator, order, wanted)
    last = "" if bounds.limit is None else str(bounds.offset + bounds.limit)
    last = _last_tie(order, listed, last) if bounds.ties else last
    gather = [f"(array_agg({_element(columns[name])} ORDER BY {listed}))" for name in wanted]
    texts = [f"{gathered}[{bounds.offset + 1}:{last}]" for gathered in gather]
    gathered = [from_node(dialect.parse_expression(text)) for text in texts]
    types = factory.types(operator, gathered)
    calls = tuple(
        AggregateCall("first", Expr(text, call.columns), factory.column(type_), None, plain=False)
        for text, call, type_ in zip(texts, gathered, types, strict=True)
    )
    grouped = tuple(dict.fromkeys(keys))
    groups = Aggregate(
        tuple(columns[key] for key in grouped) + tuple(call.output for call in calls), operator, grouped, calls
    )
    unnest = Expr(
        f"unnest({', '.join(reference(call.output).sql for call in calls)})", tuple(call.output.name for call in calls)
    )
    made = tuple(factory.column(type_) for type_ in factory.types_of_call(groups, unnest, len(calls)))
    rows: Operator = Expand(groups.columns + made, groups, unnest)
    items = [(_as(found, columns[name]), columns[name].label) for found, name in zip(made, wanted, strict=True)]
    rows, names = factory.extend(rows, items)
    places = dict(zip(wanted, names, strict=True))
    return rows, [places[name] for name in outputs]


def _listed(factory: ColumnFactory, rows: Operator, order: Sequence[exp.Ordered], outputs: Iterable[str]) -> str:
    """An order in which only rows tie that are identical in the output."""
    names = list(outputs)
    shown = [column for column in rows.columns if column.name in names]
    return ", ".join([*map(dialect.text, order), *factory.sortable(rows, names), *tie_breaks(shown)])


def _last_tie(order: Sequence[exp.Ordered], listed: str, place: str) -> str:
    """The place of the last row that ties in `order` with the one at `place`, or of the last of all."""
    sorted_by = ", ".join(dialect.text(part.this) for part in order)
    rows = f"array_agg(ROW({sorted_by}) ORDER BY {listed})"
    like = f"{rows}, ({rows})[{place}]"
    return f"COALESCE(array_position({like}) + cardinality(array_positions({like})) - 1, count(*))::integer"


def _as(found: Column, wanted: Column) -> Expr:
    """A column in the very type of another: arrays forget the length of varchar(10)."""
    if found.type == wanted.type:
        return reference(found)
    collation = f" COLLATE {wanted.type.collation}" if wanted.type.collation else ""
    return Expr(f"{reference(found).sql}::{wanted.type.name}{collation}", (found.name,))


def _element(column: Column) -> str:
    """A value that an array may hold: an array of arrays would not be what is put into it, so these go as text."""
    return f"{reference(column).sql}::text" if column.type.is_array else reference(column).sql


def _first(factory: ColumnFactory, column: Column, order: str, operator: Operator) -> AggregateCall:
    collation = f" COLLATE {column.type.collation}" if column.type.collation else ""
    text = f"CAST((array_agg({_element(column)} ORDER BY {order}))[1] AS {column.type.name}){collation}"
    call = from_node(dialect.parse_expression(text))
    (type_,) = factory.types(operator, [call])
    return AggregateCall("first", Expr(text, call.columns), factory.column(type_, column.label), None, plain=False)
