"""Compares a stream table with its query as PostgreSQL itself evaluates it, at the table's own snapshot where it can.

The sources have moved on since that snapshot, but the buffers hold what happened since: a source as it was is the
source as it is, less the changes not yet applied. A table in FULL mode has no buffers; it is compared with the present.
"""

from __future__ import annotations

from dataclasses import dataclass

from psycopg import IsolationLevel

from pgtrickle.apply.merge import by_image
from pgtrickle.capture import window
from pgtrickle.capture.buffer import SCHEMA, buffer_name
from pgtrickle.catalog.reader import StreamTable
from pgtrickle.db import Connection, execute, scalar
from pgtrickle.model import quote
from pgtrickle.postgres.weighted import weigh
from pgtrickle.postgres.wire import send
from pgtrickle.query import render
from pgtrickle.query.operators import Operator, Scan
from pgtrickle.refresh.plan import result_columns, whole_sql
from pgtrickle.refresh.prepared import Prepared


@dataclass(frozen=True, slots=True)
class Verification:
    """The answer: rows the table lacks and rows it has too many, at its own snapshot or (`compared_with`) now."""

    table: str
    missing: int
    extra: int
    compared_with: str

    @property
    def equal(self) -> bool:
        return self.missing == 0 and self.extra == 0


def verify(connection: Connection, stream: StreamTable, prepared: Prepared) -> Verification:
    """Counts the differing rows; one consistent view of everything."""
    connection.isolation_level = IsolationLevel.REPEATABLE_READ
    try:
        with connection.transaction():
            if stream.effective_mode != "FULL":  # before the snapshot: a buffer truncated after it would read as empty
                buffers = ", ".join(f"{SCHEMA}.{buffer_name(table.oid)}" for table in prepared.sources)
                execute(connection, f"LOCK TABLE {buffers} IN ACCESS SHARE MODE")
            frontier = str(
                scalar(
                    connection, f"SELECT frontier::text FROM pgtrickle.pgt_stream_tables WHERE pgt_id = {stream.pgt_id}"
                )
            )
            incremental = stream.effective_mode != "FULL" and stream.is_populated
            truncated = incremental and any(
                found.truncated
                for found in window.pending(connection, [t.oid for t in prepared.sources], frontier).values()
            )
            if incremental and not truncated:
                expected, compared_with = _query_at(prepared, frontier), "its snapshot"
            else:
                expected, compared_with = whole_sql(prepared), "the present"
            missing, extra = _differences(connection, prepared, expected)
    finally:
        connection.isolation_level = None
    return Verification(str(stream), missing, extra, compared_with)


def _query_at(prepared: Prepared, frontier: str) -> str:
    """The query over the sources as they were at the frontier."""

    def source_before(operator: Operator) -> str | None:
        if not isinstance(operator, Scan):
            return None
        attributes = list(zip(operator.attributes, operator.names, strict=True))
        now = ", ".join([*(f"{quote(a)} AS {quote(n)}" for a, n in attributes), "1::bigint AS w"])
        changes = window.changes_sql(operator.table.oid, attributes, frontier)
        undone = ", ".join([*map(quote, operator.names), "-w AS w"])
        rows = f"SELECT {now} FROM {operator.table.qualified} UNION ALL SELECT {undone} FROM ({changes}) AS since"
        names = ", ".join(quote(name) for name in operator.names)
        return f"SELECT {names} FROM ({by_image(rows, operator.columns)}) AS was CROSS JOIN generate_series(1, was.w)"

    return render.select(prepared.tree, leaf=source_before)


def _differences(connection: Connection, prepared: Prepared, expected: str) -> tuple[int, int]:
    """Missing and extra rows as EXCEPT ALL counts them: by value, or by text where a type has no equality."""
    columns = result_columns(prepared)
    pairs = list(zip(prepared.storage.columns, columns, strict=True))
    mine = ", ".join(f"{quote(stored.name)} AS {quote(column.name)}" for stored, column in pairs)
    actual = f"SELECT {mine} FROM {prepared.storage.qualified}"
    names = [column.name for column in columns]
    both = f"{weigh(expected, names)} UNION ALL {weigh(actual, names, -1)}"
    hashable = prepared.storage.hashable
    keys = [quote(c.name) if place in hashable else send(quote(c.name), c.type) for place, c in enumerate(columns)]
    group = f" GROUP BY {', '.join(keys)}" if keys else ""
    totals = (
        "SELECT ARRAY[coalesce(sum(w) FILTER (WHERE w > 0), 0), coalesce(-sum(w) FILTER (WHERE w < 0), 0)]::bigint[] "
        f"FROM (SELECT sum(w) AS w FROM ({both}) AS rows{group}) AS differences"
    )
    found = scalar(connection, totals)
    assert isinstance(found, list)
    return int(found[0]), int(found[1])
