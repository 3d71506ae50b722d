"""Writes an operator tree as SQL: nested SELECTs, one a node. Pure; used for typing, lookups, FULL reads and tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pgtrickle.model import Column, quote
from pgtrickle.query.looks import call_sql, look, shown_keys
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
    Recursive,
    Repeat,
    Scan,
    Ties,
    TopK,
    UnionAll,
    Window,
    WindowCall,
    WorkingTable,
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
            items = _list(f"{quote(attribute)} AS {quote(name)}" for attribute, name in operator.pairs)
            return f"{items} FROM {operator.relation}"
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
        case Window():
            return windowed(operator, _nested(operator.input, leaf))
        case Recursive():
            return _recursion(operator, leaf)
        case WorkingTable():
            return _no_rows(operator)
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


def windowed(operator: Window, rows: str, carried: Sequence[str] = ()) -> str:
    """What the calls make of rows, given as an item of FROM; columns besides those of the input may be `carried`.

    Calls that show the order of peers each have the rows of their order sorted beforehand, which PostgreSQL keeps. The
    others need but one query.
    """
    names = [quote(name) for name in (*operator.input.names, *carried)]
    passed = list(names)
    orders = dict.fromkeys(call.order for call in operator.calls if call.ties is Ties.SORTED)
    for order in orders:
        calls = [call for call in operator.calls if call.ties is Ties.SORTED and call.order == order]
        by = ", ".join([*map(quote, operator.keys), *([] if order is None else [order.sql]), *_all_columns(operator)])
        rows_in_order = f"(SELECT * FROM {rows} AS i ORDER BY {by})" if by else rows
        rows = f"({_list([*passed, *(_over(operator, call) for call in calls)])} FROM {rows_in_order} AS i)"
        passed += [quote(call.output.name) for call in calls]
    others = (quote(c.output.name) if c.ties is Ties.SORTED else _over(operator, c) for c in operator.calls)
    return f"{_list([*names, *others])} FROM {rows} AS i"


def _over(operator: Window, call: WindowCall) -> str:
    order = [] if call.order is None else [call.order.sql]
    order += _all_columns(operator) if call.ties is Ties.ORDERED else []
    clauses = [
        f"PARTITION BY {', '.join(map(quote, operator.keys))}" if operator.keys else "",
        f"ORDER BY {', '.join(order)}" if order else "",
        call.frame,
    ]
    return f"{call.call.sql} OVER ({' '.join(filter(None, clauses))}) AS {quote(call.output.name)}"


def _all_columns(operator: Window) -> list[str]:
    """What orders rows that are alike in the keys: rows that tie in it are interchangeable."""
    return [_sortable(column) for column in operator.input.columns if column.name not in operator.keys]


def _sortable(column: Column) -> str:
    """Not each type has an order, and equal values may differ in their text: 1.0 and 1.00."""
    name = quote(column.name)
    return name if column.type.has_one_look else look(name, column.type)


def _recursion(operator: Recursive, leaf: Leaf) -> str:
    """PostgreSQL lets a term name its own rows once: a term that reads them more often names a WITH query of them."""
    name = quote(f"pgt_recursion_{operator.working.names[0]}")
    often = operator.readings > 1
    read = quote(f"pgt_round_{operator.working.names[0]}") if often else name

    def inner(node: Operator) -> str | None:
        if node != operator.working:
            return leaf(node)
        pairs = zip(operator.names, node.names, strict=True)
        return f"{_list(f'{quote(given)} AS {quote(made)}' for given, made in pairs)} FROM {read}"

    union = "UNION" if operator.distinct else "UNION ALL"
    step = _nested(operator.step, inner)
    if often:
        step = f"(WITH {read} AS (SELECT * FROM {name}) SELECT * FROM {step} AS term)"
    terms = f"{_nested(operator.input, leaf)} {union} {step}"
    columns = ", ".join(quote(each) for each in operator.names)
    return f"WITH RECURSIVE {name}({columns}) AS ({terms}) {_columns(operator)} FROM {name}"


def _no_rows(operator: WorkingTable) -> str:
    """What a working table is before its recursion is put together: its columns are known, and there are no rows."""
    collations = ("" if c.type.collation is None else f" COLLATE {c.type.collation}" for c in operator.columns)
    typed = (
        f"NULL::{column.type.name}{collation} AS {quote(column.name)}"
        for column, collation in zip(operator.columns, collations, strict=True)
    )
    return f"{_list(typed)} WHERE false"


def _branch(union: UnionAll, branch: Operator, leaf: Leaf) -> str:
    pairs = zip(branch.names, union.names, strict=True)
    return f"{_list(f'{quote(given)} AS {quote(name)}' for given, name in pairs)} FROM {_nested(branch, leaf)} AS i"


def _columns(operator: Operator) -> str:
    return _list(quote(name) for name in operator.names)


def _list(parts: Iterable[str]) -> str:
    return " ".join(["SELECT", *filter(None, [", ".join(parts)])])


def _nested(operator: Operator, leaf: Leaf) -> str:
    return f"({select(operator, leaf=leaf)})"
