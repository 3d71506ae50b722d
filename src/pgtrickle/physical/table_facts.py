"""What the database says about the sources, on which a read is chosen: sizes, indexes, changes. Pure values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pgtrickle.model import quote
from pgtrickle.query.expression import element
from pgtrickle.query.operators import Equality, Scan

_LOOKUP_SECONDS = 30e-6  # one indexed probe, rows back included
_ROW_BY_INDEX_SECONDS = 1e-6  # one more row of a probe, that stays in the server
_SCAN_IN_SERVER_SECONDS = 0.3e-6  # one row, read by PostgreSQL for a batch without an index
_SCAN_TO_SPARK_SECONDS = 3e-6  # one row, carried to Spark and joined there
_SPARK_JOIN_SECONDS = 0.5  # the shuffle a scan needs
_JOIN_IN_SERVER_SECONDS = 1e-6  # one row, read and joined by one backend
LOOKUP_BATCH = 20_000
SMALL_CHANGES = 20_000
"""Up to so many the driver reads the window and one task does the work, with one query for all joins of a delta."""
ROWS_PER_UNKNOWN_VALUE = 10.0
"""Rows that a value of a column is taken to have where the database does not say."""


@dataclass(frozen=True, slots=True)
class TableFacts:
    """One source: rows (an estimate), first columns of its indexes with rows per value, and if ctid ranges split it."""

    rows: float
    indexed: Mapping[str, float] = field(default_factory=dict)
    splittable: bool = True


@dataclass(frozen=True, slots=True)
class TableFactsMap:
    """All sources, by oid, the number of changes of each in the window, and how many tasks of Spark's run at once."""

    tables: Mapping[int, TableFacts]
    changes: Mapping[int, int] = field(default_factory=dict)
    tasks: int = 1

    def rows(self, oid: int) -> float:
        """Rows of a table, at least one; one for a table that was not asked about."""
        return max(self.tables[oid].rows, 1.0) if oid in self.tables else 1.0


@dataclass(frozen=True, slots=True)
class ReadCost:
    """Estimates for reading the rows of an operand that match a delta."""

    by_lookup: float
    by_scan: float
    rows_per_key: float
    index: str | None
    missing: str | None = None  # the statement that makes an index which would be cheaper

    @property
    def prefers_lookup(self) -> bool:
        return self.by_lookup <= self.by_scan


def read_cost(facts: TableFactsMap, delta_rows: float, scans: tuple[Scan, ...], keys: tuple[Equality, ...]) -> ReadCost:
    """Cost of joining `delta_rows` with an operand over `scans`; `keys` have the operand's side on the right."""
    size = sum(facts.rows(scan.table.oid) for scan in scans)
    by_scan = size * _SCAN_TO_SPARK_SECONDS + _SPARK_JOIN_SECONDS
    for scan in scans:
        attributes = dict(zip(scan.names, scan.attributes, strict=True))
        for key in keys:
            attribute = attributes.get(_name(key))
            if attribute is not None and attribute in facts.tables[scan.table.oid].indexed:
                per_key = facts.tables[scan.table.oid].indexed[attribute]
                by_lookup = delta_rows * max(per_key, 1.0) * _LOOKUP_SECONDS
                return ReadCost(by_lookup, by_scan, per_key, f"{scan.table}({attribute})")
    batches = 1 + delta_rows // LOOKUP_BATCH
    by_lookup = batches * size * _SCAN_IN_SERVER_SECONDS
    largest = max((facts.rows(scan.table.oid) for scan in scans), default=1.0)
    by_index = delta_rows * ROWS_PER_UNKNOWN_VALUE * _LOOKUP_SECONDS
    missing = _missing_index(facts, scans, keys) if by_index < min(by_lookup, by_scan) else None
    return ReadCost(by_lookup, by_scan, 1.0 if keys else largest, None, missing)


def group_cost(facts: TableFactsMap, scan: Scan, by: str) -> float:
    """Cost of the rows of one group of a table, found by a column's value; infinite without an index on it."""
    table = facts.tables.get(scan.table.oid)
    per_value = table.indexed.get(by) if table else None
    return math.inf if per_value is None else index_cost(per_value)


def index_cost(rows: float) -> float:
    """Cost of the rows of one value, found by index and read in the server."""
    return _LOOKUP_SECONDS + rows * _ROW_BY_INDEX_SECONDS


def scan_cost(facts: TableFactsMap, scan: Scan) -> float:
    """Cost of all rows of a table, read in the server."""
    return facts.rows(scan.table.oid) * _SCAN_IN_SERVER_SECONDS


def prefers_tasks(facts: TableFactsMap, scans: Iterable[Scan]) -> bool:
    """Whether tasks read tables and join them in less time than one backend, whose query they cannot share."""
    rows = sum(facts.rows(scan.table.oid) for scan in scans)
    by_tasks = rows * _SCAN_TO_SPARK_SECONDS / facts.tasks + _SPARK_JOIN_SECONDS
    return by_tasks < rows * _JOIN_IN_SERVER_SECONDS


def _name(key: Equality) -> str:
    """What the operand is asked for by: a column's name, if it is one."""
    return element(key.right).sql.strip('"')


def _missing_index(facts: TableFactsMap, scans: tuple[Scan, ...], keys: tuple[Equality, ...]) -> str | None:
    """An index on a key of the largest table that has one: on all such columns, as they are looked up together."""
    for scan in sorted(scans, key=lambda scan: -facts.rows(scan.table.oid)):
        attributes = dict(zip(scan.names, scan.attributes, strict=True))
        found = [attributes.get(_name(key)) for key in keys]
        columns = dict.fromkeys(quote(attribute) for attribute in found if attribute is not None)
        if columns:
            return f"CREATE INDEX ON {scan.table.qualified} ({', '.join(columns)})"
    return None
