"""Which windows have nothing in them, for many sources at once: the service asks it in each tick.

A refresh counts the changes of its few sources (`change_window.pending`); here it is enough to know that there are
none, and the answer must cost little for a hundred sources: a buffer without a page is not even looked into.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

import psycopg
from psycopg import sql

from pgtrickle.capture import captured
from pgtrickle.capture.buffer import SCHEMA, buffer_identifier
from pgtrickle.capture.change_window import Sides, in_window

Opening: TypeAlias = tuple[int, str]
"""A source, and the snapshot at which a window of it begins."""

_STATE = f"""
SELECT k.source_relid::bigint, pg_relation_size(to_regclass(k.buffer_name)), {captured.RULE}
FROM pgtrickle.pgt_change_tracking AS k
JOIN (SELECT tgfoid, {captured.TRIGGERS} FROM pg_trigger WHERE tgenabled = 'A' GROUP BY tgfoid) AS t
     ON t.tgfoid = to_regproc(%(functions)s || k.source_relid)
WHERE k.source_relid = ANY(%(sources)s::oid[])
"""


def quiet(
    conn: psycopg.Connection[Any], windows: Collection[Opening], until: str, sides: Mapping[int, Sides]
) -> frozenset[Opening]:
    """Those of the windows that hold no change, and whose source is captured. `conn` sees all that `until` does."""
    if not windows:
        return frozenset()
    sources = sorted({oid for oid, _ in windows})
    found = conn.execute(_STATE, {"functions": f"{SCHEMA}.capture_", "sources": sources}, prepare=True).fetchall()
    pages = {int(oid): size for oid, size, is_captured in found if is_captured and size is not None}
    asked = [(oid, since) for oid, since in windows if pages.get(oid)]
    busy = _with_changes(conn, asked, until, sides)
    return frozenset(each for each in windows if each[0] in pages and each not in busy)


def _with_changes(
    conn: psycopg.Connection[Any], windows: Collection[Opening], until: str, sides: Mapping[int, Sides]
) -> frozenset[Opening]:
    if not windows:
        return frozenset()
    asked = [
        sql.SQL("SELECT {oid}::bigint, {since} WHERE EXISTS (SELECT FROM {buffer} WHERE {window})").format(
            oid=sql.Literal(oid),
            since=sql.Literal(since),
            buffer=buffer_identifier(oid),
            window=sql.SQL(in_window(since, until, sides.get(oid))),
        )
        for oid, since in windows
    ]
    return frozenset((int(oid), str(since)) for oid, since in conn.execute(sql.SQL(" UNION ALL ").join(asked)))
