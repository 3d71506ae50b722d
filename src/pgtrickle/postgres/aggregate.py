"""The state of an aggregate and the SQL that keeps it: PostgreSQL does all arithmetic, so digits are its own.

    state row  =  h, keys, n, partials of each call        h = 64-bit hash of the keys, to find the row
    new state  =  old state + contribution of the delta    for calls that have an inverse
    output     =  finish(state)

Contributions are summed wherever weighted rows are read (`contributions`), so that groups travel and not rows, and
added up where they land (`combined`). An inverse exists for count, sum and avg of integers and numerics. MIN/MAX
have one unless the extreme leaves; every other call has none. Groups without an inverse are recomputed from their rows.
A numeric sum keeps what subtraction alone would lose: NaN and infinities are counted apart, and `scales`
(Σ weight·10^(18·scale)) tells the largest scale still present, so that the digits shown are PostgreSQL's.
Called by `weighted.py` (contributions), `statements/state.py` (the rest).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pgtrickle.model import BIGINT, FIRST_USER_OID, Column, PgType, quote
from pgtrickle.postgres.wire import WEIGHT
from pgtrickle.query.looks import beats, call_sql, extreme, is_extreme, keys_with_looks, looks_of, shown, shown_keys
from pgtrickle.query.operators import Aggregate, AggregateCall

_INT2, _INT4, _INT8, _NUMERIC = 21, 23, 20, 1700
_ANY_NUMERIC = PgType(1700, "numeric")
_LEFT, _CAME = "rows_left", "looks_that_came"
_TEXTS = PgType(1009, "text[]")
_NEVER = "false"


@dataclass(frozen=True, slots=True)
class Partial:
    """One state column of a call.

    `whole` computes it from rows of weight one; `merged` combines `s` (the state; NULL for a new group) with `d` (the
    contributions).
    """

    column: Column
    whole: str
    merged: str


@dataclass(frozen=True, slots=True)
class Contribution:
    """What weighted rows add to a group: `sql` over these rows, and `combine` over several contributions, or none."""

    column: Column
    sql: str
    combine: str


@dataclass(frozen=True, slots=True)
class CallState:
    """How one call is kept: its state columns, what a delta contributes, the output, and when to recompute.

    `additive`: the contributions of all rows are the state.
    """

    partials: tuple[Partial, ...]
    contributions: tuple[Contribution, ...]
    finish: str
    recompute: str = _NEVER
    additive: bool = True


def call_states(aggregate: Aggregate) -> tuple[CallState, ...]:
    return tuple(_call_state(call, f"a{position}") for position, call in enumerate(aggregate.calls))


def key_columns(aggregate: Aggregate) -> tuple[Column, ...]:
    return tuple(column for column in aggregate.columns if column.name in aggregate.keys)


def state_columns(aggregate: Aggregate) -> tuple[Column, ...]:
    """The state table's columns after `h`: keys, `n`, partials."""
    partials = tuple(partial.column for state in call_states(aggregate) for partial in state.partials)
    return (*key_columns(aggregate), Column("n", BIGINT), *partials)


def contribution_columns(aggregate: Aggregate) -> tuple[Column, ...]:
    """The columns of `contributions`, but for the weight."""
    return (*key_columns(aggregate), *(contribution.column for contribution in _all_contributions(aggregate)))


def _all_contributions(aggregate: Aggregate) -> tuple[Contribution, ...]:
    """Those of the calls; where the keys have looks, also the least that came, and the rows with which one may have
    left."""
    calls = tuple(c for state in call_states(aggregate) for c in state.contributions)
    varying = keys_with_looks(aggregate)
    if not varying:
        return calls
    left = f"coalesce(sum({WEIGHT}) FILTER (WHERE {WEIGHT} < 0), 0)::bigint"
    came = f"min({looks_of(varying)}) FILTER (WHERE {WEIGHT} > 0)"
    return (
        *calls,
        Contribution(Column(_LEFT, BIGINT), left, f"coalesce(sum({_LEFT}), 0)"),
        Contribution(Column(_CAME, _TEXTS), came, _least_came()),
    )


def _least_came() -> str:
    return f'min({_CAME} COLLATE "C")'


def is_additive(aggregate: Aggregate) -> bool:
    """Whether the state of a group is the sum of its rows' contributions."""
    return all(state.additive for state in call_states(aggregate))


def may_recompute(aggregate: Aggregate) -> bool:
    """Whether some delta asks for groups to be recomputed."""
    return bool(keys_with_looks(aggregate)) or any(state.recompute != _NEVER for state in call_states(aggregate))


def _call_state(call: AggregateCall, prefix: str) -> CallState:
    if call.plain and call.function == "count":
        return _count(call, prefix)
    if call.plain and call.function in {"sum", "avg"} and call.argument is not None:
        if call.argument.type.oid in {_INT2, _INT4, _INT8}:
            return _integer_sum(call, prefix, call.argument)
        if call.argument.type.oid == _NUMERIC:
            return _numeric_sum(call, prefix, call.argument)
    if is_extreme(call) and call.argument is not None and _built_in(call.argument.type):
        return _extreme(call, prefix)
    return _recomputed(call, prefix)


def _built_in(type_: PgType) -> bool:
    """Whether the type is PostgreSQL's own, so that `<=` and `=` mean its order whatever the search path."""
    return type_.oid < FIRST_USER_OID


def _summed(totals: dict[str, tuple[PgType, str]], finish: str) -> CallState:
    """A call whose state columns are weighted sums: new = old + contribution."""
    partials, contributions = [], []
    for name, (type_, weighted_sum) in totals.items():
        column, value = Column(name, type_), f"coalesce({weighted_sum}, 0)::{type_.name}"
        partials.append(Partial(column, value, f"coalesce(s.{quote(name)}, 0) + d.{quote(name)}"))
        contributions.append(Contribution(column, value, f"coalesce(sum({quote(name)}), 0)"))
    return CallState(tuple(partials), tuple(contributions), finish)


def _present(argument: Column) -> tuple[PgType, str]:
    return BIGINT, f"sum({WEIGHT}) FILTER (WHERE {quote(argument.name)} IS NOT NULL)"


def _count(call: AggregateCall, prefix: str) -> CallState:
    if call.argument is None:
        return CallState((), (), "n")
    return _summed({f"{prefix}_n": _present(call.argument)}, f"{prefix}_n")


def _integer_sum(call: AggregateCall, prefix: str, argument: Column) -> CallState:
    totals = {
        f"{prefix}_n": _present(argument),
        f"{prefix}_s": (_ANY_NUMERIC, f"sum({quote(argument.name)}::numeric * {WEIGHT})"),
    }
    result = f"({prefix}_s / {prefix}_n)" if call.function == "avg" else f"{prefix}_s::{call.output.type.name}"
    return _summed(totals, f"CASE WHEN {prefix}_n > 0 THEN {result} END")


def _numeric_sum(call: AggregateCall, prefix: str, argument: Column) -> CallState:
    value = quote(argument.name)
    finite = f"{value} NOT IN ('NaN', 'Infinity', '-Infinity')"
    totals = {
        f"{prefix}_n": _present(argument),
        f"{prefix}_s": (_ANY_NUMERIC, f"sum({value}::numeric * {WEIGHT}) FILTER (WHERE {finite})"),
        f"{prefix}_nan": (BIGINT, f"sum({WEIGHT}) FILTER (WHERE {value} = 'NaN')"),
        f"{prefix}_up": (BIGINT, f"sum({WEIGHT}) FILTER (WHERE {value} = 'Infinity')"),
        f"{prefix}_down": (BIGINT, f"sum({WEIGHT}) FILTER (WHERE {value} = '-Infinity')"),
    }
    declared = _declared_scale(argument.type)
    if declared is None:
        scales = f"sum({WEIGHT} * 10::numeric ^ (18 * scale({value}))) FILTER (WHERE {finite})"
        totals[f"{prefix}_scales"] = (_ANY_NUMERIC, scales)
        scale = f"(length(trunc({prefix}_scales)::text) - 1) / 18"
    else:
        scale = str(declared)
    special = (
        f"WHEN {prefix}_nan > 0 OR ({prefix}_up > 0 AND {prefix}_down > 0) THEN 'NaN'::numeric "
        f"WHEN {prefix}_up > 0 THEN 'Infinity'::numeric WHEN {prefix}_down > 0 THEN '-Infinity'::numeric"
    )
    total = f"CASE WHEN {prefix}_n > 0 THEN CASE {special} ELSE round({prefix}_s, {scale}) END END"
    return _summed(totals, f"({total} / {prefix}_n)" if call.function == "avg" else total)


def _declared_scale(type_: PgType) -> int | None:
    declared = re.fullmatch(r"numeric\(\d+,(-?\d+)\)", type_.name)
    return max(int(declared.group(1)), 0) if declared else None


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


def hash_keys(keys: tuple[str, ...], hashable: frozenset[str], alias: str = "") -> str:
    """SQL of the keys' hash; keys of a type without a hash function are left to the comparison."""
    usable = [f"{alias}{quote(key)}" for key in keys if key in hashable]
    return f"hash_record_extended(ROW({', '.join(usable)}), 0)" if usable else "0::bigint"


def same_keys(keys: tuple[str, ...], left: str, right: str) -> str:
    """SQL that compares two rows' keys as GROUP BY does: by each type's own equality, NULLs being equal."""
    if not keys:
        return "true"
    one, other = (", ".join(f"{side}.{quote(key)}" for key in keys) for side in (left, right))
    return f"ROW({one})::record = ROW({other})::record"


def whole_partials(aggregate: Aggregate, relation: str, hashable: frozenset[str]) -> str:
    """State rows (h, keys, n, partials) of the groups of a relation whose rows all have weight one."""
    values = [f"{p.whole} AS {quote(p.column.name)}" for state in call_states(aggregate) for p in state.partials]
    head = [f"{hash_keys(aggregate.keys, hashable)} AS h", *shown_keys(aggregate), f"{_total()} AS n"]
    return _grouped(aggregate, relation, head + values)


def contributions(aggregate: Aggregate, relation: str) -> str:
    """What the weighted rows add to each group: keys and contributions, the number of rows as weight."""
    found = [f"{c.sql} AS {quote(c.column.name)}" for c in _all_contributions(aggregate)]
    return _grouped(aggregate, relation, [*map(quote, aggregate.keys), *found, f"{_total()} AS {WEIGHT}"])


def combined(aggregate: Aggregate, relation: str, hashable: frozenset[str]) -> str:
    """The sum of contributions by group: h, keys, n, and each contribution. The keys look as the least that came; any
    way, if none came."""
    found = [f"({c.combine})::{c.column.type.name} AS {quote(c.column.name)}" for c in _all_contributions(aggregate)]
    chosen = shown(keys_with_looks(aggregate), _least_came())
    keys = [
        f"CASE WHEN {_least_came()} IS NULL THEN {quote(key)} ELSE {chosen[key]} END AS {quote(key)}"
        if key in chosen
        else quote(key)
        for key in aggregate.keys
    ]
    head = [f"{hash_keys(aggregate.keys, hashable)} AS h", *keys, f"{_total()} AS n"]
    return _grouped(aggregate, relation, head + found)


def _total() -> str:
    return f"coalesce(sum({WEIGHT}), 0)::bigint"


def _grouped(aggregate: Aggregate, relation: str, outputs: list[str]) -> str:
    group = f" GROUP BY {', '.join(map(quote, aggregate.keys))}" if aggregate.keys else ""
    return f"SELECT {', '.join(outputs)} FROM ({relation}) AS grouped_rows{group}"


def merge(aggregate: Aggregate, delta: str, state: str) -> str:
    """One row a touched group: its state row (`sid`), old (`old_…`) and new values, and whether to recompute.

    Where equal keys may look different, a group that lost rows is asked again how its key looks.
    """
    varying = keys_with_looks(aggregate)
    is_shown = "s.ctid IS NULL" + (f" OR d.{_CAME} < {looks_of(varying, 's.')}" if varying else "")
    keys = [f"s.{quote(key)} AS {quote('old_' + key)}" for key in aggregate.keys]
    keys += [
        f"CASE WHEN {is_shown} THEN d.{quote(key)} ELSE s.{quote(key)} END AS {quote(key)}" for key in aggregate.keys
    ]
    partials = [partial for call in call_states(aggregate) for partial in call.partials]
    old = [f"s.{quote(p.column.name)} AS {quote('old_' + p.column.name)}" for p in partials]
    new = [f"{p.merged} AS {quote(p.column.name)}" for p in partials]
    reasons = [f"({call.recompute})" for call in call_states(aggregate)]
    reasons += [f"d.{_LEFT} < 0"] if varying else []
    outputs = ["d.h", "s.ctid AS sid", *keys, "s.n AS old_n", "coalesce(s.n, 0) + d.n AS n", *old, *new]
    return (
        f"SELECT {', '.join(outputs)}, ({' OR '.join(reasons) or 'false'}) AS recompute FROM {delta} AS d "
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
    kept = [*aggregate.keys, "n", *(partial.column.name for state in states for partial in state.partials)]
    old = ", ".join(f"m.{quote('old_' + name)} AS {quote(name)}" for name in kept)
    new = ", ".join(f"m.{quote(name)}" for name in kept)
    finished = [f"{s.finish} AS {quote(c.output.name)}" for c, s in zip(aggregate.calls, states, strict=True)]
    outputs = ", ".join([*map(quote, aggregate.keys), *finished])
    names = [quote(name) for name in aggregate.names]
    old_row, new_row = (", ".join(f"{side}.{name}" for name in names) for side in ("old", "new"))
    columns = [f"CASE WHEN v.{WEIGHT} < 0 THEN old.{name} ELSE new.{name} END AS {name}" for name in names]
    return (
        f"SELECT {', '.join([*columns, f'v.{WEIGHT}'])} FROM {merged} AS m "
        f"CROSS JOIN LATERAL (SELECT {outputs} FROM (SELECT {old}) AS before_state) AS old "
        f"CROSS JOIN LATERAL (SELECT {outputs} FROM (SELECT {new}) AS after_state) AS new "
        f"CROSS JOIN (VALUES (-1::bigint), (1::bigint)) AS v({WEIGHT}) "
        f"WHERE (({existed}) IS DISTINCT FROM ({exists}) OR ROW({old_row})::record *<> ROW({new_row})::record) "
        f"AND CASE WHEN v.{WEIGHT} < 0 THEN {existed} ELSE {exists} END"
    )


def matching_keys(aggregate: Aggregate, left: str, right: str) -> str:
    """SQL that compares two rows' keys, none of them NULL, so that an index can serve where the type is built in."""
    tests = [
        f"{left}.{quote(key.name)} = {right}.{quote(key.name)}"
        if _built_in(key.type)
        else same_keys((key.name,), left, right)
        for key in key_columns(aggregate)
    ]
    return " AND ".join(tests) or "true"
