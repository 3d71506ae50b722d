"""Operator trees built by hand for tests, and hypothesis strategies for random ones and for random windows."""

from __future__ import annotations

from collections import Counter
from itertools import count

from hypothesis import strategies as st

from pgtrickle.answers import NOW
from pgtrickle.model import Column, Expr, PgType, Table
from pgtrickle.query.operators import (
    Aggregate,
    AggregateCall,
    Constant,
    Equality,
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
    Ties,
    TopK,
    UnionAll,
    Window,
    WindowCall,
)
from tests.delta.interpreter import CLOCK, TableWindow, World, ZSet, add

INT = PgType(23, "integer")
BIGINT = PgType(20, "bigint")
NUMERIC = PgType(1700, "numeric")
BOOLEAN = PgType(16, "boolean")

TABLES = tuple(Table(oid, "public", name) for oid, name in ((1, "a"), (2, "b"), (3, "c")))
ATTRIBUTES = ("x", "y")
RESULT_TYPE = {"count": BIGINT, "sum": NUMERIC, "avg": NUMERIC, "min": NUMERIC, "max": NUMERIC}


class Names:
    """Column names that are unique in one tree."""

    def __init__(self) -> None:
        self._next = count(1)

    def column(self, type_: PgType, label: str = "") -> Column:
        return Column(f"c{next(self._next)}", type_, label)


def scan(names: Names, table: Table, *attributes: str) -> Scan:
    columns = tuple(names.column(INT, f"{table.name}.{attribute}") for attribute in attributes)
    return Scan(columns, table, attributes)


def filtered(op: Operator, sql: str, *columns: str) -> Filter:
    return Filter(op.columns, op, Expr(sql, columns))


def joined(left: Operator, right: Operator, on: tuple[str, str] | None = None) -> InnerJoin:
    """An equi-join on one column of each side, or a cross join."""
    columns = left.columns + right.columns
    if on is None:
        return InnerJoin(columns, left, right, None)
    equality = Equality(Expr(on[0], (on[0],)), Expr(on[1], (on[1],)))
    return InnerJoin(columns, left, right, Expr(f"{on[0]} = {on[1]}", on), (equality,))


def left_joined(left: Operator, right: Operator, on: tuple[str, str] | None = None) -> LeftJoin:
    """A left join, on one column of each side being equal or on nothing."""
    inner = joined(left, right, on)
    return LeftJoin(inner.columns, left, right, inner.condition, inner.equalities)


def matched(names: Names, kind: MatchKind, left: Operator, right: Operator, on: tuple[str, str] | None = None) -> Match:
    """A semi-join, anti-join or mark, on one column of each side being equal or on nothing."""
    inner = joined(left, right, on)
    mark = (names.column(BOOLEAN),) if kind is MatchKind.MARK else ()
    return Match(left.columns + mark, left, right, inner.condition, kind, inner.equalities)


def union(names: Names, *branches: Operator) -> UnionAll:
    return UnionAll(tuple(names.column(column.type) for column in branches[0].columns), branches)


def call(names: Names, function: str, argument: Column | None = None) -> AggregateCall:
    text = Expr(f"{function}({argument.name})", (argument.name,)) if argument else Expr(f"{function}(*)")
    return AggregateCall(function, text, names.column(RESULT_TYPE[function]), argument)


def grouped(op: Operator, keys: tuple[Column, ...], *calls: AggregateCall) -> Aggregate:
    columns = keys + tuple(each.output for each in calls)
    return Aggregate(columns, op, tuple(key.name for key in keys), calls)


# --- random ones ---------------------------------------------------------------------------------------------


@st.composite
def operators(draw: st.DrawFn, max_depth: int = 5, *, timed: bool = False) -> Operator:
    """A random tree over the three tables; every column is a number. `timed`: the clock is read, too: a small number in
    `timed_worlds`."""
    return _operator(draw, Names(), max_depth, timed=timed)


LEAVES = ["scan", "scan", "scan", "scan", "constant"]
ONE_INPUT = ["filter", "project", "aggregate", "aggregate", "repeat", "first", "expand", "window"]
TWO_INPUTS = ["join", "join", "left join", "match", "union"]
TIMED = ["timed filter", "timed filter", "timed project"]
TIME = f"CAST(current_setting('{NOW}') AS integer)"
WIDE_BELOW = 2  # a tree of joins five deep on both sides has too many rows to try


def _operator(draw: st.DrawFn, names: Names, depth: int, *, timed: bool) -> Operator:
    kinds = LEAVES if depth == 0 else ["scan", *ONE_INPUT, *TWO_INPUTS, *(TIMED if timed else ())]
    kind = draw(st.sampled_from(kinds))
    if kind == "constant":
        return Constant((names.column(INT), names.column(INT)), "(VALUES (1, NULL), (2, 0), (2, 0))")
    if kind == "scan":
        attributes = draw(st.lists(st.sampled_from(ATTRIBUTES), min_size=1, max_size=2, unique=True))
        return scan(names, draw(st.sampled_from(TABLES)), *attributes)
    op = _operator(draw, names, depth - 1, timed=timed)
    if kind == "timed filter":
        return _timed_filter(draw, op)
    if kind == "timed project":
        return _timed_project(draw, names, op)
    if kind == "filter":
        column = draw(st.sampled_from(op.names))
        condition = draw(
            st.sampled_from([f"{column} > 0", f"{column} IS NULL", f"{column} <> 1", f"NOT ({column} = 2)"])
        )
        return filtered(op, condition, column)
    if kind == "project":
        expressions = draw(st.lists(_expression(op), min_size=1, max_size=3))
        return Project(tuple(names.column(NUMERIC) for _ in expressions), op, tuple(expressions))
    if kind == "aggregate":
        return _aggregate(draw, names, op)
    if kind == "repeat":
        return _repeated(names, op)
    if kind == "first":
        return _first_rows(draw, op)
    if kind == "window":
        return _window(draw, names, op)
    if kind == "expand":
        column = draw(st.sampled_from(op.names))
        up_to = f"CASE WHEN {column} = 1 THEN 1 WHEN {column} = 2 THEN 2 ELSE 0 END"
        made = Expr(f"generate_series(1, {up_to})", (column,))
        return Expand((*op.columns, names.column(INT)), op, made, outer=draw(st.booleans()))
    other = _operator(draw, names, min(depth - 1, WIDE_BELOW), timed=timed)
    if kind == "union":
        width = min(len(op.columns), len(other.columns))
        return union(names, _first(names, op, width), _first(names, other, width))
    on = (draw(st.sampled_from(op.names)), draw(st.sampled_from(other.names)))
    comparison = draw(st.sampled_from(["=", "=", "=", "<", None]))
    inner = joined(op, other, on if comparison else None)
    if comparison == "<":
        inner = InnerJoin(inner.columns, op, other, Expr(f"{on[0]} < {on[1]}", on))
    if kind == "left join":
        return LeftJoin(inner.columns, op, other, inner.condition, inner.equalities)
    if kind == "match":
        return _match(draw, names, inner)
    return inner


def _timed_filter(draw: st.DrawFn, op: Operator) -> Filter:
    """Of bounds that move, and of what no bound moves with; the clock may make a NULL."""
    column = draw(st.sampled_from(op.names))
    conditions = [
        f"{column} > {TIME}",
        f"{column} + 1 <= {TIME}",
        f"{TIME} - 1 < {column} AND {column} < {TIME}",
        f"NOT ({column} = {TIME} OR {column} IS NULL)",
        f"{column} <> NULLIF({TIME}, 1)",
        f"{column} + {TIME} > 2",
        f"{TIME} > 1",
    ]
    return filtered(op, draw(st.sampled_from(conditions)), column)


def _timed_project(draw: st.DrawFn, names: Names, op: Operator) -> Project:
    column = draw(st.sampled_from(op.names))
    made = draw(st.sampled_from([f"CASE WHEN {column} < {TIME} THEN 1 ELSE 0 END", f"{column} * {TIME}", TIME]))
    expressions = (Expr(column, (column,)), Expr(made, () if made == TIME else (column,)))
    return Project(tuple(names.column(NUMERIC) for _ in expressions), op, expressions)


def _match(draw: st.DrawFn, names: Names, inner: InnerJoin) -> Operator:
    """A mark is shown as a number, since every column is one."""
    kind = draw(st.sampled_from(MatchKind))
    mark = (names.column(BOOLEAN),) if kind is MatchKind.MARK else ()
    columns = inner.left.columns + mark
    found = Match(columns, inner.left, inner.right, inner.condition, kind, inner.equalities)
    if not mark:
        return found
    answer = Expr(f"CASE WHEN {mark[0].name} THEN 1 ELSE 0 END", (mark[0].name,))
    shown = (*(Expr(name, (name,)) for name in inner.left.names), answer)
    return Project((*(names.column(column.type) for column in inner.left.columns), names.column(INT)), found, shown)


def _repeated(names: Names, op: Operator) -> Repeat:
    """Each row as often as it is there anyway, and so its square."""
    counted = grouped(op, op.columns, call(names, "count"))
    return Repeat(counted.columns, counted, counted.names[-1])


def _first_rows(draw: st.DrawFn, op: Operator) -> TopK:
    """The first rows by some column, ties broken by all."""
    by = f"{draw(st.sampled_from(op.names))} {draw(st.sampled_from(['ASC', 'DESC', 'ASC NULLS FIRST']))}"
    limit = draw(st.sampled_from([1, 2, 3, None]))
    return TopK(op.columns, op, (by, *op.names), limit, draw(st.integers(0, 2)))


def _window(draw: st.DrawFn, names: Names, op: Operator) -> Window:
    """Calls over partitions by some columns; a sum of a frame of rows, and what ranks rows."""
    keys = draw(st.lists(st.sampled_from(op.names), max_size=2, unique=True))
    calls = tuple(_window_call(draw, names, op) for _ in range(draw(st.integers(1, 2))))
    return Window((*op.columns, *(each.output for each in calls)), op, tuple(keys), calls)


def _window_call(draw: st.DrawFn, names: Names, op: Operator) -> WindowCall:
    column = draw(st.sampled_from(op.names))
    ranks, by_row = ("rank()", "dense_rank()"), ("row_number()", "lag({})", "lead({}, 2, 0)", "ntile(2)")
    text = draw(st.sampled_from([*ranks, *by_row, "sum({})", "count(*)", "min({})", "first_value({})"]))
    sorted_by = draw(st.sampled_from(op.names))
    order = Expr(f"{sorted_by} {draw(st.sampled_from(['ASC', 'DESC', 'ASC NULLS FIRST']))}", (sorted_by,))
    by_peers = ["", "GROUPS BETWEEN 1 PRECEDING AND CURRENT ROW EXCLUDE TIES"]
    frame = draw(st.sampled_from([*by_peers, "ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING EXCLUDE CURRENT ROW"]))
    frame = "" if text in (*ranks, *by_row) else frame
    ties = Ties.ORDERED if text in by_row or frame.startswith("ROWS") else Ties.NONE if text in ranks else Ties.SORTED
    call = Expr(text.format(column), (column,) if "{}" in text else ())
    return WindowCall(call, order, frame, ties, names.column(NUMERIC))


def _expression(op: Operator) -> st.SearchStrategy[Expr]:
    column = st.sampled_from(op.names)
    return st.one_of(
        column.map(lambda name: Expr(name, (name,))),
        column.map(lambda name: Expr(f"COALESCE({name}, 0) + 1", (name,))),
        st.tuples(column, column).map(lambda pair: Expr(f"{pair[0]} * {pair[1]}", tuple(set(pair)))),
        st.just(Expr("1")),
    )


def _aggregate(draw: st.DrawFn, names: Names, op: Operator) -> Aggregate:
    keys = draw(st.lists(st.sampled_from(op.columns), max_size=2, unique=True))
    functions = draw(st.lists(st.sampled_from(["*", "count", "sum", "avg", "min", "max"]), max_size=3))
    if not keys and not functions:
        functions = ["*"]
    calls = [
        call(names, "count") if function == "*" else call(names, function, draw(st.sampled_from(op.columns)))
        for function in functions
    ]
    return grouped(op, tuple(keys), *calls)


def _first(names: Names, op: Operator, width: int) -> Project:
    columns = tuple(names.column(column.type) for column in op.columns[:width])
    return Project(columns, op, tuple(Expr(name, (name,)) for name in op.names[:width]))


values = st.one_of(st.none(), st.integers(0, 2))
rows = st.tuples(values, values)


@st.composite
def windows(draw: st.DrawFn) -> TableWindow:
    """A table of a few rows with duplicates and NULLs, and a window that deletes some and inserts some."""
    before: ZSet = Counter(draw(st.lists(rows, max_size=4)))
    copies = list(before.elements())
    deleted: ZSet = Counter(draw(st.permutations(copies))[: draw(st.integers(0, len(copies)))])
    inserted: ZSet = Counter(draw(st.lists(rows, max_size=3)))
    return TableWindow(ATTRIBUTES, before, add(inserted, {row: -weight for row, weight in deleted.items()}))


def worlds() -> st.SearchStrategy[World]:
    return st.fixed_dictionaries({table.oid: windows() for table in TABLES})


def timed_worlds() -> st.SearchStrategy[World]:
    """With a clock that stands still, goes on, or goes back."""
    clock = st.tuples(st.integers(0, 3), st.integers(0, 3)).map(_clock)
    return st.fixed_dictionaries({**{table.oid: windows() for table in TABLES}, CLOCK: clock})


def _clock(ends: tuple[int, int]) -> TableWindow:
    then, now = ends
    return TableWindow(("now",), Counter({(then,): 1}), add({(now,): 1}, {(then,): -1}))
