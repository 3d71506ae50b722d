"""Rows of a stream table that stay with other values: updated rather than deleted and inserted (`user_triggers`).

    auto  where the table has triggers of the user, which see an UPDATE then
    on    always
    off   never: they see DELETE and INSERT

Which row became which is told by a key: the user's own on the stream table, else what the query's tree shows
(`query/row_key.py`). Without one, and where several rows share a key, rows are deleted and inserted. Called by the
refresh, and by `merge.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from pgtrickle.db import Connection
from pgtrickle.model import Column
from pgtrickle.query.operators import Operator, Scan, walk
from pgtrickle.query.row_key import row_key

_TRIGGERS = """
EXISTS (SELECT FROM pg_catalog.pg_trigger AS g JOIN pg_catalog.pg_proc AS f ON f.oid = g.tgfoid
        JOIN pg_catalog.pg_namespace AS n ON n.oid = f.pronamespace
        WHERE g.tgrelid = {relid} AND NOT g.tgisinternal AND g.tgenabled IN ('O', 'A')
          AND n.nspname NOT IN ('pgtrickle_changes', 'pgtrickle_internal', 'pgtrickle_state'))
"""
_ASKED = f"""
SELECT {_TRIGGERS.format(relid="%(relid)s")},
       (SELECT array_agg(a.attname::text) FROM (
            SELECT i.indkey, i.indnkeyatts FROM pg_catalog.pg_index AS i
            WHERE i.indrelid = %(relid)s AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
            ORDER BY i.indisprimary DESC, i.indnkeyatts, i.indexrelid LIMIT 1) AS u
        JOIN pg_catalog.pg_attribute AS a ON a.attrelid = %(relid)s AND a.attnum = ANY (u.indkey[0:u.indnkeyatts - 1]))
"""
_PRIMARY_KEYS = """
SELECT k.conrelid::bigint, array_agg(a.attname::text) FROM pg_catalog.pg_constraint AS k
JOIN pg_catalog.pg_attribute AS a ON a.attrelid = k.conrelid AND a.attnum = ANY (k.conkey)
WHERE k.contype = 'p' AND k.conrelid = ANY (%s::oid[]) GROUP BY k.conrelid
"""


def key_of(
    conn: Connection, relid: int, columns: Sequence[Column], tree: Operator | None, asked: str
) -> frozenset[int] | None:
    """The positions among `columns`, those of the query, by which rows of the table stay themselves; None: nothing is
    updated. The table may have them in another order. `asked` is the setting `user_triggers`, `tree` that of the query,
    if it has one."""
    if asked == "off":
        return None
    row = conn.execute(_ASKED, {"relid": relid}).fetchone()
    assert row is not None
    has_triggers, key = row
    if asked == "auto" and not has_triggers:
        return None
    if key is not None:
        assert isinstance(key, list)
        return frozenset(place for place, column in enumerate(columns) if column.name in key)
    return None if tree is None else of_query(conn, tree)


def of_query(conn: Connection, tree: Operator) -> frozenset[int] | None:
    """The positions of columns that the query alone keeps different in all rows, as far as its tree shows it."""
    return row_key(tree, _primary_keys(conn, tree))


def has_triggers(relid: int) -> str:
    """The condition that the table has triggers of the user."""
    return " ".join(_TRIGGERS.format(relid=int(relid)).split())


def _primary_keys(conn: psycopg.Connection[tuple[object, ...]], tree: Operator) -> dict[int, frozenset[str]]:
    oids = sorted({node.table.oid for node in walk(tree) if isinstance(node, Scan)})
    found: dict[int, frozenset[str]] = {}
    for oid, names in conn.execute(_PRIMARY_KEYS, (oids,)):
        assert isinstance(names, list)
        found[int(str(oid))] = frozenset(str(name) for name in names)
    return found
