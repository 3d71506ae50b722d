"""A database with the catalog installed and a ledger that replays buffers, to compare with what tables hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import psycopg
import pytest
from psycopg import sql

from pgtrickle import db
from pgtrickle.capture import change_window, triggers
from pgtrickle.capture.change_window import Pending
from pgtrickle.catalog.install import install
from pgtrickle.db import Connection
from pgtrickle.model import Table

Bag = Counter[tuple[str | None, ...]]


@pytest.fixture
def conn(database: str) -> Iterator[Connection]:
    with db.open_session(database) as connection:
        install(connection)
        yield connection


@pytest.fixture
def other(database: str, conn: Connection) -> Iterator[Connection]:
    """A second session, whose transactions the test opens and ends itself."""
    with db.open_session(database) as connection:
        yield connection
        connection.rollback()


def table_of(conn: Connection, name: str) -> Table:
    row = conn.execute(
        "SELECT c.oid::bigint, n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.oid = to_regclass(%s)",
        (name,),
    ).fetchone()
    assert row is not None, name
    oid, schema, relation = row
    assert isinstance(oid, int)
    return Table(oid, str(schema), str(relation))


@dataclass
class Ledger:
    """A consumer: adds up windows as a stream table does, and says whether it holds what the table holds.

    Rows are compared as text, which tells apart what `=` does not: 1.0 and 1.00, 0 and -0.
    """

    conn: Connection
    source: Table
    columns: list[str]
    frontier: str = ""
    content: Bag = field(default_factory=Counter)

    def reset(self) -> None:
        """Population: the table's content at one snapshot."""
        with self.conn.transaction():
            self.conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            self.frontier = self._now()
            self.content = self._bag(f"SELECT {self._texts(self.columns)}, 1 FROM {self.source.qualified}")

    def advance(self) -> Pending:
        """One window; a window that cannot be replayed is answered by populating anew."""
        with self.conn.transaction():
            self.conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            now = self._now()
            pending = change_window.pending(self.conn, [self.source.oid], self.frontier)[self.source.oid]
            assert pending == change_window.pending(self.conn, [self.source.oid], self.frontier, now)[self.source.oid]
            outputs = [f"o{place}" for place in range(len(self.columns))]
            changes = change_window.changes_sql(
                self.source.oid, list(zip(self.columns, outputs, strict=True)), self.frontier, now
            )
            delta = self._bag(f"SELECT {self._texts(outputs)}, w FROM ({changes}) AS delta")
        if pending.truncated:
            self.reset()
            return pending
        rows = self.content.keys() | delta.keys()
        self.content = Counter({row: n for row in rows if (n := self.content[row] + delta[row])})
        self.frontier = now
        return pending

    def check(self) -> Pending:
        """Advance, then be equal to the table as it is; no row may be owed."""
        pending = self.advance()
        held = self._bag(f"SELECT {self._texts(self.columns)}, 1 FROM {self.source.qualified}")
        assert self.content == held
        return pending

    def _now(self) -> str:
        row = self.conn.execute("SELECT pg_current_snapshot()::text").fetchone()
        assert row is not None
        return str(row[0])

    def _texts(self, columns: list[str]) -> str:
        return ", ".join(sql.SQL("{}::text").format(sql.Identifier(each)).as_string(None) for each in columns) or "NULL"

    def _bag(self, query: str) -> Bag:
        bag: Bag = Counter()
        for *values, weight in self.conn.execute(db.statement(query)):
            bag[tuple(None if value is None else str(value) for value in values)] += int(str(weight))
        return bag


Follow = Callable[..., Ledger]


@pytest.fixture
def follow(conn: Connection) -> Follow:
    """Capture some columns of a table and return a populated ledger of them."""

    def start(name: str, *columns: str, mode: str = "statement") -> Ledger:
        source = table_of(conn, name)
        with conn.transaction():
            triggers.attach(conn, source, columns, trigger_mode=mode)
        ledger = Ledger(conn, source, list(columns))
        ledger.reset()
        return ledger

    return start


def run(conn: psycopg.Connection[tuple[object, ...]], *statements: str) -> None:
    """The statements in one transaction."""
    with conn.transaction():
        for each in statements:
            conn.execute(db.statement(each))


def buffered(conn: Connection, source: Table) -> list[str]:
    """The actions in the source's buffer, in order of writing."""
    return [
        str(action)
        for (action,) in conn.execute(
            db.statement(f"SELECT action::text FROM pgtrickle_changes.changes_{source.oid} ORDER BY change_id")
        )
    ]
