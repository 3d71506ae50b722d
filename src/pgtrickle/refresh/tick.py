"""One snapshot for all base tables of a tick: taken, exported, and held while the tables of the tick are refreshed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from psycopg import IsolationLevel

from pgtrickle import db


@dataclass(frozen=True, slots=True)
class Moment:
    """The snapshot a refresh brings its table to, and the time it was taken."""

    snapshot: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Tick:
    """A moment that several refreshes share, and the name under which they find its snapshot."""

    moment: Moment
    exported: str


def connect(dsn: str) -> db.Connection:
    """A connection that can hold or see one tick after the other."""
    connection = db.connect(dsn, application_name="pgtrickle tick")
    connection.isolation_level = IsolationLevel.REPEATABLE_READ
    return connection


@contextmanager
def held(connection: db.Connection) -> Iterator[Tick]:
    """A tick on a connection of `connect`, to be used for nothing else: whatever it read would stay locked against DDL,
    for which a refresh of the tick may be waiting."""
    with connection.transaction():
        row = connection.execute(
            "SELECT pg_current_snapshot()::text, clock_timestamp(), pg_export_snapshot()"
        ).fetchone()
        assert row is not None
        assert isinstance(row[1], datetime)
        yield Tick(Moment(str(row[0]), row[1]), str(row[2]))


@contextmanager
def seen(connection: db.Connection, at: Tick) -> Iterator[None]:
    """A transaction at the tick's snapshot, on a connection of `connect`."""
    with connection.transaction():
        db.execute(connection, f"SET TRANSACTION SNAPSHOT '{at.exported}'")
        yield


def now(connection: db.Connection) -> Moment:
    """The snapshot of the connection's transaction."""
    row = connection.execute("SELECT pg_current_snapshot()::text, clock_timestamp()").fetchone()
    assert row is not None
    assert isinstance(row[1], datetime)
    return Moment(str(row[0]), row[1])
