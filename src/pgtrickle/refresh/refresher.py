"""What refreshes need and is dear to make, kept warm between them: connections, compiled queries, Spark's session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

from psycopg import IsolationLevel

from pgtrickle import db
from pgtrickle.catalog.reader import StreamTable
from pgtrickle.config import Settings
from pgtrickle.fence import Fence, hold
from pgtrickle.refresh.connections import Connections
from pgtrickle.refresh.definition.define import load
from pgtrickle.refresh.gather_facts import KnownTables
from pgtrickle.refresh.prepared import Prepared
from pgtrickle.refresh.tick import Moment
from pgtrickle.refresh.ways import Way
from pgtrickle.server_cpu import Backends, question

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CompiledTables: TypeAlias = dict[int, tuple[str, Prepared, Prepared]]
"""Stream tables made ready, by id, each with the version of the definition it was compiled for, and as it was first
compiled since it was defined: what it reads may have changed after that."""


@dataclass(slots=True)
class Refresher:
    """For refreshes of stream tables of one database (`units.py`): keeps connections and compiled queries warm.

    For one thread. Those of several threads may share `compiled`.
    """

    dsn: str
    settings: Settings
    session: Callable[[], SparkSession]
    compiled: CompiledTables = field(default_factory=dict)
    fence: Fence | None = None
    """Of the service that it refreshes for; none where someone asks for a refresh by hand."""
    without_spark: bool = False
    """Flows are evaluated by plain SQL (`evaluate/on_postgres.py`): for tests, which tell all their stories both
    ways."""
    way: Way | None = None
    """The way that every refresh takes, whatever its mode: for tests. A window may be computed in full then, but what
    changes cannot tell is never taken from them."""
    spark_is_warm: bool = False
    """Whether it has refreshed on Spark before."""
    clock: Callable[[], datetime] | None = None
    """Says what time it is, in place of the server: for tests, which move the clock."""
    tables: KnownTables = field(default_factory=KnownTables)
    """What is known of the indexes of the tables that are read."""
    _connections: Connections | None = None
    _backends: Backends | None = None

    @property
    def is_told_how(self) -> bool:
        """Whether a test says by which way it refreshes."""
        return self.without_spark or self.way is not None

    def hold_fence(self, connection: db.Connection) -> None:
        """Has the connection's transaction commit only if the service it is for still leads."""
        hold(self.fence, connection)

    def timed(self, moment: Moment) -> Moment:
        """A moment, by whichever clock counts."""
        return moment if self.clock is None else replace(moment, at=self.clock())

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
        self.compiled[stream.pgt_id] = (_version(stream), prepared, self.first(stream) or prepared)
        return prepared

    def first(self, stream: StreamTable) -> Prepared | None:
        """The stream table as it was first compiled here for its present definition."""
        found = self.compiled.get(stream.pgt_id)
        same = found is not None and found[0].startswith(f"{stream.source_fingerprint}/")
        return found[2] if found is not None and same else None

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
        roles = ("reader", "writer", "aside", "late", "locks")
        opened = Connections(*(db.connect(self.dsn, application_name=f"pgtrickle {role}") for role in roles))
        opened.reader.isolation_level = opened.late.isolation_level = IsolationLevel.REPEATABLE_READ
        pids = ", ".join(str(each.info.backend_pid) for each in opened)
        asked = question(f"ANY (ARRAY[{pids}])")
        self._backends = Backends.of(opened.aside.execute(db.statement(asked)).fetchall())
        self._connections = opened
        return self._connections

    @property
    def backends(self) -> Backends:
        """The server's processes for its connections, which are open."""
        assert self._backends is not None
        return self._backends


def at_hand(compiled: CompiledTables, stream: StreamTable) -> Prepared | None:
    """What is compiled for this definition of the stream table."""
    found = compiled.get(stream.pgt_id)
    return found[1] if found is not None and found[0] == _version(stream) else None


def _version(stream: StreamTable) -> str:
    """Of its definition, and of the name that its table has."""
    return f"{stream.source_fingerprint}/{stream.updated_at}/{stream}"
