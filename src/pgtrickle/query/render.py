"""Writes an operator tree as SQL: nested SELECTs, one a node. Pure; used for typing, lookups, FULL reads and tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pgtrickle.model import quote
from pgtrickle.query.looks import call_sql, shown_keys
from pgtrickle.query.operators import (
    Aggregate,
    Constant,
    Expand,
    Filter,
    InnerJoin,
    LeftJoin,
    Match,
    MatchKind,
    Operator,
    Project,
    Repeat,
    Scan,
    TopK,
    UnionAll,
)

Leaf = Callable[[Operator], str | None]


def _no_leaf(_: Operator) -> str | None:
    return None


def select(operator: Operator, *, leaf: Leaf = _no_leaf) -> str:
    """A SELECT whose columns are the operator's, named as in the tree; `leaf` may give the SQL of any node instead."""
    given = leaf(operator)
    if given is not None:
        return given
    match operator:
        case Scan():
            columns = zip(operator.attributes, operator.names, strict=True)
            items = _list(f"{quote(attribute)} AS {quote(name)}" for attribute, name in columns)
            return f"{items} FROM {operator.table.qualified}"
        case Constant():
            names = f"({', '.join(quote(name) for name in operator.names)})" if operator.columns else ""
            return f"{_columns(operator)} FROM {operator.sql} AS v{names}"
        case Expand():
            return f"{_columns(operator)} FROM {_nested(operator.input, leaf)} AS i {expansion(operator)}"
        case Filter():
            return f"{_columns(operator)} FROM {_nested(operator.input, leaf)} AS i WHERE {operator.condition.sql}"
        case Project():
            pairs = zip(operator.expressions, operator.names, strict=True)
            return (
                f"{_list(f'{e.sql} AS {quote(name)}' for e, name in pairs)} FROM {_nested(operator.input, leaf)} AS i"
            )
        case InnerJoin():
            left, right = _nested(operator.left, leaf), _nested(operator.right, leaf)
            if operator.condition is None:
                return f"{_columns(operator)} FROM {left} AS l CROSS JOIN {right} AS r"
            return f"{_columns(operator)} FROM {left} AS l JOIN {right} AS r ON {operator.condition.sql}"
        case LeftJoin():
            left, right = _nested(operator.left, leaf), _nested(operator.right, leaf)
            on = "true" if operator.condition is None else operator.condition.sql
            return f"{_columns(operator)} FROM {left} AS l LEFT JOIN {right} AS r ON {on}"
        case Match():
            return _match(operator, leaf)
        case Repeat():
            copies = f"generate_series(1, {quote(operator.times)})"
            return f"{_columns(operator)} FROM {_nested(operator.input, leaf)} AS i CROSS JOIN {copies}"
        case TopK():
            return _first_rows(operator, leaf)
        case Aggregate():
            return _aggregate(operator, leaf)
        case UnionAll():
            return " UNION ALL ".join(_branch(operator, branch, leaf) for branch in operator.branches)
    raise TypeError(f"cannot render {type(operator).__name__}")


def expansion(operator: Expand) -> str:
    """The join that makes an expansion of the rows before it."""
    made = ", ".join(quote(column.name) for column in operator.made)
    join, on = ("LEFT JOIN", " ON true") if operator.outer else ("CROSS JOIN", "")
    return f"{join} LATERAL {operator.call.sql} AS f({made}){on}"


def _match(operator: Match, leaf: Leaf) -> str:
    where = "" if operator.condition is None else f" WHERE {operator.condition.sql}"
    exists = f"EXISTS (SELECT FROM {_nested(operator.right, leaf)} AS r{where})"
    rows = f"FROM {_nested(operator.left, leaf)} AS l"
    columns = [quote(name) for name in operator.left.names]
    if operator.mark is not None:
        return f"{_list([*columns, f'{exists} AS {quote(operator.mark.name)}'])} {rows}"
    return f"{_list(columns)} {rows} WHERE {'NOT ' if operator.kind is MatchKind.ANTI else ''}{exists}"


def _aggregate(operator: Aggregate, leaf: Leaf) -> str:
    calls = [f"{call_sql(call)} AS {quote(call.output.name)}" for call in operator.calls]
    sql = f"{_list([*shown_keys(operator), *calls])} FROM {_nested(operator.input, leaf)} AS i"
    if operator.keys:
        return f"{sql} GROUP BY {', '.join(map(quote, operator.keys))}"
    return sql if calls else f"{sql} HAVING true"


def _first_rows(operator: TopK, leaf: Leaf) -> str:
    columns, rows, order = _columns(operator), f"{_nested(operator.input, leaf)} AS i", ", ".join(operator.order)
    if operator.ties is None:
        limit = "" if operator.limit is None else f" LIMIT {operator.limit}"
        return f"{columns} FROM {rows} ORDER BY {order}{limit} OFFSET {operator.offset}"
    shared = ", ".join(operator.order[: operator.ties])
    if not operator.offset:
        return f"{columns} FROM {rows} ORDER BY {shared} FETCH FIRST {operator.limit} ROWS WITH TIES"
    last = operator.offset + (operator.limit or 0)
    places = f"row_number() OVER (ORDER BY {order}) AS pgt_place, rank() OVER (ORDER BY {shared}) AS pgt_rank"
    placed = f"{columns}, {places} FROM {rows}"
    return f"{columns} FROM ({placed}) AS p WHERE pgt_place > {operator.offset} AND pgt_rank <= {last}"


def _branch(union: UnionAll, branch: Operator, leaf: Leaf) -> str:
    pairs = zip(branch.names, union.names, strict=True)
    return f"{_list(f'{quote(given)} AS {quote(name)}' for given, name in pairs)} FROM {_nested(branch, leaf)} AS i"


def _columns(operator: Operator) -> str:
    return _list(quote(name) for name in operator.names)


def _list(parts: Iterable[str]) -> str:
    return " ".join(["SELECT", *filter(None, [", ".join(parts)])])


def _nested(operator: Operator, leaf: Leaf) -> str:
    return f"({select(operator, leaf=leaf)})"
