"""The statements that a task of the source runs, and their rows. They depend on snapshots alone, not on when they run.

    as it is       the table, in one transaction
    as of S        the table now, less all that changed after S
    (S0, S1]       what is visible in S1 and not in S0, added up: a row that came and went is not told

Rows are told apart by the forms that they travel in. A task takes those whose digest falls to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import adbc_driver_postgresql.dbapi as adbc
import pyarrow as pa

from pgtrickle import db
from pgtrickle.capture.buffer import SCHEMA, buffer_name
from pgtrickle.capture.change_window import changes_sql, in_window
from pgtrickle.errors import StateError
from pgtrickle.model import quote
from pgtrickle.spark_source.columns import SourceColumn, converted

CHANGE_TYPE = "_change_type"
_WEIGHT = "w"


@dataclass(frozen=True, slots=True)
class Share:
    """What one task of several takes."""

    number: int
    of: int


def as_it_is(table: str, columns: Sequence[SourceColumn], within: str = "true") -> str:
    return f"SELECT {', '.join(c.asked for c in columns)} FROM {table} WHERE {within}"


def as_of(table: str, relid: int, columns: Sequence[SourceColumn], snapshot: str, share: Share) -> str:
    """All rows as of the snapshot, as insertions."""
    forms = ", ".join(c.asked for c in columns)
    later = _changes(relid, columns, snapshot, None)
    return _told(
        f"SELECT {forms}, 1::bigint AS {_WEIGHT} FROM {table} UNION ALL {_taken_back(later, columns)}", columns, share
    )


def between(relid: int, columns: Sequence[SourceColumn], since: str, until: str, share: Share) -> str:
    """The changes of a window."""
    return _told(_changes(relid, columns, since, until), columns, share)


def changed_after(relid: int, snapshot: str) -> str:
    """Whether anything did."""
    return f"SELECT EXISTS (SELECT FROM {SCHEMA}.{buffer_name(relid)} WHERE {in_window(snapshot, None, None)})"


def _changes(relid: int, columns: Sequence[SourceColumn], since: str, until: str | None) -> str:
    changes = changes_sql(relid, [(c.name, c.name) for c in columns], since, until)
    return f"SELECT {', '.join(c.asked for c in columns)}, {_WEIGHT} FROM ({changes}) AS changed"


def _taken_back(changes: str, columns: Sequence[SourceColumn]) -> str:
    return f"SELECT {', '.join(quote(c.name) for c in columns)}, -{_WEIGHT} FROM ({changes}) AS later"


def _told(weighted: str, columns: Sequence[SourceColumn], share: Share) -> str:
    names = ", ".join(quote(c.name) for c in columns)
    theirs = f"WHERE abs(hashtextextended(ROW({names})::text, 0) % {share.of}) = {share.number}" if share.of > 1 else ""
    net = f"SELECT {names}, sum({_WEIGHT}) AS {_WEIGHT} FROM ({weighted}) AS all_rows {theirs} GROUP BY {names}"
    return (
        f"SELECT {names}, CASE WHEN {_WEIGHT} > 0 THEN 'insert' ELSE 'delete' END"
        f" FROM ({net} HAVING sum({_WEIGHT}) <> 0) AS net CROSS JOIN generate_series(1, abs({_WEIGHT}))"
    )


@contextmanager
def reading(dsn: str) -> Iterator[adbc.Cursor]:
    """A cursor in one transaction, which reads as of its beginning."""
    with adbc.connect(db.own_path_dsn(dsn), autocommit=True) as connection, connection.cursor() as cursor:
        for statement in db.session_sql():
            cursor.execute(statement)
        cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            yield cursor
        finally:
            cursor.execute("ROLLBACK")


def fetched(
    cursor: adbc.Cursor, query: str, columns: Sequence[SourceColumn], *, change: str | None = None, told: bool = False
) -> Iterator[pa.RecordBatch]:
    """The rows of a statement as Spark wants them. `told`: how each has changed comes last."""
    names = [c.name for c in columns] + ([CHANGE_TYPE] if told or change else [])
    try:
        cursor.execute(query)
        for batch in cursor.fetch_record_batch():
            arrays = converted(batch, columns)
            if told:
                arrays.append(batch.column(len(columns)))
            elif change:
                arrays.append(pa.array([change] * batch.num_rows, pa.string()))
            yield pa.RecordBatch.from_arrays(arrays, names=names)
    except adbc.DataError as error:
        raise StateError(
            f"the stream table has a value that Spark cannot hold: {error}",
            code="PT561",
            hint="Cast the column to text in the query of the stream table.",
        ) from error
