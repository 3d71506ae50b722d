"""The rows of a stream table against those of a view of its query: by `=`, and by the text of every value.

`=` holds 1.0 and 1.00, 0.0 and -0.0, '1 month' and '30 days' for the same; a reader of the table does not. A query may
leave open which of the equal values it shows (the key of a group, a minimum), so the two are counted apart. Called by
`verify.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg import sql

from pgtrickle.catalog.reader import StreamTable
from pgtrickle.db import OWN_PATH, Connection
from pgtrickle.errors import StateError
from pgtrickle.query.analyse.scratch_view import ScratchView

_EXPECTED: Final = "pgtrickle_expected"
Share = tuple[int, int]
"""One in so many rows, by the hash of the row's text: (how many parts, which of them)."""


@dataclass(frozen=True, slots=True)
class Differences:
    """`missing` and `extra` rows by `=` (by text, where a type has no equality); `looks`: equal but not as text."""

    missing: int
    extra: int
    looks: int


def compare(conn: Connection, stream: StreamTable, view: sql.Composable, share: Share | None = None) -> Differences:
    """What the stream table has otherwise than the view, in the caller's transaction. The view is evaluated once, as a
    refresh does it: under our own search path. With a `share`, nothing if that share of the rows is equal."""
    place = ScratchView(conn)
    before = place.search_path()
    place.use_search_path(OWN_PATH)
    conn.execute(
        sql.SQL("CREATE TEMPORARY TABLE pg_temp.{} ON COMMIT DROP AS SELECT * FROM {}").format(
            sql.Identifier(_EXPECTED), view
        )
    )
    try:
        return _differences(conn, stream, share)
    finally:
        if conn.info.transaction_status != psycopg.pq.TransactionStatus.INERROR:
            conn.execute(sql.SQL("DROP TABLE pg_temp.{}").format(sql.Identifier(_EXPECTED)))
            place.use_search_path(before)


def _differences(conn: Connection, stream: StreamTable, share: Share | None) -> Differences:
    expected = _columns(conn, stream, None)
    types = dict(_columns(conn, stream, stream.pgt_relid))
    stored = [(name, types.get(name)) for name, _ in expected]  # an altered table may have them in another order
    if stored != expected:
        raise StateError(
            f"{stream} has columns of other types than its query",
            code="PT348",
            hint="Refresh it, or alter it with its query.",
        )
    names = [sql.Identifier(f"c{place}") for place in range(len(stored))]
    both = sql.SQL("{} UNION ALL {}").format(
        _weighed(sql.Identifier("pg_temp", _EXPECTED), [name for name, _ in expected], 1),
        _weighed(_storage(conn, stream), [name for name, _ in stored], -1),
    )
    image = sql.SQL("ROW({})::text").format(sql.SQL(", ").join(names))
    rows = sql.SQL("SELECT * FROM ({}) AS both_of_them").format(both)
    if share is not None:
        part = sql.SQL(" WHERE (hashtextextended({}, 0) & 9223372036854775807) % {} = {}")
        some = rows + part.format(image, sql.Literal(share[0]), sql.Literal(share[1]))
        if _totals(conn, some, [image]) == (0, 0):
            return Differences(0, 0, 0)
    # Of all rows: equal values that look different are in different shares, and would count as missing and extra.
    missing, extra = _totals(conn, rows, [image])
    try:
        with conn.transaction():
            by_value = _totals(conn, rows, _keys(conn, expected))
    except psycopg.errors.UndefinedFunction:  # a row type with a part that has no equality: it shows at a value only
        by_value = (missing, extra)
    return Differences(*by_value, looks=missing - by_value[0])


def _columns(conn: Connection, stream: StreamTable, relid: int | None) -> list[tuple[str, str]]:
    """Names and types of the stream table's columns, or (None) of those that its query gives."""
    found = conn.execute(
        "SELECT c.oid, (SELECT array_agg(ARRAY[a.attname::text, format_type(atttypid, atttypmod)] ORDER BY a.attnum)"
        "   FROM pg_attribute AS a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)"
        " FROM pg_class AS c WHERE c.oid = coalesce(%s::oid, pg_catalog.to_regclass(%s))",
        (relid, f"pg_temp.{_EXPECTED}"),
    ).fetchone()
    if found is None:
        raise StateError(
            f"the table of {stream} is not there: it was dropped", code="PT349", hint="Drop the stream table."
        )
    columns = found[1] or []
    assert isinstance(columns, list)
    return [(str(name), str(type_)) for name, type_ in columns]


def _storage(conn: Connection, stream: StreamTable) -> sql.Identifier:
    row = conn.execute(
        "SELECT n.nspname, c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
        " WHERE c.oid = %s",
        (stream.pgt_relid,),
    ).fetchone()
    assert row is not None, "its columns were just read"
    return sql.Identifier(str(row[0]), str(row[1]))


def _weighed(relation: sql.Composable, columns: list[str], weight: int) -> sql.Composed:
    selected = [sql.SQL("{} AS {}").format(sql.Identifier(n), sql.Identifier(f"c{i}")) for i, n in enumerate(columns)]
    return sql.SQL("SELECT {} FROM {}").format(
        sql.SQL(", ").join([*selected, sql.SQL("{}::bigint AS w").format(sql.Literal(weight))]), relation
    )


def _keys(conn: Connection, expected: list[tuple[str, str]]) -> list[sql.Composable]:
    """What rows are grouped by: columns by their equality, or by their text where they have none."""
    has_equality: dict[str, bool] = {}
    keys: list[sql.Composable] = []
    for place, (name, type_) in enumerate(expected):
        if type_ not in has_equality:
            has_equality[type_] = _has_equality(conn, name)
        column = sql.Identifier(f"c{place}")
        keys.append(column if has_equality[type_] else sql.SQL("ROW({})::text").format(column))
    return keys


def _has_equality(conn: Connection, column: str) -> bool:
    query = sql.SQL("EXPLAIN SELECT FROM pg_temp.{} GROUP BY {}")
    try:
        with conn.transaction():
            conn.execute(query.format(sql.Identifier(_EXPECTED), sql.Identifier(column)))
    except psycopg.errors.UndefinedFunction:
        return False
    return True


def _totals(conn: Connection, rows: sql.Composable, keys: list[sql.Composable]) -> tuple[int, int]:
    """Missing and extra rows as EXCEPT ALL counts them."""
    group = sql.SQL(" GROUP BY {}").format(sql.SQL(", ").join(keys)) if keys else sql.SQL("")
    found = conn.execute(
        sql.SQL(
            "SELECT coalesce(sum(w) FILTER (WHERE w > 0), 0)::bigint, coalesce(-sum(w) FILTER (WHERE w < 0), 0)::bigint"
            " FROM (SELECT sum(w) AS w FROM ({}) AS all_rows{}) AS differences"
        ).format(rows, group)
    ).fetchone()
    assert found is not None
    return int(str(found[0])), int(str(found[1]))
