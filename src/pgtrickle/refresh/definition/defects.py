"""What is missing of a stream table, because someone has dropped or deleted it by hand. Asked by the repair.

A refresh notices most of it by itself. This looks at all of it, whether a refresh is due or not, and changes nothing.
"""

from __future__ import annotations

from pgtrickle.capture import buffer, change_window
from pgtrickle.catalog import reader as catalog
from pgtrickle.catalog.reader import StreamTable
from pgtrickle.db import Connection
from pgtrickle.model import Table
from pgtrickle.postgres.statements.result import Storage
from pgtrickle.refresh.immediate import install
from pgtrickle.refresh.prepared import Prepared

_ROW_INDEX = """
SELECT FROM pg_catalog.pg_index AS x
WHERE x.indrelid = %s AND x.indisvalid AND pg_catalog.pg_get_indexdef(x.indexrelid) LIKE '%%hash\\_record\\_extended(%%'
"""


def find(connection: Connection, stream: StreamTable, prepared: Prepared) -> tuple[str, ...]:
    """Each defect in words; none if there is nothing that a refresh would lack."""
    found = []
    recorded = {each.source_relid for each in catalog.dependencies(connection, stream.pgt_id)}
    if recorded != {table.oid for table in prepared.sources}:
        found.append("not all of its sources were on record")
    if stream.effective_mode == "FULL":
        return tuple(found)
    if not prepared.fits:
        found.append("a state table was missing")
    if stream.is_immediate:
        missed = install.defect(connection, stream, prepared)
        return (*found, missed) if missed is not None else tuple(found)
    for table, source in prepared.compiled.followed.items():
        columns = {column.name for column in source.columns}
        if (defect := _of_capture(connection, table, columns, stream.frontier)) is not None:
            found.append(defect)
    return tuple(found)


def has_row_index(connection: Connection, relid: int) -> bool:
    """Whether the table has the index by which its rows are found: only a stream table's own does."""
    return bool(connection.execute(_ROW_INDEX, (relid,)).rowcount)


def needs_row_index(storage: Storage) -> bool:
    return bool(storage.hashable)


def _of_capture(connection: Connection, table: Table, columns: set[str], frontier: str) -> str | None:
    tracking = catalog.tracking(connection, table.oid)
    if tracking is None:
        return f"{table} was not captured"
    if not buffer.exists(connection, table.oid):
        return f"the change buffer of {table} was missing"
    if not columns <= set(tracking.columns):
        return f"not all columns of {table} that it reads were captured"
    if change_window.pending(connection, [table.oid], frontier)[table.oid].captured:
        return None
    if tracking.cdc_mode == "WAL":
        return f"the slot, the publication or a trigger of {table} was missing"
    return f"a capture trigger of {table} was missing or disabled"
