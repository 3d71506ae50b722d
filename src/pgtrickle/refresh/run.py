"""Refreshes stream tables, one by one or several at once, under their locks; keeps what is dear to make warm between.

For everyone who refreshes: the API and the service. What a refresh does is in `underway.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from psycopg import IsolationLevel

from pgtrickle import db, failpoints
from pgtrickle.catalog import writer as record
from pgtrickle.catalog.reader import StreamTable
from pgtrickle.config import Settings
from pgtrickle.db import Connection
from pgtrickle.refresh.account import UNDER_WAY, skipped
from pgtrickle.refresh.connections import Connections
from pgtrickle.refresh.decide import Action
from pgtrickle.refresh.define import load
from pgtrickle.refresh.group import Group
from pgtrickle.refresh.lock import refresh_lock, refresh_locks
from pgtrickle.refresh.prepared import Prepared
from pgtrickle.refresh.result import RefreshResult
from pgtrickle.refresh.tick import NotInTick, Tick
from pgtrickle.refresh.underway import Refresh
from pgtrickle.refresh.window import Behind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PATIENCE_S = 0.5
"""Of one who asks for a refresh: the service holds the locks of tables that have nothing to do for a moment."""

CompiledTables: TypeAlias = dict[int, tuple[str, Prepared]]
"""Stream tables made ready, by id, each with the version of the definition it was compiled for."""


@dataclass(slots=True)
class Refresher:
    """Refreshes stream tables of one database; keeps its connections and compiled queries warm between refreshes.

    For one thread. Those of several threads may share `compiled`.
    """

    dsn: str
    settings: Settings
    session: Callable[[], SparkSession]
    compiled: CompiledTables = field(default_factory=dict)
    _connections: Connections | None = None

    def refresh(
        self, pgt_id: int, *, full: bool = False, initiated_by: str = "MANUAL", tick: Tick | None = None
    ) -> RefreshResult:
        """Refreshes one stream table, to the tick's snapshot if there is one and it can be. Raises what went wrong,
        after recording it."""
        connections = self.connections()
        patience = 0.0 if initiated_by == "SCHEDULER" else _PATIENCE_S
        with refresh_lock(connections.aside, pgt_id, patience) as locked:
            if not locked:
                return skipped(connections.aside, pgt_id, initiated_by, UNDER_WAY)
            record.close_abandoned(connections.aside, pgt_id)
            reason = "full refresh asked for" if full else None
            try:
                refresh = Refresh(self, connections, pgt_id, initiated_by, reason, tick)
                result = refresh.run()
            except NotInTick:
                refresh = Refresh(self, connections, pgt_id, initiated_by, reason)
                result = refresh.run()
            refresh.clean()
            return result

    def refresh_together(
        self,
        pgt_ids: Sequence[int],
        tick: Tick,
        *,
        initiated_by: str = "SCHEDULER",
        on_change: Callable[[Connection], None] | None = None,
    ) -> dict[int, RefreshResult]:
        """Refreshes several stream tables, each after those it reads, and commits them together or not at all;
        `on_change` is part of that transaction, unless none of them had anything to do.

        What goes wrong with one is raised, after recording it, and all stay as they were. NotInTick if one must be
        refreshed by itself first.
        """
        connections = self.connections()
        begun: dict[int, Refresh] = {}
        results: dict[int, RefreshResult] = {}
        with refresh_locks(connections.aside, pgt_ids) as locked:
            if not locked:
                return {each: skipped(connections.aside, each, initiated_by, UNDER_WAY) for each in pgt_ids}
            for pgt_id in pgt_ids:
                record.close_abandoned(connections.aside, pgt_id)
            try:
                with connections.writer.transaction():
                    group = Group.begin(connections.writer, pgt_ids)
                    for pgt_id in pgt_ids:
                        begun[pgt_id] = Refresh(self, connections, pgt_id, initiated_by, None, tick, group)
                        results[pgt_id] = begun[pgt_id].run()
                    if on_change is not None and any(r.action is not Action.NO_DATA for r in results.values()):
                        on_change(connections.writer)
                    failpoints.reach("before-group-commit")
            except Behind as behind:
                reason = str(behind)
                return {
                    each: begun[each].skip(reason)
                    if each in begun
                    else skipped(connections.aside, each, initiated_by, reason)
                    for each in pgt_ids
                }
            except Exception as error:
                for pgt_id in results:
                    begun[pgt_id].undone(f"undone with the others of its group: {error}")
                raise
            finally:  # not sooner: the writer had the staging tables locked, from which it read
                for refresh in begun.values():
                    refresh.drop_staging()
            failpoints.reach("after-group-commit")
            for refresh in begun.values():
                refresh.clean()
        return results

    def close(self) -> None:
        if self._connections is not None:
            for connection in self._connections:
                connection.close()
            self._connections = None

    def known(self, pgt_id: int) -> Prepared | None:
        """The compiled stream table as of its last refresh here; its definition may have changed since."""
        found = self.compiled.get(pgt_id)
        return None if found is None else found[1]

    def prepared(self, stream: StreamTable) -> Prepared:
        """The compiled stream table, from memory if it was compiled for the same definition."""
        known = at_hand(self.compiled, stream)
        if known is not None:
            return known
        aside = self.connections().aside
        with aside.transaction():
            db.execute(aside, f"SET LOCAL lock_timeout = '{db.LOCK_TIMEOUT}'")  # someone may hold a source for long
            prepared = load(aside, stream)
        self.compiled[stream.pgt_id] = (_version(stream), prepared)
        return prepared

    @property
    def backend_pids(self) -> tuple[int, ...]:
        """The sessions in which a refresh may be waiting; may be asked for by another thread."""
        known = self._connections
        return () if known is None else tuple(each.info.backend_pid for each in known if not each.closed)

    def connections(self) -> Connections:
        """Its connections, opened where they are not, or not any more. Not to be used while a refresh is under way."""
        known = self._connections
        if known is not None and all(db.is_usable(connection) for connection in known):
            return known
        self.close()
        roles = ("reader", "writer", "aside", "late")
        opened = Connections(*(db.connect(self.dsn, application_name=f"pgtrickle {role}") for role in roles))
        opened.reader.isolation_level = opened.late.isolation_level = IsolationLevel.REPEATABLE_READ
        self._connections = opened
        return self._connections


def at_hand(compiled: CompiledTables, stream: StreamTable) -> Prepared | None:
    """What is compiled for this definition of the stream table."""
    found = compiled.get(stream.pgt_id)
    return found[1] if found is not None and found[0] == _version(stream) else None


def _version(stream: StreamTable) -> str:
    """Of its definition."""
    return f"{stream.source_fingerprint}/{stream.updated_at}"
