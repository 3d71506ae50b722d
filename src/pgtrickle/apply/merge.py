"""Changes the stream table: takes a weighted relation, consolidates it, deletes and inserts just those rows.

Rows are told apart by their image, so `1.0` becoming `1.00` is a change, and duplicates are deleted by number. A row to
delete is found by its 64-bit hash through an index and compared whole: a collision costs time, never data. Rows of
tables that inherit from the stream table are not its own, and are left alone (ONLY).
"""

from __future__ import annotations

from dataclasses import dataclass

from pgtrickle.db import Connection, execute, scalar
from pgtrickle.errors import StateError
from pgtrickle.model import Column, quote
from pgtrickle.postgres.wire import WEIGHT, Wire, definition, receive, send, wire

_APPLY = "pg_temp.pgt_apply"


@dataclass(frozen=True, slots=True)
class Storage:
    """A stream table's own table; `columns` carry the user's names, `hashable` the positions with a hash function."""

    schema: str
    name: str
    columns: tuple[Column, ...]
    hashable: frozenset[int]

    @property
    def qualified(self) -> str:
        return f"{quote(self.schema)}.{quote(self.name)}"

    def row_hash(self, names: tuple[str, ...], alias: str = "") -> str:
        usable = [f"{alias}{quote(name)}" for position, name in enumerate(names) if position in self.hashable]
        return f"hash_record_extended(ROW({', '.join(usable)}), 0)" if usable else "0::bigint"


@dataclass(frozen=True, slots=True)
class Applied:
    """How many rows went in and out."""

    inserted: int
    deleted: int


def create(connection: Connection, storage: Storage) -> None:
    """Creates the stream table: exactly the user's columns, and our index to find rows."""
    columns = ", ".join(definition(column) for column in storage.columns)
    execute(connection, f"CREATE TABLE {storage.qualified} ({columns})")
    index(connection, storage)


def index(connection: Connection, storage: Storage) -> None:
    """Our index to find rows by, if they have anything to find them by."""
    names = tuple(column.name for column in storage.columns)
    if storage.hashable:
        execute(connection, f"CREATE INDEX ON {storage.qualified} (({storage.row_hash(names)}))")


def apply_delta(writer: Connection, storage: Storage, relation: str, columns: tuple[Column, ...]) -> Applied:
    """Applies weighted rows; `columns` are their names, in the order of the storage's."""
    names = tuple(column.name for column in columns)
    execute(writer, f"CREATE TEMPORARY TABLE pgt_apply ON COMMIT DROP AS {by_image(relation, columns)}")
    deleted = _delete(writer, storage, names)
    applied = Applied(_insert(writer, storage, names), deleted)
    execute(writer, f"DROP TABLE {_APPLY}")  # another table's turn may come in the same transaction
    return applied


def replace(writer: Connection, storage: Storage, relation: str, columns: tuple[Column, ...]) -> Applied:
    """Makes the table equal to the relation (rows of weight one) by applying only what differs."""
    targets = ", ".join(quote(column.name) for column in storage.columns)
    names = ", ".join(quote(column.name) for column in columns)
    if not scalar(writer, f"SELECT EXISTS (SELECT FROM ONLY {storage.qualified})"):
        inserted = execute(
            writer, f"INSERT INTO {storage.qualified} ({targets}) SELECT {names} FROM ({relation}) AS rows"
        )
        applied = Applied(inserted, 0)
    else:
        current = ", ".join(
            f"{quote(mine.name)} AS {quote(theirs.name)}" for mine, theirs in zip(storage.columns, columns, strict=True)
        )
        difference = (
            f"SELECT {names}, {WEIGHT} FROM ({relation}) AS rows "
            f"UNION ALL SELECT {current}, -1::bigint FROM ONLY {storage.qualified}"
        )
        applied = apply_delta(writer, storage, difference, columns)
    if applied.inserted or applied.deleted:
        execute(writer, f"ANALYZE {storage.qualified}")
    return applied


def by_image(relation: str, columns: tuple[Column, ...]) -> str:
    """Rows with the same image added up: grouped by their lossless text form, since `=` may hold for other digits."""
    forms = [_form(column) for column in columns]
    grouped = ", ".join([*(f"{form} AS {quote(c.name)}" for form, c in zip(forms, columns, strict=True)), WEIGHT])
    restored = [f"{receive(quote(c.name), c.type)} AS {quote(c.name)}" for c in columns]
    group = f" GROUP BY {', '.join(quote(c.name) for c in columns)}" if columns else ""
    return (
        f"SELECT {', '.join([*restored, f'sum({WEIGHT})::bigint AS {WEIGHT}'])} "
        f"FROM (SELECT {grouped} FROM ({relation}) AS rows) AS forms{group} HAVING sum({WEIGHT}) <> 0"
    )


def _form(column: Column, alias: str = "") -> str:
    """The column as something that is equal only for equal images."""
    name = alias + quote(column.name)
    if wire(column.type) is not Wire.TEXT:
        return name
    return f'({send(name, column.type)}) COLLATE "C"'


def _delete(writer: Connection, storage: Storage, names: tuple[str, ...]) -> int:
    expected = scalar(writer, f"SELECT coalesce(-sum({WEIGHT}), 0) FROM {_APPLY} WHERE {WEIGHT} < 0")
    if not expected:
        return 0
    targets = tuple(column.name for column in storage.columns)
    mine = ", ".join(_form(column, "t.") for column in storage.columns)
    theirs = ", ".join(
        _form(Column(name, column.type), "g.") for name, column in zip(names, storage.columns, strict=True)
    )
    deleted = execute(
        writer,
        f"WITH gone AS MATERIALIZED (SELECT *, row_number() OVER () AS pgt_row FROM {_APPLY} WHERE {WEIGHT} < 0), "
        f"hit AS (SELECT t.ctid AS tid, -g.{WEIGHT} AS wanted, row_number() OVER (PARTITION BY g.pgt_row) AS found "
        f"FROM gone AS g JOIN ONLY {storage.qualified} AS t "
        f"ON {storage.row_hash(targets, 't.')} = {storage.row_hash(names, 'g.')} "
        f"AND ROW({mine})::record *= ROW({theirs})::record) "
        f"DELETE FROM ONLY {storage.qualified} WHERE ctid = ANY (ARRAY(SELECT tid FROM hit WHERE found <= wanted))",
    )
    if deleted != int(str(expected)):
        raise StateError(
            f"{expected} rows were to be deleted from {storage.schema}.{storage.name}, but only {deleted} are there",
            code="PT330",
            hint="if somebody changed the stream table by hand: the next refresh computes it anew",
        )
    return deleted


def _insert(writer: Connection, storage: Storage, names: tuple[str, ...]) -> int:
    targets = ", ".join(quote(column.name) for column in storage.columns)
    values = ", ".join(f"a.{quote(name)}" for name in names)
    return execute(
        writer,
        f"INSERT INTO {storage.qualified} ({targets}) "
        f"SELECT {values} FROM {_APPLY} AS a CROSS JOIN generate_series(1, a.{WEIGHT}) WHERE a.{WEIGHT} > 0",
    )
