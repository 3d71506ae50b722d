"""Columns of the tree being built: hands out names, asks for types, adds computed columns to an operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Final

from pgtrickle.errors import Unsupported
from pgtrickle.model import Column, Expr, PgType, quote
from pgtrickle.query import render
from pgtrickle.query.expression import reference, referenced
from pgtrickle.query.operators import Filter, InnerJoin, Operator, Project, Use

_NAMES_OF_A_VIEW: Final = 1_000_000
"""More than any view has: names of two views are never the same."""

#: Answers the types of the columns of a query.
Describe = Callable[[str], Sequence[PgType]]


class ColumnFactory:
    """One for each tree that is built, so that its column names are unique in the tree."""

    def __init__(self, describe: Describe) -> None:
        self._describe = describe
        self._numbers = count(1)
        self._unused = count(1)
        self._views = count(1)
        self._ordered: dict[PgType, bool] = {}

    @contextmanager
    def of_view(self) -> Iterator[None]:
        """Names of a view's own, so that a column that the view gains does not change what others are called."""
        outside, self._numbers = self._numbers, count(next(self._views) * _NAMES_OF_A_VIEW + 1)
        yield
        self._numbers = outside

    def name(self) -> str:
        return f"c{next(self._numbers)}"

    def column(self, type: PgType, label: str = "") -> Column:
        return Column(self.name(), type, label)

    def unused(self, type: PgType, label: str = "") -> Column:
        """A column that nothing reads, which does not count: what the others are called, in state tables too, does not
        depend on the columns that a table has besides."""
        return Column(f"u{next(self._unused)}", type, label)

    def types(self, operator: Operator, expressions: Sequence[Expr]) -> list[PgType]:
        """The types of expressions (or aggregate calls) over an operator's columns."""
        if not expressions:
            return []
        items = ", ".join(f"{part.sql} AS {quote(f'x{index}')}" for index, part in enumerate(expressions))
        rows = render.select(operator)
        return list(self._describe(f"SELECT {items} FROM ({rows}) AS i"))

    def types_of_call(self, operator: Operator, call: Expr, width: int) -> list[PgType]:
        """The types of the columns of a function in FROM, at least `width`, called for each row of an operator."""
        rows = render.select(operator)
        names = ", ".join(f"x{place}" for place in range(width))
        return list(self._describe(f"SELECT f.* FROM ({rows}) AS i CROSS JOIN LATERAL {call.sql} AS f({names})"))

    def types_of_constant(self, sql: str, width: int) -> list[PgType]:
        """The types of the columns, at least `width`, of a FROM item that reads no table."""
        names = ", ".join(f"x{place}" for place in range(width))
        return list(self._describe(f"SELECT f.* FROM {sql} AS f({names})"))

    def sortable(self, operator: Operator, names: Iterable[str]) -> list[str]:
        """Columns as ORDER BY may have them, whatever their type: those that have no order go by their text."""
        types = {column.name: column.type for column in operator.columns}
        return [
            reference(name).sql if self._has_order(types[name]) else f"{reference(name).sql}::text" for name in names
        ]

    def _has_order(self, type_: PgType) -> bool:
        if type_ not in self._ordered:
            try:
                self._describe(f"SELECT 1 AS x FROM (SELECT NULL::{type_.name} AS x) AS i ORDER BY i.x")
            except Unsupported:
                self._ordered[type_] = False
            else:
                self._ordered[type_] = True
        return self._ordered[type_]

    def extend(self, operator: Operator, items: Sequence[tuple[Expr, str]]) -> tuple[Operator, list[str]]:
        """`operator` with what is not a column of it yet computed, and the column of each (expression, label)."""
        computed: dict[str, tuple[Expr, str]] = {}
        for expression, label in items:
            if referenced(expression) is None:
                computed.setdefault(expression.sql, (expression, label))
        if not computed:
            return operator, [name for expression, _ in items if (name := referenced(expression)) is not None]
        types = self.types(operator, [expression for expression, _ in computed.values()])
        made = {sql: self.column(type, label) for (sql, (_, label)), type in zip(computed.items(), types, strict=True)}
        extended = Project(
            columns=(*operator.columns, *made.values()),
            input=operator,
            expressions=(*map(reference, operator.columns), *(expression for expression, _ in computed.values())),
        )
        return extended, [referenced(expression) or made[expression.sql].name for expression, _ in items]

    def exactly(self, operator: Operator, items: Sequence[tuple[Expr, str]]) -> Project:
        """A projection to just these (expression, label), each with a new name."""
        types = {column.name: column.type for column in operator.columns}
        unknown = [expression for expression, _ in items if referenced(expression) is None]
        described = dict(zip((part.sql for part in unknown), self.types(operator, unknown), strict=True))
        columns = [
            self.column(
                types[name] if (name := referenced(expression)) is not None else described[expression.sql], label
            )
            for expression, label in items
        ]
        return Project(tuple(columns), operator, tuple(expression for expression, _ in items))

    def use(self, operator: Operator, items: Sequence[tuple[Expr, str]]) -> Use:
        """The same, where the operator has other uses as well."""
        made = self.exactly(operator, items)
        return Use(made.columns, operator, made.expressions)

    @staticmethod
    def filter(operator: Operator, condition: Expr) -> Filter:
        return Filter(operator.columns, operator, condition)

    @staticmethod
    def join(left: Operator, right: Operator, condition: Expr | None = None) -> InnerJoin:
        return InnerJoin(left.columns + right.columns, left, right, condition)
