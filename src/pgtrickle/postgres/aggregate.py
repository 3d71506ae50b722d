"""The state of an aggregate and the SQL that keeps it: PostgreSQL does all arithmetic, so digits are its own.

    state row  =  h, keys, n, partials of each call        h = 64-bit hash of the keys, to find the row
    new state  =  old state + partials of the delta        for calls that have an inverse
    output     =  finish(state)

Inverse exists for count, sum and avg of integers and numerics. MIN/MAX have one unless the extreme leaves; every other
call has none. Groups without an inverse are recomputed from their rows ("recompute"). A numeric sum keeps what
subtraction alone would lose: NaN and infinities are counted apart, and `scales` (Σ weight·10^(18·scale)) tells the
largest scale still present, so that the digits shown are PostgreSQL's. Called by `apply/state.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pgtrickle.model import Column, PgType, quote
from pgtrickle.postgres.wire import WEIGHT
from pgtrickle.query.operators import Aggregate, AggregateCall

_INT2, _INT4, _INT8, _NUMERIC = 21, 23, 20, 1700
_BIGINT = PgType(20, "bigint")
_ANY_NUMERIC = PgType(1700, "numeric")


@dataclass(frozen=True, slots=True)
class Partial:
    """One state column of a call.

    `whole` computes it from rows of weight one, `delta` from weighted rows; `merged` combines `s` (state, all
    columns may be NULL for a new group) with `d`. `delta` is None for what cannot be summed. `combine` is the
    aggregate that makes the whole of a group from partials of its parts, None where there is none.
    """

    column: Column
    whole: str
    delta: str | None
    merged: str
    combine: str | None


@dataclass(frozen=True, slots=True)
class CallState:
    """How one call is kept: its partials, the output from them, and when a group must be recomputed."""

    partials: tuple[Partial, ...]
    finish: str
    recompute: str = "false"
    extra_delta: tuple[str, ...] = ()


def call_states(aggregate: Aggregate) -> tuple[CallState, ...]:
    return tuple(_call_state(call, f"a{position}") for position, call in enumerate(aggregate.calls))


def state_columns(aggregate: Aggregate) -> tuple[Column, ...]:
    """The state table's columns after `h`: keys, `n`, partials."""
    keys = tuple(column for column in aggregate.columns if column.name in aggregate.keys)
    partials = tuple(partial.column for state in call_states(aggregate) for partial in state.partials)
    return (*keys, Column("n", _BIGINT), *partials)


def _call_state(call: AggregateCall, prefix: str) -> CallState:
    if call.plain and call.function == "count":
        return _count(call, prefix)
    if call.plain and call.function in {"sum", "avg"} and call.argument is not None:
        if call.argument.type.oid in {_INT2, _INT4, _INT8}:
            return _integer_sum(call, prefix, call.argument)
        if call.argument.type.oid == _NUMERIC:
            return _numeric_sum(call, prefix, call.argument)
    if call.plain and call.function in {"min", "max"} and call.argument is not None:
        return _extreme(call, prefix, call.argument)
    return _recomputed(call, prefix)


def _summed(name: str, type_: PgType, weighted_sum: str) -> Partial:
    """A partial that adds up: new = old + delta."""
    column = quote(name)
    value = f"coalesce({weighted_sum}, 0)::{type_.name}"
    return Partial(Column(name, type_), value, value, f"coalesce(s.{column}, 0) + d.{column}", "sum")


def _present(prefix: str, argument: Column) -> Partial:
    return _summed(f"{prefix}_n", _BIGINT, f"sum({WEIGHT}) FILTER (WHERE {quote(argument.name)} IS NOT NULL)")


def _count(call: AggregateCall, prefix: str) -> CallState:
    if call.argument is None:
        return CallState((), "n")
    present = _present(prefix, call.argument)
    return CallState((present,), quote(present.column.name))


def _integer_sum(call: AggregateCall, prefix: str, argument: Column) -> CallState:
    present = _present(prefix, argument)
    total = _summed(f"{prefix}_s", _ANY_NUMERIC, f"sum({quote(argument.name)}::numeric * {WEIGHT})")
    result = f"({prefix}_s / {prefix}_n)" if call.function == "avg" else f"{prefix}_s::{call.output.type.name}"
    return CallState((present, total), f"CASE WHEN {prefix}_n > 0 THEN {result} END")


def _numeric_sum(call: AggregateCall, prefix: str, argument: Column) -> CallState:
    value = quote(argument.name)
    finite = f"{value} NOT IN ('NaN', 'Infinity', '-Infinity')"
    partials = [
        _present(prefix, argument),
        _summed(f"{prefix}_s", _ANY_NUMERIC, f"sum({value}::numeric * {WEIGHT}) FILTER (WHERE {finite})"),
        _summed(f"{prefix}_nan", _BIGINT, f"sum({WEIGHT}) FILTER (WHERE {value} = 'NaN')"),
        _summed(f"{prefix}_up", _BIGINT, f"sum({WEIGHT}) FILTER (WHERE {value} = 'Infinity')"),
        _summed(f"{prefix}_down", _BIGINT, f"sum({WEIGHT}) FILTER (WHERE {value} = '-Infinity')"),
    ]
    declared = _declared_scale(argument.type)
    if declared is None:
        scales = f"sum({WEIGHT} * 10::numeric ^ (18 * scale({value}))) FILTER (WHERE {finite})"
        partials.append(_summed(f"{prefix}_scales", _ANY_NUMERIC, scales))
        scale = f"(length(trunc({prefix}_scales)::text) - 1) / 18"
    else:
        scale = str(declared)
    total = f"round({prefix}_s, {scale})"
    special = (
        f"WHEN {prefix}_nan > 0 OR ({prefix}_up > 0 AND {prefix}_down > 0) THEN 'NaN'::numeric "
        f"WHEN {prefix}_up > 0 THEN 'Infinity'::numeric WHEN {prefix}_down > 0 THEN '-Infinity'::numeric"
    )
    finish = f"CASE WHEN {prefix}_n > 0 THEN CASE {special} ELSE {total} END END"
    return CallState(tuple(partials), f"({finish} / {prefix}_n)" if call.function == "avg" else finish)


def _declared_scale(type_: PgType) -> int | None:
    declared = re.fullmatch(r"numeric\(\d+,(-?\d+)\)", type_.name)
    return max(int(declared.group(1)), 0) if declared else None


def _extreme(call: AggregateCall, prefix: str, argument: Column) -> CallState:
    name, column = quote(f"{prefix}_v"), quote(argument.name)
    lost = quote(f"{prefix}_lost")
    function, not_beaten = ("min", "<=") if call.function == "min" else ("max", ">=")
    kept = f"CASE WHEN s.{name} IS NULL OR d.{name} {not_beaten} s.{name} THEN d.{name} ELSE s.{name} END"
    partial = Partial(
        Column(f"{prefix}_v", call.output.type),
        call.call.sql,
        f"{function}({column}) FILTER (WHERE {WEIGHT} > 0)",
        kept,
        function,
    )
    extreme_left = (
        f"coalesce(d.{lost} {not_beaten} s.{name} AND NOT coalesce(d.{name} {not_beaten} s.{name}, false), false)"
    )
    return CallState(
        (partial,),
        name,
        recompute=extreme_left,
        extra_delta=(f"{function}({column}) FILTER (WHERE {WEIGHT} < 0) AS {lost}",),
    )


def _recomputed(call: AggregateCall, prefix: str) -> CallState:
    name = f"{prefix}_v"
    partial = Partial(Column(name, call.output.type), call.call.sql, None, f"s.{quote(name)}", None)
    return CallState((partial,), quote(name), recompute="true")


def hash_keys(keys: tuple[str, ...], hashable: frozenset[str], alias: str = "") -> str:
    """SQL of the keys' hash; keys of a type without a hash function are left to the comparison."""
    usable = [f"{alias}{quote(key)}" for key in keys if key in hashable]
    return f"hash_record_extended(ROW({', '.join(usable)}), 0)" if usable else "0::bigint"


def same_keys(keys: tuple[str, ...], left: str, right: str) -> str:
    """SQL that compares two rows' keys, NULLs being equal."""
    return " AND ".join(f"{left}.{quote(key)} IS NOT DISTINCT FROM {right}.{quote(key)}" for key in keys) or "true"


def whole_partials(aggregate: Aggregate, relation: str, hashable: frozenset[str]) -> str:
    """State rows (h, keys, n, partials) of the groups of a relation whose rows all have weight one."""
    outputs = [f"{p.whole} AS {quote(p.column.name)}" for state in call_states(aggregate) for p in state.partials]
    return _grouped(aggregate, relation, hashable, outputs)


def can_combine(aggregate: Aggregate) -> bool:
    """Whether the state of a group can be made from the states of its parts."""
    return all(partial.combine for state in call_states(aggregate) for partial in state.partials)


def combined_partials(aggregate: Aggregate, relation: str, hashable: frozenset[str]) -> str:
    """State rows of the groups of a relation of partial states (keys, n, partials)."""
    partials = [partial for state in call_states(aggregate) for partial in state.partials]
    columns = [(p.column, f"{p.combine}({quote(p.column.name)})::{p.column.type.name}") for p in partials]
    outputs = [f"{value} AS {quote(column.name)}" for column, value in columns]
    return _grouped(aggregate, relation, hashable, outputs, count="n")


def delta_partials(aggregate: Aggregate, relation: str, hashable: frozenset[str]) -> str:
    """What the weighted rows add to each group: h, keys, n, and those partials that can be summed."""
    outputs: list[str] = []
    for state in call_states(aggregate):
        outputs += [f"{p.delta} AS {quote(p.column.name)}" for p in state.partials if p.delta is not None]
        outputs += state.extra_delta
    return _grouped(aggregate, relation, hashable, outputs)


def _grouped(
    aggregate: Aggregate, relation: str, hashable: frozenset[str], outputs: list[str], count: str = WEIGHT
) -> str:
    keys = [quote(key) for key in aggregate.keys]
    head = [f"{hash_keys(aggregate.keys, hashable)} AS h", *keys, f"coalesce(sum({count}), 0)::bigint AS n"]
    group = f" GROUP BY {', '.join(keys)}" if keys else ""
    return f"SELECT {', '.join(head + outputs)} FROM ({relation}) AS grouped_rows{group}"


def merge(aggregate: Aggregate, delta: str, state: str) -> str:
    """One row a touched group: its state row (`sid`), old (`old_…`) and new values, and whether to recompute."""
    keys = [
        f"CASE WHEN s.ctid IS NULL THEN d.{quote(key)} ELSE s.{quote(key)} END AS {quote(key)}"
        for key in aggregate.keys
    ]
    partials = [partial for call in call_states(aggregate) for partial in call.partials]
    old = [f"s.{quote(p.column.name)} AS {quote('old_' + p.column.name)}" for p in partials]
    new = [f"{p.merged} AS {quote(p.column.name)}" for p in partials]
    recompute = " OR ".join(f"({call.recompute})" for call in call_states(aggregate)) or "false"
    outputs = ["d.h", "s.ctid AS sid", *keys, "s.n AS old_n", "coalesce(s.n, 0) + d.n AS n", *old, *new]
    return (
        f"SELECT {', '.join(outputs)}, ({recompute}) AS recompute FROM {delta} AS d "
        f"LEFT JOIN {state} AS s ON s.h = d.h AND {same_keys(aggregate.keys, 's', 'd')}"
    )


def outputs(aggregate: Aggregate, relation: str) -> str:
    """The aggregate's output rows, from state rows."""
    finished = [
        f"{state.finish} AS {quote(call.output.name)}"
        for call, state in zip(aggregate.calls, call_states(aggregate), strict=True)
    ]
    columns = [*map(quote, aggregate.keys), *finished]
    return f"SELECT {', '.join(columns)} FROM ({relation}) AS state_rows"


def output_changes(aggregate: Aggregate, merged: str) -> str:
    """−old +new of each merged group whose output differs, as a weighted relation."""
    existed, exists = ("old_n > 0", "m.n > 0") if aggregate.keys else ("sid IS NOT NULL", "true")
    states = call_states(aggregate)
    partials = [partial.column.name for state in states for partial in state.partials]
    old = ", ".join(["m.old_n AS n", *(f"m.{quote('old_' + name)} AS {quote(name)}" for name in partials)])
    new = ", ".join(["m.n", *(f"m.{quote(name)}" for name in partials)])
    finished = ", ".join(f"{s.finish} AS {quote(c.output.name)}" for c, s in zip(aggregate.calls, states, strict=True))
    names = [quote(call.output.name) for call in aggregate.calls]
    differs = " OR ".join(
        [f"({existed}) IS DISTINCT FROM ({exists})"]
        + ([f"ROW({_all('old', names)})::record *<> ROW({_all('new', names)})::record"] if names else [])
    )
    columns = [f"m.{quote(key)}" for key in aggregate.keys]
    columns += [f"CASE WHEN v.{WEIGHT} < 0 THEN old.{name} ELSE new.{name} END AS {name}" for name in names]
    return (
        f"SELECT {', '.join([*columns, f'v.{WEIGHT}'])} FROM {merged} AS m "
        f"CROSS JOIN LATERAL (SELECT {finished} FROM (SELECT {old}) AS before_state) AS old "
        f"CROSS JOIN LATERAL (SELECT {finished} FROM (SELECT {new}) AS after_state) AS new "
        f"CROSS JOIN (VALUES (-1::bigint), (1::bigint)) AS v({WEIGHT}) "
        f"WHERE ({differs}) AND CASE WHEN v.{WEIGHT} < 0 THEN {existed} ELSE {exists} END"
    )


def _all(alias: str, names: list[str]) -> str:
    return ", ".join(f"{alias}.{name}" for name in names)
