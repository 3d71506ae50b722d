"""Gives a stream table's own table the columns that its query has now, and keeps all else: it stays the same relation.

    of the same name and type       stays as it is, with what belongs to it: index, key, grant, comment, view
    of the same name, another type  is retyped: indexes and keys are built again by PostgreSQL, views are in the way
    of another name                 is dropped or added; indexes and keys go with a column, views are in the way

Done in the transaction that writes the new rows, so readers see the old ones until these are there. New columns come
after those that stay. So the order is the query's if nothing would be lost by that: a column without anything of its
own is dropped and added again to stand where the query has it, one with an index, say, stays where it is.

Called by `define.py`, which asks before anything is done, and by `table_refresh.py`, which does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pgtrickle.apply import merge, storage
from pgtrickle.catalog import ddl
from pgtrickle.catalog.reader import StreamTable
from pgtrickle.db import Connection, execute
from pgtrickle.model import Column, PgType, quote
from pgtrickle.postgres.statements.result import Storage
from pgtrickle.postgres.wire import definition
from pgtrickle.query.analyse.scratch_view import scratch
from pgtrickle.refresh.circle.rules import other_columns
from pgtrickle.refresh.failure import DefinitionProblem
from pgtrickle.refresh.prepared import Prepared

# Our own index, which is made again.
_OURS = """
SELECT i.indexrelid FROM pg_catalog.pg_index AS i WHERE i.indrelid = %(relid)s::oid AND i.indnatts = 1
  AND i.indkey[0] = 0 AND NOT i.indisunique AND i.indpred IS NULL
  AND pg_catalog.starts_with(pg_catalog.pg_get_expr(i.indexprs, i.indrelid), 'hash_record_extended(ROW(')
"""
_CARRYING = f"""
SELECT a.attname::text FROM pg_catalog.pg_attribute AS a JOIN pg_catalog.pg_type AS t ON t.oid = a.atttypid
WHERE a.attrelid = %(relid)s::oid AND a.attnum > 0 AND NOT a.attisdropped AND (
    a.attacl IS NOT NULL OR a.attnotnull OR a.atthasdef OR a.attoptions IS NOT NULL
    OR coalesce(a.attstattarget, -1) >= 0 OR a.attcompression <> '' OR a.attstorage <> t.typstorage
    OR EXISTS (SELECT FROM pg_catalog.pg_description AS c WHERE c.classoid = 'pg_catalog.pg_class'::regclass
               AND c.objoid = a.attrelid AND c.objsubid = a.attnum)
    OR EXISTS (SELECT FROM pg_catalog.pg_depend AS d WHERE d.refclassid = 'pg_catalog.pg_class'::regclass
               AND d.refobjid = a.attrelid AND d.refobjsubid = a.attnum AND d.objid NOT IN ({_OURS})))
"""
# What depends on columns: of a dropped one all that would take CASCADE, and what goes with it; of a retyped one what
# PostgreSQL does not change with it. A view depends by its rule. Tables that inherit would be changed as well.
_DEPENDENTS = f"""
SELECT a.attname::text, CASE WHEN r.oid IS NULL THEN pg_catalog.pg_describe_object(d.classid, d.objid, d.objsubid)
                        ELSE pg_catalog.pg_describe_object('pg_catalog.pg_class'::regclass, r.ev_class, 0) END,
       CASE WHEN a.attname = ANY (%(dropped)s::name[]) THEN d.deptype = 'n'
            ELSE d.classid IN ('pg_catalog.pg_rewrite'::regclass, 'pg_catalog.pg_proc'::regclass,
                               'pg_catalog.pg_trigger'::regclass, 'pg_catalog.pg_policy'::regclass,
                               'pg_catalog.pg_publication_rel'::regclass) END,
       a.attname = ANY (%(dropped)s::name[])
FROM pg_catalog.pg_depend AS d
JOIN pg_catalog.pg_attribute AS a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
LEFT JOIN pg_catalog.pg_rewrite AS r ON d.classid = 'pg_catalog.pg_rewrite'::regclass AND r.oid = d.objid
WHERE d.refclassid = 'pg_catalog.pg_class'::regclass AND d.refobjid = %(relid)s::oid
  AND a.attname = ANY (%(dropped)s::name[] || %(retyped)s::name[]) AND d.objid NOT IN ({_OURS})
UNION
SELECT 'the row type', pg_catalog.pg_describe_object(d.classid, d.objid, d.objsubid), true, false
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_depend AS d
  ON d.refclassid = 'pg_catalog.pg_type'::regclass AND d.refobjid = c.reltype
 AND d.classid = 'pg_catalog.pg_class'::regclass AND d.objsubid > 0
WHERE c.oid = %(relid)s::oid AND %(retyped)s::name[] <> '{{}}'
UNION
SELECT 'the table', pg_catalog.pg_describe_object('pg_catalog.pg_class'::regclass, i.inhrelid, 0), true, false
FROM pg_catalog.pg_inherits AS i WHERE i.inhparent = %(relid)s::oid AND %(retyped)s::name[] <> '{{}}'
ORDER BY 1, 2
"""


@dataclass(frozen=True, slots=True)
class Stored:
    """A column that the table has; `carries` if something beside our index would be lost with it."""

    name: str
    type: PgType
    carries: bool = False


@dataclass(frozen=True, slots=True)
class Reshape:
    """What to do to the table's columns, each kind in the order given. One that moves is dropped and added."""

    dropped: tuple[str, ...] = ()
    retyped: tuple[Column, ...] = ()
    added: tuple[Column, ...] = ()

    @property
    def needed(self) -> bool:
        return bool(self.dropped or self.retyped or self.added)

    @property
    def moved(self) -> frozenset[str]:
        """Columns that are dropped and added: rows that are there would have no value of these."""
        return frozenset(self.dropped).intersection(column.name for column in self.added)

    @property
    def other_names(self) -> bool:
        """Whether the table has other columns afterwards, and not only other types."""
        return set(self.dropped) != {column.name for column in self.added}


def plan(stored: Sequence[Stored], wanted: Sequence[Column]) -> Reshape:
    """What makes the wanted columns of the stored ones. Pure."""
    before, after = {column.name: column for column in stored}, {column.name: column for column in wanted}
    dropped = [column.name for column in stored if column.name not in after]
    added = [column for column in wanted if column.name not in before]
    retyped = [column for column in wanted if column.name in before and _other_type(before[column.name], column)]
    if not (dropped or added or retyped):
        return Reshape()  # in another order perhaps, which is no reason
    moving = _moving(stored, wanted)
    if any(before[column.name].carries for column in moving):
        return Reshape(tuple(dropped), tuple(retyped), tuple(added))
    names = {column.name for column in moving}
    return Reshape(
        (*dropped, *(column.name for column in moving)),
        tuple(column for column in retyped if column.name not in names),
        tuple(column for column in wanted if column.name in names or column.name not in before),
    )


def _moving(stored: Sequence[Stored], wanted: Sequence[Column]) -> list[Column]:
    """The columns that would have to come after new ones, or after one another, to stand as in the query."""
    places = {column.name: place for place, column in enumerate(stored)}
    last = -1
    for number, column in enumerate(wanted):
        place = places.get(column.name, -1)
        if place <= last:
            return [each for each in wanted[number:] if each.name in places]
        last = place
    return []


def _other_type(stored: Stored, wanted: Column) -> bool:
    return (stored.type.oid, stored.type.name, stored.type.collation) != (
        wanted.type.oid,
        wanted.type.name,
        wanted.type.collation,
    )


@dataclass(frozen=True, slots=True)
class Fitted:
    """Whether a table gets other columns, and what goes with those that it loses."""

    other_columns: bool = False
    lost: tuple[str, ...] = ()


def fit(connection: Connection, stream: StreamTable, prepared: Prepared, *, may_change: bool) -> Fitted:
    """Sees that the table can get the query's columns. It gets them with the rows, so that the old ones are there until
    then; if it has none yet, at once. Where it is not sure that the query is meant to have others, only types may
    change."""
    table = storage.present(connection, stream.pgt_relid)
    if table is None:
        raise storage.dropped(stream)
    found = needed(connection, table.oid, prepared.storage.columns)
    if not found.needed:
        return Fitted()
    if found.other_names and not may_change:
        raise DefinitionProblem(
            f"a source changed so that {stream} would have other columns",
            code="PT324",
            hint="alter the stream table with its query to take the new columns",
        )
    if any(source.oid == stream.pgt_relid for source in prepared.sources):
        raise other_columns(str(stream))
    lost = require_possible(connection, table.oid, str(stream), found)
    if not stream.is_populated:
        reshape_now(connection, stream, prepared.storage)
    return Fitted(True, lost)


def reshape_now(connection: Connection, stream: StreamTable, wanted: Storage) -> None:
    """Gives the table the query's columns by itself, with no rows until the next refresh."""
    with connection.transaction(), storage.held(connection, stream.pgt_relid, wanted, "ACCESS EXCLUSIVE") as target:
        carry_out(connection, stream.pgt_relid, str(stream), target, empty=True)


def needed(connection: Connection, relid: int, wanted: Sequence[Column]) -> Reshape:
    """What has to be done to the table of this oid, if anything."""
    with scratch(connection) as place:
        attributes = place.attributes(relid)
        carrying = {name for (name,) in place.rows(_CARRYING, {"relid": relid})}
    return plan([Stored(each.name, each.type, each.name in carrying) for each in attributes], wanted)


def require_possible(connection: Connection, relid: int, title: str, reshape: Reshape) -> tuple[str, ...]:
    """What goes with columns that are dropped, in words. Raises for what is in the way, all of it by name."""
    parameters = {
        "relid": relid,
        "dropped": list(reshape.dropped),
        "retyped": [column.name for column in reshape.retyped],
    }
    with scratch(connection) as place:
        found = place.rows(_DEPENDENTS, parameters)
    in_the_way = [(column, each) for column, each, blocks, _ in found if blocks]
    if in_the_way:
        columns = ", ".join(dict.fromkeys(column for column, _ in in_the_way))
        objects = ", ".join(dict.fromkeys(each for _, each in in_the_way))
        raise DefinitionProblem(
            f"{title} cannot get other columns: {objects} depends on {columns}",
            code="PT440",
            hint=f"drop {objects} first, then alter or refresh {title}, and create it again",
        )
    return tuple(f"{each} (column {column})" for column, each, _, gone in found if gone)


def carry_out(connection: Connection, relid: int, title: str, target: Storage, *, empty: bool = False) -> int:
    """Does what is needed, in the caller's transaction, which has the table locked against readers; returns how many
    rows were deleted: all if asked for, or if a column is retyped or moved, so that no value has to be converted.

    Who reads at an older snapshot sees deleted rows, which have no value of a moved column: so the table is rewritten,
    as it is by a retyping, after which it is empty at such a snapshot."""
    reshape = needed(connection, relid, target.columns)
    require_possible(connection, relid, title, reshape)
    ddl.announce_own(connection)  # who reads the table finds the new columns at its next refresh
    for name in _own_indexes(connection, relid):
        execute(connection, f"DROP INDEX {name}")
    deleted = 0
    if empty or reshape.retyped or reshape.moved:
        deleted = execute(connection, f"DELETE FROM ONLY {target.qualified}")
        execute(connection, "SET CONSTRAINTS ALL IMMEDIATE")  # no table is altered while something is left to check
    actions = [
        *(f"DROP COLUMN {quote(name)}" for name in reshape.dropped),
        *(_retype(column) for column in reshape.retyped),
        *(f"ADD COLUMN {definition(column)}" for column in reshape.added),
    ]
    if actions:
        execute(connection, f"ALTER TABLE {target.qualified} {', '.join(actions)}")
    if reshape.moved:  # an expression as its values has PostgreSQL rewrite the table, though the type is the same
        execute(connection, f"ALTER TABLE {target.qualified} {_retype(reshape.added[0])}")
    merge.index(connection, target)
    return deleted


def _retype(column: Column) -> str:
    collation = f" COLLATE {column.type.collation}" if column.type.collation else ""
    return f"ALTER COLUMN {quote(column.name)} TYPE {column.type.name}{collation} USING NULL::{column.type.name}"


def _own_indexes(connection: Connection, relid: int) -> list[str]:
    rows = connection.execute(
        "SELECT pg_catalog.format('%%I.%%I', n.nspname, c.relname) FROM pg_catalog.pg_class AS c"
        " JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid IN (" + _OURS + ")",
        {"relid": relid},
    ).fetchall()
    return [str(name) for (name,) in rows]
