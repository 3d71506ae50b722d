"""A hash of what a compiled query depends on, to notice DDL since: one catalog query, cheap enough for each refresh.

Called by the refresh plan with the `Dependencies` that were stored when the query was compiled.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.rows import tuple_row

from pgtrickle.query.analysis import Dependencies

# A line for each relation, column, view, function and key; what was dropped has no line. With xmin where DDL may be
# undone unseen: a partition was detached, written to and attached again, or two columns swapped names for a while.
_LINES = b"""
WITH RECURSIVE source AS (
    SELECT * FROM ROWS FROM (unnest(%(relations)s::oid[]), unnest(%(columns)s::text[])) s(oid, columns)
), tree AS (
    SELECT oid AS root, oid, '' AS since FROM source
    UNION
    SELECT t.root, i.inhrelid, i.xmin::text FROM tree t JOIN pg_catalog.pg_inherits i ON i.inhparent = t.oid
), line AS (
    SELECT jsonb_build_array('relation', c.oid, n.nspname, c.relname, c.relkind, c.relrowsecurity,
           (SELECT jsonb_agg(jsonb_build_array(t.oid, f.relfilenode, t.since) ORDER BY t.oid, t.since)
            FROM tree t JOIN pg_catalog.pg_class f ON f.oid = t.oid WHERE t.root = c.oid)) AS text
    FROM source s JOIN pg_catalog.pg_class c ON c.oid = s.oid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    UNION ALL
    SELECT jsonb_build_array('column', a.attrelid, a.attnum, a.attname, a.atttypid, a.atttypmod, a.attcollation,
           a.attgenerated, a.xmin::text, t.typname, t.typnamespace,
           CASE WHEN a.attgenerated <> '' THEN md5(d.adbin::text) END)
    FROM source s JOIN pg_catalog.pg_attribute a ON a.attrelid = s.oid AND a.attnum = ANY (s.columns::int2[])
    JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
    LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum WHERE NOT a.attisdropped
    UNION ALL
    SELECT jsonb_build_array('view', r.ev_class, n.nspname, c.relname, md5(r.ev_action::text))
    FROM pg_catalog.pg_rewrite r JOIN pg_catalog.pg_class c ON c.oid = r.ev_class
    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE r.ev_class = ANY (%(views)s::oid[]) AND r.rulename = '_RETURN'
    UNION ALL
    SELECT jsonb_build_array('function', p.oid, p.proname, p.pronamespace, p.prolang, p.provolatile, p.proisstrict,
           p.prosrc, p.probin, p.proconfig, p.prosqlbody::text, p.prorettype, p.proargtypes,
           (SELECT to_jsonb(g) FROM pg_catalog.pg_aggregate g WHERE g.aggfnoid = p.oid))
    FROM pg_catalog.pg_proc p WHERE p.oid = ANY (%(functions)s::oid[])
    UNION ALL
    SELECT jsonb_build_array('key', k.oid, k.conrelid, k.conkey)
    FROM pg_catalog.pg_constraint k WHERE k.oid = ANY (%(constraints)s::oid[])
    UNION ALL
    -- Who may read: what the login, or the owner of a view, may no longer read is not to come from the buffers either.
    SELECT jsonb_build_array('access', s.oid, r.who, pg_catalog.row_security_active(s.oid),
           pg_catalog.has_table_privilege(r.oid, s.oid, 'SELECT') OR coalesce((
               SELECT bool_and(pg_catalog.has_column_privilege(r.oid, s.oid, n, 'SELECT'))
               FROM unnest(s.columns::int2[]) n), pg_catalog.has_any_column_privilege(r.oid, s.oid, 'SELECT')))
    FROM source s JOIN pg_catalog.pg_class c ON c.oid = s.oid CROSS JOIN (
        SELECT 'login', oid FROM pg_catalog.pg_roles WHERE rolname = current_user
        UNION SELECT relowner::text, relowner FROM pg_catalog.pg_class WHERE oid = ANY (%(views)s::oid[])) r(who, oid)
)
SELECT md5(coalesce(string_agg(md5(text::text), '' ORDER BY md5(text::text)), '')) FROM line
"""


def fingerprint(conn: psycopg.Connection[Any], dependencies: Dependencies) -> str:
    """The hash of `dependencies` as they are now; equal hashes mean that the plan still holds."""
    with conn.cursor(row_factory=tuple_row) as cursor:
        cursor.execute(
            _LINES,
            {
                "relations": [oid for oid, _ in dependencies.relations],
                "columns": ["{" + ",".join(map(str, numbers)) + "}" for _, numbers in dependencies.relations],
                "views": list(dependencies.views),
                "functions": list(dependencies.functions),
                "constraints": list(dependencies.constraints),
            },
            prepare=True,
        )
        return str(cursor.fetchall()[0][0])
