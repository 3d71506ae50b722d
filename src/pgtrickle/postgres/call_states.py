"""How each aggregate call is kept.

An inverse exists for count, sum and avg of integers and numerics, and for what `moments.py` makes of such sums; for
bool_and, bool_or and bit_xor. MIN/MAX have one unless the extreme leaves; every other call has none, and its group is
recomputed from its rows.

A numeric sum keeps what subtraction alone would lose: NaN and infinities are counted apart, and `scales`
(Σ weight·10^(18·scale)) tells the largest scale still present, so that the digits shown are PostgreSQL's. Where types
tell the scale (`query/number_scales.py`), it is not kept, and there are no infinities to count. Calls of one argument
share what they keep: `sum(x)`, `avg(x)` and `count(x)` have one count, and one sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeVar

from pgtrickle.model import FIRST_USER_OID, Column, PgType, quote
from pgtrickle.postgres.call_state import (
    ALWAYS,
    NUMERIC,
    CallState,
    Contribution,
    Partial,
    Tally,
    Totals,
    What,
    counted,
    finite_sum,
    not_a_number,
    present,
    scale_of,
    summed,
)
from pgtrickle.postgres.moments import MOMENTS, integer_sum, moment
from pgtrickle.postgres.wire import WEIGHT
from pgtrickle.query.looks import beats, call_sql, extreme, is_extreme
from pgtrickle.query.number_scales import known_scale
from pgtrickle.query.operators import Aggregate, AggregateCall

_INTEGERS = frozenset({20, 21, 23})
_UP, _DOWN = "Infinity", "-Infinity"
_Part = TypeVar("_Part", Partial, Contribution)


def call_states(aggregate: Aggregate) -> tuple[CallState, ...]:
    """How each call is kept. What several keep of the same argument is kept once, with the first of them."""
    kept: dict[str, Partial] = {}
    brought: dict[str, Contribution] = {}
    return tuple(
        replace(
            found,
            partials=tuple(_only_new(found.partials, kept)),
            contributions=tuple(_only_new(found.contributions, brought)),
        )
        for found in _each(aggregate)
    )


def _only_new(parts: Iterable[_Part], known: dict[str, _Part]) -> Iterator[_Part]:
    for part in parts:
        if known.setdefault(part.column.name, part) is part:
            yield part
        elif known[part.column.name] != part:
            raise AssertionError(f"{part.column.name} is kept in two ways")


def _each(aggregate: Aggregate) -> Iterator[CallState]:
    """What sums and counts keep is named for their argument, by the first call that has it."""
    first: dict[str, int] = {}
    for position, call in enumerate(aggregate.calls):
        if call.argument is not None:
            first.setdefault(call.argument.name, position)
        of_argument = position if call.argument is None else first[call.argument.name]
        yield _call_state(aggregate, call, f"a{of_argument}", f"a{position}")


def _call_state(aggregate: Aggregate, call: AggregateCall, prefix: str, own: str) -> CallState:
    """`prefix` is shared with other calls of the same argument; `own` is not."""
    argument = call.argument
    if call.plain and call.function == "count":
        return _count(call, prefix)
    if not call.plain or argument is None:
        return _recomputed(call, own)
    scale = known_scale(aggregate.input, argument)
    is_integer, is_numeric = argument.type.oid in _INTEGERS, argument.type.oid == NUMERIC.oid
    if call.function in {"sum", "avg"} and is_integer:
        return _integer_sum(call, prefix, argument)
    if call.function in {"sum", "avg"} and is_numeric:
        return _numeric_sum(call, prefix, argument, scale)
    if call.function in MOMENTS and (is_integer or is_numeric):
        return moment(call.function, prefix, argument, scale)
    if call.function in {"bool_and", "every", "bool_or"}:
        return _truth(call, prefix, argument)
    if call.function == "bit_xor" and is_integer:
        return _odd_bits(call, prefix, argument)
    if is_extreme(call) and built_in(argument.type):
        return _extreme(call, argument, own)
    return _recomputed(call, own)


def built_in(type_: PgType) -> bool:
    """Whether the type is PostgreSQL's own, so that `<=` and `=` mean its order whatever the search path."""
    return type_.oid < FIRST_USER_OID


def _count(call: AggregateCall, prefix: str) -> CallState:
    if call.argument is None:
        return CallState((), (), "n")
    return summed({f"{prefix}_n": present(call.argument)}, f"{prefix}_n")


def _integer_sum(call: AggregateCall, prefix: str, argument: Column) -> CallState:
    totals = {f"{prefix}_n": present(argument), f"{prefix}_s": integer_sum(argument)}
    result = f"({prefix}_s / {prefix}_n)" if call.function == "avg" else f"{prefix}_s::{call.output.type.name}"
    return summed(totals, f"CASE WHEN {prefix}_n > 0 THEN {result} END")


def _numeric_sum(call: AggregateCall, prefix: str, argument: Column, scale: int | None) -> CallState:
    """What has a known scale is not infinite, so only NaN is counted apart."""
    value, nan, up, down = quote(argument.name), f"{prefix}_nan", f"{prefix}_up", f"{prefix}_down"
    totals: Totals = {
        f"{prefix}_n": present(argument),
        f"{prefix}_s": finite_sum(argument, scale),
        nan: not_a_number(argument),
    }
    special = f"WHEN {nan} > 0 THEN 'NaN'::numeric"
    if scale is None:
        totals |= {name: counted(f"{value} = '{text}'", plain="0") for name, text in ((up, _UP), (down, _DOWN))}
        special = (
            f"WHEN {nan} > 0 OR ({up} > 0 AND {down} > 0) THEN 'NaN'::numeric "
            f"WHEN {up} > 0 THEN '{_UP}'::numeric WHEN {down} > 0 THEN '{_DOWN}'::numeric"
        )
    scales, digits = scale_of(argument, scale, prefix)
    totals |= scales
    total = f"CASE WHEN {prefix}_n > 0 THEN CASE {special} ELSE round({prefix}_s, {digits}) END END"
    return summed(totals, f"({total} / {prefix}_n)" if call.function == "avg" else total)


def _truth(call: AggregateCall, prefix: str, argument: Column) -> CallState:
    """bool_and and bool_or, by how many are true and how many false."""
    value, true, false = quote(argument.name), f"{prefix}_t", f"{prefix}_f"
    totals = {true: counted(value), false: counted(f"NOT {value}")}
    answer = f"{true} > 0" if call.function == "bool_or" else f"{false} = 0"
    return summed(totals, f"CASE WHEN {true} + {false} > 0 THEN {answer} END")


def _odd_bits(call: AggregateCall, prefix: str, argument: Column) -> CallState:
    """bit_xor of integers is its own inverse; what comes or leaves an even number of times changes nothing."""
    count = summed({f"{prefix}_n": present(argument)}, "")
    kept = f"{prefix}_bits"
    value, plain = Column(kept, call.output.type), f"bit_xor({quote(argument.name)})"
    odd = f"bit_xor({quote(argument.name)}) FILTER (WHERE {WEIGHT} % 2 <> 0)"
    merged = f"coalesce(s.{kept} # d.{kept}, s.{kept}, d.{kept})"
    return CallState(
        (*count.partials, Partial(value, odd, merged)),
        (*count.contributions, Contribution(value, odd, f"bit_xor({kept})", plain)),
        f"CASE WHEN {prefix}_n > 0 THEN coalesce({kept}, 0) END",
    )


def _extreme(call: AggregateCall, argument: Column, prefix: str) -> CallState:
    """Keeps the extreme; a delta brings the extremes of the rows that came (`v`) and of those that left (`lost`).

    A row may come and leave within one window, so what came is sure to be there only if it beats all that left. If
    it does not, and what left may have been the extreme, the group is recomputed.
    """
    value, lost, type_ = f"{prefix}_v", f"{prefix}_lost", call.output.type
    at_least = "<=" if call.function == "min" else ">="
    best = (What.LEAST_CAME, What.LEAST_LEFT) if call.function == "min" else (What.MOST_CAME, What.MOST_LEFT)
    came_of, left_of = (Tally(what, argument.name) for what in best)
    came, left, kept = f"d.{value}", f"d.{lost}", f"s.{value}"
    merged = f"CASE WHEN {kept} IS NULL OR {beats(call, came, kept)} THEN {came} ELSE {kept} END"
    return CallState(
        partials=(Partial(Column(value, type_), extreme(call), merged),),
        contributions=(
            Contribution(
                Column(value, type_),
                extreme(call, f"{WEIGHT} > 0"),
                extreme(call, argument=value),
                extreme(call),
                tally=came_of,
            ),
            Contribution(
                Column(lost, type_),
                extreme(call, f"{WEIGHT} < 0"),
                extreme(call, argument=lost),
                f"NULL::{type_.name}",
                tally=left_of,
            ),
        ),
        finish=value,
        recompute=f"coalesce({left} {at_least} coalesce({came}, {left}) "
        f"AND {left} {at_least} coalesce({kept}, {left}), false)",
    )


def _recomputed(call: AggregateCall, prefix: str) -> CallState:
    value = f"{prefix}_v"
    partial = Partial(Column(value, call.output.type), call_sql(call), f"s.{value}")
    return CallState((partial,), (), value, recompute=ALWAYS, additive=False)
