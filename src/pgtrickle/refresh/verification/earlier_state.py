"""A query over its sources as they were before the changes of a window, evaluated by PostgreSQL. Called by `verify.py`.

    a source as it was  =  as it is  −  what the window inserted  +  what it deleted        rows by their text

Each source that changed becomes a temporary table of those rows, which takes the source's place in the query
(`query/analyse/table_copies.py`). Of the refresh's own code only the window's SQL is used.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from uuid import uuid4

from psycopg import sql

from pgtrickle.capture.change_window import of_heirs, of_itself
from pgtrickle.db import Connection, execute, statement
from pgtrickle.model import TABLEOID
from pgtrickle.physical.flow import Place
from pgtrickle.query.analyse.analysis import Analysis, SourceRelation
from pgtrickle.query.analyse.table_copies import NotCopied, over_copies
from pgtrickle.refresh.window import Window, copied, heirs_of


def as_they_were(reader: Connection, analysis: Analysis, window: Window, changed: Collection[int]) -> sql.Composable:
    """A temporary view of the query over its sources as they were; NotCopied if there can be none. `changed` are the
    sources that have changes in the window. What is compared was what its copy was."""
    if not {source.followed.oid for source in analysis.sources} >= set(changed):
        raise NotCopied("the query no longer reads what it read")
    copies = {
        source.table: _copy(reader, analysis, source, window, changed)
        for source in analysis.sources
        if source.followed.oid in changed or source.copy is not None
    }
    view = over_copies(reader, analysis, copies)
    return statement(view)


def _copy(
    reader: Connection, analysis: Analysis, source: SourceRelation, window: Window, changed: Collection[int]
) -> str:
    """A temporary table with the columns that the query uses, and the rows as they were."""
    name = f"pgt_copy_{uuid4().hex[:12]}"
    copy = sql.Identifier("pg_temp", name)
    table = sql.Identifier(source.followed.schema, source.followed.name)
    columns = [sql.Identifier(name) for name in _names(source)]
    targets = sql.SQL("({})").format(sql.SQL(", ").join(columns)) if columns else sql.SQL("")
    reader.execute(
        sql.SQL("CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA").format(
            copy, sql.SQL(", ").join(columns), table
        )
    )
    insert = sql.SQL("INSERT INTO {}{} {}")
    if source.followed.oid not in changed:
        rows = sql.SQL("SELECT {} FROM {}").format(sql.SQL(", ").join(columns), table)
        reader.execute(insert.format(copy, targets, rows))
    for each in _parts(source) if source.followed.oid in changed else ():
        target = copy if each.is_own else statement(heirs_of(reader, f"pg_temp.{name}"))
        rows = _rows_before(table, columns, each, _changes(reader, source, window, each.changes))
        reader.execute(insert.format(target, targets, rows))
    for key in _keys(reader, analysis, source):
        execute(reader, f"ALTER TABLE pg_temp.{name} ADD PRIMARY KEY ({key})")  # GROUP BY may rely on it
    execute(reader, f"ANALYZE pg_temp.{name}")
    return f"pg_temp.{name}"


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of a source, those that ONLY it has or those that its heirs have: the conditions by which they and their
    changes are told."""

    is_own: bool = True
    rows: str = "true"
    changes: str = "true"


def _parts(source: SourceRelation) -> tuple[_Part, ...]:
    oid = source.followed.oid
    if source.apart:
        own = _Part(True, f"{TABLEOID} = {oid}", of_itself(oid))
        return own, _Part(False, f"{TABLEOID} <> {oid}", of_heirs(oid))
    return (_Part(is_own=not (source.only and source.kind == "p")),)


def _names(source: SourceRelation) -> list[str]:
    return [column.name for column in source.columns if column.name != TABLEOID]


def _changes(reader: Connection, source: SourceRelation, window: Window, within: str) -> sql.Composable:
    outputs = [(name, f"c{place}") for place, name in enumerate(_names(source))]
    changes = window.changes_sql(source.followed.oid, outputs, within=within)
    place = window.spans[source.followed.oid].place
    if place is not Place.SNAPSHOT:
        changes = f"SELECT * FROM {copied(window.connection(place), changes, reader)}"
    return statement(changes)


def _rows_before(
    table: sql.Composable, columns: list[sql.Identifier], part: _Part, changes: sql.Composable
) -> sql.Composed:
    """Rows that are there beyond those that the window brought, and those that it took away."""
    comma = sql.SQL(", ")
    numbered = [sql.Identifier(f"c{place}") for place in range(len(columns))]
    renamed = [sql.SQL("{} AS {}").format(*pair) for pair in zip(columns, numbered, strict=True)]
    return sql.SQL(
        "WITH present AS (SELECT *, row_number() OVER (PARTITION BY image) AS copy FROM"
        "   (SELECT {renamed_and}{image} AS image FROM (SELECT {renamed} FROM {table} WHERE {own}) AS now) AS imaged),"
        " change AS MATERIALIZED (SELECT *, {image} AS image FROM ({changes}) AS between),"
        " net AS (SELECT image, sum(w)::bigint AS brought FROM change GROUP BY image),"
        " taken AS (SELECT DISTINCT ON (image) * FROM change ORDER BY image)"
        " SELECT {numbered} FROM present LEFT JOIN net USING (image) WHERE copy > coalesce(brought, 0)"
        " UNION ALL"
        " SELECT {numbered} FROM taken JOIN net USING (image) CROSS JOIN generate_series(1, -brought) AS each"
    ).format(
        renamed_and=comma.join([*numbered, sql.SQL("")]),
        renamed=comma.join(renamed),
        image=sql.SQL('ROW({})::text COLLATE "C"').format(comma.join(numbered)),
        table=table,
        own=statement(part.rows),
        changes=changes,
        numbered=comma.join(numbered),
    )


def _keys(reader: Connection, analysis: Analysis, source: SourceRelation) -> list[str]:
    """The primary keys that the query's GROUP BY relies on."""
    rows = reader.execute(
        "SELECT (SELECT string_agg(quote_ident(a.attname), ', ' ORDER BY k.place)"
        "   FROM unnest(c.conkey) WITH ORDINALITY AS k(number, place)"
        "   JOIN pg_attribute AS a ON a.attrelid = c.conrelid AND a.attnum = k.number)"
        " FROM pg_constraint AS c WHERE c.oid = ANY(%s::oid[]) AND c.conrelid = %s AND c.contype = 'p'",
        (list(analysis.constraints), source.table.oid),
    ).fetchall()
    return [str(key) for (key,) in rows]
