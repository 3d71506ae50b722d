"""Keeps the state tables of aggregates: builds them in a full refresh, merges a delta in a differential one.

All in the refresh's writing transaction. A group whose aggregate has no inverse is recomputed from its rows, read by
key at the snapshot (`reader`), or from the state below, which is already new when this one's turn comes.
"""

from __future__ import annotations

from dataclasses import dataclass

from pgtrickle.apply.stage import STATE_SCHEMA
from pgtrickle.db import Connection, execute, scalar
from pgtrickle.errors import StateError
from pgtrickle.model import quote
from pgtrickle.postgres import aggregate as sql
from pgtrickle.postgres.copy import pipe
from pgtrickle.postgres.weighted import chain, run_steps, weigh
from pgtrickle.postgres.wire import definition
from pgtrickle.query import render
from pgtrickle.query.operators import Aggregate


@dataclass(frozen=True, slots=True)
class StateTable:
    """Where an aggregate of a stream table keeps its state.

    `hashable` are the keys that have a hash function; `looks_differ`: equal keys may look different (1.0 and 1.00).
    """

    pgt_id: int
    number: int
    aggregate: Aggregate
    hashable: frozenset[str]
    looks_differ: bool = False

    @property
    def name(self) -> str:
        return f"{STATE_SCHEMA}.{quote(f's_{self.pgt_id}_{self.number}')}"

    @property
    def changes(self) -> str:
        """The weighted relation of what this refresh changed in the aggregate's output, once merged."""
        return f"SELECT * FROM pg_temp.{self._temporary('out')}"

    def _temporary(self, what: str) -> str:
        return quote(f"pgt_{what}_{self.pgt_id}_{self.number}")


def create(connection: Connection, state: StateTable, *, looked_up: bool) -> None:
    """Creates the empty state table; `looked_up`: a join above finds groups by their keys."""
    columns = ", ".join(definition(column) for column in sql.state_columns(state.aggregate))
    execute(connection, f"CREATE TABLE {state.name} (h bigint NOT NULL, {columns}) WITH (fillfactor = 70)")
    execute(connection, f"CREATE INDEX ON {state.name} (h)")
    if looked_up:
        for key in state.aggregate.keys:
            if key in state.hashable:
                execute(connection, f"CREATE INDEX ON {state.name} USING hash ({quote(key)})")
                execute(
                    connection, f"CREATE INDEX ON {state.name} (h) WHERE {quote(key)} IS NULL"
                )  # which hash has not


def drop(connection: Connection, pgt_id: int) -> None:
    """Drops all state tables of a stream table."""
    rows = connection.execute(
        "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = %s AND c.relkind = 'r' AND starts_with(c.relname, %s)",
        (STATE_SCHEMA, f"s_{pgt_id}_"),
    ).fetchall()
    for (name,) in rows:
        execute(connection, f"DROP TABLE {STATE_SCHEMA}.{quote(str(name))}")


def rebuild(writer: Connection, state: StateTable, landed: str) -> None:
    """Replaces the state by that of the landed contributions, or input rows where the aggregate is not additive."""
    names = ", ".join(["h", *(quote(column.name) for column in sql.state_columns(state.aggregate))])
    whole = sql.combined if sql.is_additive(state.aggregate) else sql.whole_partials
    rows = f"SELECT {names} FROM ({whole(state.aggregate, landed, state.hashable)}) AS groups"
    execute(writer, f"TRUNCATE {state.name}")
    execute(writer, f"INSERT INTO {state.name} ({names}) {rows}")
    execute(writer, f"ANALYZE {state.name}")


def merge(
    writer: Connection,
    reader: Connection,
    state: StateTable,
    below: StateTable | None,
    landed: str,
    source: render.Leaf,
) -> None:
    """Adds the landed contributions to the state; leaves the output's changes in `state.changes`.

    `below` is the state this aggregate's input is read from, if its input is an aggregate. `source` gives the SQL of
    those tables that are not as the snapshot has them.
    """
    aggregate = state.aggregate
    delta, merged, out = (f"pg_temp.{state._temporary(what)}" for what in ("delta", "merged", "out"))
    _temporary(writer, delta, sql.combined(aggregate, landed, state.hashable))
    execute(writer, f"ANALYZE {delta} (h)")  # else PostgreSQL takes it for large, and reads the whole state
    _temporary(writer, merged, sql.merge(aggregate, delta, state.name, looks_differ=state.looks_differ))
    execute(writer, f"ANALYZE {merged} (h)")
    _refuse_negative_groups(writer, state, merged)
    if scalar(writer, f"SELECT EXISTS (SELECT FROM {merged} WHERE {_to_recompute(aggregate)})"):
        _recompute(writer, reader, state, below, merged, source)
    _temporary(writer, out, sql.output_changes(aggregate, merged))
    _write_back(writer, state, merged)


def _to_recompute(aggregate: Aggregate) -> str:
    """Groups that are gone need no values; the one group of an aggregate without keys is never gone."""
    return "recompute AND n > 0" if aggregate.keys else "recompute"


def _temporary(connection: Connection, name: str, query: str) -> None:
    execute(connection, f"CREATE TEMPORARY TABLE {name.removeprefix('pg_temp.')} ON COMMIT DROP AS {query}")


def _refuse_negative_groups(writer: Connection, state: StateTable, merged: str) -> None:
    if scalar(writer, f"SELECT EXISTS (SELECT FROM {merged} WHERE n < 0)"):
        raise StateError(
            f"the state {state.name} has fewer rows in a group than were deleted from it",
            code="PT331",
            hint="refresh the stream table in full",
        )


def _write_back(writer: Connection, state: StateTable, merged: str) -> None:
    names = [quote(column.name) for column in sql.state_columns(state.aggregate)]
    gone = "m.n = 0" if state.aggregate.keys else "false"
    at_row = f"{merged} AS m WHERE s.h = m.h AND s.ctid = m.sid"
    execute(writer, f"DELETE FROM {state.name} AS s USING {at_row} AND {gone}")
    assignments = ", ".join(f"{name} = m.{name}" for name in names)
    execute(writer, f"UPDATE {state.name} AS s SET {assignments} FROM {at_row} AND NOT ({gone})")
    columns = ", ".join(["h", *names])
    new = f"SELECT {columns} FROM {merged} AS m WHERE sid IS NULL AND NOT ({gone})"
    execute(writer, f"INSERT INTO {state.name} ({columns}) {new}")


def _recompute(
    writer: Connection,
    reader: Connection,
    state: StateTable,
    below: StateTable | None,
    merged: str,
    source: render.Leaf,
) -> None:
    """Recomputes the marked groups from their rows after the window."""
    aggregate = state.aggregate
    again = f"pg_temp.{state._temporary('again')}"
    marked = f"(SELECT * FROM {merged} WHERE {_to_recompute(aggregate)})"
    nulls = bool(scalar(writer, f"SELECT EXISTS (SELECT FROM {marked} AS k WHERE NOT ({_whole_keys(state, 'k')}))"))
    if below is not None:
        _temporary(writer, again, _regrouped(state, marked, _input_from_state(aggregate, below), nulls=nulls))
    else:
        columns = ", ".join(definition(column) for column in sql.state_columns(aggregate))
        execute(writer, f"CREATE TEMPORARY TABLE {again.removeprefix('pg_temp.')} (h bigint, {columns}) ON COMMIT DROP")
        wanted = _send_keys(writer, reader, state, merged)
        rows = weigh(render.select(aggregate.input, leaf=source), aggregate.input.names)
        pipe(reader, _regrouped(state, wanted, rows, nulls=nulls), writer, again)
    _take_over(writer, state, merged, again)


def _send_keys(writer: Connection, reader: Connection, state: StateTable, merged: str) -> str:
    """The keys of the marked groups, in a temporary table at the snapshot; returns its name."""
    aggregate = state.aggregate
    wanted = f"pg_temp.{state._temporary('wanted')}"
    if aggregate.keys:
        columns = ", ".join(definition(column) for column in sql.key_columns(aggregate))
        execute(reader, f"CREATE TEMPORARY TABLE {wanted.removeprefix('pg_temp.')} ({columns}) ON COMMIT DROP")
        keys = ", ".join(quote(key) for key in aggregate.keys)
        pipe(writer, f"SELECT {keys} FROM {merged} WHERE {_to_recompute(aggregate)}", reader, wanted)
        execute(reader, f"ANALYZE {wanted}")  # few, mostly: they are to be found by index
    return wanted


def _input_from_state(aggregate: Aggregate, below: StateTable) -> str:
    _, steps = chain(aggregate.input)
    kept = sql.outputs(below.aggregate, f"SELECT * FROM {below.name}")
    return run_steps(weigh(kept, below.aggregate.names), steps)


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


def _whole_keys(state: StateTable, alias: str) -> str:
    return " AND ".join(f"{alias}.{quote(key)} IS NOT NULL" for key in state.aggregate.keys) or "true"


def _take_over(writer: Connection, state: StateTable, merged: str, again: str) -> None:
    aggregate = state.aggregate
    names = [quote(column.name) for column in sql.state_columns(aggregate)]
    assignments = ", ".join(f"{name} = a.{name}" for name in names)
    same = f"a.h = m.h AND {sql.same_keys(aggregate.keys, 'a', 'm')}"
    updated = execute(writer, f"UPDATE {merged} AS m SET {assignments} FROM {again} AS a WHERE {same} AND a.n = m.n")
    expected = scalar(writer, f"SELECT count(*) FROM {merged} WHERE {_to_recompute(aggregate)}")
    if updated < int(str(expected)):
        raise StateError(
            f"the groups of {state.name} do not have as many rows as their source says",
            code="PT331",
            hint="refresh the stream table in full",
        )
