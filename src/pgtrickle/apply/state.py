"""The tables in which a stream table keeps the state of its query's parts: made, named and dropped. What is done to
their rows is in `postgres/statements/`."""

from __future__ import annotations

from collections.abc import Iterable

from pgtrickle.apply.staging_tables import STATE_SCHEMA
from pgtrickle.db import Connection, execute
from pgtrickle.model import PgType, quote
from pgtrickle.postgres import recursion
from pgtrickle.postgres.aggregate import key_columns, state_columns
from pgtrickle.postgres.statements.first_rows import FirstRows
from pgtrickle.postgres.statements.recursion import RecursiveRows
from pgtrickle.postgres.statements.state import StateTable
from pgtrickle.postgres.statements.window_order import index_columns
from pgtrickle.postgres.statements.window_rows import WindowRows
from pgtrickle.postgres.wire import definition
from pgtrickle.query.continued_windows import Extent, extent, shared_order

_MOST_BYTES = 1000
"""Of a value in a B-tree index: a third of a page is the most."""


def table_name(pgt_id: int, number: int) -> str:
    """Of the stream table's part of that number."""
    return f"{STATE_SCHEMA}.{quote(f's_{pgt_id}_{number}')}"


def create(connection: Connection, state: StateTable, *, looked_up: bool) -> None:
    """Creates the empty state table; `looked_up`: a join above finds groups by their keys."""
    columns = ", ".join(definition(column) for column in state_columns(state.aggregate))
    execute(connection, f"CREATE TABLE {state.name} (h bigint NOT NULL, {columns}) WITH (fillfactor = 70)")
    execute(connection, f"CREATE INDEX ON {state.name} (h)")
    if looked_up:
        for key in key_columns(state.aggregate):
            if fits_a_page(key.type):
                execute(connection, f"CREATE INDEX ON {state.name} ({quote(key.name)})")
            elif key.name in state.hashable:
                execute(connection, f"CREATE INDEX ON {state.name} USING hash ({quote(key.name)})")
                nulls = f"WHERE {quote(key.name)} IS NULL"  # which hash has not
                execute(connection, f"CREATE INDEX ON {state.name} (h) {nulls}")


def create_first_rows(connection: Connection, kept: FirstRows) -> None:
    """Creates the empty table of first rows."""
    definitions = ", ".join(definition(column) for column in kept.top.columns)
    execute(connection, f"CREATE TABLE {kept.name} ({definitions})")


def create_window_rows(connection: Connection, kept: WindowRows, *, looked_up: Iterable[str]) -> None:
    """Creates the empty table of a window's rows, by partition and, where one is not computed whole, by order; a join
    above finds them by the columns `looked_up`."""
    definitions = ", ".join(["h bigint NOT NULL", *map(definition, kept.window.columns)])
    execute(connection, f"CREATE TABLE {kept.name} ({definitions})")
    ordered = "" if extent(kept.window) is Extent.WHOLE else f", {index_columns(shared_order(kept.window))}"
    execute(connection, f"CREATE INDEX ON {kept.name} (h{ordered})")
    for name in looked_up:
        execute(connection, f"CREATE INDEX ON {kept.name} ({quote(name)})")


def create_recursive_rows(connection: Connection, kept: RecursiveRows) -> None:
    """Creates the empty table of a recursion's rows, with an index on each column that joins look for."""
    columns = ", ".join(definition(column) for column in recursion.state_columns(kept.node))
    execute(connection, f"CREATE TABLE {kept.name} (h bigint NOT NULL, {columns})")
    execute(connection, f"CREATE INDEX ON {kept.name} (h)")
    for name in sorted(kept.sought):
        execute(connection, f"CREATE INDEX ON {kept.name} USING hash ({quote(name)})")


def fits_a_page(type_: PgType) -> bool:
    """Whether a B-tree index can hold all values of the type. It is made in a fraction of the time that a hash index
    takes, and has the NULLs too."""
    return type_.most_bytes is not None and type_.most_bytes <= _MOST_BYTES


def drop(connection: Connection, pgt_id: int) -> None:
    """Drops all state tables of a stream table."""
    rows = connection.execute(
        "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = %s AND c.relkind = 'r' AND starts_with(c.relname, %s)",
        (STATE_SCHEMA, f"s_{pgt_id}_"),
    ).fetchall()
    for (name,) in rows:
        execute(connection, f"DROP TABLE {STATE_SCHEMA}.{quote(str(name))}")
