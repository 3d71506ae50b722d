"""What capture must know of a source table, and which tables cannot be captured. Called by `triggers.py`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg.rows import class_row

from pgtrickle.errors import StateError, Unsupported
from pgtrickle.model import FIRST_USER_OID, Table


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """A column of a source. `type` is the column's type for the buffer: a domain's base type, since the unused side of
    a change is NULL and a domain may forbid that. `expression` is that of a virtual generated column. `width` is what a
    value takes of a page at most, in bytes, when all that can be stored elsewhere (TOAST) is."""

    number: int
    name: str
    type_oid: int
    type_modifier: int
    type: str
    collation: str | None
    expression: str | None
    expression_checksum: str | None
    width: int


@dataclass(frozen=True, slots=True)
class Source:
    """A table that can be captured. `descendants` are its partitions at all levels, `parents` those tables of the
    hierarchy that may have partitions (itself included)."""

    table: Table
    attributes: tuple[SourceColumn, ...]
    descendants: tuple[Table, ...]
    parents: tuple[int, ...]
    row_level: bool

    @property
    def trigger_count(self) -> int:
        """Four triggers on each table of the hierarchy."""
        return 4 * (1 + len(self.descendants))

    def named(self, columns: Collection[str]) -> tuple[SourceColumn, ...]:
        """The attributes of `columns` in the table's order; StateError for one that is not there."""
        missing = sorted(set(columns) - {each.name for each in self.attributes})
        if missing:
            raise StateError(
                f"{self.table} has no column {missing[0]!r}", code="PT320", hint="Alter the query of the stream table."
            )
        return tuple(each for each in self.attributes if each.name in columns)


_REFUSED_KINDS = {
    "f": ("a foreign table", "Its changes happen on another server: use refresh_mode => 'FULL'."),
    "m": ("a materialized view", "It changes only by REFRESH: make it a stream table, or use refresh_mode => 'FULL'."),
    "v": ("a view", "Name the tables it reads."),
}

WIDTH: Final = "CASE WHEN {length} > 0 THEN ({length} + 7) / 8 * 8 WHEN {storage} = 'p' THEN 8192 ELSE 32 END"
"""What a value takes of a page at most, by its type's or column's length and storage. A value that is longer than a
pointer of 18 bytes, rounded up to 24, can be stored elsewhere; with what alignment may add, 32."""

_ATTRIBUTES = f"""
SELECT a.attnum AS number, a.attname AS name, a.atttypid AS type_oid, a.atttypmod AS type_modifier,
       (WITH RECURSIVE base AS (
            SELECT a.atttypid AS oid, a.atttypmod AS typmod
            UNION ALL
            SELECT t.typbasetype, t.typtypmod FROM base JOIN pg_type AS t ON t.oid = base.oid WHERE t.typtype = 'd')
        SELECT format_type(base.oid, base.typmod) FROM base JOIN pg_type AS t ON t.oid = base.oid
        WHERE t.typtype <> 'd') AS type,
       (SELECT pg_catalog.format('%%I.%%I', n.nspname, c.collname) FROM pg_collation AS c
        JOIN pg_namespace AS n ON n.oid = c.collnamespace WHERE c.oid = a.attcollation) AS collation,
       CASE WHEN a.attgenerated = 'v' THEN pg_get_expr(d.adbin, d.adrelid) END AS expression,
       CASE WHEN a.attgenerated = 'v' THEN md5(d.adbin::text) END AS expression_checksum,
       (SELECT {WIDTH.format(length="t.typlen", storage="t.typstorage")} FROM pg_type AS t WHERE t.oid = a.atttypid)
       AS width
FROM pg_attribute AS a LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""


def read_source(conn: psycopg.Connection[Any], table: Table, *, trigger_mode: str = "statement") -> Source:
    """The source as it is now; Unsupported if its changes cannot be captured exactly, or not by us."""
    row = conn.execute(
        "SELECT c.relkind, c.relpersistence, n.nspname, c.relname, pg_has_role(c.relowner, 'USAGE'),"
        " EXISTS (SELECT FROM pg_inherits WHERE inhrelid = c.oid),"
        " EXISTS (SELECT FROM pg_inherits WHERE inhparent = c.oid),"
        " EXISTS (SELECT FROM pg_subscription_rel WHERE srrelid = c.oid OR srrelid IN"
        "   (SELECT p.relid FROM pg_partition_tree(c.oid) AS p))"
        " FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = %s",
        (table.oid,),
    ).fetchone()
    if row is None:
        raise StateError(f"the table {table} no longer exists", code="PT321", hint="Drop or alter the stream table.")
    kind, persistence, schema, name, owned, is_child, has_children, subscribed = row
    current = Table(table.oid, schema, name)
    _require_capturable(current, kind, persistence, has_children and kind != "p")
    if kind == "p" and subscribed:
        raise _refusal(current, "the target of a subscription, and partitioned", "Use refresh_mode => 'FULL'.")
    if not owned:
        raise Unsupported(
            f"changes of {current} cannot be captured: this role does not own it, so it cannot add triggers",
            code="PT251",
            hint="Connect as the owner of the table, or GRANT that role to the one pgtrickle uses.",
        )
    with conn.cursor(row_factory=class_row(SourceColumn)) as cursor:
        attributes = tuple(cursor.execute(_ATTRIBUTES, (table.oid,)))
    tree = conn.execute(
        "SELECT c.oid, n.nspname, c.relname, c.relkind, c.relpersistence FROM pg_partition_tree(%s) AS p"
        " JOIN pg_class AS c ON c.oid = p.relid"
        " JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.relkind = 'p' OR p.level > 0 ORDER BY c.oid",
        (table.oid,),
    ).fetchall()
    descendants = tuple(Table(*each[:3]) for each in tree if each[0] != table.oid)
    if any(each[3] == "f" for each in tree):
        raise _refusal(current, "a partitioned table with a foreign partition", "Use refresh_mode => 'FULL'.")
    if any(each[4] == "u" for each in tree):
        raise _refusal(
            current,
            "a partitioned table with an unlogged partition, which a crash empties unseen",
            "ALTER TABLE … SET LOGGED for the partition, or refresh_mode => 'FULL'.",
        )
    parents = tuple(each[0] for each in tree if each[3] == "p")
    return Source(current, attributes, descendants, parents, _row_level(kind, is_child, subscribed, trigger_mode))


def _require_capturable(table: Table, kind: str, persistence: str, is_inherited: bool) -> None:
    if kind in _REFUSED_KINDS:
        what, hint = _REFUSED_KINDS[kind]
        raise _refusal(table, what, hint)
    if kind not in ("r", "p"):
        raise _refusal(table, "not a table", "Name a table.")
    if table.schema in ("pg_catalog", "information_schema") or table.oid < FIRST_USER_OID:
        raise _refusal(table, "a system catalog", "Use refresh_mode => 'FULL'.")
    if persistence == "t":
        raise _refusal(table, "a temporary table", "Only one session sees it: use a permanent table.")
    if persistence == "u":
        raise _refusal(
            table,
            "an unlogged table, which a crash empties unseen",
            "ALTER TABLE … SET LOGGED, or refresh_mode => 'FULL'.",
        )
    if is_inherited:
        raise _refusal(table, "inherited by others", "Use declarative partitioning, or refresh_mode => 'FULL'.")


def _row_level(kind: str, is_child: bool, subscribed: bool, trigger_mode: str) -> bool:
    """Whether triggers must run once a row.

    A statement trigger fires only on the table the statement names, so a partition used by itself, or a table that
    inherits, would miss writes through its parent; and the apply worker of a subscription fires row triggers only. A
    partitioned table always has statement triggers, on itself and on every partition: each statement fires exactly one
    set, whichever it names.
    """
    return kind != "p" and (is_child or subscribed or trigger_mode == "row")


def _refusal(table: Table, what: str, hint: str) -> Unsupported:
    return Unsupported(f"changes of {table} cannot be captured: it is {what}", code="PT250", hint=hint)
