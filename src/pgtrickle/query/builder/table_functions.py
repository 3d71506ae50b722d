"""Functions and VALUES in FROM. Pure; a part of `build.py`.

A function of the row before it (LATERAL) expands each row; what depends on no row is a constant relation.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from pgtrickle.model import Expr
from pgtrickle.query.builder.column_factory import ColumnFactory
from pgtrickle.query.expression import from_node
from pgtrickle.query.operators import Constant, Expand, Operator
from pgtrickle.query.syntax import dialect
from pgtrickle.query.syntax.special_calls import SpecialCall

Resolve = Callable[[exp.Expr], exp.Expr]


def is_function(node: exp.Expr | None) -> bool:
    """Whether a FROM item is a call of one function."""
    return isinstance(node, exp.Unnest | exp.Anonymous | SpecialCall) or (
        isinstance(node, exp.Dot) and isinstance(node.expression, exp.Anonymous)
    )


def call_text(item: exp.Expr, function: exp.Expr, resolve: Resolve) -> Expr:
    """The call with its arguments resolved, the columns it is told to make, WITH ORDINALITY if the item says so."""
    core = function.copy()
    call = core.expression if isinstance(core, exp.Dot) else core
    _resolve_arguments(call, resolve)
    ordinality = bool(item.args.get("ordinality"))
    if isinstance(call, exp.Unnest):
        ordinality = ordinality or bool(call.args.get("offset"))
        call.set("offset", None)
        call.set("alias", None)
    text = from_node(core)
    told = [dialect.text(column) for column in _listed(item, function) if isinstance(column, exp.ColumnDef)]
    sql = f"ROWS FROM({text.sql} AS ({', '.join(told)}))" if told else text.sql
    return Expr(f"{sql} WITH ORDINALITY" if ordinality else sql, text.columns)


def _resolve_arguments(call: exp.Expr, resolve: Resolve) -> None:
    """The arguments of a call, or of each that ROWS FROM puts side by side."""
    if isinstance(call, SpecialCall) and call.is_rows_from:
        for function in call.expressions:
            _resolve_arguments(function.expression if isinstance(function, exp.Dot) else function, resolve)
    else:
        call.set("expressions", [resolve(argument) for argument in call.expressions])


def labels(item: exp.Expr, function: exp.Expr) -> list[str]:
    """The names of the columns, as the alias lists them."""
    names = [column.name for column in _listed(item, function)]
    if not names and isinstance(function, SpecialCall):
        names = function.column_names
    offset = function.args.get("offset")
    return [*names, offset.name] if isinstance(offset, exp.Identifier) else names


def _listed(item: exp.Expr, function: exp.Expr) -> list[exp.Expr]:
    alias = item.args.get("alias") or function.args.get("alias")
    return [] if alias is None else list(alias.columns)


def expand(factory: ColumnFactory, operator: Operator, call: Expr, labels: list[str], *, outer: bool) -> Expand:
    """`operator` with the rows that `call` makes of each."""
    types = factory.types_of_call(operator, call, len(labels))
    made = tuple(factory.column(type_, label) for type_, label in zip(types, labels, strict=True))
    return Expand(operator.columns + made, operator, call, outer)


def constant(factory: ColumnFactory, sql: str, labels: list[str]) -> Constant:
    """A relation that reads no table: `sql` as it stands in FROM."""
    types = factory.types_of_constant(sql, len(labels))
    return Constant(tuple(factory.column(type_, label) for type_, label in zip(types, labels, strict=True)), sql)


def values_text(node: exp.Values) -> str:
    """VALUES as an item of FROM."""
    return f"(VALUES {', '.join(dialect.text(row) for row in node.expressions)})"
