"""A table with a primary key and REPLICA IDENTITY DEFAULT stays on triggers: one line says what to run, and where.

The line itself is run here: what it says must be all that was missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from typer.testing import CliRunner

from pgtrickle import db
from pgtrickle.api import Trickle
from pgtrickle.cli.main import app
from pgtrickle.db import Connection
from pgtrickle.scheduler.request_executor import Request, notes_of

LINE = "ALTER TABLE public.t REPLICA IDENTITY FULL;"


@pytest.fixture
def trickle(database18: str) -> Iterator[Trickle]:
    with Trickle(database18) as found:
        yield found


@pytest.fixture
def conn(database18: str, trickle: Trickle) -> Iterator[Connection]:
    with db.open_session(database18) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
        yield connection


def identity(conn: Connection) -> object:
    return db.scalar(conn, "SELECT relreplident FROM pg_class WHERE oid = 't'::regclass")


def test_the_line_is_all_that_is_missing(trickle: Trickle, conn: Connection) -> None:
    trickle.create_stream_table("keys", "SELECT id FROM t", initialize=False)
    assert trickle.capture_advice() == ()  # the key is in the WAL as it is
    trickle.create_stream_table("st", "SELECT id, v FROM t", initialize=False)
    (told,) = trickle.capture_advice("st")
    assert "public.t has REPLICA IDENTITY DEFAULT" in told
    assert told.endswith(LINE)
    assert not trickle.cdc_status()[0].eligible
    assert str(trickle.cdc_status()[0].hint).startswith(LINE)
    request = Request(
        1,
        "create",
        {"name": "public.st", "query": "SELECT id, v FROM t"},
        "postgres",
        "public",
        {},
        1,
        datetime.now(UTC),
    )
    assert told in str(notes_of(conn, request))
    db.execute(conn, LINE)
    assert trickle.capture_advice() == ()
    assert trickle.cdc_status()[0].eligible


def test_no_advice_where_triggers_are_asked_for(trickle: Trickle, conn: Connection) -> None:
    trickle.create_stream_table("st", "SELECT id, v FROM t", initialize=False, cdc_mode="trigger")
    assert trickle.capture_advice() == ()


def test_partitions_are_named(trickle: Trickle, conn: Connection) -> None:
    db.execute(conn, "CREATE TABLE p (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)")
    db.execute(conn, "CREATE TABLE p1 PARTITION OF p DEFAULT")
    trickle.create_stream_table("st", "SELECT v FROM p", initialize=False)
    (told,) = trickle.capture_advice()
    lines = told[told.index("ALTER TABLE") :]
    assert sorted(lines.split("; ")) == [
        "ALTER TABLE public.p REPLICA IDENTITY FULL",
        "ALTER TABLE public.p1 REPLICA IDENTITY FULL;",
    ]
    db.execute(conn, lines)
    assert trickle.capture_advice() == ()


def test_it_is_offered_at_creation_and_put_back(trickle: Trickle, conn: Connection) -> None:
    query = "SELECT id, v FROM t"
    trickle.create_stream_table("st", query, initialize=False, cdc_mode="wal", auto_replica_identity=True)
    assert identity(conn) == "f"
    assert trickle.capture_advice() == ()
    trickle.drop_stream_table("st")
    assert identity(conn) == "d"
    trickle.create_stream_table("st", query, initialize=False, cdc_mode="trigger", auto_replica_identity=True)
    assert identity(conn) == "d"  # the WAL is not asked for
    trickle.create_or_replace_stream_table("st", query, cdc_mode="auto", auto_replica_identity=True)
    assert identity(conn) == "f"


def test_the_command_line_says_it(database18: str, trickle: Trickle, conn: Connection) -> None:
    def said(*arguments: str) -> str:
        return CliRunner().invoke(app, ["--dsn", database18, *arguments]).output

    create = ("create", "st", "--query", "SELECT id, v FROM t", "--no-initialize")
    for output in (said(*create), said("cdc"), said("health")):
        assert LINE in output
    trickle.drop_stream_table("st")
    assert LINE not in said(*create, "--auto-replica-identity")
    assert identity(conn) == "f"
