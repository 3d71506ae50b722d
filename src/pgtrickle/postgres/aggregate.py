"""The state of an aggregate and the SQL that keeps it: PostgreSQL does all arithmetic, so digits are its own.

    state row  =  h, keys, n, partials of each call        h = 64-bit hash of the keys, to find the row
    new state  =  old state + contribution of the delta    for calls that have an inverse
    output     =  finish(state)

Contributions are summed wherever weighted rows are read (`contributions`), so that groups travel and not rows, and
added up where they land (`combined`). `call_states.py` says how each call is kept, and which have no inverse: groups of
these are recomputed from their rows.
Called by `weighted.py` (contributions), `statements/state.py` (the rest).
"""

from __future__ import annotations

from collections.abc import Iterable

from pgtrickle.model import BIGINT, Column, PgType, quote
from pgtrickle.postgres.call_state import ALWAYS, NEVER, Contribution, not_finite
from pgtrickle.postgres.call_states import built_in, call_states
from pgtrickle.postgres.wire import WEIGHT, receive
from pgtrickle.query.looks import keys_with_looks, looks_of, shown, shown_keys
from pgtrickle.query.operators import Aggregate

_LEFT, _CAME = "rows_left", "looks_that_came"
_TEXTS = PgType(1009, "text[]")


def key_columns(aggregate: Aggregate) -> tuple[Column, ...]:
    return tuple(column for column in aggregate.columns if column.name in aggregate.keys)


def state_columns(aggregate: Aggregate) -> tuple[Column, ...]:
    """The state table's columns after `h`: keys, `n`, partials."""
    partials = tuple(partial.column for state in call_states(aggregate) for partial in state.partials)
    return (*key_columns(aggregate), Column("n", BIGINT), *partials)


def contribution_columns(aggregate: Aggregate) -> tuple[Column, ...]:
    """The columns of `contributions`, but for the weight."""
    return (*key_columns(aggregate), *(contribution.column for contribution in all_contributions(aggregate)))


def all_contributions(aggregate: Aggregate) -> tuple[Contribution, ...]:
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
        Contribution(Column(_LEFT, BIGINT), left, f"coalesce(sum({_LEFT}), 0)", "0::bigint"),
        Contribution(Column(_CAME, _TEXTS), came, _least_came(), f"min({looks_of(varying)})"),
    )


def _least_came() -> str:
    return f'min({_CAME} COLLATE "C")'


def is_additive(aggregate: Aggregate) -> bool:
    """Whether the state of a group is the sum of its rows' contributions."""
    return all(state.additive for state in call_states(aggregate))


def may_recompute(aggregate: Aggregate) -> bool:
    """Whether some delta asks for groups to be recomputed."""
    return bool(keys_with_looks(aggregate)) or any(state.recompute != NEVER for state in call_states(aggregate))


def must_recompute(aggregate: Aggregate) -> bool:
    """Whether every delta does."""
    return any(state.recompute == ALWAYS for state in call_states(aggregate))


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
    head = [f"{hash_keys(aggregate.keys, hashable)} AS h", *shown_keys(aggregate), "count(*) AS n"]
    return _grouped(aggregate, relation, head + values)


def contributions(aggregate: Aggregate, relation: str, *, plain: bool = False) -> str:
    """What the weighted rows add to each group: keys and contributions, the number of rows as weight. `plain`: all rows
    have weight one, and the state they make is to be checked (`unusual`)."""
    found = [f"{c.plain if plain else c.sql} AS {quote(c.column.name)}" for c in all_contributions(aggregate)]
    total = f"{'count(*)' if plain else _total()} AS {WEIGHT}"
    return _grouped(aggregate, relation, [*map(quote, aggregate.keys), *found, total])


def unusual(aggregate: Aggregate) -> str | None:
    """SQL that says of a row of the state, made of plain contributions, that a value among them is not a finite number:
    they are not right then. None: that does not matter."""
    checked = (c for state in call_states(aggregate) for c in state.contributions if c.checked)
    return " OR ".join(not_finite(quote(c.column.name), None) for c in checked) or None


def combined(aggregate: Aggregate, relation: str, hashable: frozenset[str]) -> str:
    """The sum of contributions by group: h, keys, n, and each contribution. The keys look as the least that came; any
    way, if none came."""
    found = [f"({c.combine})::{c.column.type.name} AS {quote(c.column.name)}" for c in all_contributions(aggregate)]
    chosen = shown(keys_with_looks(aggregate), _least_came())
    keys = [
        f"CASE WHEN {_least_came()} IS NULL THEN {quote(key)} ELSE {chosen[key]} END AS {quote(key)}"
        if key in chosen
        else quote(key)
        for key in aggregate.keys
    ]
    head = [f"{hash_keys(aggregate.keys, hashable)} AS h", *keys, f"{_total()} AS n"]
    return _grouped(aggregate, relation, head + found)


def alone(aggregate: Aggregate, relation: str, hashable: frozenset[str]) -> str:
    """The same of contributions of which each group has one."""
    if keys_with_looks(aggregate):
        return combined(aggregate, relation, hashable)
    found = [quote(c.column.name) for c in all_contributions(aggregate)]
    head = [f"{hash_keys(aggregate.keys, hashable)} AS h", *map(quote, aggregate.keys), f"{WEIGHT} AS n"]
    return f"SELECT {', '.join(head + found)} FROM ({relation}) AS groups"


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
    return f"SELECT {_outputs_of_state(aggregate)} FROM ({relation}) AS state_rows"


def output_changes(aggregate: Aggregate, merged: str) -> str:
    """−old +new of each merged group whose output differs, as a weighted relation."""
    existed, exists = ("old_n > 0", "m.n > 0") if aggregate.keys else ("sid IS NOT NULL", "true")
    outputs, kept = _outputs_of_state(aggregate), _kept(aggregate)
    old = ", ".join(f"m.{quote('old_' + name)} AS {quote(name)}" for name in kept)
    new = ", ".join(f"m.{quote(name)}" for name in kept)
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


def output_of(aggregate: Aggregate, merged: str, *, old: bool) -> str:
    """The output of one merged group, whose columns are those of the record `merged`: as it was, with weight −1, or as
    it is, with weight 1."""
    prefix, weight = ("old_", -1) if old else ("", 1)
    state = fields(merged, state_columns(aggregate), prefix)
    return f"SELECT {_outputs_of_state(aggregate)}, {weight}::bigint AS {WEIGHT} FROM (SELECT {state}) AS state_row"


def fields(record: str, columns: Iterable[Column], prefix: str = "") -> str:
    """Fields of a record of PL/pgSQL as columns: with their collations, which a record does not keep."""
    return ", ".join(
        f"{receive(f'{record}.{quote(prefix + column.name)}', column.type)} AS {quote(column.name)}"
        for column in columns
    )


def _kept(aggregate: Aggregate) -> list[str]:
    """The columns of the state by name, but for the hash."""
    return [column.name for column in state_columns(aggregate)]


def _outputs_of_state(aggregate: Aggregate) -> str:
    """The output's columns, of one row of the state."""
    finished = [
        f"{state.finish} AS {quote(call.output.name)}"
        for call, state in zip(aggregate.calls, call_states(aggregate), strict=True)
    ]
    return ", ".join([*map(quote, aggregate.keys), *finished])


def matching_keys(aggregate: Aggregate, left: str, right: str) -> str:
    """SQL that compares two rows' keys, none of them NULL, so that an index can serve where the type is built in."""
    tests = [
        f"{left}.{quote(key.name)} = {right}.{quote(key.name)}"
        if built_in(key.type)
        else same_keys((key.name,), left, right)
        for key in key_columns(aggregate)
    ]
    return " AND ".join(tests) or "true"
