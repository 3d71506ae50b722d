"""A hash of what a compiled query depends on, to notice DDL since: one catalog query, cheap enough for each refresh.

    core . options . rows . files . views . names        each a hash

`core` is what the answer depends on. The others tell DDL that was undone: two columns may have swapped names for a
while, or all values been rewritten under the same type, and only the transaction that last touched a column's row in
the catalog shows it (`rows`). That row changes by harmless DDL too (SET NOT NULL, SET STATISTICS, GRANT), which shows
in `options`; `files` are those the tables are stored in, which VACUUM FULL changes and nothing else with it. `names`
are functions, operators and casts beside those in use: with another of these, a name may mean something else. `views`
are the texts of those below: one that was replaced may answer as before (`refresh/definition/define.py`).

Called by the refresh plan with the `Dependencies` that were stored when the query was compiled.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg.rows import tuple_row

from pgtrickle.query.analyse.analysis import Dependencies

_DATABASE_VERSION = b"""
    UNION ALL
    SELECT 'core', jsonb_build_array('database', d.datcollversion,
           pg_catalog.pg_database_collation_actual_version(d.oid))
    FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()
"""
_SINCE_VERSION = 150000

# A line for each relation, column, view, function and key; what was dropped has no line. With xmin where DDL may be
# undone unseen: a partition was detached, written to and attached again, or two columns swapped names for a while.
_LINES = b"""
WITH RECURSIVE source AS (
    SELECT * FROM ROWS FROM (unnest(%%(relations)s::oid[]), unnest(%%(columns)s::text[])) s(oid, columns)
), tree AS (
    SELECT oid AS root, oid, '' AS since FROM source
    UNION
    SELECT t.root, i.inhrelid, i.xmin::text FROM tree t JOIN pg_catalog.pg_inherits i ON i.inhparent = t.oid
), attribute AS MATERIALIZED (
    SELECT a.*, a.xmin::text AS since, md5(d.adbin::text) AS expression
    FROM source s JOIN pg_catalog.pg_attribute a ON a.attrelid = s.oid AND a.attnum = ANY (s.columns::int2[])
    LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum WHERE NOT a.attisdropped
), line(part, text) AS (
    SELECT 'core', jsonb_build_array('relation', c.oid, n.nspname, c.relname, c.relkind, c.relrowsecurity,
           (SELECT jsonb_agg(jsonb_build_array(t.oid, t.since) ORDER BY t.oid, t.since)
            FROM tree t JOIN pg_catalog.pg_class f ON f.oid = t.oid WHERE t.root = c.oid),
           CASE WHEN c.relrowsecurity THEN
               (SELECT jsonb_agg(to_jsonb(p) ORDER BY p.oid) FROM pg_catalog.pg_policy p WHERE p.polrelid = c.oid) END)
    FROM source s JOIN pg_catalog.pg_class c ON c.oid = s.oid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    UNION ALL  -- a statement on another table may change its rows
    SELECT 'core', jsonb_build_array('child', i.inhrelid, i.inhparent)
    FROM source s JOIN pg_catalog.pg_inherits i ON i.inhrelid = s.oid
    UNION ALL
    SELECT 'core', jsonb_build_array('column', a.attrelid, a.attnum, a.attname, a.atttypid, a.atttypmod, a.attcollation,
           a.attgenerated, t.typname, t.typnamespace, CASE WHEN a.attgenerated <> '' THEN a.expression END)
    FROM attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
    UNION ALL
    SELECT 'options', jsonb_build_array(a.attrelid, a.attnum, a.attnotnull, a.attstattarget, a.attacl::text,
           a.attoptions, a.attstorage, a.attcompression, a.attidentity, a.atthasdef, a.atthasmissing, a.expression)
    FROM attribute a
    UNION ALL
    SELECT 'rows', jsonb_build_array(a.attrelid, a.attnum, a.since) FROM attribute a
    UNION ALL
    SELECT 'files', jsonb_build_array(t.oid, f.relfilenode) FROM tree t JOIN pg_catalog.pg_class f ON f.oid = t.oid
    UNION ALL
    SELECT CASE WHEN o.classid = 'pg_catalog.pg_class'::regclass THEN 'views' ELSE 'core' END,
           jsonb_build_array('object', o.classid, o.objid, o.objsubid, o.name, o.type, o.definition)
    FROM pgtrickle_internal.object_shapes(%%(classes)s::oid[], %%(objects)s::oid[], %%(parts)s::int[]) o
    UNION ALL
    SELECT 'names', pgtrickle_internal.object_names(%%(classes)s::oid[], %%(objects)s::oid[])
    UNION ALL
    SELECT 'core', jsonb_build_array('text', text) FROM unnest(%%(texts)s::text[]) AS text
    UNION ALL
    SELECT 'core', jsonb_build_array('key', k.oid, k.conrelid, k.conkey)
    FROM pg_catalog.pg_constraint k WHERE k.oid = ANY (%%(constraints)s::oid[])
    UNION ALL
    -- Who may read: what the login, or the owner of a view, may no longer read is not to come from the buffers either.
    SELECT 'core', jsonb_build_array('access', s.oid, r.who, c.relrowsecurity AND NOT r.unfiltered
           AND (c.relforcerowsecurity OR NOT pg_catalog.pg_has_role(r.oid, c.relowner, 'USAGE')),
           pg_catalog.has_table_privilege(r.oid, s.oid, 'SELECT') OR coalesce((
               SELECT bool_and(pg_catalog.has_column_privilege(r.oid, s.oid, n, 'SELECT'))
               FROM unnest(s.columns::int2[]) n), pg_catalog.has_any_column_privilege(r.oid, s.oid, 'SELECT')))
    FROM source s JOIN pg_catalog.pg_class c ON c.oid = s.oid CROSS JOIN (
        SELECT 'login', oid, rolsuper OR rolbypassrls FROM pg_catalog.pg_roles WHERE rolname = current_user
        UNION SELECT v.relowner::text, v.relowner, o.rolsuper OR o.rolbypassrls FROM pg_catalog.pg_class v
        JOIN pg_catalog.pg_roles o ON o.oid = v.relowner
        WHERE v.oid = ANY (%%(objects)s::oid[]) AND v.relkind = 'v') r(who, oid, unfiltered)
    %(database)s
), hashed AS (
    SELECT part, md5(string_agg(md5(text::text), '' ORDER BY md5(text::text))) AS hash FROM line GROUP BY part
)
SELECT string_agg(coalesce(h.hash, ''), '.' ORDER BY p.place)
FROM unnest('{core,options,rows,files,views,names}'::text[]) WITH ORDINALITY p(part, place)
LEFT JOIN hashed h USING (part)
"""


def fingerprint(conn: psycopg.Connection[Any], dependencies: Dependencies) -> str:
    """The hash of `dependencies` as they are now; equal hashes mean that the plan still holds."""
    database = _DATABASE_VERSION if conn.info.server_version >= _SINCE_VERSION else b""
    addresses = dependencies.addresses_of_code
    with conn.cursor(row_factory=tuple_row) as cursor:
        cursor.execute(
            _LINES % {b"database": database},
            {
                "relations": [oid for oid, _ in dependencies.relations],
                "columns": ["{" + ",".join(map(str, numbers)) + "}" for _, numbers in dependencies.relations],
                "classes": [classid for classid, _, _ in addresses],
                "objects": [objid for _, objid, _ in addresses],
                "parts": [part for _, _, part in addresses],
                "texts": list(dependencies.texts),
                "constraints": list(dependencies.constraints),
            },
            prepare=True,
        )
        return str(cursor.fetchall()[0][0])


def still_holds(stored: str | None, found: str) -> bool:
    """Whether a plan made when the fingerprint was `stored` still holds, now that it is `found`, names aside."""
    return stored == found or (_holds_below_views(stored, found) and _views(stored) == _views(found))


def only_views_changed(stored: str | None, found: str) -> bool:
    """Whether all that a plan depends on is as it was, but for views that were replaced."""
    return same_names(stored, found) and _holds_below_views(stored, found) and _views(stored) != _views(found)


def _views(fingerprint: str | None) -> list[str]:
    return (fingerprint or "").split(".")[4:5]


def _holds_below_views(stored: str | None, found: str) -> bool:
    before, now = (stored or "").split("."), found.split(".")
    if len(before) != len(now) or before[0] != now[0]:
        return False
    options, rows, files = (was == is_ for was, is_ in zip(before[1:4], now[1:4], strict=True))
    return rows or (files and not options)


def same_names(stored: str | None, found: str) -> bool:
    """Whether names cannot mean anything else by now. If not, what they mean has to be asked."""
    return (stored or "").rpartition(".")[2] == found.rpartition(".")[2]
