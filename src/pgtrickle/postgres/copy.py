"""Rows into a PostgreSQL table by COPY: from Arrow, or from a query of another session.

From Arrow they go as CSV: an unquoted empty field is NULL, a quoted one is empty text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from psycopg.abc import Buffer
from pyarrow import csv

from pgtrickle.db import Connection, statement
from pgtrickle.model import PgType, quote
from pgtrickle.postgres.wire import send
from pgtrickle.query.analyse.scratch_view import INTERVALS

_CHUNK = 50_000
_SENT = 1 << 16
"""Bytes that go at once from one session to the other."""
_COLUMNS = f"""
SELECT a.attname, {INTERVALS}
FROM pg_catalog.pg_attribute AS a JOIN pg_catalog.pg_type AS t ON t.oid = a.atttypid
WHERE a.attrelid = pg_catalog.to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""


def copy_arrow(connection: Connection, table: str, rows: pa.Table) -> None:
    """Appends the rows to `table` (SQL text), column by name."""
    columns = ", ".join(quote(name) for name in rows.column_names)
    options = csv.WriteOptions(include_header=False, batch_size=_CHUNK)
    with (
        connection.cursor() as cursor,
        cursor.copy(statement(f"COPY {table} ({columns}) FROM STDIN (FORMAT csv)")) as copy,
    ):
        for start in range(0, rows.num_rows, _CHUNK):
            sink = pa.BufferOutputStream()
            csv.write_csv(rows.slice(start, _CHUNK), sink, options)
            copy.write(sink.getvalue())


def pipe(source: Connection, query: str, target: Connection, table: str) -> None:
    """Streams the rows of a query on one connection into a table (SQL text) on another, column by place."""
    with (
        source.cursor() as out_cursor,
        target.cursor() as in_cursor,
        out_cursor.copy(statement(f"COPY ({_readable(query, target, table)}) TO STDOUT")) as outgoing,
        in_cursor.copy(statement(f"COPY {table} FROM STDIN")) as incoming,
    ):
        for block in _together(outgoing):
            incoming.write(block)


def _together(rows: Iterable[Buffer]) -> Iterator[bytes]:
    """A row comes as one message, and writing each by itself takes longer than reading it."""
    waiting, size = list[Buffer](), 0
    for row in rows:
        waiting.append(row)
        size += len(row)
        if size >= _SENT:
            yield b"".join(waiting)
            waiting, size = [], 0
    yield b"".join(waiting)


def _readable(query: str, target: Connection, table: str) -> str:
    """The query with values in a form that the table's types can read again: see `wire.send`."""
    found = target.execute(_COLUMNS.encode(), (table,)).fetchall()
    columns = [(quote(str(name)), PgType(0, "", intervals=str(intervals))) for name, intervals in found]
    if all(type_.intervals != "all" for _, type_ in columns):
        return query
    values = [send(name, type_) if type_.intervals == "all" else name for name, type_ in columns]
    return f"SELECT {', '.join(values)} FROM ({query}) AS piped({', '.join(name for name, _ in columns)})"
