"""Mends stream tables: those that came by a dump, and those of which something was dropped or deleted by hand.

    the catalog is another database's  ▶  it forgets all oids; every stream table is `restored`     one transaction
    a stream table is restored         ▶  attached to its table, known by name and by our index,
                                          its query bound to what has the names now, capture begun  one transaction
    something of it is missing         ▶  defined again on its sources                              one transaction

The caller refreshes them then: they are computed from scratch. Each step can be done again after it was cut short. A
login mends what it may compute; the rest is left, and said to be. Called by the API.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pgtrickle import failpoints
from pgtrickle.apply import merge
from pgtrickle.apply.storage import dropped
from pgtrickle.capture import copies, orphans, slot
from pgtrickle.catalog import ddl, install, origin, serving
from pgtrickle.catalog import reader as catalog
from pgtrickle.catalog import writer as record
from pgtrickle.catalog.reader import StreamTable
from pgtrickle.config import Settings
from pgtrickle.db import Connection
from pgtrickle.errors import Error, StateError
from pgtrickle.model import Table, quote
from pgtrickle.postgres.statements.result import Storage
from pgtrickle.query.compile import Compiled, compile_query
from pgtrickle.record import Record
from pgtrickle.refresh.definition import define
from pgtrickle.refresh.definition.binding import COMPILE_AGAIN_WITHIN_S
from pgtrickle.refresh.definition.defects import find, has_row_index, needs_row_index
from pgtrickle.refresh.definition.owners import WaitsForOwner, confirmed
from pgtrickle.refresh.failure import as_ours, known_failures
from pgtrickle.refresh.lock import wait_for_refresh
from pgtrickle.refresh.prepared import prepare

_NEVER = 1 << 30
_QUALIFIED = "pg_catalog"
"""The search path for PostgreSQL's own text of a query, in which every name is qualified."""


@dataclass(frozen=True, slots=True)
class Examined:
    """What is wrong with a stream table, each defect in words: it is defined again then. The index of its rows can be
    made by itself."""

    defects: tuple[str, ...] = ()
    unbound: bool = False
    lacks_index: Storage | None = None


@dataclass(frozen=True, slots=True)
class Repair(Record):
    """What was done for one stream table, in words; why it was not, if it failed (`error`) or is not ours (`left`)."""

    table: str
    done: tuple[str, ...] = ()
    error: Error | None = None
    left: str | None = None

    @property
    def outcome(self) -> str:
        if self.error is not None:
            return "ERROR"
        if self.left is not None:
            return "left"
        return "repaired" if self.done else "sound"

    def then(self, what: str) -> Repair:
        return replace(self, done=(*self.done, what))


def take_up(connection: Connection) -> tuple[str, ...]:
    """Sees to the catalog as a whole: that it is of this database, and has no capture of another; says what was done.
    Not to be called in a transaction."""
    serving.require_login(connection)
    serving.require_trusted_catalog(connection)
    done = []
    if origin.adopt(connection):
        done.append("the catalog was restored from a dump: taken over for this database")
        failpoints.reach("catalog-adopted")
    removed = sum(_remove_stray(connection, oid) for oid in orphans.find(connection))
    if removed:
        done.append(f"what captured {removed} tables that are no sources here was removed")
    strays = copies.remove_strays(connection)
    if strays:
        done.append(f"{strays} copies of compared sources that are no sources here were removed")
    done += [f"the publication {each} of another database was dropped" for each in origin.forget_decoders(connection)]
    install.mend(connection)
    return tuple(done)


def _remove_stray(connection: Connection, oid: int) -> bool:
    with connection.transaction():
        ddl.announce_own(connection)
        return orphans.remove(connection, oid)


def examine(connection: Connection, stream: StreamTable) -> Examined | Repair:
    """What is wrong with a stream table; changes nothing. If that cannot be told, or not by us, it will not be mended.
    All are examined before one is mended: what two have in common is mended with the first, and the other lacks it."""
    try:
        with connection.transaction():
            return Examined() if stream.is_restored else _examine(connection, stream)
    except serving.NotServed as refused:
        return Repair(str(stream), left=refused.message)
    except known_failures() as error:
        return _failed(connection, stream, error)


def mend(
    connection: Connection, stream: StreamTable, finding: Examined, settings: Settings, *, by_name: bool
) -> Repair:
    """One stream table, all or nothing. What went wrong is noted with it, and shown by `status`. `by_name`: it was
    asked for by name, as its owner does who has looked at it."""
    try:
        with connection.transaction():
            unlocked = record.ensure_lock(connection, stream.pgt_id)
            wait_for_refresh(connection, stream.pgt_id, str(stream))
            if stream.is_restored:
                done = _attach(connection, stream, settings, trusted=by_name)
            else:
                done = _mend(connection, stream, finding, settings)
        failpoints.reach("table-mended")
    except serving.NotServed as refused:
        return Repair(str(stream), left=refused.message)
    except known_failures() as error:
        return _failed(connection, stream, error)
    return Repair(str(stream), ("its lock was missing: made again", *done) if unlocked else done)


def _failed(connection: Connection, stream: StreamTable, error: Exception) -> Repair:
    if connection.broken:
        raise error
    raised = as_ours(error)
    text = f"{raised}; {raised.hint}" if raised.hint else str(raised)
    record.mark_failed(connection, stream.pgt_id, text, max_consecutive_errors=_NEVER, broken=True, counts=False)
    return Repair(str(stream), error=raised)


def finish(connection: Connection) -> None:
    """A slot that no source counts on any more would keep WAL."""
    slot.drop_if_unused(connection)


def _attach(connection: Connection, stream: StreamTable, settings: Settings, *, trusted: bool) -> tuple[str, ...]:
    """A restored one: its table is the one of its name, if that is what a stream table's is like."""
    place = _named(connection, stream.pgt_schema, stream.pgt_name)
    at_place = stream if place is None else replace(stream, pgt_relid=place.oid)
    if place is not None:
        serving.require(connection, at_place)
    compiled = _by_name(connection, at_place, trusted=trusted)
    storage = prepare(connection, stream.pgt_id, stream.pgt_schema, stream.pgt_name, compiled).storage
    done = f"attached to the table {stream}"
    if place is None:
        merge.create(connection, storage)
        place = _named(connection, stream.pgt_schema, stream.pgt_name)
        assert place is not None, "it was made in this transaction"
        done = f"the table {stream} was not there: made again"
    else:
        _require_ours(connection, place, storage)
    record.attach(connection, stream.pgt_id, place)
    record.move_dependencies(connection, stream.pgt_relid, place.oid)
    _define(connection, stream.pgt_id, settings, origin.REASON)
    return done, *_captured(connection, stream.pgt_id)


def _examine(connection: Connection, stream: StreamTable) -> Examined:
    if stream.owner is None:
        raise dropped(stream)
    serving.require(connection, stream)
    in_error = (stream.last_error or "it was in ERROR",) if stream.status == "ERROR" else ()
    if _is_unbound(connection, stream.pgt_id):
        return Examined(("what its query uses was not on record", *in_error), unbound=True)
    prepared = define.load(connection, stream)
    needs_index = needs_row_index(prepared.storage) and not has_row_index(connection, stream.pgt_relid)
    return Examined(
        (*find(connection, stream, prepared), *in_error), lacks_index=prepared.storage if needs_index else None
    )


def _mend(connection: Connection, stream: StreamTable, finding: Examined, settings: Settings) -> tuple[str, ...]:
    serving.require(connection, stream)
    if finding.unbound:
        _by_name(connection, stream)
    done = []
    if finding.lacks_index is not None:
        merge.index(connection, finding.lacks_index)
        done.append("the index of its rows was missing: made again")
    if not finding.defects:
        return tuple(done)
    _define(connection, stream.pgt_id, settings, f"repaired: {', '.join(finding.defects)}")
    return *done, *(f"{each}: mended" for each in finding.defects), *_captured(connection, stream.pgt_id)


def _define(connection: Connection, pgt_id: int, settings: Settings, reason: str) -> None:
    stream = catalog.by_id(connection, pgt_id)
    assert stream is not None, "its row is locked"
    define.redefine(connection, stream, settings=settings, reason=reason, locked=True)


def _captured(connection: Connection, pgt_id: int) -> tuple[str, ...]:
    sources = [
        f"{each.source_schema}.{each.source_name}"
        for each in catalog.dependencies(connection, pgt_id)
        if catalog.tracking(connection, each.source_relid) is not None
    ]
    return (f"changes of {', '.join(sources)} are captured",) if sources else ()


def _by_name(connection: Connection, stream: StreamTable, *, trusted: bool = False) -> Compiled:
    """The query bound to the relations that have the names in PostgreSQL's own text of it. Code of others is as new:
    it waits for the owner (PT350), as where someone has changed it, unless she has asked for this table by name."""
    try:
        compiled = compile_query(
            connection,
            stream.normalized_query,
            search_path=_QUALIFIED,
            settings=stream.settings,
            accept=None if trusted else confirmed(connection, stream),
            within_s=COMPILE_AGAIN_WITHIN_S,
            with_tree=False,
        )
    except WaitsForOwner as waits:
        raise WaitsForOwner(
            waits.message, hint=f"Look at it; then, with the login of its owner, `pgtrickle repair {stream}`."
        ) from None
    ddl.use(connection, stream.pgt_id, compiled.analysis.dependencies)
    return compiled


def _is_unbound(connection: Connection, pgt_id: int) -> bool:
    row = connection.execute(
        "SELECT NOT EXISTS (SELECT FROM pgtrickle.pgt_used_objects WHERE pgt_id = %s)", (pgt_id,)
    ).fetchone()
    return row is not None and bool(row[0])


def _named(connection: Connection, schema: str, name: str) -> Table | None:
    row = connection.execute(
        "SELECT c.oid FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relname = %s",
        (schema, name),
    ).fetchone()
    return None if row is None else Table(int(str(row[0])), schema, name)


def _require_ours(connection: Connection, place: Table, storage: Storage) -> None:
    """Whether the table of that name is the stream table's: it has exactly the query's columns, and our index."""
    rows = connection.execute(
        "SELECT a.attname, format_type(a.atttypid, a.atttypmod) FROM pg_attribute AS a JOIN pg_class AS c"
        " ON c.oid = a.attrelid AND c.relkind IN ('r', 'p')"
        " WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
        (place.oid,),
    ).fetchall()
    if rows != [(column.name, column.type.name) for column in storage.columns]:
        raise _not_ours(place, "it has other columns than the query")
    if not has_row_index(connection, place.oid):
        raise _not_ours(place, "it has no index on hash_record_extended(…), which every stream table has")
    taken = catalog.by_relation(connection, place.oid)
    if taken is not None:
        raise _not_ours(place, f"it is the table of the stream table {taken}")


def _not_ours(place: Table, why: str) -> StateError:
    name = f"{quote(place.schema)}.{quote(place.name)}"
    return StateError(
        f"{place} is not taken for the stream table of that name: {why}",
        code="PT462",
        hint=f"if it is someone's own table: ALTER TABLE {name} RENAME; if it is of no use: DROP TABLE {name};"
        " then repair again, which makes the stream table's own",
    )
