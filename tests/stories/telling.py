"""What every story is told with: a database, the real API over it, and PostgreSQL's own answer to hold it against."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession

from pgtrickle import db
from pgtrickle.api import Trickle
from pgtrickle.capture import eligibility
from pgtrickle.capture.modes import CaptureMode
from pgtrickle.catalog import reader as catalog
from pgtrickle.catalog.reader import HistoryRow, StreamTable
from pgtrickle.db import Connection, statement
from pgtrickle.refresh.result import RefreshResult
from tests.refresh.oracle import differing
from tests.wal.moving import Moving

INCREMENTAL = "DIFFERENTIAL"

TOTALS = "SELECT kind, count(*) AS n, sum(v) AS total FROM t GROUP BY kind"


@dataclass
class Story:
    """One database, a session that writes to it, and the stream tables under test with their queries.

    `looks` are tables whose rows PostgreSQL itself may print in several ways: they are compared by equality alone.
    With a `mover`, the sources of each new stream table are captured from the WAL, if they can be.
    """

    dsn: str = field(repr=False)
    connection: Connection
    trickle: Trickle
    queries: dict[str, str] = field(default_factory=dict)
    looks: set[str] = field(default_factory=set)
    mover: Moving | None = None

    def run(self, *statements: str) -> None:
        """The statements, each its own transaction."""
        for each in statements:
            self.connection.execute(statement(each))

    def together(self, *statements: str) -> None:
        """The statements in one transaction."""
        with self.connection.transaction():
            self.run(*statements)

    def value(self, query: str) -> object:
        return db.scalar(self.connection, query)

    def rows(self, query: str) -> list[tuple[object, ...]]:
        return self.connection.execute(statement(query)).fetchall()

    def create(self, name: str, query: str, mode: str = INCREMENTAL) -> RefreshResult:
        """A populated stream table, compared at once."""
        self.queries[name] = query
        result = self.trickle.create_stream_table(name, query, refresh_mode=mode)
        assert result is not None
        self.equal(name)
        if self.mover is not None:
            self.to_wal(name)
        return result

    def to_wal(self, name: str) -> None:
        """Moves the sources of a stream table to the WAL, those that can be."""
        assert self.mover is not None
        for source in catalog.dependencies(self.connection, self.stream(name).pgt_id):
            for (part,) in self.rows(
                f"SELECT relid::regclass FROM pg_partition_tree({source.source_relid}) "
                f"UNION SELECT {source.source_relid}::regclass"
            ):
                self.run(f"ALTER TABLE {part} REPLICA IDENTITY FULL")
            if eligibility.check(self.connection, source.source_relid, source.columns_used).eligible:
                self.mover.to(source.source_relid, CaptureMode.WAL)

    def check(self, name: str, action: str = INCREMENTAL) -> RefreshResult:
        """Refreshes the table, which must take this action, and be what PostgreSQL answers."""
        result = self.trickle.refresh_stream_table(name)
        assert result.action == action, result
        self.equal(name)
        return result

    def follow(self, *names: str) -> None:
        """Refreshes the tables (all, if none is named) incrementally and compares them."""
        for name in names or self.queries:
            result = self.trickle.refresh_stream_table(name)
            assert result.action in {INCREMENTAL, "NO_DATA"}, (name, result)
            self.equal(name)

    def equal(self, name: str) -> None:
        """The table holds what its query answers: by EXCEPT ALL both ways, and to the letter of every row's text."""
        query = self.queries[name]
        if name not in self.looks:
            assert self.content(name) == texts(self.connection, query)
        try:
            assert differing(self.connection, name, query) == []
        except psycopg.errors.UndefinedFunction:  # a type without equality, json say: its text was compared
            assert name not in self.looks

    def content(self, name: str) -> Counter[str]:
        return texts(self.connection, f"SELECT * FROM {name}")

    def stream(self, name: str) -> StreamTable:
        (found,) = self.trickle.status(name)
        return found

    def last(self, name: str) -> HistoryRow:
        return self.trickle.history(name, 1)[0]

    def oid(self, table: str) -> int:
        return int(str(self.value(f"SELECT '{table}'::regclass::oid")))

    def buffered(self, table: str) -> int:
        """How many changes the table's buffer holds, once all are there."""
        if self.mover is not None:
            self.mover.await_decoder()
        return int(str(self.value(f"SELECT count(*) FROM pgtrickle_changes.changes_{self.oid(table)}")))

    def ours(self) -> list[str]:
        """All that capture, state and staging made in this database."""
        return [
            str(name)
            for (name,) in self.rows(
                "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
                "WHERE n.nspname IN ('pgtrickle_changes', 'pgtrickle_state') AND c.relkind = 'r' "
                "UNION ALL SELECT p.proname FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace "
                "WHERE n.nspname = 'pgtrickle_changes' "
                "UNION ALL SELECT tgname FROM pg_trigger WHERE tgname LIKE 'pgtrickle%' ORDER BY 1"
            )
        ]

    @contextmanager
    def session(self, **parameters: str) -> Iterator[Connection]:
        """Another session, whose transactions the test begins and ends itself."""
        with db.open_session(make_conninfo(self.dsn, **parameters)) as other:
            yield other


def texts(connection: Connection, query: str) -> Counter[str]:
    """The rows of a query as PostgreSQL prints them, which tells apart what `=` does not (1.0 and 1.00)."""
    return Counter(str(row[0]) for row in connection.execute(statement(f"SELECT q::text FROM ({query}) AS q")))


@contextmanager
def telling(dsn: str, spark: SparkSession | None) -> Iterator[Story]:
    with db.open_session(dsn) as connection, Trickle(dsn, spark=spark) as trickle:
        yield Story(dsn, connection, trickle)
