"""Arrow rows into a PostgreSQL table, by COPY in CSV: an unquoted empty field is NULL, a quoted one is empty text."""

from __future__ import annotations

import pyarrow as pa
from pyarrow import csv

from pgtrickle.db import Connection, statement
from pgtrickle.model import quote

_CHUNK = 50_000


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
