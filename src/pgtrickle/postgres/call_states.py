"""How each aggregate call is kept.

An inverse exists for count, sum and avg of integers and numerics, and for what `moments.py` makes of such sums; for
bool_and, bool_or and bit_xor. MIN/MAX have one unless the extreme leaves; every other call has none, and its group is
recomputed from its rows.

A numeric sum keeps what subtraction alone would lose: NaN and infinities are counted apart, and `scales`
(Σ weight·10^(18·scale)) tells the largest scale still present, so that the digits shown are PostgreSQL's.
"""

from __future__ import annotations

from pgtrickle.model import BIGINT, FIRST_USER_OID, Column, PgType, quote
from pgtrickle.postgres.call_state import NUMERIC, CallState, Contribution, Partial, Totals, present, scale_of, summed
from pgtrickle.postgres.moments import MOMENTS, moment
from pgtrickle.postgres.wire import WEIGHT
from pgtrickle.query.looks import beats, call_sql, extreme, is_extreme
from pgtrickle.query.operators import Aggregate, AggregateCall

_INTEGERS = frozenset({20, 21, 23})


def call_states(aggregate: Aggregate) -> tuple[CallState, ...]:
    return tuple(_call_state(call, f"a{position}") for position, call in enumerate(aggregate.calls))


def _call_state(call: AggregateCall, prefix: str) -> CallState:
    if call.plain and call.function == "count":
        return _count(call, prefix)
    if call.plain and call.function in {"sum", "avg"} and call.argument is not None:
        if call.argument.type.oid in _INTEGERS:
            return _integer_sum(call, prefix, call.argument)
        if call.argument.type.oid == NUMERIC.oid:
            return _numeric_sum(call, prefix, call.argument)
    is_exact = call.argument is not None and call.argument.type.oid in {*_INTEGERS, NUMERIC.oid}
    if call.plain and call.function in MOMENTS and call.argument is not None and is_exact:
        return moment(call.function, prefix, call.argument)
    if call.plain and call.function in {"bool_and", "every", "bool_or"} and call.argument is not None:
        return _truth(call, prefix, call.argument)
    if call.plain and call.function == "bit_xor" and call.argument is not None and call.argument.type.oid in _INTEGERS:
        return _odd_bits(call, prefix, call.argument)
    if is_extreme(call) and call.argument is not None and built_in(call.argument.type):
        return _extreme(call, prefix)
    return _recomputed(call, prefix)


def built_in(type_: PgType) -> bool:
    """Whether the type is PostgreSQL's own, so that `<=` and `=` mean its order whatever the search path."""
    return type_.oid < FIRST_USER_OID


def _count(call: AggregateCall, prefix: str) -> CallState:
    if call.argument is None:
        return CallState((), (), "n")
    return summed({f"{prefix}_n": present(call.argument)}, f"{prefix}_n")


def _integer_sum(call: AggregateCall, prefix: str, argument: Column) -> CallState:
    totals = {
        f"{prefix}_n": present(argument),
        f"{prefix}_s": (NUMERIC, f"sum({quote(argument.name)}::numeric * {WEIGHT})"),
    }
    result = f"({prefix}_s / {prefix}_n)" if call.function == "avg" else f"{prefix}_s::{call.output.type.name}"
    return summed(totals, f"CASE WHEN {prefix}_n > 0 THEN {result} END")


def _numeric_sum(call: AggregateCall, prefix: str, argument: Column) -> CallState:
    value = quote(argument.name)
    finite = f"{value} NOT IN ('NaN', 'Infinity', '-Infinity')"
    totals: Totals = {
        f"{prefix}_n": present(argument),
        f"{prefix}_s": (NUMERIC, f"sum({value}::numeric * {WEIGHT}) FILTER (WHERE {finite})"),
        f"{prefix}_nan": (BIGINT, f"sum({WEIGHT}) FILTER (WHERE {value} = 'NaN')"),
        f"{prefix}_up": (BIGINT, f"sum({WEIGHT}) FILTER (WHERE {value} = 'Infinity')"),
        f"{prefix}_down": (BIGINT, f"sum({WEIGHT}) FILTER (WHERE {value} = '-Infinity')"),
    }
    scales, scale = scale_of(argument, prefix)
    totals |= scales
    special = (
        f"WHEN {prefix}_nan > 0 OR ({prefix}_up > 0 AND {prefix}_down > 0) THEN 'NaN'::numeric "
        f"WHEN {prefix}_up > 0 THEN 'Infinity'::numeric WHEN {prefix}_down > 0 THEN '-Infinity'::numeric"
    )
    total = f"CASE WHEN {prefix}_n > 0 THEN CASE {special} ELSE round({prefix}_s, {scale}) END END"
    return summed(totals, f"({total} / {prefix}_n)" if call.function == "avg" else total)


def _truth(call: AggregateCall, prefix: str, argument: Column) -> CallState:
    """bool_and and bool_or, by how many are true and how many false."""
    value, true, false = quote(argument.name), f"{prefix}_t", f"{prefix}_f"
    totals = {
        true: (BIGINT, f"sum({WEIGHT}) FILTER (WHERE {value})"),
        false: (BIGINT, f"sum({WEIGHT}) FILTER (WHERE NOT {value})"),
    }
    answer = f"{true} > 0" if call.function == "bool_or" else f"{false} = 0"
    return summed(totals, f"CASE WHEN {true} + {false} > 0 THEN {answer} END")


def _odd_bits(call: AggregateCall, prefix: str, argument: Column) -> CallState:
    """bit_xor of integers is its own inverse; what comes or leaves an even number of times changes nothing."""
    count = summed({f"{prefix}_n": present(argument)}, "")
    value, kept = Column(f"{prefix}_v", call.output.type), f"{prefix}_v"
    odd = f"bit_xor({quote(argument.name)}) FILTER (WHERE {WEIGHT} % 2 <> 0)"
    merged = f"coalesce(s.{kept} # d.{kept}, s.{kept}, d.{kept})"
    return CallState(
        (*count.partials, Partial(value, odd, merged)),
        (*count.contributions, Contribution(value, odd, f"bit_xor({kept})")),
        f"CASE WHEN {prefix}_n > 0 THEN coalesce({kept}, 0) END",
    )


def _extreme(call: AggregateCall, prefix: str) -> CallState:
    """Keeps the extreme; a delta brings the extremes of the rows that came (`v`) and of those that left (`lost`).

    A row may come and leave within one window, so what came is sure to be there only if it beats all that left. If
    it does not, and what left may have been the extreme, the group is recomputed.
    """
    value, lost, type_ = f"{prefix}_v", f"{prefix}_lost", call.output.type
    at_least = "<=" if call.function == "min" else ">="
    came, left, kept = f"d.{value}", f"d.{lost}", f"s.{value}"
    merged = f"CASE WHEN {kept} IS NULL OR {beats(call, came, kept)} THEN {came} ELSE {kept} END"
    return CallState(
        partials=(Partial(Column(value, type_), extreme(call), merged),),
        contributions=(
            Contribution(Column(value, type_), extreme(call, f"{WEIGHT} > 0"), extreme(call, argument=value)),
            Contribution(Column(lost, type_), extreme(call, f"{WEIGHT} < 0"), extreme(call, argument=lost)),
        ),
        finish=value,
        recompute=f"coalesce({left} {at_least} coalesce({came}, {left}) "
        f"AND {left} {at_least} coalesce({kept}, {left}), false)",
    )


def _recomputed(call: AggregateCall, prefix: str) -> CallState:
    value = f"{prefix}_v"
    partial = Partial(Column(value, call.output.type), call_sql(call), f"s.{value}")
    return CallState((partial,), (), value, recompute="true", additive=False)
