"""The text of an aggregate call to which equal values look the same: each as that of them which looks least. Pure; used
by `rewrite/order_values.py` for calls that take one of several equal values, in no order that one could give them.

    array_agg(DISTINCT x)    →    (SELECT array_agg(DISTINCT q.a1) FROM (SELECT least look of x AS a1 FROM rows) AS q)

The rows come out of the group as arrays of their columns: `array_agg(x)` is the group's, not the subquery's.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from pgtrickle.model import Column, Expr, quote
from pgtrickle.query.expression import node_of, tree_columns
from pgtrickle.query.looks import from_text, text_form
from pgtrickle.query.syntax import dialect


def with_equal_values(call: Expr, columns: Sequence[Column]) -> Expr:
    """The call, over these columns of the group's rows."""
    node = node_of(call)
    core = node.this if isinstance(node, exp.Filter) else node
    arguments = list(dict.fromkeys(dialect.text(each) for each in _arguments(core) if any(tree_columns(each))))
    condition = f"({_over_rows(node.expression.this)})" if isinstance(node, exp.Filter) else "true"
    shown = ", ".join(
        f"{_least_look(_over_rows(dialect.parse_expression(argument)), condition)} AS a{place}"
        for place, argument in enumerate(arguments)
    )
    rows = _rows(node, core, columns)
    places = {argument: f"a{place}" for place, argument in enumerate(arguments)}
    made = f"{_of_arguments(core, places)} FILTER (WHERE q.met)"
    return Expr(f"(SELECT {made} FROM (SELECT {shown}, {condition} AS met FROM {rows}) AS q)", call.columns)


def _arguments(core: exp.Expr) -> list[exp.Expr]:
    """What the call takes of each row; the direct arguments of WITHIN GROUP are of the group."""
    if isinstance(core, exp.WithinGroup):
        return [part.this for part in core.expression.expressions]
    function = core.expression if isinstance(core, exp.Dot) else core
    return [each for argument in function.expressions for each in _plain(argument)]


def _plain(argument: exp.Expr) -> list[exp.Expr]:
    if isinstance(argument, exp.Order):
        return [*_plain(argument.this), *(part.this for part in argument.expressions)]
    if isinstance(argument, exp.Distinct):
        return [plain for each in argument.expressions for plain in _plain(each)]
    return [argument]


def _rows(node: exp.Expr, core: exp.Expr, columns: Sequence[Column]) -> str:
    """The group's rows, of the columns that arguments and condition read. There are no arrays of arrays."""
    parts = [*_arguments(core), *([node.expression] if isinstance(node, exp.Filter) else [])]
    taken = {column.name for part in parts for column in tree_columns(part)}
    read = [column for column in columns if column.name in taken]
    arrays, values = [], []
    for column in read:
        name, type_ = quote(column.name), column.type
        arrays.append(f"array_agg({text_form(name, type_) if type_.is_array else name})")
        values.append(f"{from_text(f'u.{name}', type_) if type_.is_array else f'u.{name}'} AS {name}")
    names = ", ".join(quote(column.name) for column in read)
    return f"(SELECT {', '.join(values)} FROM unnest({', '.join(arrays)}) AS u({names})) AS v"


def _over_rows(node: exp.Expr) -> str:
    node = node.copy()
    for column in [node] if isinstance(node, exp.Column) else list(tree_columns(node)):
        column.set("table", exp.to_identifier("v"))
    return dialect.text(node)


def _least_look(value: str, condition: str) -> str:
    """Among the values that are equal, and are all taken or not: a row's text tells apart what the value's may not."""
    return f'first_value({value}) OVER (PARTITION BY {value}, {condition} ORDER BY ROW({value})::text COLLATE "C")'


def _of_arguments(core: exp.Expr, places: dict[str, str]) -> str:
    """The call with the columns of `q` for its arguments."""

    def replaced(node: exp.Expr) -> exp.Expr:
        place = places.get(dialect.text(node))
        return node if place is None else exp.column(place, table="q")

    core = core.copy()
    if isinstance(core, exp.WithinGroup):
        core.set("expression", core.expression.transform(replaced))
        return dialect.text(core)
    function = core.expression if isinstance(core, exp.Dot) else core
    function.set("expressions", [argument.transform(replaced) for argument in function.expressions])
    return dialect.text(core)
