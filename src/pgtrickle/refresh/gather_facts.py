"""Asks PostgreSQL for what the choice of reads depends on. Called by `table_refresh.py` and `explain`.

Sizes are asked for each time. What a table's indexes tell takes longer, and is kept by `KnownTables` as long as the
table has the same ones and was not analysed again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from pgtrickle.db import Connection
from pgtrickle.physical.table_facts import ROWS_PER_UNKNOWN_VALUE, TableFacts, TableFactsMap

_SIZES = """
SELECT c.oid,
       CASE WHEN c.relkind = 'p'
            THEN (SELECT coalesce(sum(greatest(l.reltuples, pg_relation_size(l.oid) / 100)), 0)
                  FROM pg_partition_tree(c.oid) AS t JOIN pg_class AS l ON l.oid = t.relid WHERE t.isleaf)
            WHEN c.reltuples >= 0 AND c.relpages > 0
            THEN c.reltuples / c.relpages * (pg_relation_size(c.oid) / current_setting('block_size')::float8)
            ELSE pg_relation_size(c.oid) / 100.0 END::float8 AS rows,
       c.relkind IN ('r', 'm') AS splittable,
       concat_ws(' ', c.reltuples, c.relpages, (SELECT string_agg(concat_ws(' ', i.indexrelid, a.attname), ' '
                ORDER BY i.indexrelid)
            FROM pg_index AS i LEFT JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
            WHERE i.indrelid = c.oid AND i.indisvalid)) AS version
FROM pg_class AS c WHERE c.oid = ANY (%s)
"""
_INDEXES = """
SELECT i.indrelid, a.attname,
       CASE WHEN i.indisunique AND i.indnkeyatts = 1 THEN -1 ELSE s.n_distinct END::float8 AS distinct_values
FROM pg_index AS i
JOIN pg_class AS c ON c.oid = i.indrelid
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum = i.indkey[0]
JOIN pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pg_stats AS s ON s.schemaname = n.nspname AND s.tablename = c.relname AND s.attname = a.attname
     AND NOT s.inherited
WHERE i.indrelid = ANY (%s) AND i.indisvalid AND i.indpred IS NULL AND i.indkey[0] > 0
"""

Distinct: TypeAlias = tuple[tuple[str, float | None], ...]
"""The first columns of a table's indexes, and how many distinct values each has, as PostgreSQL counts them."""


@dataclass(slots=True)
class KnownTables:
    """What the indexes of tables told, by the version of the table that they told it of."""

    _found: dict[int, tuple[str, Distinct]] = field(default_factory=dict)

    def indexes(self, connection: Connection, versions: Mapping[int, str]) -> dict[int, Distinct]:
        """Those of these tables."""
        new = [oid for oid, version in versions.items() if self._found.get(oid, ("",))[0] != version]
        if new:
            told: dict[int, list[tuple[str, float | None]]] = {oid: [] for oid in new}
            for oid, column, distinct in connection.execute(_INDEXES, (new,)).fetchall():
                told[int(str(oid))].append((str(column), None if distinct is None else float(str(distinct))))
            self._found |= {oid: (versions[oid], tuple(each)) for oid, each in told.items()}
        return {oid: self._found[oid][1] for oid in versions}


def gather(
    connection: Connection, oids: Iterable[int], changes: Mapping[int, int], known: KnownTables | None = None
) -> TableFactsMap:
    """Sizes and indexes of the tables, with the window's changes."""
    asked = connection.execute(_SIZES, (list(oids),)).fetchall()
    sizes = {int(str(oid)): (float(str(rows)), bool(splittable)) for oid, rows, splittable, _ in asked}
    versions = {int(str(oid)): str(version) for oid, _, _, version in asked}
    indexes = (known or KnownTables()).indexes(connection, versions)
    tables = {
        oid: TableFacts(size, _indexed(size, indexes[oid]), splittable) for oid, (size, splittable) in sizes.items()
    }
    return TableFactsMap(tables, dict(changes))


def _indexed(rows: float, indexes: Distinct) -> dict[str, float]:
    """How many rows a value of each indexed column has."""
    indexed: dict[str, float] = {}
    for column, distinct in indexes:
        per_value = _rows_per_value(rows, distinct)
        indexed[column] = min(per_value, indexed.get(column, per_value))
    return indexed


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
