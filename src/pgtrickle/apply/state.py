"""The tables in which a stream table keeps the state of its query's parts: made, named and dropped. What is done to
their rows is in `postgres/statements/`."""

from __future__ import annotations

from collections.abc import Iterable

from pgtrickle.apply.staging_tables import STATE_SCHEMA
from pgtrickle.db import Connection, execute
from pgtrickle.model import quote
from pgtrickle.postgres import recursion
from pgtrickle.postgres.aggregate import state_columns
from pgtrickle.postgres.statements.first_rows import FirstRows
from pgtrickle.postgres.statements.recursion import RecursiveRows
from pgtrickle.postgres.statements.state import StateTable
from pgtrickle.postgres.statements.window_rows import WindowRows
from pgtrickle.postgres.wire import definition


def table_name(pgt_id: int, number: int) -> str:
    """Of the stream table's part of that number."""
    return f"{STATE_SCHEMA}.{quote(f's_{pgt_id}_{number}')}"


def create(connection: Connection, state: StateTable, *, looked_up: bool) -> None:
    """Creates the empty state table; `looked_up`: a join above finds groups by their keys."""
    columns = ", ".join(definition(column) for column in state_columns(state.aggregate))
    execute(connection, f"CREATE TABLE {state.name} (h bigint NOT NULL, {columns}) WITH (fillfactor = 70)")
    execute(connection, f"CREATE INDEX ON {state.name} (h)")
    if looked_up:
        for key in state.aggregate.keys:
            if key in state.hashable:
                execute(connection, f"CREATE INDEX ON {state.name} USING hash ({quote(key)})")
                execute(
                    connection, f"CREATE INDEX ON {state.name} (h) WHERE {quote(key)} IS NULL"
                )  # which hash has not


def create_first_rows(connection: Connection, kept: FirstRows) -> None:
    """Creates the empty table of first rows."""
    definitions = ", ".join(definition(column) for column in kept.top.columns)
    execute(connection, f"CREATE TABLE {kept.name} ({definitions})")


def create_window_rows(connection: Connection, kept: WindowRows, *, looked_up: Iterable[str]) -> None:
    """Creates the empty table of a window's rows, by partition; a join above finds them by the columns `looked_up`."""
    definitions = ", ".join(["h bigint NOT NULL", *map(definition, kept.window.columns)])
    execute(connection, f"CREATE TABLE {kept.name} ({definitions})")
    execute(connection, f"CREATE INDEX ON {kept.name} (h)")
    for name in looked_up:
        execute(connection, f"CREATE INDEX ON {kept.name} ({quote(name)})")


def create_recursive_rows(connection: Connection, kept: RecursiveRows) -> None:
    """Creates the empty table of a recursion's rows, with an index on each column that joins look for."""
    columns = ", ".join(definition(column) for column in recursion.state_columns(kept.node))
    execute(connection, f"CREATE TABLE {kept.name} (h bigint NOT NULL, {columns})")
    execute(connection, f"CREATE INDEX ON {kept.name} (h)")
    for name in sorted(kept.sought):
        execute(connection, f"CREATE INDEX ON {kept.name} USING hash ({quote(name)})")


def drop(connection: Connection, pgt_id: int) -> None:
    """Drops all state tables of a stream table."""
    rows = connection.execute(
        "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = %s AND c.relkind = 'r' AND starts_with(c.relname, %s)",
        (STATE_SCHEMA, f"s_{pgt_id}_"),
    ).fetchall()
    for (name,) in rows:
        execute(connection, f"DROP TABLE {STATE_SCHEMA}.{quote(str(name))}")
