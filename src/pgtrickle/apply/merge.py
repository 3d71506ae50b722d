"""Changes the stream table: takes a weighted relation, consolidates it, deletes and inserts just those rows.

Where a key of rows is given (`stays.py`), a row that goes and one that comes with the same key are one that is updated.

Rows are told apart by their image, so `1.0` becoming `1.00` is a change, and duplicates are deleted by number. A row to
delete is found by its 64-bit hash through an index and compared whole: a collision costs time, never data. Rows of
tables that inherit from the stream table are not its own, and are left alone (ONLY).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import psycopg

from pgtrickle.db import Connection, execute, scalar
from pgtrickle.errors import StateError
from pgtrickle.model import Column, quote
from pgtrickle.postgres.wire import WEIGHT, Wire, definition, receive, send, wire

_APPLY = "pg_temp.pgt_apply"
_PAIRS = "pg_temp.pgt_pairs"
Key: TypeAlias = frozenset[int] | None
"""The positions of the columns by which rows stay themselves; None: none do."""


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


def apply_delta(
    writer: Connection, storage: Storage, relation: str, columns: tuple[Column, ...], key: Key = None
) -> Applied:
    """Applies weighted rows; `columns` are their names, in the order of the storage's. An updated row counts as one
    deleted and one inserted."""
    names = tuple(column.name for column in columns)
    execute(writer, f"CREATE TEMPORARY TABLE pgt_apply ON COMMIT DROP AS {by_image(relation, columns)}")
    paired = 0 if key is None or len(key) == len(names) else _take_pairs(writer, storage, names, key)
    deleted = _delete(writer, storage, names)
    updated = _update(writer, storage, names, key, paired) if key is not None and paired else 0
    deleted += _delete(writer, storage, names) if paired and not updated else 0
    applied = Applied(_insert(writer, storage, names) + updated, deleted + updated)
    execute(writer, f"DROP TABLE {_APPLY}")  # another table's turn may come in the same transaction
    if paired:
        execute(writer, f"DROP TABLE {_PAIRS}")
    return applied


def replace(
    writer: Connection, storage: Storage, relation: str, columns: tuple[Column, ...], key: Key = None
) -> Applied:
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
        applied = apply_delta(writer, storage, difference, columns, key)
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
        raise _missing(f"{expected} rows were to be deleted from", storage, deleted)
    return deleted


def _missing(what: str, storage: Storage, found: int) -> StateError:
    return StateError(
        f"{what} {storage.schema}.{storage.name}, but only {found} are there",
        code="PT330",
        hint="if somebody changed the stream table by hand: the next refresh computes it anew",
    )


def _take_pairs(writer: Connection, storage: Storage, names: tuple[str, ...], key: frozenset[int]) -> int:
    """Moves the rows that stay from those to apply to a table of pairs, old and new values; returns how many. Where
    several rows of a key go or come, it is not known which became which."""
    columns = [Column(name, column.type) for name, column in zip(names, storage.columns, strict=True)]
    forms = ", ".join(_form(columns[place]) for place in sorted(key))
    sides = ", ".join(
        f"{side}.{quote(name)} AS {side}{place}" for side in ("o", "n") for place, name in enumerate(names)
    )
    execute(
        writer,
        f"CREATE TEMPORARY TABLE pgt_pairs ON COMMIT DROP AS WITH pair AS ("
        f"SELECT (array_agg(ctid) FILTER (WHERE {WEIGHT} < 0))[1] AS old_row, "
        f"(array_agg(ctid) FILTER (WHERE {WEIGHT} > 0))[1] AS new_row FROM {_APPLY}"
        f"{f' GROUP BY {forms}' if forms else ''} HAVING count(*) = 2 AND min({WEIGHT}) = -1 AND max({WEIGHT}) = 1) "
        f"SELECT p.old_row, p.new_row, {sides} FROM pair AS p "
        f"JOIN {_APPLY} AS o ON o.ctid = p.old_row JOIN {_APPLY} AS n ON n.ctid = p.new_row",
    )
    taken = execute(
        writer,
        f"DELETE FROM {_APPLY} WHERE ctid = ANY (ARRAY("
        f"SELECT old_row FROM {_PAIRS} UNION ALL SELECT new_row FROM {_PAIRS}))",
    )
    if not taken:
        execute(writer, f"DROP TABLE {_PAIRS}")
    return taken // 2


def _update(writer: Connection, storage: Storage, names: tuple[str, ...], key: frozenset[int], paired: int) -> int:
    """Gives rows that stay their new values; returns how many. None, if a unique key of the user's is in the way, as
    where two rows swap values: then they are put back, to be deleted and inserted."""
    places = range(len(names))
    mine = ", ".join(_form(column, "t.") for column in storage.columns)
    theirs = ", ".join(_form(Column(f"o{place}", storage.columns[place].type), "g.") for place in places)
    values = ", ".join(f"{quote(storage.columns[place].name)} = h.n{place}" for place in places if place not in key)
    targets = tuple(column.name for column in storage.columns)
    statement = (
        f"WITH hit AS (SELECT g.*, t.ctid AS tid, row_number() OVER (PARTITION BY g.old_row) AS found "
        f"FROM {_PAIRS} AS g JOIN ONLY {storage.qualified} AS t "
        f"ON {storage.row_hash(targets, 't.')} = {storage.row_hash(tuple(f'o{place}' for place in places), 'g.')} "
        f"AND ROW({mine})::record *= ROW({theirs})::record) "
        f"UPDATE ONLY {storage.qualified} AS s SET {values} FROM hit AS h WHERE s.ctid = h.tid AND h.found = 1"
    )
    try:
        with writer.transaction():
            updated = execute(writer, statement)
    except (psycopg.errors.UniqueViolation, psycopg.errors.ExclusionViolation):
        old, new = (", ".join(f"{side}{place}" for place in places) for side in ("o", "n"))
        execute(writer, f"DELETE FROM {_APPLY} WHERE {WEIGHT} < 0")  # these are gone by now
        execute(writer, f"INSERT INTO {_APPLY} SELECT {old}, -1 FROM {_PAIRS} UNION ALL SELECT {new}, 1 FROM {_PAIRS}")
        return 0
    if updated != paired:
        raise _missing(f"{paired} rows were to be updated in", storage, updated)
    return updated


def _insert(writer: Connection, storage: Storage, names: tuple[str, ...]) -> int:
    targets = ", ".join(quote(column.name) for column in storage.columns)
    values = ", ".join(f"a.{quote(name)}" for name in names)
    return execute(
        writer,
        f"INSERT INTO {storage.qualified} ({targets}) "
        f"SELECT {values} FROM {_APPLY} AS a CROSS JOIN generate_series(1, a.{WEIGHT}) WHERE a.{WEIGHT} > 0",
    )
