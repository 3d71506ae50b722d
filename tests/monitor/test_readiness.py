"""`doctor`: what it says is in the way is, and the statements that it gives put it right."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from typer.testing import CliRunner

from pgtrickle import db, embedded
from pgtrickle.api import Trickle
from pgtrickle.catalog import install
from pgtrickle.cli.main import app
from pgtrickle.db import statement
from pgtrickle.monitor.readiness import Finding, examine


def _look(dsn: str) -> dict[str, Finding]:
    with db.connect(dsn) as conn:
        return {each.check_name: each for each in examine(conn)}


def test_a_server_without_our_catalog(database: str) -> None:
    found = _look(database)
    assert {name: each.severity for name, each in found.items() if each.severity != "OK"} == {"catalog": "WARN"}
    assert found["catalog"].mend == "pgtrickle install"
    with db.open_session(database) as conn:
        assert conn.execute("SELECT to_regnamespace('pgtrickle')").fetchone() == (None,), "it only looks"
        install.install(conn)
    assert {each.severity for each in _look(database).values()} == {"OK"}


@contextmanager
def _login(database: str) -> Iterator[str]:
    """A role that may do nothing but log in, and has a name that needs quotes."""
    name = f"Role {uuid.uuid4().hex[:8]}"
    password = uuid.uuid4().hex
    with db.open_session(database) as admin:
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(name), sql.Literal(password)))
        try:
            yield make_conninfo(database, user=name, password=password)
        finally:
            admin.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(name)))
            admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def test_rights_that_are_missing(database: str) -> None:
    with _login(database) as dsn:
        before = _look(dsn)
        assert {name for name, each in before.items() if each.severity == "ERROR"} == {"rights"}
        assert before["replication"].severity == "WARN"
        told = CliRunner().invoke(app, ["--dsn", dsn, "doctor"])
        assert told.exit_code == 1
        with db.open_session(database) as admin:
            for name in ("rights", "replication"):
                mend = before[name].mend
                assert mend is not None
                assert mend in told.output
                admin.execute(statement(mend))
        after = _look(dsn)
        assert {name for name, each in after.items() if each.severity != "OK"} == {"catalog"}
        with db.open_session(dsn) as own:
            install.install(own)
        assert {each.severity for each in _look(dsn).values()} == {"OK"}
        assert CliRunner().invoke(app, ["--dsn", dsn, "doctor"]).exit_code == 0


def test_a_source_that_its_replica_identity_keeps_from_the_wal(database18: str) -> None:
    with Trickle(database18) as trickle:
        trickle.connection.execute("CREATE TABLE public.plain (id int PRIMARY KEY, v int)")
        trickle.create_stream_table("public.copied", "SELECT id, v FROM public.plain", initialize=False)
        (found,) = [each for each in trickle.doctor() if each.check_name == "replica identity"]
        assert found.severity == "WARN"
        assert found.mend == "ALTER TABLE public.plain REPLICA IDENTITY FULL;"
        trickle.connection.execute(statement(found.mend))
        assert {each.severity for each in trickle.doctor()} == {"OK"}


@pytest.fixture
def small_server() -> Iterator[embedded.Server]:
    """As it comes: no logical decoding, and no slot for anyone."""
    with tempfile.TemporaryDirectory(prefix="pgtrickle-test-") as home:
        Path(home).chmod(0o755)
        data = Path(home) / "data"
        settings: dict[str, embedded.Setting] = {"fsync": False, "wal_level": "replica", "max_replication_slots": 0}
        try:
            yield embedded.start(data, settings=settings)
        finally:
            embedded.stop(data)


def test_a_server_that_does_not_write_what_decoding_needs(small_server: embedded.Server) -> None:
    found = _look(small_server.dsn)
    assert {name for name, each in found.items() if each.severity == "WARN"} == {
        "catalog",
        "wal_level",
        "max_replication_slots",
    }
    with psycopg.connect(small_server.dsn, autocommit=True) as admin:
        for name in ("wal_level", "max_replication_slots"):
            mend = found[name].mend
            assert mend is not None
            admin.execute(statement(mend.partition(" --")[0]))
    embedded.stop(small_server.data_dir)
    again = embedded.start(small_server.data_dir, settings={"fsync": False})
    assert conninfo_to_dict(again.dsn)["user"] == conninfo_to_dict(small_server.dsn)["user"]
    assert {name for name, each in _look(again.dsn).items() if each.severity != "OK"} == {"catalog"}
