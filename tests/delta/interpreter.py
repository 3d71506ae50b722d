"""The executable specification of the algebra: operators and delta plans over `Counter`, one rule a few lines.

    evaluate(operator, world, Moment.AFTER)     the rows of an operator at one end of the window
    evaluate(delta plan, world)                 the weighted rows of a delta

A Z-set is a Counter of rows (tuples in the order of the operator's columns) whose weights may be negative.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from enum import Enum
from functools import reduce, singledispatch
from operator import xor
from typing import Any

from sqlglot import exp

from pgtrickle.answers import BEFORE, NOW
from pgtrickle.delta.algebra import After, Before, Changes, Plus, Rematch, StatefulDelta, Turned
from pgtrickle.model import Expr
from pgtrickle.query.clock import before_window, turns
from pgtrickle.query.operators import (
    Aggregate,
    AggregateCall,
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
    RowWise,
    Scan,
    TopK,
    UnionAll,
    Window,
    WindowCall,
    WorkingTable,
)
from tests.delta.expressions import EXACT, TIME, NotInterpretedError, convert, divide, parse, value_of
from tests.delta.expressions import evaluate as evaluate_expression
from tests.delta.partitions import key_of, windowed
from tests.delta.subselects import made_by, sorted_rows

Row = tuple[Any, ...]
ZSet = Counter[Row]


class Moment(Enum):
    """The ends of the window."""

    BEFORE = "before"
    AFTER = "after"


@dataclass(frozen=True)
class TableWindow:
    """One table: its attributes, its rows at both ends of the window, and the changes between them."""

    attributes: tuple[str, ...]
    before: ZSet
    changes: ZSet = field(default_factory=Counter)

    @property
    def after(self) -> ZSet:
        rows = add(self.before, self.changes)
        if any(weight < 0 for weight in rows.values()):
            raise ValueError(f"the window deletes rows that are not there: {rows}")
        return rows


World = Mapping[int, TableWindow]
CLOCK = 0
"""The clock is a table of one row in a world, where it moves; no table has this oid."""


def add(*zsets: Mapping[Row, int]) -> ZSet:
    """The sum, consolidated: no row has weight zero."""
    total: ZSet = Counter()
    for zset in zsets:
        for row, weight in zset.items():
            total[row] += weight
    return Counter({row: weight for row, weight in total.items() if weight})


def negate(zset: Mapping[Row, int]) -> ZSet:
    return Counter({row: -weight for row, weight in zset.items()})


def collect(weighted: Iterable[tuple[Row, int]]) -> ZSet:
    """A consolidated Z-set of weighted rows."""
    total: ZSet = Counter()
    for row, weight in weighted:
        total[row] += weight
    return add(total)


_known: dict[int, dict[tuple[int, Moment | None], tuple[Operator, ZSet]]] = {}
"""What has been evaluated of a world, while it is. (A tree may have a subtree many times, within which others are.)"""


def evaluate(op: Operator, world: World, at: Moment | None = None) -> ZSet:
    """The rows of an operator at a moment, or of a delta plan (whose leaves say themselves what they are)."""
    if id(world) not in _known:
        _known[id(world)] = {}
        try:
            return evaluate(op, world, at)
        finally:
            del _known[id(world)]
    known, key = _known[id(world)], (id(op), at)
    if key not in known:
        with _time(world, at):
            known[key] = op, rows_of(op, world, at)
    return known[key][1]


@contextmanager
def _time(world: World, at: Moment | None) -> Iterator[None]:
    """What expressions read of the clock: a delta plan has both of its ends."""
    if CLOCK not in world:
        yield
        return
    ((then,),), ((now,),) = world[CLOCK].before, world[CLOCK].after
    outside = dict(TIME)
    TIME.update({NOW: then if at is Moment.BEFORE else now, BEFORE: then})
    try:
        yield
    finally:
        TIME.clear()
        TIME.update(outside)


@singledispatch
def rows_of(op: Operator, world: World, at: Moment | None = None) -> ZSet:
    raise NotInterpretedError(type(op).__name__)


@rows_of.register
def _(op: Scan, world: World, at: Moment | None = None) -> ZSet:
    window = world[op.table.oid]
    if at is None:
        raise ValueError(f"{op.table} is read at neither end of the window")
    return _read(op, window, window.before if at is Moment.BEFORE else window.after)


@rows_of.register
def _(op: Changes, world: World, at: Moment | None = None) -> ZSet:
    window = world[op.scan.table.oid]
    return _read(op.scan, window, window.changes)


def _read(scan: Scan, window: TableWindow, rows: ZSet) -> ZSet:
    places = [window.attributes.index(attribute) for attribute in scan.attributes]
    types = [column.type.name for column in scan.columns]

    def pick(row: Row) -> Row:
        return tuple(convert(row[place], type_) for place, type_ in zip(places, types, strict=True))

    return collect((pick(row), weight) for row, weight in rows.items())


@rows_of.register
def _(op: After, world: World, at: Moment | None = None) -> ZSet:
    return evaluate(op.operator, world, Moment.AFTER)


@rows_of.register
def _(op: Before, world: World, at: Moment | None = None) -> ZSet:
    return evaluate(op.operator, world, Moment.BEFORE)


@rows_of.register
def _(op: Turned, world: World, at: Moment | None = None) -> ZSet:
    """f X − f₀ X; and those that f has for rows which the clock cannot matter to, f₀ has too."""
    before = before_window(op.operator)
    found = add(_over(op.operator, op.rows, world), negate(_over(before, op.rows, world)))
    ends = turns(op.operator)
    values = [each for end in ends or () for each in (end.value.now, end.value.before)]
    if ends is not None and all(evaluate_expression(value.sql, {}) is not None for value in values):
        near = Expr(" OR ".join(f"({end.condition.sql})" for end in ends), op.rows.names)
        rows = Filter(op.rows.columns, op.rows, near)
        assert found == add(_over(op.operator, rows, world), negate(_over(before, rows, world)))
    return found


def _over(operator: RowWise, rows: Operator, world: World) -> ZSet:
    return evaluate(operator.with_inputs((rows,)), world)


@rows_of.register
def _(op: Plus, world: World, at: Moment | None = None) -> ZSet:
    return add(*(evaluate(term, world, at) for term in op.terms))


@rows_of.register
def _(op: Filter, world: World, at: Moment | None = None) -> ZSet:
    rows = evaluate(op.input, world, at)
    return collect((row, weight) for row, weight in rows.items() if _holds(op.condition.sql, op.names, row))


@rows_of.register
def _(op: Project, world: World, at: Moment | None = None) -> ZSet:
    def image(row: Row) -> Row:
        named = dict(zip(op.input.names, row, strict=True))
        return tuple(evaluate_expression(expression.sql, named) for expression in op.expressions)

    return collect((image(row), weight) for row, weight in evaluate(op.input, world, at).items())


@rows_of.register
def _(op: InnerJoin, world: World, at: Moment | None = None) -> ZSet:
    left, right = evaluate(op.left, world, at), evaluate(op.right, world, at)
    pairs = ((a + b, m * n) for a, m in left.items() for b, n in right.items())
    return collect(
        (row, weight) for row, weight in pairs if op.condition is None or _holds(op.condition.sql, op.names, row)
    )


def _holds(condition: str, names: tuple[str, ...], row: Row) -> bool:
    return evaluate_expression(condition, dict(zip(names, row, strict=True))) is True


@rows_of.register
def _(op: LeftJoin, world: World, at: Moment | None = None) -> ZSet:
    return _pair_up(op, evaluate(op.left, world, at), evaluate(op.right, world, at))


@rows_of.register
def _(op: Match, world: World, at: Moment | None = None) -> ZSet:
    return _pair_up(op, evaluate(op.left, world, at), evaluate(op.right, world, at))


@rows_of.register
def _(op: Rematch, world: World, at: Moment | None = None) -> ZSet:
    left = evaluate(op.left, world, at)
    before = evaluate(op.join.right, world, Moment.BEFORE)
    after = add(before, evaluate(op.delta, world, at))
    return add(_pair_up(op.join, left, after), negate(_pair_up(op.join, left, before)))


def _pair_up(op: LeftJoin | Match, left: ZSet, right: ZSet) -> ZSet:
    """The join of weighted rows (left) with rows that are there (right)."""
    names = op.left.names + op.right.names
    found: list[tuple[Row, int]] = []
    for row, weight in left.items():
        matches = {
            other: number
            for other, number in right.items()
            if op.condition is None or _holds(op.condition.sql, names, row + other)
        }
        if isinstance(op, LeftJoin):
            padding = (None,) * len(op.right.columns)
            found += [(row + other, weight * number) for other, number in (matches or {padding: 1}).items()]
        elif op.kind is MatchKind.MARK:
            found.append(((*row, bool(matches)), weight))
        elif bool(matches) == (op.kind is MatchKind.SEMI):
            found.append((row, weight))
    return collect(found)


@rows_of.register
def _(op: Constant, world: World, at: Moment | None = None) -> ZSet:
    """VALUES; each row a list of expressions."""
    node = parse(f"SELECT * FROM {op.sql} AS v").args["from_"].this
    if not isinstance(node, exp.Values):
        raise NotInterpretedError(op.sql)
    rows = [tuple(value_of(item, {}) for item in row.expressions) for row in node.expressions]
    return Counter(row[: len(op.columns)] for row in rows)


@rows_of.register
def _(op: Expand, world: World, at: Moment | None = None) -> ZSet:
    """The rows that a function, or a query that reads no table, makes of each row."""
    call = parse(op.call.sql)
    found: list[tuple[Row, int]] = []
    for row, weight in evaluate(op.input, world, at).items():
        made = made_by(call, dict(zip(op.input.names, row, strict=True)))
        padding = [(None,) * len(op.made)] if op.outer else []
        found += [(row + values, weight) for values in made or padding]
    return collect(found)


@rows_of.register
def _(op: TopK, world: World, at: Moment | None = None) -> ZSet:
    return _first_rows(op, evaluate(op.input, world, at))


def _first_rows(op: TopK, rows: ZSet) -> ZSet:
    listed = [dict(zip(op.names, row, strict=True)) for row in rows.elements()]
    call = parse(f"array_agg(1 ORDER BY {', '.join(op.order)})")
    ordered = sorted_rows(call.this.expressions, listed)
    end = len(ordered) if op.limit is None else op.offset + op.limit
    while op.ties is not None and 0 < end < len(ordered):
        if any(
            value_of(p.this, ordered[end]) != value_of(p.this, ordered[end - 1])
            for p in call.this.expressions[: op.ties]
        ):
            break
        end += 1
    return Counter(tuple(row.values()) for row in ordered[op.offset : end])


@rows_of.register
def _(op: Window, world: World, at: Moment | None = None) -> ZSet:
    return windowed(op, evaluate(op.input, world, at), _of_frame)


def _of_frame(call: WindowCall, rows: list[dict[str, Any]]) -> Any:
    names = tuple(rows[0]) if rows else ()
    return _call(call, names, collect((tuple(row.values()), 1) for row in rows))


@rows_of.register
def _(op: Repeat, world: World, at: Moment | None = None) -> ZSet:
    place = op.names.index(op.times)
    return collect((row, weight * max(row[place] or 0, 0)) for row, weight in evaluate(op.input, world, at).items())


@rows_of.register
def _(op: WorkingTable, world: World, at: Moment | None = None) -> ZSet:
    """The rows of the round before; by itself, outside of a round, it has none."""
    return world[_working(op)].before if _working(op) in world else Counter()


@rows_of.register
def _(op: Recursive, world: World, at: Moment | None = None) -> ZSet:
    found: ZSet = Counter()
    made = evaluate(op.input, world, at)
    while made:
        if op.distinct:
            made = Counter(row for row in made if row not in found)
        found = add(found, made)
        last = TableWindow(op.working.names, made)
        made = evaluate(op.step, {**world, _working(op.working): last}, at)
        if len(found) > 10_000:
            raise ValueError("the recursion has no end")
    return found


def _working(op: WorkingTable) -> int:
    """The working table as a key of a world: no oid."""
    return -int(op.names[0].strip("c"))


@rows_of.register
def _(op: UnionAll, world: World, at: Moment | None = None) -> ZSet:
    return add(*(evaluate(branch, world, at) for branch in op.branches))


@rows_of.register
def _(op: Aggregate, world: World, at: Moment | None = None) -> ZSet:
    return _finish(op, _groups(op, evaluate(op.input, world, at)))


@rows_of.register
def _(op: StatefulDelta, world: World, at: Moment | None = None) -> ZSet:
    before, delta = evaluate(op.kept.input, world, Moment.BEFORE), evaluate(op.delta, world, at)
    after = add(before, delta)
    match op.kept:
        case TopK() as top:
            return add(_first_rows(top, after), negate(_first_rows(top, before)))
        case Window() as window:
            partitions = {key_of(window, row) for row in delta}
            old, new = (
                windowed(window, Counter({r: n for r, n in rows.items() if key_of(window, r) in partitions}), _of_frame)
                for rows in (before, after)
            )
            return add(negate(old), new)
        case Recursive() as recursion:
            return add(evaluate(recursion, world, Moment.AFTER), negate(evaluate(recursion, world, Moment.BEFORE)))
        case Aggregate() as aggregate:
            touched = {_key(aggregate, row) for row in delta}
            old = _finish(aggregate, _groups(aggregate, before), touched)
            new = _finish(aggregate, _groups(aggregate, after), touched)
            return add(negate(old), new)
    raise NotInterpretedError(type(op.kept).__name__)


# --- aggregates ----------------------------------------------------------------------------------------------


def _key(op: Aggregate, row: Row) -> Row:
    return tuple(row[op.input.names.index(key)] for key in op.keys)


def _groups(op: Aggregate, rows: ZSet) -> dict[Row, ZSet]:
    groups: dict[Row, ZSet] = {} if op.keys else {(): Counter()}
    for row, weight in rows.items():
        if weight < 0:
            raise ValueError(f"an aggregate's input has {row} with weight {weight}")
        groups.setdefault(_key(op, row), Counter())[row] += weight
    return groups


def _finish(op: Aggregate, groups: dict[Row, ZSet], wanted: set[Row] | None = None) -> ZSet:
    names = op.input.names
    return Counter(
        key + tuple(_call(call, names, rows) for call in op.calls)
        for key, rows in groups.items()
        if wanted is None or key in wanted
    )


def _call(call: AggregateCall | WindowCall, names: tuple[str, ...], rows: ZSet) -> Any:
    """The value of one aggregate call over the rows of a group."""
    node = parse(call.call.sql)
    named = [(dict(zip(names, row, strict=True)), weight) for row, weight in rows.items()]
    if isinstance(node, exp.Filter):
        condition = node.expression.this
        named = [(row, weight) for row, weight in named if value_of(condition, row) is True]
        node = node.this
    if isinstance(node, exp.Count) and isinstance(node.this, exp.Star):
        return sum(weight for _, weight in named)
    if isinstance(node, exp.Cast):
        return _first(node, [row for row, weight in named if weight])
    if isinstance(node, exp.Bracket) or (isinstance(node, exp.ArrayAgg) and isinstance(node.this, exp.Order)):
        return _ordered_array(node, [row for row, weight in named for _ in range(weight)])
    argument = node.this.this if isinstance(node.this, exp.Order) else node.this  # of a sum: here the order is all one
    values = [(value_of(argument, row), weight) for row, weight in named]
    if isinstance(node, exp.ArrayAgg):
        return tuple(value for value, weight in values for _ in range(weight)) or None
    return _apply(node, [(value, weight) for value, weight in values if value is not None], call.output.type.name)


def _first(node: exp.Cast, rows: list[dict[str, Any]]) -> Any:
    """`CAST((array_agg(x ORDER BY …))[1] AS type)`: x of the first row."""
    call = node.this.this.unnest()
    if not isinstance(call, exp.ArrayAgg) or not isinstance(call.this, exp.Order):
        raise NotInterpretedError(node.sql(dialect="postgres"))
    ordered = sorted_rows(call.this.expressions, rows)
    return value_of(call.this.this, ordered[0]) if ordered else None


def _ordered_array(node: exp.Expr, rows: list[dict[str, Any]]) -> Row | None:
    """`array_agg(x ORDER BY …)`, or a slice of it."""
    call = node.this.unnest() if isinstance(node, exp.Bracket) else node
    values = tuple(value_of(call.this.this, row) for row in sorted_rows(call.this.expressions, rows))
    if not isinstance(node, exp.Bracket):
        return values or None
    (part,) = node.expressions
    first, last = (_place(end, call, rows) for end in (part.this, part.expression))
    return values[(first or 1) - 1 : last]


def _place(end: exp.Expr | None, call: exp.Expr, rows: list[dict[str, Any]]) -> int | None:
    """An end of a slice: a number, or the place of the last row that ties with the one at a place."""
    if end is None or isinstance(end, exp.Literal):
        return None if end is None else int(end.this)
    ties = next(part for part in end.find_all(exp.ArrayAgg))
    ordered = sorted_rows(call.this.expressions, rows)
    sorted_by = [tuple(value_of(item, row) for item in ties.this.this.expressions) for row in ordered]
    place = int(next(end.find_all(exp.Bracket)).expressions[0].this) + 1  # which sqlglot counts from 0
    if len(sorted_by) < place:
        return len(sorted_by)
    return len(sorted_by) - sorted_by[::-1].index(sorted_by[place - 1])


def _apply(node: exp.Expr, values: list[tuple[Any, int]], type_name: str) -> Any:
    if isinstance(node, exp.Count):
        return sum(weight for _, weight in values)
    if not values:
        return None
    if isinstance(node, exp.Min):
        return min(value for value, _ in values)
    if isinstance(node, exp.Max):
        return max(value for value, _ in values)
    if isinstance(node, exp.LogicalAnd | exp.LogicalOr):
        return (all if isinstance(node, exp.LogicalAnd) else any)(value for value, _ in values)
    if isinstance(node, exp.BitwiseXorAgg):
        return reduce(xor, (value for value, weight in values if weight % 2), 0)
    with localcontext(EXACT):
        total = sum(value * weight for value, weight in values)
        squares = sum(value * value * weight for value, weight in values)
        count = sum(weight for _, weight in values)
        spread = count * squares - total * total
    if isinstance(node, exp.Variance):
        return divide(Decimal(spread), Decimal(count * (count - 1))) if count > 1 else None
    if isinstance(node, exp.VariancePop):
        return divide(Decimal(spread), Decimal(count * count))
    if isinstance(node, exp.Sum):
        return convert(total, type_name)
    if isinstance(node, exp.Avg):
        return divide(Decimal(total), Decimal(sum(weight for _, weight in values)))
    raise NotInterpretedError(node.sql(dialect="postgres"))
