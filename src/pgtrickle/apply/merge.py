"""Makes and changes a stream table's own table: its DDL, and the statements of `postgres/statements/result.py`, run."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import uuid4

from pgtrickle.apply.indexes import has_row_index
from pgtrickle.apply.run import run
from pgtrickle.db import Connection, execute
from pgtrickle.model import STREAM_TABLE_COMMENT, Column
from pgtrickle.postgres.statements import result
from pgtrickle.postgres.statements.result import DELETED, INSERTED, Key, Storage
from pgtrickle.postgres.statements.script import Scratch, Script
from pgtrickle.postgres.wire import definition


@dataclass(frozen=True, slots=True)
class Applied:
    """How many rows went in and out."""

    inserted: int
    deleted: int


def create(connection: Connection, storage: Storage, *, indexed: bool = True) -> None:
    """Creates the stream table: exactly the user's columns, our index to find rows, a comment until a user has one.
    Without the index if it is filled next: that makes it after the rows, which takes less."""
    columns = ", ".join(definition(column) for column in storage.columns)
    execute(connection, f"CREATE TABLE {storage.qualified} ({columns})")
    execute(connection, f"COMMENT ON TABLE {storage.qualified} IS '{STREAM_TABLE_COMMENT}'")
    if indexed:
        index(connection, storage)


def index(connection: Connection, storage: Storage) -> None:
    """Our index to find rows by, if they have anything to find them by."""
    names = tuple(column.name for column in storage.columns)
    if storage.hashable:
        execute(connection, f"CREATE INDEX ON {storage.qualified} (({storage.row_hash(names)}))")


def apply_delta(
    writer: Connection, storage: Storage, relation: str, columns: tuple[Column, ...], key: Key = None
) -> Applied:
    """Applies weighted rows; `columns` are their names, in the order of the storage's. An updated row counts as one
    deleted and one inserted."""
    return _run(writer, result.apply_delta(storage, relation, columns, unique_names(), key, once=True))


def replace(
    writer: Connection, storage: Storage, relation: str, columns: tuple[Column, ...], key: Key = None
) -> Applied:
    """Makes the table equal to the relation (rows of weight one) by applying only what differs, and makes its index if
    it has none."""
    applied = _run(writer, result.replace_all(storage, relation, columns, unique_names(), key))
    if storage.hashable and not has_row_index(writer, storage.qualified):
        index(writer, storage)
    if applied.inserted or applied.deleted:
        execute(writer, f"ANALYZE {storage.qualified}")
    return applied


def unique_names() -> Scratch:
    """Names of temporary tables that nothing else in the session has."""
    return Scratch(uuid4().hex[:12])


def _run(writer: Connection, script: Script) -> Applied:
    counted = run(writer, script)
    return Applied(counted[INSERTED], counted[DELETED])
