"""Defining stream tables: registers, changes and drops them with all that belongs to them, each in one transaction.

Called by the API, and by `table_refresh.py` when a source's definition changed. Nothing here computes rows: a table is
populated by its next refresh, at a snapshot taken after the commit, so no lock is held and no change missed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import psycopg

from pgtrickle.answers import TRUSTING, kept
from pgtrickle.apply import declared_indexes, layout, merge, state, storage, table_options
from pgtrickle.capture import copies, eligibility, triggers
from pgtrickle.capture.advice import set_identities
from pgtrickle.catalog import ddl, followers, serving
from pgtrickle.catalog import reader as catalog
from pgtrickle.catalog import writer as record
from pgtrickle.catalog.names import parse_name, qualify
from pgtrickle.catalog.reader import StreamTable
from pgtrickle.catalog.writer import Definition
from pgtrickle.config import Settings
from pgtrickle.db import Caller, Connection, caller
from pgtrickle.delta.differentiate import differentiate
from pgtrickle.delta.tree_text import plan as delta_text
from pgtrickle.delta.tree_text import tree as tree_text
from pgtrickle.errors import QueryError, StateError, Unsupported, UsageError
from pgtrickle.fence import Fence, fenced
from pgtrickle.index_text import Index, parse_indexes
from pgtrickle.model import OWN_SCHEMAS, Column, Table, quote
from pgtrickle.physical.window_keys import looked_up
from pgtrickle.postgres.aggregate import state_columns
from pgtrickle.postgres.statements.first_rows import FirstRows
from pgtrickle.postgres.statements.recursion import RecursiveRows
from pgtrickle.postgres.statements.window_rows import WindowRows
from pgtrickle.query.analyse import session_settings
from pgtrickle.query.analyse.analysis import OutputColumn
from pgtrickle.query.analyse.fingerprint import fingerprint, only_views_changed
from pgtrickle.query.analyse.scratch_view import scratch
from pgtrickle.query.clock import values_in
from pgtrickle.query.compile import Compiled, compile_query
from pgtrickle.query.operators import Aggregate, Operator, Window, walk
from pgtrickle.refresh.definition import reshape
from pgtrickle.refresh.definition.binding import compile_bound
from pgtrickle.refresh.failure import DefinitionProblem
from pgtrickle.refresh.follow import require_none
from pgtrickle.refresh.immediate import install, requirements
from pgtrickle.refresh.lock import wait_for_refresh
from pgtrickle.refresh.prepared import Prepared, joined_aggregates, prepare

BEFORE_IT: Final = "it is being filled before it is kept in the writers' own transactions"
_MOST_COLUMNS: Final = 1590
"""A table can have 1600, and those that we put rows into on their way have some of their own."""
MODES = ("AUTO", "FULL", "DIFFERENTIAL", "IMMEDIATE")


@dataclass(frozen=True, slots=True)
class RefreshMode:
    """The mode asked for, the one in effect, and why they differ."""

    asked: str
    effective: str
    reason: str | None


def create(
    connection: Connection,
    name: str,
    query: str,
    *,
    settings: Settings,
    schedule: str | None,
    refresh_mode: str,
    cdc_mode: str | None,
    fill_when_due: bool = False,
    set_identity: bool = False,
    primary_key: Sequence[str] = (),
    indexes: Sequence[Index] = (),
    protect: bool = False,
) -> int:
    """Registers a stream table: catalog, storage, state, capture. Commits all or nothing; returns its id. Its rows
    come by the caller's refresh or, with `fill_when_due`, by the service's."""
    with connection.transaction():
        serving.require_login(connection)
        _require_compatible(refresh_mode, cdc_mode)
        schema, bare = qualify(connection, parse_name(name))
        _require_users_schema(schema)
        _require_free(connection, schema, bare)
        who = _defining(connection, settings)
        compiled, mode = _compile(connection, query, who, refresh_mode)
        session_settings.require_same(connection, query, who)
        if _make_copies(connection, compiled):
            compiled, mode = _compile(connection, query, who, refresh_mode)
        with_identity = replace(settings, auto_replica_identity=settings.auto_replica_identity or set_identity)
        _require_eligible(connection, compiled, mode, cdc_mode, with_identity)
        prepared = prepare(connection, 0, schema, bare, compiled)
        merge.create(connection, prepared.storage, indexed=fill_when_due)
        table = _table(connection, schema, bare)
        table_options.set_primary_key(connection, table.oid, primary_key)
        table_options.set_protection(connection, table.oid, protect=protect)
        declared = declared_indexes.possible(connection, prepared.storage.columns, indexes)
        definition = _definition(connection, query, who, compiled, mode)
        pgt_id = record.register(
            connection,
            table,
            definition,
            schedule=schedule,
            requested_cdc_mode=cdc_mode,
            fill_when_due=fill_when_due,
            indexes=[str(index) for index in declared],
        )
        _build(connection, prepare(connection, pgt_id, schema, bare, compiled), mode, settings)
        if set_identity and mode.effective != "FULL":
            set_identities(connection, settings, [table.oid for table in prepared.sources])
    return pgt_id


def rehearse(connection: Connection, query: str, settings: Settings) -> tuple[Prepared, RefreshMode]:
    """What `create` would make of a query in mode AUTO: it is asked the same questions, and its table is made and taken
    back. Capture is not begun, as that would lock the sources; nor is state made, which takes rights on our schemas."""
    with connection.transaction(force_rollback=True):
        who = _defining(connection, settings)
        compiled, mode = _compile(connection, query, who, "AUTO")
        session_settings.require_same(connection, query, who)
        prepared = prepare(connection, 0, "pg_temp", "pgtrickle_rehearsed", compiled)
        merge.create(connection, prepared.storage)
    return prepared, mode


def load(connection: Connection, stream: StreamTable) -> Prepared:
    """Compiles a registered stream table for its refreshes: as it was accepted, it is given time."""
    with connection.transaction():
        serving.require(connection, stream)
        compiled = compile_bound(connection, stream, with_tree=stream.effective_mode != "FULL").compiled
    prepared = prepare(connection, stream.pgt_id, stream.pgt_schema, stream.pgt_name, compiled)
    if compiled.tree is None:
        return prepared
    return replace(prepared, fits=layout.fits(connection, prepared.states.values(), compiled.tree))


def redefine(
    connection: Connection,
    stream: StreamTable,
    *,
    settings: Settings,
    reason: str,
    query: str | None = None,
    refresh_mode: str | None = None,
    indexes: Sequence[Index] | None = None,
    locked: bool = False,
    fence: Fence | None = None,
) -> reshape.Fitted:
    """Defines the table anew, on another query or mode or on changed sources; its next refresh is from scratch, and
    gives the table the columns of the query. `locked`: the caller is a refresh of the table, and has its lock."""
    with fenced(connection, fence):
        _require_compatible(refresh_mode, stream.requested_cdc_mode)
        if not locked:
            wait_for_refresh(connection, stream.pgt_id, str(stream))
        serving.require(connection, stream)
        asked = refresh_mode or stream.refresh_mode
        may_change = True
        if query is None:
            _require_mode(asked)
            bound = compile_bound(connection, stream, with_tree=asked != "FULL")
            text, who = stream.defining_query, Caller(stream.search_path, stream.settings)
            if bound.renamed:
                text, who = bound.text, Caller(bound.search_path, stream.settings)
            may_change = bound.same_columns
            compiled, mode = _with_mode(connection, bound.compiled, asked)
            if _make_copies(connection, compiled):
                bound = compile_bound(connection, stream)
                compiled, mode = _with_mode(connection, bound.compiled, asked)
        else:
            text, who = query, _defining(connection, settings)
            compiled, mode = _compile(connection, text, who, asked)
            session_settings.require_same(connection, query, who)
            if _make_copies(connection, compiled):
                compiled, mode = _compile(connection, text, who, asked)
            _require_eligible(connection, compiled, mode, stream.requested_cdc_mode, settings)
        prepared = prepare(connection, stream.pgt_id, stream.pgt_schema, stream.pgt_name, compiled)
        before = [dependency.source_relid for dependency in catalog.dependencies(connection, stream.pgt_id)]
        for other in catalog.circle(connection, stream.pgt_id):  # in a circle they keep no state to go on from
            record.mark_reinit(connection, other, f"{stream}, which it was in a circle with, was defined again")
        fitted = reshape.fit(connection, stream, prepared, may_change=may_change)
        _declare(connection, stream, prepared.storage.columns, indexes)
        if stream.is_immediate:
            install.remove(connection, stream.pgt_id)
        state.drop(connection, stream.pgt_id)
        record.redefine(connection, stream.pgt_id, _definition(connection, text, who, compiled, mode))
        record.mark_reinit(connection, stream.pgt_id, reason)
        _build(connection, prepared, mode, settings)
        triggers.detach_all(connection, before)
        if fitted.other_columns and query is None and catalog.circle(connection, stream.pgt_id):
            raise DefinitionProblem(
                f"a source changed so that {stream}, which is in a circle, would have columns of other types",
                code="PT441",
                hint="cast these columns in its query to the types that they had",
            )
    return fitted


def take_up_views(
    connection: Connection, stream: StreamTable, before: Prepared, *, settings: Settings, fence: Fence | None
) -> bool:
    """Defines the table anew on views that were replaced, if the query reads the same through them, by a column more,
    say: nothing is to be computed. False if that cannot be told. `before` is as it was compiled until then."""
    if not stream.is_populated or before.compiled.tree is None:
        return False
    if stream.needs_reinit and not ddl.only_of_views(connection, stream.pgt_id, stream.reinit_reason):
        return False
    with fenced(connection, fence):
        found = fingerprint(connection, before.compiled.analysis.dependencies)
        if not only_views_changed(stream.source_fingerprint, found):
            return False
        serving.require(connection, stream)
        compiled = compile_bound(connection, stream).compiled
        if repr(compiled.tree) != repr(before.compiled.tree) or compiled.analysis.columns != _outputs(before):
            return False
        text, who = stream.defining_query, Caller(stream.search_path, stream.settings)
        mode = RefreshMode(stream.refresh_mode, stream.effective_mode, stream.mode_reason)
        record.redefine(connection, stream.pgt_id, _definition(connection, text, who, compiled, mode))
        record.unmark_reinit(connection, stream.pgt_id)
        triggers.attach_all(connection, _columns_used(compiled), trigger_mode=settings.cdc_trigger_mode)
    return True


def _outputs(prepared: Prepared) -> tuple[OutputColumn, ...]:
    return prepared.compiled.analysis.columns


def require_immediate(connection: Connection, stream: StreamTable) -> None:
    """Whether a table that is maintained by changes can be in IMMEDIATE mode; raises why not."""
    _require_compatible("IMMEDIATE", stream.requested_cdc_mode)
    serving.require(connection, stream)
    refused = requirements.refusal(connection, compile_bound(connection, stream).compiled)
    if refused is not None:
        raise refused


def ask_for(connection: Connection, stream: StreamTable, cdc_mode: str | None, settings: Settings) -> None:
    """Changes the way of capture that a table asks for, None: that of the setting; the service moves its sources."""
    with connection.transaction():
        _require_compatible(stream.refresh_mode, cdc_mode)
        if cdc_mode == "wal" and stream.effective_mode != "FULL":
            wanted = {
                Table(each.source_relid, each.source_schema, each.source_name): each.columns_used
                for each in catalog.dependencies(connection, stream.pgt_id)
            }
            _require_decodable(connection, wanted, settings)
        record.set_cdc_mode(connection, stream.pgt_id, cdc_mode)


def set_primary_key(connection: Connection, stream: StreamTable, columns: Sequence[str]) -> None:
    """Gives the table another primary key, or takes it away; its rows are read, no query is."""
    wait_for_refresh(connection, stream.pgt_id, str(stream))
    ddl.announce_own(connection)
    table_options.set_primary_key(connection, stream.pgt_relid, columns)


def set_indexes(connection: Connection, stream: StreamTable, indexes: Sequence[Index]) -> None:
    """Changes which indexes the table has as its option: makes the new ones, if it has its rows, and drops others."""
    wait_for_refresh(connection, stream.pgt_id, str(stream))
    with scratch(connection) as place:
        columns = [Column(each.name, each.type) for each in place.attributes(stream.pgt_relid)]
    declared = declared_indexes.possible(connection, columns, indexes)
    ddl.announce_own(connection)
    if stream.is_populated:
        declared_indexes.make_now(connection, stream.pgt_relid, declared, str(stream))
    _declare(connection, stream, columns, declared)


def _declare(
    connection: Connection, stream: StreamTable, columns: Sequence[Column], indexes: Sequence[Index] | None
) -> None:
    """Keeps on record which indexes the table is to have over these columns, None: those that it has, but for columns
    that are gone; and drops the others that it was to have until now."""
    before = parse_indexes(stream.indexes)
    wanted = declared_indexes.remaining(before, columns) if indexes is None else indexes
    declared = declared_indexes.possible(connection, columns, wanted)
    if declared == before:
        return
    record.set_indexes(connection, stream.pgt_id, [str(index) for index in declared])
    gone = [index for index in before if index not in declared]
    if gone:
        ddl.announce_own(connection)
        declared_indexes.drop(connection, stream.pgt_relid, gone)


def protect(connection: Connection, stream: StreamTable, *, protect: bool) -> None:
    """Has writes by hand refused, or allowed."""
    wait_for_refresh(connection, stream.pgt_id, str(stream))
    table_options.set_protection(connection, stream.pgt_relid, protect=protect)


def drop(connection: Connection, stream: StreamTable, *, cascade: bool) -> list[str]:
    """Drops a stream table and, with `cascade`, those built on it; returns their names."""
    with connection.transaction():
        dropped, sources = _drop(connection, stream, cascade=cascade, seen=set())
        triggers.detach_all(connection, sources)  # last, and all at once: no source stays locked while we wait
    return dropped


def _drop(connection: Connection, stream: StreamTable, *, cascade: bool, seen: set[int]) -> tuple[list[str], set[int]]:
    """Drops all but the capture of the sources; returns the names of the stream tables, and those sources. `seen`
    are those that are dropped, or about to be: a table is reached by every way to it, and a circle comes back."""
    wait_for_refresh(connection, stream.pgt_id, str(stream))
    if not cascade:
        require_none(connection, stream)
    seen.add(stream.pgt_id)
    dropped: list[str] = []
    sources = {stream.pgt_relid} if followers.of(connection, stream.pgt_id) else set[int]()
    for consumer in catalog.consumers_of(connection, stream.pgt_relid):
        if consumer.pgt_id in seen:
            continue
        if not cascade:
            raise StateError(
                f"the stream table {consumer} reads {stream}",
                code="PT303",
                hint="drop it first, or drop with cascade",
            )
        names, read = _drop(connection, consumer, cascade=True, seen=seen)
        dropped += names
        sources |= read
    sources |= {dependency.source_relid for dependency in catalog.dependencies(connection, stream.pgt_id)}
    record.unregister(connection, stream.pgt_id)
    install.remove(connection, stream.pgt_id)
    state.drop(connection, stream.pgt_id)
    _drop_storage(connection, stream, cascade=cascade)
    return [*dropped, str(stream)], sources


def _make_copies(connection: Connection, compiled: Compiled) -> bool:
    """Makes the copies that sources without triggers are to be compared with; whether one was missing, so that the
    query has to be compiled again, over it."""
    if compiled.tree is None:
        return False
    made = [copies.ensure(connection, each.table) for each in compiled.analysis.sources if each.is_compared]
    return any(made)


def _compile(connection: Connection, query: str, who: Caller, refresh_mode: str) -> tuple[Compiled, RefreshMode]:
    """The compiled query, and the mode it can have; a mode that was asked for by name and cannot be is an error."""
    _require_mode(refresh_mode)
    compiled = compile_query(
        connection, query, search_path=who.search_path, settings=who.settings, with_tree=refresh_mode != "FULL"
    )
    return _with_mode(connection, compiled, refresh_mode)


def _require_mode(refresh_mode: str) -> None:
    if refresh_mode not in MODES:
        raise UsageError(
            f"there is no refresh mode {refresh_mode!r}", code="PT006", hint=f"use one of {', '.join(MODES)}"
        )


def _with_mode(connection: Connection, compiled: Compiled, refresh_mode: str) -> tuple[Compiled, RefreshMode]:
    _require_storable(compiled)
    if refresh_mode == "FULL":
        return compiled, RefreshMode(refresh_mode, "FULL", "refresh mode is FULL")
    refusal = compiled.refusal or _state_refusal(compiled) or _capture_refusal(connection, compiled)
    if refusal is None and refresh_mode == "IMMEDIATE":
        refusal = requirements.refusal(connection, compiled)
    if refusal is None:
        return compiled, RefreshMode(refresh_mode, "DIFFERENTIAL", BEFORE_IT if refresh_mode == "IMMEDIATE" else None)
    if refresh_mode in {"DIFFERENTIAL", "IMMEDIATE"}:
        raise refusal
    return compiled.without_tree(), RefreshMode(refresh_mode, "FULL", str(refusal))


def _require_storable(compiled: Compiled) -> None:
    """Whether a table can have the query's columns, and so can those through which its rows come to it."""
    columns = len(compiled.analysis.columns)
    if columns == 0:
        raise QueryError("the query has no columns", code="PT112", hint="select at least one")
    if columns > _MOST_COLUMNS:
        raise QueryError(
            f"the query has {columns} columns, and a stream table at most {_MOST_COLUMNS}",
            code="PT113",
            hint="select fewer, or make two stream tables of it",
        )


def _state_refusal(compiled: Compiled) -> Unsupported | None:
    """That a grouping or a window would keep more than a table can have columns, if one would."""
    for node in walk(compiled.tree) if compiled.tree is not None else ():
        if isinstance(node, Window) and len(node.columns) > _MOST_COLUMNS:
            return Unsupported(
                f"a window function's rows would have {len(node.columns)} columns, and can have {_MOST_COLUMNS}",
                code="PT611",
                hint="read fewer columns beside it, or use refresh_mode => 'FULL'",
            )
        kept = len(state_columns(node)) if isinstance(node, Aggregate) else 0
        if kept > _MOST_COLUMNS:
            return Unsupported(
                f"a grouping of the query would keep {kept} values a group, and can keep {_MOST_COLUMNS}",
                code="PT284",
                hint="compute fewer aggregates in one query, or use refresh_mode => 'FULL'",
            )
    return None


def _require_compatible(refresh_mode: str | None, cdc_mode: str | None) -> None:
    if refresh_mode == "IMMEDIATE" and cdc_mode == "wal":
        raise UsageError(
            "IMMEDIATE tables are kept by triggers: they cannot be captured from the WAL",
            code="PT292",
            hint="leave cdc_mode out, or use another refresh mode",
        )


def _require_eligible(
    connection: Connection, compiled: Compiled, mode: RefreshMode, cdc_mode: str | None, settings: Settings
) -> None:
    """WAL that a table asks for by name must be possible; what only the setting asks for may wait on triggers."""
    if cdc_mode == "wal" and mode.effective != "FULL":
        _require_decodable(connection, _columns_used(compiled), settings)


def _columns_used(compiled: Compiled) -> dict[Table, list[str]]:
    return {table: [column.name for column in source.columns] for table, source in compiled.followed.items()}


def _require_decodable(connection: Connection, wanted: Mapping[Table, Collection[str]], settings: Settings) -> None:
    """All sources but stream tables and copies, which stay on triggers; where there is nothing but these, WAL cannot
    be."""
    ours = copies.are_copies(connection, [table.oid for table in wanted])
    others = {
        table: columns
        for table, columns in wanted.items()
        if table.oid not in ours and catalog.by_relation(connection, table.oid) is None
    }
    for table, columns in (others or wanted).items():
        eligibility.require(connection, table, columns, set_identity=settings.auto_replica_identity)


def _capture_refusal(connection: Connection, compiled: Compiled) -> Unsupported | None:
    """Why a source of the query cannot be captured, if one cannot."""
    for source in compiled.analysis.sources:
        if source.is_compared:
            continue
        try:
            triggers.require_capturable(connection, source.table, [column.name for column in source.columns])
        except Unsupported as refusal:
            return refusal
    return None


def _definition(connection: Connection, query: str, who: Caller, compiled: Compiled, mode: RefreshMode) -> Definition:
    analysis = compiled.analysis
    return Definition(
        defining_query=query,
        normalized_query=analysis.normalised,
        search_path=who.search_path,
        refresh_mode=mode.asked,
        effective_mode=mode.effective,
        mode_reason=mode.reason,
        source_fingerprint=fingerprint(connection, analysis.dependencies),
        sources=list(_columns_used(compiled).items()),
        dependencies=analysis.dependencies,
        settings=kept(who.settings),
        operator_tree=None if compiled.tree is None else tree_text(compiled.tree),
        delta_plan=None if compiled.tree is None else _delta_plan(compiled, compiled.tree),
        delta_plans={} if compiled.tree is None else _delta_plans(compiled, compiled.tree),
    )


def _delta_plan(compiled: Compiled, tree: Operator) -> str:
    """How the result changes when every source does, as `explain` shows it."""
    return delta_text(differentiate(tree, frozenset(table.oid for table in compiled.followed)))


def _delta_plans(compiled: Compiled, tree: Operator) -> dict[str, str]:
    """The same when one source alone does, and when only the time has moved; for `explain_delta`."""
    changed = {str(table.oid): frozenset({table.oid}) for table in compiled.followed}
    clock = frozenset(value.number for value in values_in(tree))
    if clock:
        changed["clock"] = clock
    return {key: delta_text(differentiate(tree, numbers)) for key, numbers in changed.items()}


def _build(connection: Connection, prepared: Prepared, mode: RefreshMode, settings: Settings) -> None:
    """Creates the state tables, and starts capture of every source."""
    if mode.effective == "FULL":
        return
    joined, asked = joined_aggregates(prepared.tree), looked_up(prepared.tree)
    for each in prepared.states.values():
        if isinstance(each, FirstRows):
            state.create_first_rows(connection, each)
        elif isinstance(each, WindowRows):
            state.create_window_rows(connection, each, looked_up=asked.get(each.window, ()))
        elif isinstance(each, RecursiveRows):
            state.create_recursive_rows(connection, each)
        else:
            state.create(connection, each, looked_up=each.aggregate in joined)
    layout.label(connection, prepared.states.values(), prepared.tree)
    triggers.attach_all(connection, _columns_used(prepared.compiled), trigger_mode=settings.cdc_trigger_mode)


def _require_users_schema(schema: str) -> None:
    if schema in OWN_SCHEMAS or schema == "information_schema" or schema.startswith("pg_"):
        raise UsageError(
            f"there can be no stream table in the schema {schema}", code="PT314", hint="choose a schema of your own"
        )


def _require_free(connection: Connection, schema: str, name: str) -> None:
    if catalog.get(connection, schema, name) is not None:
        raise StateError(
            f"the stream table {schema}.{name} exists already",
            code="PT302",
            hint="choose another name, or alter or drop it",
        )
    found = connection.execute(
        "SELECT to_regnamespace(%s) IS NOT NULL, to_regclass(%s) IS NOT NULL",
        (quote(schema), f"{quote(schema)}.{quote(name)}"),
    ).fetchone()
    assert found is not None
    if not found[0]:
        raise UsageError(f"there is no schema {schema}", code="PT005", hint=f"CREATE SCHEMA {quote(schema)} first")
    if found[1]:
        raise StateError(
            f"{schema}.{name} exists already and is no stream table", code="PT302", hint="choose another name"
        )


def _table(connection: Connection, schema: str, name: str) -> Table:
    row = connection.execute("SELECT %s::regclass::oid", (f"{quote(schema)}.{quote(name)}",)).fetchone()
    assert row is not None
    return Table(int(str(row[0])), schema, name)


def _defining(connection: Connection, settings: Settings) -> Caller:
    """Who defines a table: by this path and these settings its query is read, now and later."""
    who = caller(connection)
    promised = {TRUSTING: "on"} if settings.trust_stable_functions else {}
    return replace(who, settings=session_settings.settings_of(connection, who) | promised)


def _drop_storage(connection: Connection, stream: StreamTable, *, cascade: bool) -> None:
    try:
        storage.drop(connection, stream.pgt_relid, cascade=cascade)
    except psycopg.errors.DependentObjectsStillExist as error:
        raise StateError(
            f"other objects depend on {stream}: {error.diag.message_detail}",
            code="PT303",
            hint="drop them first, or drop with cascade",
        ) from error
