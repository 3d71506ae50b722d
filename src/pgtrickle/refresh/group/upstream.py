"""The stream tables that a full refresh in a group reads: they are newer than the group's snapshot, and not committed.

    all it reads are stream tables, evaluated whole     ▶ the writer evaluates the query: it sees them as they are
    base tables too, which must be of the snapshot      ▶ the reader, which holds that, is given copies of the others

Called by `table_refresh.py`; `plan.py` and `evaluate/stages.py` are told where to read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pgtrickle.db import Connection, execute
from pgtrickle.model import TABLEOID, quote
from pgtrickle.physical.flow import Place
from pgtrickle.postgres.copy import pipe
from pgtrickle.query.analyse.analysis import SourceRelation
from pgtrickle.query.analyse.table_copies import over_copies
from pgtrickle.refresh.connections import Connections
from pgtrickle.refresh.prepared import Prepared
from pgtrickle.refresh.window import copied, heirs_of


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where they are read: `copies` by oid, or in a `query` that stands for a whole one, at that place."""

    place: Place = Place.SNAPSHOT
    copies: Mapping[int, str] = field(default_factory=dict)
    query: str | None = None


AS_THEY_ARE = Upstream()
"""At the snapshot, as every other table."""


def at_hand(connections: Connections, prepared: Prepared) -> Upstream:
    """The stream tables that the query reads, as the writer sees them, with all others as of the reader's snapshot.
    NotCopied if PostgreSQL cannot be told so."""
    whole = prepared.compiled.tree is None
    if whole and prepared.upstream.issuperset(table.oid for table in prepared.sources):
        return Upstream(Place.WRITER, query=_over_views(connections.writer, prepared))
    followed = prepared.compiled.followed
    copies = {table: _copy(connections, source) for table, source in followed.items() if table.oid in prepared.upstream}
    if whole:
        view = over_copies(connections.reader, prepared.compiled.analysis, copies)
        return Upstream(Place.READER, query=f"SELECT * FROM {view}")
    return Upstream(Place.READER, {table.oid: copy for table, copy in copies.items()})


def over_views(connections: Connections, prepared: Prepared) -> Upstream:
    """For a query without a tree whose views read the clock: the reader evaluates it over views that read the time of
    the refresh. NotCopied if PostgreSQL cannot be told so."""
    query = _over_views(connections.reader, prepared) if prepared.compiled.tree is None else None
    return AS_THEY_ARE if query is None else Upstream(Place.READER, query=query)


def forget(connections: Connections, prepared: Prepared, upstream: Upstream) -> None:
    """Removes the views that were made: those over copies end with these, at the commit, but not all read one."""
    views = [view.table.name for view in prepared.compiled.analysis.views]
    if upstream.query is not None and views:
        connection = connections.writer if upstream.place is Place.WRITER else connections.reader
        execute(connection, f"DROP VIEW IF EXISTS {', '.join(f'pg_temp.{quote(name)}' for name in views)} CASCADE")


def _over_views(connection: Connection, prepared: Prepared) -> str | None:
    analysis = prepared.compiled.analysis
    return f"SELECT * FROM {over_copies(connection, analysis, {})}" if analysis.views_read_clock else None


def _copy(connections: Connections, source: SourceRelation) -> str:
    table, reader = source.table.qualified, connections.reader
    name = copied(connections.writer, f"SELECT * FROM {'ONLY ' if source.apart else ''}{table}", reader)
    if source.apart:
        of_heirs = f"SELECT * FROM {table} WHERE {TABLEOID} <> {source.table.oid}"
        pipe(connections.writer, of_heirs, reader, heirs_of(reader, name))
    execute(reader, f"ANALYZE {name}")
    return name
