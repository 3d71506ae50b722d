"""Compares a stream table with its query as PostgreSQL itself evaluates it, at the table's own snapshot where it can.

The sources have moved on since that snapshot, but the buffers hold what happened since: a source as it was is the
source as it is, less the changes not yet applied. Changes that are decoded come later than our snapshot: they are
brought into it by a copy. A table in FULL mode has no buffers; it is compared with the present.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass

from pgtrickle.apply import storage
from pgtrickle.capture.buffer import SCHEMA, buffer_name
from pgtrickle.catalog.reader import StreamTable
from pgtrickle.db import Connection, execute, scalar
from pgtrickle.errors import StateError
from pgtrickle.model import quote
from pgtrickle.postgres.weighted import weigh
from pgtrickle.postgres.wire import send
from pgtrickle.query import render
from pgtrickle.query.operators import Operator, Scan
from pgtrickle.refresh.connections import Connections
from pgtrickle.refresh.lock import wait_for_refresh
from pgtrickle.refresh.plan import result_columns, whole_sql
from pgtrickle.refresh.prepared import Prepared
from pgtrickle.refresh.window import Behind, Window, at_snapshot, await_decoder, copied, moved, opened
from pgtrickle.spark.flow import Place


@dataclass(frozen=True, slots=True)
class Verification:
    """The answer: rows the table lacks and rows it has too many, at its own snapshot or (`compared_with`) now."""

    table: str
    missing: int
    extra: int
    compared_with: str
    error: str | None = None
    """Why it could not be compared."""

    @property
    def equal(self) -> bool:
        return self.error is None and self.missing == 0 and self.extra == 0


def verify(connections: Connections, stream: StreamTable, prepared: Prepared, patience_s: float) -> Verification:
    """Counts the differing rows; one consistent view of everything. Waits for the decoder as a refresh does."""
    found = _verify(connections, stream, prepared)
    if found is None:  # there are changes still to be decoded: no refresh may clean them away while we wait
        with connections.writer.transaction():
            wait_for_refresh(connections.writer, stream.pgt_id, str(stream))
            found = _verify(connections, stream, prepared, patience_s)
        assert found is not None, "with patience there is an answer"
    return found


def _verify(
    connections: Connections, stream: StreamTable, prepared: Prepared, patience_s: float | None = None
) -> Verification | None:
    """The answer; None if it takes patience and there is none."""
    reader = connections.reader
    with ExitStack() as stack:
        stack.enter_context(reader.transaction())
        storage.lock_to_read(reader, stream.pgt_relid, prepared.storage)
        if stream.effective_mode == "FULL" or not stream.is_populated:
            return _answer(reader, stream, prepared, whole_sql(prepared), "the present")
        buffers = ", ".join(f"{SCHEMA}.{buffer_name(table.oid)}" for table in prepared.sources)
        # Before the snapshot: a buffer truncated after it would read as empty.
        execute(reader, f"LOCK TABLE {buffers} IN ACCESS SHARE MODE")
        window = _since_last_refresh(connections, stream, prepared)
        if not window.is_complete:
            if patience_s is None:
                return None
            window = stack.enter_context(opened(_completed(window, stream, patience_s)))
        pending = window.pending()
        if any(found.truncated for found in pending.values()):
            return _answer(reader, stream, prepared, whole_sql(prepared), "the present")
        _require_captured(stream, prepared, [oid for oid, found in pending.items() if not found.captured])
        return _answer(reader, stream, prepared, _query_at(reader, prepared, window), "its snapshot")


def _require_captured(stream: StreamTable, prepared: Prepared, missed: Collection[int]) -> None:
    """Without all changes since its snapshot, what the sources were then is not known."""
    if missed:
        names = ", ".join(str(table) for table in prepared.sources if table.oid in missed)
        raise StateError(
            f"{stream} cannot be compared at its snapshot: changes of {names} were not captured for a time",
            code="PT346",
            hint="Refresh it: it is computed anew.",
        )


def _since_last_refresh(connections: Connections, stream: StreamTable, prepared: Prepared) -> Window:
    row = connections.reader.execute(
        "SELECT frontier::text, coalesce(upstream_frontier, frontier)::text, pg_current_snapshot()::text"
        " FROM pgtrickle.pgt_stream_tables WHERE pgt_id = %s",
        (stream.pgt_id,),
    ).fetchone()
    if row is None:
        raise StateError("the stream table was dropped", code="PT301", hint="`pgtrickle status` lists them all.")
    frontier, upstream_frontier, now = map(str, row)
    since = {t.oid: upstream_frontier if t.oid in prepared.upstream else frontier for t in prepared.sources}
    return at_snapshot(connections, since, now)


def _completed(window: Window, stream: StreamTable, patience_s: float) -> Window:
    try:
        return await_decoder(window, patience_s)
    except Behind as behind:
        raise StateError(
            f"{stream} cannot be compared at its snapshot: {behind}",
            code="PT346",
            hint="`pgtrickle cdc` shows how far the decoder is.",
        ) from behind


def _query_at(reader: Connection, prepared: Prepared, window: Window) -> str:
    """The query over the sources as they were at the window's start."""

    def source_before(operator: Operator) -> str | None:
        if not isinstance(operator, Scan):
            return None
        attributes = list(zip(operator.attributes, operator.names, strict=True))
        changes = window.changes_sql(operator.table.oid, attributes)
        place = window.spans[operator.table.oid].place
        if place is not Place.SNAPSHOT:
            changes = f"SELECT * FROM {copied(window.connection(place), changes, reader)}"
        return moved(operator, changes, -1)

    return render.select(prepared.tree, leaf=source_before)


def _answer(
    connection: Connection, stream: StreamTable, prepared: Prepared, expected: str, compared_with: str
) -> Verification:
    storage.require_named(connection, stream.pgt_relid, prepared.storage)
    missing, extra = _differences(connection, prepared, expected)
    return Verification(str(stream), missing, extra, compared_with)


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
