"""What capture must know of a source table, and which tables cannot be captured. Called by `triggers.py`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
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
    """A table that can be captured. `descendants` are its partitions or heirs at all levels, `parents` those tables of
    the hierarchy that may have some (itself included). `unlogged`: a crash empties it, or one of these. Its attributes
    include the system column that tells which of these tables a row is of."""

    table: Table
    attributes: tuple[SourceColumn, ...]
    descendants: tuple[Table, ...]
    parents: tuple[int, ...]
    row_level: bool
    unlogged: bool
    partitioned: bool

    def has_rows(self, oid: int) -> bool:
        """Whether a table of the hierarchy holds rows itself: one that is partitioned does not."""
        return not (self.partitioned and oid in self.parents)

    @property
    def has_heirs(self) -> bool:
        return bool(self.descendants) and not self.partitioned

    def apart(self) -> Source:
        """The same with its own rows told from those of its heirs: statement triggers do not see which is which."""
        return replace(self, row_level=True)

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
WHERE a.attrelid = %s AND (a.attnum > 0 OR a.attname = 'tableoid') AND NOT a.attisdropped
ORDER BY a.attnum
"""


# Statement triggers fire only on the table that a statement names. `from_outside`: a statement may name a table that is
# none of the source's own, and change this one's rows: a parent of it, when it is a partition or inherits.
_TREE = """
SELECT c.oid, n.nspname, c.relname, c.relkind, c.relpersistence, pg_has_role(c.relowner, 'USAGE'),
       EXISTS (SELECT FROM pg_inherits AS i WHERE i.inhrelid = c.oid
               AND i.inhparent NOT IN (SELECT pgtrickle_internal.with_descendants(%(root)s))) AS from_outside
FROM pgtrickle_internal.with_descendants(%(root)s) AS d(oid) JOIN pg_class AS c ON c.oid = d.oid
JOIN pg_namespace AS n ON n.oid = c.relnamespace ORDER BY c.oid
"""


def read_source(conn: psycopg.Connection[Any], table: Table, *, trigger_mode: str = "statement") -> Source:
    """The source as it is now; Unsupported if its changes cannot be captured exactly, or not by us."""
    row = conn.execute(
        "SELECT c.relkind, c.relpersistence, n.nspname, c.relname, pg_has_role(c.relowner, 'USAGE'), c.relispartition,"
        " EXISTS (SELECT FROM pg_subscription_rel WHERE srrelid IN (SELECT pgtrickle_internal.with_descendants(c.oid)))"
        " FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = %s",
        (table.oid,),
    ).fetchone()
    if row is None:
        raise StateError(f"the table {table} no longer exists", code="PT321", hint="Drop or alter the stream table.")
    kind, persistence, schema, name, owned, is_partition, subscribed = row
    current = Table(table.oid, schema, name)
    _require_capturable(current, kind, persistence)
    if kind == "p" and subscribed:
        raise _refusal(current, "the target of a subscription, and partitioned", "Use refresh_mode => 'FULL'.")
    if not owned:
        raise _not_owned(current, current)
    with conn.cursor(row_factory=class_row(SourceColumn)) as cursor:
        attributes = tuple(cursor.execute(_ATTRIBUTES, (table.oid,)))
    tree = conn.execute(_TREE, {"root": table.oid}).fetchall()
    descendants = []
    for oid, in_schema, named, below, lasts, theirs, _ in tree:
        if oid == table.oid:
            continue
        descendants.append(Table(oid, in_schema, named))
        if below == "f":
            what = "a partitioned table with a foreign partition" if kind == "p" else "inherited by a foreign table"
            raise _refusal(current, what, "Use refresh_mode => 'FULL'.")
        if lasts == "t":
            raise _refusal(current, "inherited by a temporary table", "DROP that table, or use refresh_mode => 'FULL'.")
        if not theirs:
            raise _not_owned(current, descendants[-1])
    parents = tuple(each[0] for each in tree if each[3] == "p" or (kind == "r" and not is_partition))
    row_level = any(each[6] for each in tree) or (kind != "p" and (subscribed or trigger_mode == "row"))
    unlogged = any(each[4] == "u" for each in tree)
    return Source(current, attributes, tuple(descendants), parents, row_level, unlogged, kind == "p")


def _require_capturable(table: Table, kind: str, persistence: str) -> None:
    if kind in _REFUSED_KINDS:
        what, hint = _REFUSED_KINDS[kind]
        raise _refusal(table, what, hint)
    if kind not in ("r", "p"):
        raise _refusal(table, "not a table", "Name a table.")
    if table.schema in ("pg_catalog", "information_schema") or table.oid < FIRST_USER_OID:
        raise _refusal(table, "a system catalog", "Use refresh_mode => 'FULL'.")
    if persistence == "t":
        raise _refusal(table, "a temporary table", "Only one session sees it: use a permanent table.")


def _not_owned(table: Table, part: Table) -> Unsupported:
    it = "it" if part == table else str(part)
    return Unsupported(
        f"changes of {table} cannot be captured: this role does not own {it}, so it cannot add triggers",
        code="PT251",
        hint="Connect as the owner of the table, or GRANT that role to the one pgtrickle uses.",
    )


def _refusal(table: Table, what: str, hint: str) -> Unsupported:
    return Unsupported(f"changes of {table} cannot be captured: it is {what}", code="PT250", hint=hint)
