"""Compares a stream table with its query as PostgreSQL itself evaluates it: the user's own text, nothing of our trees.
Where that would mean other columns or relations than when it was defined, PostgreSQL's own text of then
(`definition/binding.py`).

    nothing pending                ▶ the text over the sources as they are
    changes pending                ▶ the text over the sources as they were (`earlier_state.py`)
    what they were is not known    ▶ refreshed first, then the text over the sources as they are
    FULL mode, or never filled     ▶ the text over the sources as they are: a stale table differs
    the buffers may not be read    ▶ the same, and the answer says so

Of what a refresh is made of, only the frontier and the window's changes are used here. Called by
`api.py`, and for samples by `scheduler/audit.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import psycopg
from psycopg import sql

from pgtrickle import db
from pgtrickle.apply import storage
from pgtrickle.capture.buffer import SCHEMA, buffer_name, may_read
from pgtrickle.catalog import reader as catalog
from pgtrickle.catalog import serving
from pgtrickle.catalog.reader import StreamTable
from pgtrickle.db import Connection
from pgtrickle.errors import Error, StateError
from pgtrickle.query.analyse.analyze import analyze
from pgtrickle.query.analyse.fingerprint import fingerprint, still_holds
from pgtrickle.query.analyse.scratch_view import ScratchView
from pgtrickle.query.analyse.table_copies import NotCopied, over_copies
from pgtrickle.record import Record
from pgtrickle.refresh.clock import settings_at
from pgtrickle.refresh.connections import Connections
from pgtrickle.refresh.decide import Action
from pgtrickle.refresh.definition.binding import Bound, compile_bound
from pgtrickle.refresh.failure import as_ours
from pgtrickle.refresh.lock import wait_for_refresh
from pgtrickle.refresh.outcome import Stop
from pgtrickle.refresh.result import RefreshResult
from pgtrickle.refresh.verification.comparison import Differences, Share, compare
from pgtrickle.refresh.verification.earlier_state import as_they_were
from pgtrickle.refresh.verification.ties import compared_again
from pgtrickle.refresh.window import Window, at_snapshot, await_decoder, opened

AT_ITS_SNAPSHOT: Final = "its snapshot"
AT_PRESENT: Final = "the present"
AFTER_REFRESH: Final = "the present, after a refresh"
UNREAD: Final = f"{AT_PRESENT}; this role may not read the changes that wait"
_MOST_REFRESHES: Final = 5
_VIEW: Final = "pgtrickle_verified"


@dataclass(frozen=True, slots=True)
class Verification(Record):
    """The answer: rows the table lacks and rows it has too many by `=`, and rows that are equal but look different
    (1.0, 1.00), at its own snapshot or (`compared_with`) now. `error`: why there is none."""

    table: str
    missing: int
    extra: int
    compared_with: str
    different_looks: int = 0
    error: str | None = None

    @property
    def equal(self) -> bool:
        return self.error is None and self.missing == self.extra == self.different_looks == 0

    def to_dict(self) -> dict[str, object]:
        return {**Record.to_dict(self), "equal": self.equal}


class _TakesPatience(Exception):
    """There are changes still to be decoded."""


class _UnknownThen(Exception):
    """The query cannot be evaluated over the sources as they were at the table's snapshot; says why."""


Refresh = Callable[[int], RefreshResult]
"""Refreshes the stream table of that id, with all that must be of one version with it."""


def verify_or_tell(connections: Connections, stream: StreamTable, patience_s: float, refresh: Refresh) -> Verification:
    """As `verify`; what keeps this table from being compared is its own answer, and the next ones are compared."""
    try:
        return verify(connections, stream, patience_s, refresh)
    except (Error, psycopg.Error) as error:
        if isinstance(error, psycopg.OperationalError) and connections.reader.broken:
            raise
        return Verification(str(stream), 0, 0, "nothing", error=str(as_ours(error)))


def verify(connections: Connections, stream: StreamTable, patience_s: float, refresh: Refresh) -> Verification:
    """Counts the differing rows; one consistent view of everything. Waits for the decoder as a refresh does."""
    if stream.owner is None:
        raise storage.dropped(stream)
    meant = _meant(connections.aside, stream)
    if stream.effective_mode == "FULL" or not stream.is_populated:
        with _transaction(connections, stream):
            return _answer(stream, _evaluated(connections.reader, stream, meant), AT_PRESENT)
    sources = [each.source_relid for each in catalog.dependencies(connections.aside, stream.pgt_id)]
    if not may_read(connections.aside, sources):
        with _transaction(connections, stream):
            return _answer(stream, _evaluated(connections.reader, stream, meant), UNREAD)
    if _is_outdated(connections.aside, stream, meant):
        return _after_refresh(connections, stream, patience_s, refresh, "what it depends on was altered since")
    try:
        return _at_its_snapshot(connections, stream, meant)
    except _TakesPatience:  # no refresh may clean away what we wait for
        with connections.writer.transaction():
            wait_for_refresh(connections.writer, stream.pgt_id, str(stream))
            try:
                stream = _read(connections, stream)
                return _at_its_snapshot(connections, stream, _meant(connections.aside, stream), patience_s)
            except _UnknownThen as unknown:
                reason = str(unknown)
    except _UnknownThen as unknown:
        reason = str(unknown)
    return _after_refresh(connections, stream, patience_s, refresh, reason)


def _meant(aside: Connection, stream: StreamTable) -> Bound:
    """The query by the text that means what it was defined on. Raises WaitsForOwner, before anything of it is
    evaluated, if it means something else by another's hand."""
    serving.require(aside, stream)
    with aside.transaction():
        db.execute(aside, f"SET LOCAL lock_timeout = '{db.LOCK_TIMEOUT}'")
        return compile_bound(aside, stream, with_tree=False)


def _is_outdated(aside: Connection, stream: StreamTable, meant: Bound) -> bool:
    """Whether the query means something else than when it was last defined."""
    if stream.source_fingerprint is None:  # marked to be defined again for its rows, which are to be compared
        return False
    found = fingerprint(aside, meant.compiled.analysis.dependencies)
    return not still_holds(stream.source_fingerprint, found)


def sampled(connections: Connections, stream: StreamTable, share: Share, timeout_s: float) -> Verification | None:
    """Compares a share of the rows, and all if that differs; None if it cannot be known for now. Waits for nothing and
    refreshes nothing. The query is evaluated as a whole, within the time given (psycopg.errors.QueryCanceled)."""
    meant = _meant(connections.aside, stream)
    if _is_outdated(connections.aside, stream, meant):
        return None
    try:
        return _at_its_snapshot(connections, stream, meant, share=share, timeout_s=timeout_s)
    except (_TakesPatience, _UnknownThen):
        return None


def _at_its_snapshot(
    connections: Connections,
    stream: StreamTable,
    meant: Bound,
    patience_s: float | None = None,
    *,
    share: Share | None = None,
    timeout_s: float = 0.0,
) -> Verification:
    reader = connections.reader
    with _transaction(connections, stream), _window(connections, stream, patience_s) as window:
        reader.execute("SELECT set_config('statement_timeout', %s, true)", (f"{round(timeout_s * 1000)}ms",))
        changed = _changed(connections, stream, window)
        found = _evaluated_then(reader, stream, meant, window, changed, share)
        return _with_ties(connections, stream, window, changed, found)


def _evaluated_then(
    reader: Connection,
    stream: StreamTable,
    meant: Bound,
    window: Window,
    changed: frozenset[int],
    share: Share | None = None,
) -> Differences:
    """Against the query over its sources as they were, if they have changed or are followed by copies."""
    if not changed and not any(source.copy for source in meant.compiled.analysis.sources):
        return _evaluated(reader, stream, meant, share)
    analysis = analyze(reader, meant.text, search_path=meant.search_path, settings=stream.settings)
    try:
        view = as_they_were(reader, analysis, window, changed)
    except NotCopied as problem:
        raise _UnknownThen(str(problem)) from problem
    return compare(reader, stream, view, share)


def _with_ties(
    connections: Connections, stream: StreamTable, window: Window, changed: frozenset[int], found: Differences
) -> Verification:
    """The answer; if the query leaves open which rows come first, it is asked again with ties in our order."""
    found, why = compared_again(connections, stream, window, changed, found)
    compared_with = AT_ITS_SNAPSHOT if why is None else f"{AT_ITS_SNAPSHOT}; rows tie in the order of {why}"
    return _answer(stream, found, compared_with)


def _after_refresh(
    connections: Connections, stream: StreamTable, patience_s: float, refresh: Refresh, reason: str
) -> Verification:
    """Compares with the present once the table is up to date with it. Whoever writes to the sources without a pause
    leaves no moment for that."""
    for _ in range(_MOST_REFRESHES):
        result = refresh(stream.pgt_id)
        if result.action is Action.SKIP:
            raise _incomparable(stream, f"{reason}, and it cannot be refreshed: {result.reason}")
        stream = _read(connections, stream)
        meant = _meant(connections.aside, stream)
        with _transaction(connections, stream), _window(connections, stream, patience_s) as window:
            try:
                settled = not _changed(connections, stream, window)
            except _UnknownThen:
                settled = False
            if settled:
                found = _evaluated_then(connections.reader, stream, meant, window, frozenset())
                return _answer(stream, found, AFTER_REFRESH)
    raise _incomparable(stream, f"{reason}, and its sources keep changing")


def _incomparable(stream: StreamTable, why: str) -> StateError:
    return StateError(
        f"{stream} cannot be compared at its snapshot: {why}", code="PT346", hint="Verify it when less is written."
    )


def _read(connections: Connections, stream: StreamTable) -> StreamTable:
    found = catalog.by_id(connections.aside, stream.pgt_id)
    if found is None:
        raise StateError("the stream table was dropped", code="PT301", hint="`pgtrickle status` lists them all.")
    return found


@contextmanager
def _transaction(connections: Connections, stream: StreamTable) -> Iterator[None]:
    """One snapshot for all that is read, of which nothing stays. What is read is locked before that snapshot: a table
    or buffer that is truncated or rewritten after it would read as empty."""
    reader = connections.reader
    relations = _relations(connections.aside, stream)
    with reader.transaction(force_rollback=True):
        db.use_settings(reader, stream.settings)
        if relations:
            db.execute(reader, f"SET LOCAL lock_timeout = '{db.LOCK_TIMEOUT}'")
            db.execute(reader, f"LOCK TABLE {', '.join(relations)} IN ACCESS SHARE MODE")
        _use_time(reader, stream)
        yield


def _use_time(reader: Connection, stream: StreamTable) -> None:
    """The query is evaluated as of the table's own time."""
    row = reader.execute(
        "SELECT data_timestamp FROM pgtrickle.pgt_stream_tables WHERE pgt_id = %s", (stream.pgt_id,)
    ).fetchone()
    if row is not None and isinstance(row[0], datetime):
        db.use_settings(reader, settings_at({}, row[0]))


def _relations(aside: Connection, stream: StreamTable) -> list[str]:
    """The table itself, its sources and their buffers, as far as they are there and may be locked."""
    sources = [each.source_relid for each in catalog.dependencies(aside, stream.pgt_id)]
    rows = aside.execute(
        "SELECT pg_catalog.format('%%I.%%I', n.nspname, c.relname) FROM pg_catalog.pg_class AS c"
        " JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace"
        " WHERE (c.oid = ANY(%s::oid[]) OR n.nspname = %s AND c.relname = ANY(%s::text[])) AND c.relkind IN ('r', 'p')"
        " AND pg_catalog.has_table_privilege(c.oid, 'SELECT')",
        ([stream.pgt_relid, *sources], SCHEMA, [buffer_name(oid) for oid in sources]),
    ).fetchall()
    return sorted(str(name) for (name,) in rows)


@contextmanager
def _window(connections: Connections, stream: StreamTable, patience_s: float | None) -> Iterator[Window]:
    """What happened since the table's last refresh, as far as our snapshot sees. _TakesPatience without any."""
    reader = connections.reader
    row = reader.execute(
        "SELECT frontier::text, coalesce(upstream_frontier, frontier)::text, pg_current_snapshot()::text,"
        " ARRAY(SELECT d.source_relid::bigint FROM pgtrickle.pgt_dependencies AS d WHERE d.pgt_id = t.pgt_id"
        "   AND t.effective_mode <> 'IMMEDIATE'),"  # to which nothing has happened that it does not have
        " ARRAY(SELECT d.source_relid::bigint FROM pgtrickle.pgt_dependencies AS d JOIN pgtrickle.pgt_stream_tables"
        "   AS u ON u.pgt_relid = d.source_relid WHERE d.pgt_id = t.pgt_id)"
        " FROM pgtrickle.pgt_stream_tables AS t WHERE pgt_id = %s",
        (stream.pgt_id,),
    ).fetchone()
    if row is None:
        raise StateError("the stream table was dropped", code="PT301", hint="`pgtrickle status` lists them all.")
    frontier, upstream_frontier, now, sources, upstream = row
    assert isinstance(sources, list)
    assert isinstance(upstream, list)
    since = {int(oid): str(upstream_frontier if oid in upstream else frontier) for oid in sources}
    with ExitStack() as stack:
        found = at_snapshot(connections, since, str(now))
        if not found.is_complete:
            if patience_s is None:
                raise _TakesPatience
            found = stack.enter_context(opened(_completed(found, stream, patience_s)))
        yield found


def _completed(window: Window, stream: StreamTable, patience_s: float) -> Window:
    try:
        return await_decoder(window, patience_s)
    except Stop as behind:
        raise StateError(
            f"{stream} cannot be compared at its snapshot: {behind}",
            code="PT346",
            hint="`pgtrickle cdc` shows how far the decoder is.",
        ) from behind


def _changed(connections: Connections, stream: StreamTable, window: Window) -> frozenset[int]:
    """The sources that have changes in the window; _UnknownThen if these do not tell what a source was."""
    pending = window.pending()
    if any(found.truncated for found in pending.values()):
        raise _UnknownThen("a source was truncated since")
    missed = [oid for oid, found in pending.items() if not found.captured]
    _require_captured(connections, stream, missed)
    return frozenset(oid for oid, found in pending.items() if found.changes)


def _require_captured(connections: Connections, stream: StreamTable, missed: Collection[int]) -> None:
    """Without all changes since its snapshot, what the sources were then is not known."""
    if missed:
        sources = catalog.dependencies(connections.aside, stream.pgt_id)
        names = ", ".join(f"{each.source_schema}.{each.source_name}" for each in sources if each.source_relid in missed)
        raise StateError(
            f"{stream} cannot be compared at its snapshot: changes of {names} were not captured for a time",
            code="PT346",
            hint="Refresh it: it is computed again.",
        )


def _evaluated(reader: Connection, stream: StreamTable, meant: Bound, share: Share | None = None) -> Differences:
    """Against the query's text, as PostgreSQL reads it under the path it was given with. Where it reads the clock, that
    is put in its place in the text that PostgreSQL prints of it."""
    analysis = meant.compiled.analysis
    if analysis.reads_clock:
        try:
            return compare(reader, stream, db.statement(over_copies(reader, analysis, {})), share)
        except NotCopied as problem:
            raise _incomparable(stream, str(problem)) from problem
    with reader.transaction():
        place = ScratchView(reader)
        before = place.search_path()
        place.use_search_path(meant.search_path)
        place.define(meant.text, _VIEW)
        place.use_search_path(before)
    return compare(reader, stream, sql.Identifier("pg_temp", _VIEW), share)


def _answer(stream: StreamTable, found: Differences, compared_with: str) -> Verification:
    return Verification(str(stream), found.missing, found.extra, compared_with, found.looks)
