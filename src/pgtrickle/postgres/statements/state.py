"""Statements that keep the state of an aggregate: built by a full refresh, merged with a delta by a differential one.
Pure.

    combined contributions ⟕ old state  →  old and new values of each group touched  →  −old +new of its output

A group whose aggregate has no inverse is recomputed from its rows after the window: those of tables, or of the state
below. What is computed comes first and what is written last (`StateMerge`): others may need the old state until then.
"""

from __future__ import annotations

from dataclasses import dataclass

from pgtrickle.model import BIGINT, Column, quote
from pgtrickle.postgres import aggregate as sql
from pgtrickle.postgres.statements.at_once import AtOnce, Part
from pgtrickle.postgres.statements.script import (
    FromTables,
    Problem,
    Require,
    Run,
    Scratch,
    Script,
    Sent,
    When,
    temporary,
)
from pgtrickle.postgres.weighted import from_state, weigh
from pgtrickle.query import render
from pgtrickle.query.operators import Aggregate

_AT_ROW = "s.h = m.h AND s.ctid = m.sid"


@dataclass(frozen=True, slots=True)
class StateTable:
    """Where an aggregate keeps its state; `hashable` are the keys that have a hash function."""

    name: str
    aggregate: Aggregate
    hashable: frozenset[str]


@dataclass(frozen=True, slots=True)
class StateMerge:
    """`compute` leaves the output's changes in a temporary table (`changes`); `write` puts the new state in place."""

    compute: Script
    write: Script


def changes(scratch: Scratch) -> str:
    """The weighted relation of what a merge changed in the output, once computed."""
    return f"SELECT * FROM {output(scratch)}"


def rebuild(state: StateTable, landed: str) -> Script:
    """Replaces the state by that of the landed contributions, or input rows where the aggregate is not additive."""
    whole = sql.combined if sql.is_additive(state.aggregate) else sql.whole_partials
    columns = stored_columns(state)
    names = ", ".join(quote(column.name) for column in columns)
    rows = f"SELECT {names} FROM ({whole(state.aggregate, landed, state.hashable)}) AS groups"
    return (
        Run(f"TRUNCATE {state.name}"),
        Run(f"INSERT INTO {state.name} ({names}) {rows}"),
        Run(f"ANALYZE {state.name}"),
    )


def of_groups(state: StateTable, contributed: str) -> str:
    """The rows of the state where each group has one contribution, and all have weight one; in the table's order."""
    names = ", ".join(quote(column.name) for column in stored_columns(state))
    return f"SELECT {names} FROM ({sql.alone(state.aggregate, contributed, state.hashable)}) AS groups"


def stored_columns(state: StateTable) -> tuple[Column, ...]:
    """All columns of the table, in their order."""
    return (Column("h", BIGINT), *sql.state_columns(state.aggregate))


def is_unusual(state: StateTable) -> str:
    """SQL that says whether the state has to be built again from contributions that are not plain."""
    condition = sql.unusual(state.aggregate)
    return "false" if condition is None else f"EXISTS (SELECT FROM {state.name} WHERE {condition})"


def merge(state: StateTable, scratch: Scratch, landed: str, below: str | None, source: render.Leaf) -> StateMerge:
    """Adds the landed contributions to the state.

    `below` is what to read FROM the state that this aggregate's input is made of, as it is after the window, if it is
    made of one. `source` gives the SQL of those tables that are not as whoever reads them sees them.
    """
    aggregate = state.aggregate
    delta, merged = scratch.table("delta"), _merged(scratch)
    compute = (
        temporary(delta, sql.combined(aggregate, landed, state.hashable)),
        Run(f"ANALYZE {delta} (h)"),  # else PostgreSQL takes it for large, and reads the whole state
        temporary(merged, sql.merge(aggregate, delta, state.name)),
        Run(f"ANALYZE {merged} (h)"),
        Require(
            f"NOT EXISTS (SELECT FROM {merged} WHERE n < 0)",
            wrong(f"the state {state.name} has fewer rows in a group than were deleted from it"),
        ),
        *_recompute(state, scratch, below, source),
        temporary(output(scratch), sql.output_changes(aggregate, merged)),
    )
    return StateMerge(compute, _written_back(state, merged))


def merge_at_once(state: StateTable, scratch: Scratch, landed: str, below: str | None, source: render.Leaf) -> AtOnce:
    """The same as parts of one statement, all of which read the state as it was."""
    aggregate = state.aggregate
    delta, merged, found = scratch.table("delta"), _merged(scratch), scratch.table("found")
    parts = [Part(delta, sql.combined(aggregate, landed, state.hashable))]
    checks = [
        Require(
            f"NOT EXISTS (SELECT FROM {merged} WHERE n < 0)",
            wrong(f"the state {state.name} has fewer rows in a group than were deleted from it"),
        )
    ]
    if sql.may_recompute(aggregate):
        parts.append(Part(found, sql.merge(aggregate, delta, state.name)))
        parts += _recomputed_at_once(state, scratch, found, below, source)
        same = f"(SELECT count(*) FROM {found}) = (SELECT count(*) FROM {merged})"
        checks.append(Require(same, wrong(f"the groups of {state.name} do not have as many rows as their source says")))
    else:
        parts.append(Part(merged, sql.merge(aggregate, delta, state.name)))
    parts.append(Part(output(scratch), sql.output_changes(aggregate, merged)))
    written = zip(("gone", "stayed", "came"), _written_back(state, merged), strict=True)
    parts += [Part(scratch.table(what), run.sql, writes=True) for what, run in written]
    return AtOnce(tuple(parts), tuple(checks))


def _recomputed_at_once(
    state: StateTable, scratch: Scratch, found: str, below: str | None, source: render.Leaf
) -> list[Part]:
    """The merged groups, of which the marked ones are computed from their rows: that part of the statement is not begun
    where there are none, nor the comparison of NULLs where there are none of these."""
    aggregate = state.aggregate
    marked, wanted, again = scratch.table("marked"), scratch.table("wanted"), scratch.table("again")
    rows = weigh(render.select(aggregate.input, leaf=source), aggregate.input.names)
    rows = rows if below is None else from_state(aggregate.input, below)
    keys = ", ".join(quote(key) for key in aggregate.keys)
    some_null = f"EXISTS (SELECT FROM {marked} AS k WHERE NOT ({_whole_keys(state, 'k')}))"

    def ifs(query: str, condition: str) -> str:
        return f"SELECT * FROM ({query}) AS groups WHERE (SELECT {condition})"

    plain = _regrouped(state, wanted, rows, nulls=False)
    some = f"EXISTS (SELECT FROM {marked})"
    found_again = ifs(plain, some)
    if aggregate.keys:
        with_nulls = ifs(_regrouped(state, wanted, rows, nulls=True), some_null)
        found_again = f"{ifs(plain, f'{some} AND NOT {some_null}')} UNION ALL {with_nulls}"
    partials = [quote(column.name) for column in sql.state_columns(aggregate) if column.name not in aggregate.keys]
    shown = [quote(key) for key in aggregate.keys]
    kept = [quote(f"old_{column.name}") for column in sql.state_columns(aggregate)]
    taken = ", ".join(["m.h", "m.sid", *(f"m.{name}" for name in kept), *(f"a.{name}" for name in (*shown, *partials))])
    stay = ", ".join(["h", "sid", *kept, *shown, *partials])
    same = f"a.h = m.h AND {sql.same_keys(aggregate.keys, 'a', 'm')} AND a.n = m.n"
    return [
        Part(marked, f"SELECT * FROM {found} WHERE {_to_recompute(state)}"),
        *([Part(wanted, f"SELECT {keys} FROM {marked}")] if aggregate.keys else []),
        Part(again, found_again),
        Part(
            _merged(scratch),
            f"SELECT {stay} FROM {found} WHERE NOT ({_to_recompute(state)}) "
            f"UNION ALL SELECT {taken} FROM {marked} AS m JOIN {again} AS a ON {same}",
        ),
    ]


def merged_rows(state: StateTable, scratch: Scratch) -> str:
    """What to read FROM the new state after `compute` and before `write`."""
    merged, names = _merged(scratch), [quote(column.name) for column in sql.state_columns(state.aggregate)]
    old, new = (", ".join(f"{side}.{name}" for name in ("h", *names)) for side in ("s", "m"))
    untouched = f"SELECT {old} FROM {state.name} AS s WHERE NOT EXISTS (SELECT FROM {merged} AS m WHERE m.sid = s.ctid)"
    return f"({untouched} UNION ALL SELECT {new} FROM {merged} AS m WHERE NOT ({_gone(state)})) AS new_state"


def _recompute(state: StateTable, scratch: Scratch, below: str | None, source: render.Leaf) -> Script:
    """Recomputes the marked groups, if any can be, from their rows after the window."""
    if not sql.may_recompute(state.aggregate):
        return ()
    merged = _merged(scratch)
    marked = f"(SELECT * FROM {merged} WHERE {_to_recompute(state)})"
    plain = (*_again(state, scratch, below, source, nulls=False), *_take_over(state, scratch))
    if state.aggregate.keys:
        with_nulls = (*_again(state, scratch, below, source, nulls=True), *_take_over(state, scratch))
        some_null = f"EXISTS (SELECT FROM {marked} AS k WHERE NOT ({_whole_keys(state, 'k')}))"
        plain = (When(some_null, with_nulls, plain),)
    return (When(f"EXISTS (SELECT FROM {marked} AS k)", plain),)


def _again(state: StateTable, scratch: Scratch, below: str | None, source: render.Leaf, *, nulls: bool) -> Script:
    """State rows of the marked groups, computed from their rows, in a temporary table."""
    aggregate = state.aggregate
    again, marked = scratch.table("again"), f"FROM {_merged(scratch)} WHERE {_to_recompute(state)}"
    if below is not None:
        rows = from_state(aggregate.input, below)
        return (temporary(again, _regrouped(state, f"(SELECT * {marked})", rows, nulls=nulls)),)
    rows = weigh(render.select(aggregate.input, leaf=source), aggregate.input.names)
    columns = (Column("h", BIGINT), *sql.state_columns(aggregate))
    wanted = scratch.table("wanted")
    query = _regrouped(state, wanted, rows, nulls=nulls)
    if not aggregate.keys:
        return (FromTables(again, columns, query),)
    keys = ", ".join(quote(key) for key in aggregate.keys)
    sent = Sent(wanted, sql.key_columns(aggregate), f"SELECT {keys} {marked}")
    return (FromTables(again, columns, query, sent),)


def _regrouped(state: StateTable, wanted: str, rows: str, *, nulls: bool) -> str:
    """State rows of the wanted groups. Keys without NULLs are compared by `=`, which an index can serve."""
    keys = state.aggregate.keys
    if not keys:
        return sql.whole_partials(state.aggregate, rows, state.hashable)
    equal = sql.matching_keys(state.aggregate, "q", "k")
    matches = f"SELECT q.* FROM {wanted} AS k JOIN ({rows}) AS q ON {equal} WHERE {_whole_keys(state, 'k')}"
    if nulls:
        with_nulls = f"SELECT * FROM {wanted} AS k WHERE NOT ({_whole_keys(state, 'k')})"
        same = sql.same_keys(keys, "q", "k")
        matches += f" UNION ALL SELECT q.* FROM ({with_nulls}) AS k JOIN ({rows}) AS q ON {same}"
    return sql.whole_partials(state.aggregate, matches, state.hashable)


def _take_over(state: StateTable, scratch: Scratch) -> Script:
    """The recomputed values of the marked groups, which are marked no more: each must have been found."""
    aggregate, merged = state.aggregate, _merged(scratch)
    names = [quote(column.name) for column in sql.state_columns(aggregate)]
    assignments = ", ".join([*(f"{name} = a.{name}" for name in names), "recompute = false"])
    same = f"a.h = m.h AND {sql.same_keys(aggregate.keys, 'a', 'm')}"
    return (
        Run(f"UPDATE {merged} AS m SET {assignments} FROM {scratch.table('again')} AS a WHERE {same} AND a.n = m.n"),
        Require(
            f"NOT EXISTS (SELECT FROM {merged} WHERE {_to_recompute(state)})",
            wrong(f"the groups of {state.name} do not have as many rows as their source says"),
        ),
    )


def _written_back(state: StateTable, merged: str) -> tuple[Run, Run, Run]:
    names = [quote(column.name) for column in sql.state_columns(state.aggregate)]
    gone, at_row = _gone(state), f"{merged} AS m WHERE {_AT_ROW}"
    columns = ", ".join(["h", *names])
    new = f"SELECT {columns} FROM {merged} AS m WHERE sid IS NULL AND NOT ({gone})"
    return (
        Run(f"DELETE FROM {state.name} AS s USING {at_row} AND {gone}"),
        Run(f"UPDATE {state.name} AS s SET {_new_values(state)} FROM {at_row} AND NOT ({gone})"),
        Run(f"INSERT INTO {state.name} ({columns}) {new}"),
    )


def update_group(state: StateTable, delta: str) -> str:
    """Adds the one group of `delta` to the state and returns it, old and new, if it is there, stays, and need not be
    computed again."""
    merged = sql.merge(state.aggregate, delta, state.name)
    return (
        f"UPDATE {state.name} AS s SET {_new_values(state)} FROM ({merged}) AS m "
        f"WHERE {_AT_ROW} AND m.n > 0 AND NOT m.recompute RETURNING m.*"
    )


def _new_values(state: StateTable) -> str:
    return ", ".join(f"{quote(each.name)} = m.{quote(each.name)}" for each in sql.state_columns(state.aggregate))


def _gone(state: StateTable) -> str:
    """Whether a merged group is no more; the one group of an aggregate without keys is never gone."""
    return "m.n = 0" if state.aggregate.keys else "false"


def _to_recompute(state: StateTable) -> str:
    """Groups that are gone need no values."""
    return "recompute AND n > 0" if state.aggregate.keys else "recompute"


def _whole_keys(state: StateTable, alias: str) -> str:
    return " AND ".join(f"{alias}.{quote(key)} IS NOT NULL" for key in state.aggregate.keys) or "true"


def _merged(scratch: Scratch) -> str:
    return scratch.table("merged")


def output(scratch: Scratch) -> str:
    """The temporary table, or part, of what a merge changed in the output."""
    return scratch.table("out")


def wrong(message: str) -> Problem:
    """That a state is not what the changes of its sources say it is."""
    return Problem(message, "PT331", "refresh the stream table in full")
