"""GROUP BY and aggregate calls to an `Aggregate` node. Pure; a part of `build.py`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlglot import exp

from pgtrickle.model import Column, Expr
from pgtrickle.query.builder.column_factory import ColumnFactory
from pgtrickle.query.expression import column_node, from_node, reference, tree_columns
from pgtrickle.query.operators import Aggregate, AggregateCall, Operator
from pgtrickle.query.syntax import dialect, grouping_sets, whole_rows
from pgtrickle.query.syntax.special_calls import SpecialCall

#: Aggregates that skip NULLs and have one argument at most, so that FILTER is a CASE in their argument.
_SKIP_NULLS = frozenset(
    {
        "count", "sum", "avg", "min", "max", "stddev", "stddev_pop", "stddev_samp", "variance", "var_pop", "var_samp",
        "bool_and", "bool_or", "every", "bit_xor",
    }
)  # fmt: skip

NameOf = Callable[[exp.Expr], tuple[str, str] | None]


@dataclass(frozen=True, slots=True)
class _Call:
    """An aggregate call taken apart; `argument` is the one argument of a plain call, `text` the call otherwise."""

    function: str
    plain: bool
    argument: Expr | None
    whole: exp.Expr
    core: exp.Expr


class Grouping:
    """Builds one aggregate over `operator`; `name_of` answers (schema, name) for an aggregate call's node.

    `external` are columns of subqueries that are joined above the aggregate: they are left as they are.
    """

    def __init__(
        self, factory: ColumnFactory, operator: Operator, name_of: NameOf, external: frozenset[str] = frozenset()
    ) -> None:
        self._factory = factory
        self._operator = operator
        self._name_of = name_of
        self._external = external
        self._types = {column.name: column.type for column in operator.columns}
        self._keys: dict[str, str] = {}
        self._marked: dict[int, str] = {}
        self._extra_keys: dict[str, None] = {}
        self._calls: dict[str, tuple[str, _Call]] = {}

    def build(self, keys: Sequence[exp.Expr], outputs: Sequence[exp.Expr]) -> tuple[Aggregate, list[exp.Expr]]:
        """The aggregate, and `outputs` (select list, HAVING) rewritten over its columns."""
        key_expressions = [from_node(key) for key in keys]
        operator, names = self._factory.extend(self._operator, [(key, "") for key in key_expressions])
        self._keys = {key.sql: name for key, name in zip(key_expressions, names, strict=True)}
        marks = [grouping_sets.key_of(key) for key in keys]
        self._marked = {mark: name for mark, name in zip(marks, names, strict=True) if mark is not None}
        rewritten = [output.copy().transform(self._rewrite) for output in outputs]
        if not self._keys and not self._calls:
            self._call(dialect.parse_expression("count(*)"), "count")
        return self._aggregate(operator), rewritten

    def functions(self) -> list[str]:
        """The functions of the calls that take rows as they come."""
        calls = (call for _, call in self._calls.values() if call.plain or not _is_ordered(call.whole))
        return [call.function for call in calls if not _is_distinct(call.core)]

    def _rewrite(self, node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Identifier | exp.Paren | exp.Ordered):  # which may have the text of a key
            return node
        if grouping_sets.is_grouping(node):
            return exp.Literal.number(0)  # of a plain GROUP BY: its keys are all grouped by
        mark = grouping_sets.key_of(node)
        # Of the rest, the text will do: it is over the tree's columns, so that what looks alike has the same value.
        key = self._keys.get(dialect.text(node)) if mark not in self._marked else self._marked[mark]
        if key is not None:
            return column_node(key)
        if isinstance(node, exp.Query):
            return self._within(node)
        named = self._name_of(node)
        if named is not None:
            schema, name = named
            return column_node(self._call(node, name if schema == "pg_catalog" else f"{schema}.{name}"))
        if isinstance(node, exp.Column) and node.name not in self._external:
            return self._dependent(node)
        return node

    def _within(self, query: exp.Query) -> exp.Expr:
        """A query that reads no table: its aggregates are its own."""
        query = query.copy()
        for column in [column for column in tree_columns(query) if column.name not in self._external]:
            key = self._keys.get(dialect.text(column))
            column.replace(self._dependent(column) if key is None else column_node(key))
        return query

    def _dependent(self, node: exp.Column) -> exp.Expr:
        """A column not grouped by: PostgreSQL proved that the keys determine it, so a group has one value of it."""
        if node.name in self._keys.values():
            return node
        type = self._types[node.name]
        if type.has_one_look:
            self._extra_keys[node.name] = None
            return node
        # Equal values may look different (1.0 and 1.00), so as a key it could keep an old look: take it from a row.
        values = dialect.parse_expression(f"array_agg({reference(node.name).sql})")
        first = f"({reference(self._call(values, 'array_agg')).sql})[1]::{type.name}"  # the cast is for typmods
        return exp.Paren(this=dialect.parse_expression(first))

    def _call(self, node: exp.Expr, function: str) -> str:
        """The output column of an aggregate call; the same call twice is one column."""
        key = dialect.text(node)
        if key not in self._calls:
            self._calls[key] = (self._factory.name(), _take_apart(node, function))
        return self._calls[key][0]

    def _aggregate(self, operator: Operator) -> Aggregate:
        calls = [call for _, call in self._calls.values()]
        operator, found = self._factory.extend(
            operator, [(call.argument, "") for call in calls if call.argument is not None]
        )
        columns = {column.name: column for column in operator.columns}
        arguments = iter(found)
        given = [columns[next(arguments)] if call.argument is not None else None for call in calls]
        texts = [_text(call, argument) for call, argument in zip(calls, given, strict=True)]
        types = self._factory.types(operator, texts)
        made = tuple(
            AggregateCall(call.function, text, Column(name, type), argument, call.plain)
            for (name, call), text, type, argument in zip(self._calls.values(), texts, types, given, strict=True)
        )
        keys = tuple(dict.fromkeys([*self._keys.values(), *self._extra_keys]))
        outputs = tuple(columns[key] for key in keys) + tuple(call.output for call in made)
        return Aggregate(outputs, operator, keys, made)


def _is_of_no_column_type(argument: exp.Expr) -> bool:
    """Whether it could be a row of a subquery, which no column can hold."""
    return isinstance(argument.unnest(), exp.Query | exp.Case) and any(
        map(whole_rows.is_whole_row, argument.find_all(exp.Column))
    )


def _is_ordered(call: exp.Expr) -> bool:
    special = call.find(SpecialCall)
    return call.find(exp.Order) is not None or (special is not None and special.is_ordered)


def _is_distinct(core: exp.Expr) -> bool:
    """Whether it takes each value once, which PostgreSQL sorts them for."""
    function = core.expression if isinstance(core, exp.Dot) else core
    return any(isinstance(argument, exp.Distinct) for argument in function.expressions)


def _take_apart(node: exp.Expr, function: str) -> _Call:
    condition = node.expression.this if isinstance(node, exp.Filter) else None
    core = node.this if isinstance(node, exp.Filter) else node
    call = core.expression if isinstance(core, exp.Dot) else core
    arguments = [] if isinstance(core, exp.WithinGroup) else call.expressions
    plain = not isinstance(core, exp.WithinGroup | SpecialCall) and not any(
        isinstance(argument, exp.Distinct | exp.Order | exp.Variadic) for argument in arguments
    )
    if condition is not None and plain and function in _SKIP_NULLS:
        value = exp.Literal.number(1) if isinstance(arguments[0], exp.Star) else arguments[0].copy()
        only_if = exp.Case(ifs=[exp.If(this=condition.copy(), true=value)])
        return _Call(function, True, from_node(only_if), node, call)
    plain = plain and condition is None and not any(map(_is_of_no_column_type, arguments))
    if plain and len(arguments) == 1 and not isinstance(arguments[0], exp.Star):
        return _Call(function, True, from_node(arguments[0]), node, core)
    return _Call(function, plain, None, node, core)


def _text(call: _Call, argument: Column | None) -> Expr:
    """The call over the aggregate's input columns."""
    if argument is None:
        return from_node(call.whole)
    core = call.core.copy()
    function = core.expression if isinstance(core, exp.Dot) else core
    function.set("expressions", [column_node(argument.name)])
    return from_node(core)
