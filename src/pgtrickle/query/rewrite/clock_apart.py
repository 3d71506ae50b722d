"""The clock is read by filters, projections and expansions only, which have a delta rule for it.

    L ⋈_{p ∧ t} R        =  σ_t(L ⋈_p R)                     t reads the clock
    σ_{p ∧ t}(R)         =  σ_t(σ_p(R))
    L ⟕_{p ∧ t} R        =  π(π_{+t}(L) ⟕_{p ∧ +t} R)        t reads columns of L only; the same for ⋉, ▷ and the mark
    L ⟕_{t} R            =  π(L ⟕_{t'} π_{+now}(R))          t reads both sides
    γ_t(R)               =  γ_{t'}(π_{+now}(R))                      the same for window calls
    f(now())             =  f(now()) for a single row        a function or VALUES in FROM

+t is a column with the value of t, +now one with the time, t' is t over that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from sqlglot import exp

from pgtrickle.model import Column, Expr, PgType
from pgtrickle.query import gaps
from pgtrickle.query.clock import is_time, reads_clock, values_of
from pgtrickle.query.expression import column_node, conjunction, conjuncts, from_node, node_of, reference
from pgtrickle.query.operators import (
    Aggregate,
    Constant,
    Equality,
    Expand,
    Filter,
    InnerJoin,
    LeftJoin,
    Match,
    Operator,
    Project,
    TopK,
    Window,
    WindowCall,
)

_BOOLEAN = PgType(16, "boolean")
_TIME = PgType(1184, "timestamp with time zone")
_ONE_ROW = Constant((), "(VALUES (1))")


def clock_apart(tree: Operator) -> Operator:
    return _Apart().apart(tree)


@dataclass(slots=True)
class _Apart:
    """One tree; `known` has what was made of its parts, so that what has several uses stays one."""

    known: dict[Operator, Operator] = field(default_factory=dict)
    numbers: count[int] = field(default_factory=lambda: count(1))

    def apart(self, operator: Operator) -> Operator:
        if operator not in self.known:
            below = operator.with_inputs([self.apart(each) for each in operator.inputs])
            self.known[operator] = self._node(below)
        return self.known[operator]

    def _node(self, operator: Operator) -> Operator:
        match operator:
            case Constant(sql=sql) if reads_clock(Expr(sql)):
                return Expand(operator.columns, _ONE_ROW, Expr(sql))
            case Filter() if values_of(operator):
                rest, timed = _split(operator.condition)
                return _filtered(_filtered(operator.input, rest), timed)
            case InnerJoin(condition=condition) if condition is not None and reads_clock(condition):
                rest, timed = _split(condition)
                equalities = _timeless(operator.equalities)
                return _filtered(replace(operator, condition=conjunction(rest), equalities=equalities), timed)
            case LeftJoin(condition=condition) | Match(condition=condition) if condition and reads_clock(condition):
                return self._one_sided(operator, condition)
            case Aggregate() if any(reads_clock(call.call) for call in operator.calls):
                return self._aggregate(operator)
            case Window() if any(reads_clock(part) for call in operator.calls for part in _texts(call)):
                return self._window(operator)
            case TopK() if any(reads_clock(Expr(part)) for part in operator.order):
                raise gaps.CLOCK.refuse("the order of the first rows")
        return operator

    def _one_sided(self, join: LeftJoin | Match, condition: Expr) -> Operator:
        rest, timed = _split(condition)
        of_left = [part for part in timed if set(part.columns) <= set(join.left.names)]
        of_both = [part for part in timed if part not in of_left]
        answers = [self._column(_BOOLEAN) for _ in of_left]
        left = _with(join.left, answers, of_left)
        right, both = self._with_time(join.right, of_both)
        on = conjunction([*rest, *map(reference, answers), *both])
        made = replace(join.with_inputs([left, right]), condition=on, equalities=_timeless(join.equalities))
        return made if made.columns == join.columns else _only(made, join.columns)

    def _aggregate(self, aggregate: Aggregate) -> Operator:
        rows, calls = self._with_time(aggregate.input, [call.call for call in aggregate.calls])
        changed = (replace(call, call=text) for call, text in zip(aggregate.calls, calls, strict=True))
        return replace(aggregate, input=rows, calls=tuple(changed))

    def _window(self, window: Window) -> Operator:
        if any(call.order is not None and reads_clock(call.order) for call in window.calls):
            raise gaps.CLOCK.refuse("the order of a window")
        rows, calls = self._with_time(window.input, [call.call for call in window.calls])
        made = tuple(replace(call, call=text) for call, text in zip(window.calls, calls, strict=True))
        outputs = (call.output for call in made)
        return _only(Window((*rows.columns, *outputs), rows, window.keys, made, window.first), window.columns)

    def _with_time(self, rows: Operator, expressions: Sequence[Expr]) -> tuple[Operator, list[Expr]]:
        """The rows with the time beside them, and the expressions over that."""
        timed = [each for each in expressions if reads_clock(each)]
        if not timed:
            return rows, list(expressions)
        column = self._column(_TIME)
        time = next(node for node in node_of(timed[0]).walk() if is_time(node))

        def replaced(node: exp.Expr) -> exp.Expr:
            return column_node(column.name) if is_time(node) else node

        over = [from_node(node_of(each).transform(replaced)) for each in expressions]
        return _with(rows, [column], [from_node(time)]), over

    def _column(self, type_: PgType) -> Column:
        return Column(f"pgt_clock_{next(self.numbers)}", type_)


def _texts(call: WindowCall) -> tuple[Expr, ...]:
    return (call.call,) if call.order is None else (call.call, call.order)


def _timeless(equalities: Iterable[Equality]) -> tuple[Equality, ...]:
    return tuple(each for each in equalities if not reads_clock(each.left) and not reads_clock(each.right))


def _split(condition: Expr) -> tuple[list[Expr], list[Expr]]:
    """The conjuncts that do not read the clock, and those that do."""
    parts = conjuncts(condition)
    return [part for part in parts if not reads_clock(part)], [part for part in parts if reads_clock(part)]


def _filtered(operator: Operator, conditions: Sequence[Expr]) -> Operator:
    condition = conjunction(conditions)
    return operator if condition is None else Filter(operator.columns, operator, condition)


def _with(rows: Operator, columns: Sequence[Column], expressions: Sequence[Expr]) -> Operator:
    """The rows with further columns."""
    if not columns:
        return rows
    return Project((*rows.columns, *columns), rows, (*map(reference, rows.columns), *expressions))


def _only(operator: Operator, columns: tuple[Column, ...]) -> Project:
    return Project(columns, operator, tuple(map(reference, columns)))
