"""The statements that a task of the source runs, and their rows. They depend on snapshots alone, not on when they run.

    as it is       the table, in one transaction
    as of S        the table now, less all that changed after S
    (S0, S1]       what is visible in S1 and not in S0, added up: a row that came and went is not told

Rows are told apart by the forms that they travel in. A task takes those whose digest falls to it. Columns are numbered
within a statement, as names are the user's: a column may be called what a weight is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import adbc_driver_postgresql.dbapi as adbc
import pyarrow as pa

from pgtrickle import db
from pgtrickle.capture.buffer import SCHEMA, buffer_name
from pgtrickle.capture.change_window import Pending, changes_sql, pending_sql
from pgtrickle.errors import StateError
from pgtrickle.model import quote
from pgtrickle.refresh import follow
from pgtrickle.spark_source.columns import SourceColumn, converted

CHANGE_TYPE = "_change_type"
_WEIGHT = "w"
_UNDEFINED_TABLE = "42P01"


@dataclass(frozen=True, slots=True)
class Share:
    """What one task of several takes."""

    number: int
    of: int


def as_it_is(table: str, columns: Sequence[SourceColumn], within: str = "true") -> str:
    return f"SELECT {', '.join(c.asked(quote(c.name)) for c in columns)} FROM {table} WHERE {within}"


def as_of(table: str, relid: int, columns: Sequence[SourceColumn], snapshot: str, share: Share) -> str:
    """All rows as of the snapshot, as insertions."""
    forms = ", ".join(f"{c.asked(quote(c.name))} AS {n}" for c, n in zip(columns, _numbered(columns), strict=True))
    later = _changes(relid, columns, snapshot, None)
    taken_back = f"SELECT {', '.join(_numbered(columns))}, -{_WEIGHT} FROM ({later}) AS later"
    return _told(f"SELECT {forms}, 1::bigint AS {_WEIGHT} FROM {table} UNION ALL {taken_back}", columns, share)


def between(relid: int, columns: Sequence[SourceColumn], since: str, until: str, share: Share) -> str:
    """The changes of a window."""
    return _told(_changes(relid, columns, since, until), columns, share)


def _changes(relid: int, columns: Sequence[SourceColumn], since: str, until: str | None) -> str:
    numbered = list(zip(columns, _numbered(columns), strict=True))
    changes = changes_sql(relid, [(c.name, n) for c, n in numbered], since, until)
    return f"SELECT {', '.join(f'{c.asked(n)} AS {n}' for c, n in numbered)}, {_WEIGHT} FROM ({changes}) AS changed"


def _numbered(columns: Sequence[SourceColumn]) -> list[str]:
    return [f"c{place}" for place in range(len(columns))]


def _told(weighted: str, columns: Sequence[SourceColumn], share: Share) -> str:
    names = ", ".join(_numbered(columns))
    theirs = f"WHERE abs(hashtextextended(ROW({names})::text, 0) % {share.of}) = {share.number}" if share.of > 1 else ""
    net = f"SELECT {names}, sum({_WEIGHT}) AS {_WEIGHT} FROM ({weighted}) AS all_rows {theirs} GROUP BY {names}"
    return (
        f"SELECT {names}, CASE WHEN {_WEIGHT} > 0 THEN 'insert' ELSE 'delete' END"
        f" FROM ({net} HAVING sum({_WEIGHT}) <> 0) AS net CROSS JOIN generate_series(1, abs({_WEIGHT}))"
    )


@contextmanager
def reading(dsn: str) -> Iterator[adbc.Cursor]:
    """A cursor in one transaction, which reads as of its first query."""
    with adbc.connect(db.own_path_dsn(dsn), autocommit=True) as connection, connection.cursor() as cursor:
        for statement in db.session_sql():
            cursor.execute(statement)
        cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            yield cursor
        finally:
            cursor.execute("ROLLBACK")


def changes_since(cursor: adbc.Cursor, table: str, relid: int, since: str) -> int:
    """How many changes there are after a snapshot, up to where the cursor reads; StateError if they are not known. It
    comes first: table and buffer are locked before the cursor's snapshot is taken, so that it sees whether somebody has
    truncated or altered them. What that takes away, it takes from older snapshots too."""
    try:
        cursor.execute(f"LOCK TABLE {table}, {SCHEMA}.{buffer_name(relid)} IN ACCESS SHARE MODE")
        cursor.execute(pending_sql([relid], since).as_string())
        found = cursor.fetchone()
    except adbc.ProgrammingError as error:
        if error.sqlstate == _UNDEFINED_TABLE:
            raise follow.not_captured() from error
        raise
    assert found is not None
    _, changes, truncated, captured = found
    follow.require_whole(Pending(changes, truncated, captured))
    return int(changes)


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
