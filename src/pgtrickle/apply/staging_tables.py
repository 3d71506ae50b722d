"""Tables that hold rows on their way into the result: temporary ones for small results, unlogged ones for large.

A temporary table lives in the refresh's own transaction. An unlogged one is written by Spark's tasks and committed
before it is read, so a crash can leave it behind; `drop_orphans` removes those at the table's next refresh.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import uuid4

from pgtrickle.db import Connection, execute
from pgtrickle.model import Column, quote
from pgtrickle.postgres.wire import WEIGHT, definition

if TYPE_CHECKING:
    import pyarrow as pa

STATE_SCHEMA = "pgtrickle_state"


def land_arrow(writer: Connection, table: str, columns: Sequence[Column], rows: pa.Table) -> None:
    """A temporary table of that name with the rows."""
    from pgtrickle.postgres.copy import copy_arrow  # here, so that reading the catalog does not load Arrow

    create_landing(writer, table, columns)
    copy_arrow(writer, table, rows.select([*(column.name for column in columns), WEIGHT]))


def create_landing(writer: Connection, table: str, columns: Sequence[Column]) -> None:
    """An empty temporary table of that name, for weighted rows."""
    execute(writer, f"CREATE TEMPORARY TABLE {table} ({_definitions(columns)}) ON COMMIT DROP")


def create_staging(connection: Connection, pgt_id: int, columns: Sequence[Column]) -> str:
    """An unlogged table for tasks to fill, committed at once; returns its name."""
    table = f"{STATE_SCHEMA}.{quote(f'stage_{pgt_id}_{uuid4().hex[:12]}')}"
    execute(
        connection,
        f"CREATE UNLOGGED TABLE {table} ({_definitions(columns)}, attempt bigint) WITH (autovacuum_enabled = off)",
    )
    return table


def drop_staging(connection: Connection, table: str) -> None:
    execute(connection, f"DROP TABLE IF EXISTS {table}")


def drop_orphans(connection: Connection, pgt_id: int) -> list[str]:
    """Drops what a killed refresh of this stream table left behind. The caller holds the table's refresh lock."""
    found = connection.execute(
        "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = %s AND c.relkind = 'r' AND starts_with(c.relname, %s)",
        (STATE_SCHEMA, f"stage_{pgt_id}_"),
    ).fetchall()
    names = [str(row[0]) for row in found]
    for name in names:
        drop_staging(connection, f"{STATE_SCHEMA}.{quote(name)}")
    return names


def _definitions(columns: Sequence[Column]) -> str:
    return ", ".join([*(definition(column) for column in columns), f"{WEIGHT} bigint NOT NULL"])
