"""Stream tables as they were declared: what creates each again. Read for `pgtrickle dump` and `apply`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pgtrickle.catalog.names import Name, parse_columns, shown_columns
from pgtrickle.db import Connection
from pgtrickle.index_text import Index, parse_indexes
from pgtrickle.options import INHERIT

_DECLARED: Final = """
SELECT p.pgt_schema, p.pgt_name, t.defining_query, coalesce(t.schedule, 'calculated'), t.refresh_mode,
       coalesce(t.requested_cdc_mode, 'inherit'), coalesce(t.diamond_consistency, 'inherit'),
       coalesce(t.diamond_schedule_policy, 'inherit'),
       coalesce((SELECT string_agg(quote_ident(a.attname), ', ' ORDER BY c.place)
                 FROM pg_constraint AS k CROSS JOIN unnest(k.conkey) WITH ORDINALITY AS c (number, place)
                 JOIN pg_attribute AS a ON a.attrelid = k.conrelid AND a.attnum = c.number
                 WHERE k.conrelid = t.pgt_relid AND k.contype = 'p'), 'none'),
       CASE WHEN EXISTS (SELECT FROM pg_trigger AS g
                         WHERE g.tgrelid = t.pgt_relid AND g.tgname = 'pgtrickle_protect') THEN 'true' ELSE 'false' END,
       t.search_path, t.indexes,
       ARRAY(SELECT ARRAY[u.pgt_schema, u.pgt_name] FROM pgtrickle.pgt_dependencies AS d
             JOIN pgtrickle.pgt_stream_tables AS r ON r.pgt_relid = d.source_relid
             JOIN pgtrickle.pgt_present AS u ON u.pgt_id = r.pgt_id WHERE d.pgt_id = t.pgt_id)
FROM pgtrickle.pgt_stream_tables AS t JOIN pgtrickle.pgt_present AS p USING (pgt_id)
WHERE p.is_there ORDER BY p.pgt_schema, p.pgt_name
"""


@dataclass(frozen=True, slots=True)
class Declaration:
    """One stream table; `inherit` leaves an option to the setting. The names of its query are found by `search_path`,
    None where that is not told; `reads` may have other names than those of stream tables."""

    name: Name
    query: str
    schedule: str = "1m"
    refresh_mode: str = "AUTO"
    cdc_mode: str = INHERIT
    diamond_consistency: str = INHERIT
    diamond_schedule_policy: str = INHERIT
    primary_key: str = "none"
    protect: str = "false"
    search_path: str | None = None
    indexes: tuple[Index, ...] = ()
    reads: frozenset[Name] = frozenset()


def declared(conn: Connection) -> list[Declaration]:
    """Every stream table that is there, under the name it has now."""
    rows = conn.execute(_DECLARED).fetchall()
    return [_declaration([str(each) for each in texts], indexes, reads) for *texts, indexes, reads in rows]


def _declaration(texts: list[str], indexes: object, reads: object) -> Declaration:
    assert isinstance(indexes, list)
    assert isinstance(reads, list)
    schema, name, query, schedule, mode, cdc_mode, consistency, policy, key, protect, path = texts
    upstream = frozenset(Name(str(above), str(each)) for above, each in reads)
    return Declaration(
        Name(schema, name),
        query,
        schedule,
        mode,
        cdc_mode,
        consistency,
        policy,
        shown_columns(parse_columns(key)),
        protect,
        path,
        parse_indexes(indexes),
        upstream,
    )


def in_order(declarations: list[Declaration]) -> list[Declaration]:
    """Each after those that it reads, as far as they are among them; the tables of a circle as they come."""
    left, done = list(declarations), []
    while left:
        names = {each.name for each in left}
        ready = next((each for each in left if not (each.reads - {each.name}) & names), left[0])
        left.remove(ready)
        done.append(ready)
    return done
