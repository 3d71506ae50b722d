"""Asks PostgreSQL for what the choice of reads depends on, in one query. Called by `table_refresh.py` and `explain`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pgtrickle.db import Connection
from pgtrickle.physical.table_facts import ROWS_PER_UNKNOWN_VALUE, TableFacts, TableFactsMap

_QUERY = """
SELECT c.oid,
       CASE WHEN c.relkind = 'p'
            THEN (SELECT coalesce(sum(greatest(l.reltuples, pg_relation_size(l.oid) / 100)), 0)
                  FROM pg_partition_tree(c.oid) AS t JOIN pg_class AS l ON l.oid = t.relid WHERE t.isleaf)
            WHEN c.reltuples >= 0 AND c.relpages > 0
            THEN c.reltuples / c.relpages * (pg_relation_size(c.oid) / current_setting('block_size')::float8)
            ELSE pg_relation_size(c.oid) / 100.0 END::float8 AS rows,
       c.relkind IN ('r', 'm') AS splittable,
       a.attname,
       CASE WHEN i.indisunique AND i.indnkeyatts = 1 THEN -1 ELSE s.n_distinct END::float8 AS distinct_values
FROM pg_class AS c
LEFT JOIN pg_index AS i ON i.indrelid = c.oid AND i.indisvalid AND i.indpred IS NULL AND i.indkey[0] > 0
LEFT JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = i.indkey[0]
LEFT JOIN pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pg_stats AS s ON s.schemaname = n.nspname AND s.tablename = c.relname AND s.attname = a.attname
     AND NOT s.inherited
WHERE c.oid = ANY (%s)
"""


def gather(connection: Connection, oids: Iterable[int], changes: Mapping[int, int]) -> TableFactsMap:
    """Sizes and indexes of the tables, with the window's changes."""
    tables: dict[int, TableFacts] = {}
    for oid, rows, splittable, column, distinct in connection.execute(_QUERY, (list(oids),)).fetchall():
        known = tables.get(int(str(oid)))
        indexed = dict(known.indexed) if known else {}
        size = float(str(rows))
        if column is not None:
            per_value = _rows_per_value(size, None if distinct is None else float(str(distinct)))
            indexed[str(column)] = min(per_value, indexed.get(str(column), per_value))
        tables[int(str(oid))] = TableFacts(size, indexed, bool(splittable))
    return TableFactsMap(tables, dict(changes))


def _rows_per_value(rows: float, distinct: float | None) -> float:
    """pg_stats counts distinct values as a number, or as a negative share of the rows."""
    if not distinct:
        return ROWS_PER_UNKNOWN_VALUE
    return rows / distinct if distinct > 0 else -1.0 / distinct


def ctid_ranges(connection: Connection, table: str, parts: int) -> list[str]:
    """Conditions that split a table into about equal ranges of pages."""
    row = connection.execute(
        "SELECT pg_relation_size(%s::regclass) / current_setting('block_size')::int", (table,)
    ).fetchone()
    assert row is not None
    pages = int(str(row[0]))
    step = max(pages // parts + 1, 1)
    starts = list(range(0, max(pages, 1), step))
    return [_range(start, start + step if start != starts[-1] else None) for start in starts]


def _range(start: int, end: int | None) -> str:
    lower = f"ctid >= '({start},0)'::tid"
    return lower if end is None else f"{lower} AND ctid < '({end},0)'::tid"
