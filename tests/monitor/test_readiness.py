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
from tests.monitor.small_pooler import small_pooler
from typer.testing import CliRunner

from pgtrickle import db, embedded
from pgtrickle.api import Trickle
from pgtrickle.catalog import install
from pgtrickle.cli.main import app
from pgtrickle.config import Settings
from pgtrickle.db import statement
from pgtrickle.monitor.finding import Finding
from pgtrickle.monitor.readiness import examine
from pgtrickle.monitor.server_settings import needed_connections


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


def test_a_catalog_of_somebody_else(database18: str) -> None:
    with _login(database18) as dsn, db.open_session(database18) as admin:
        install.install(admin)
        found = _look(dsn)
        assert {name for name, each in found.items() if each.severity == "ERROR"} == {"catalog"}
        admin.execute(statement(found["catalog"].mend or ""))
        after = _look(dsn)
        assert {name for name, each in after.items() if each.severity != "OK"} == {"replication"}


def test_a_source_that_its_replica_identity_keeps_from_the_wal(database18: str) -> None:
    with Trickle(database18) as trickle:
        trickle.connection.execute("CREATE TABLE public.plain (id int PRIMARY KEY, v int)")
        trickle.create_stream_table("public.copied", "SELECT id, v FROM public.plain", initialize=False)
        (found,) = [each for each in trickle.doctor() if each.check_name == "replica identity"]
        assert found.severity == "WARN"
        assert found.mend == "ALTER TABLE public.plain REPLICA IDENTITY FULL;"
        trickle.connection.execute(statement(found.mend))
        assert {each.severity for each in trickle.doctor()} == {"OK"}


@pytest.mark.parametrize(("by_transaction", "severity"), [(True, "ERROR"), (False, "WARN")])
def test_a_pooler_is_noticed_and_whether_it_takes_sessions_apart(
    database18: str, by_transaction: bool, severity: str
) -> None:
    with small_pooler(database18, by_transaction=by_transaction) as dsn:
        found = _look(dsn)
        assert {name: each.severity for name, each in found.items() if each.severity != "OK"} == {
            "catalog": "WARN",
            "pooler": severity,
        }
        assert CliRunner().invoke(app, ["--dsn", dsn, "doctor"]).exit_code == int(by_transaction)
    assert _look(database18)["pooler"].severity == "OK"


def test_indexes_that_refreshes_miss(database18: str) -> None:
    """Those that `explain` names; those of a table that cannot be analysed any more are not known, and that is told."""
    with Trickle(database18) as trickle:
        conn = trickle.connection
        conn.execute("CREATE TABLE public.customers (id int PRIMARY KEY, region text)")
        conn.execute("CREATE TABLE public.orders (id int PRIMARY KEY, customer int, amount int)")
        conn.execute("INSERT INTO public.orders SELECT n, n % 1000, n FROM generate_series(1, 300000) AS n")
        conn.execute("INSERT INTO public.customers SELECT n, 'r' FROM generate_series(0, 999) AS n")
        conn.execute("ANALYZE public.orders, public.customers")
        query = "SELECT c.region, o.amount FROM public.orders o JOIN public.customers c ON c.id = o.customer"
        for name in ("public.one", "public.two"):
            trickle.create_stream_table(name, query, initialize=False, cdc_mode="trigger")
        (found,) = [each for each in trickle.doctor() if each.check_name == "indexes"]
        assert found.detail == "refreshes of public.one, public.two read a table whole"
        assert found.mend is not None
        assert found.mend.removesuffix(";") in trickle.explain("public.one")
        conn.execute(statement(found.mend))
        (found,) = [each for each in trickle.doctor() if each.check_name == "indexes"]
        assert found.severity == "OK"
        grouped = "SELECT amount % 7 AS k, amount, max(id) AS m FROM public.orders GROUP BY amount"
        trickle.create_stream_table("public.kept", grouped, refresh_mode="IMMEDIATE", initialize=False)
        (found,) = [each for each in trickle.doctor() if each.check_name == "indexes"]
        assert found.mend == 'CREATE INDEX ON "public"."orders" ("amount");'
        trickle.drop_stream_table("public.kept")
        assert conn.execute(
            "SELECT count(*) FROM pg_class WHERE relkind = 'v' AND relpersistence = 't'"
        ).fetchone() == (0,)
        conn.execute("ALTER TABLE public.orders DROP COLUMN customer")
        told = [each for each in trickle.doctor() if each.check_name == "indexes"]
        assert [each.detail.split(" cannot be explained: ")[0] for each in told] == ["public.one", "public.two"]
        assert {each.mend for each in told} == {None}, "a hint is no statement"


def test_too_few_connections(database18: str) -> None:
    with _login(database18) as dsn, db.open_session(database18) as admin:
        needed = needed_connections(Settings.load(admin))
        role = sql.Identifier(str(conninfo_to_dict(dsn)["user"]))
        admin.execute(sql.SQL("ALTER ROLE {} CONNECTION LIMIT {}").format(role, sql.Literal(needed - 1)))
        found = _look(dsn)["connection limit"]
        assert (found.severity, found.mend) == (
            "ERROR",
            f"ALTER ROLE {role.as_string()} CONNECTION LIMIT {needed + 1};",  # of which this session is one
        )
        admin.execute(statement(found.mend or ""))
        assert "connection limit" not in _look(dsn)
        database = sql.Identifier(str(conninfo_to_dict(dsn)["dbname"]))
        admin.execute(sql.SQL("ALTER DATABASE {} CONNECTION LIMIT {}").format(database, sql.Literal(needed)))
        found = _look(dsn)["connection limit"]
        assert found.severity == "WARN"
        admin.execute(statement(found.mend or ""))
        assert "connection limit" not in _look(dsn)


def test_settings_that_are_in_the_way(database18: str) -> None:
    with _login(database18) as dsn, db.open_session(database18) as admin:
        role = sql.Identifier(str(conninfo_to_dict(dsn)["user"]))
        database = sql.Identifier(str(conninfo_to_dict(dsn)["dbname"]))
        admin.execute(sql.SQL("ALTER ROLE {} SET session_replication_role = replica").format(role))
        admin.execute(sql.SQL("ALTER DATABASE {} SET pg_trickle.enabled = off").format(database))
        found = _look(database18)
        for name in ("settings", "pg_trickle settings"):
            assert found[name].severity == "WARN"
            admin.execute(statement(found[name].mend or ""))
        assert {_look(database18)[name].severity for name in ("settings", "pg_trickle settings")} == {"OK"}
        admin.execute(sql.SQL("ALTER DATABASE {} SET pg_trickle.max_concurrent_refreshes = 'x'").format(database))
        found = _look(database18)
        assert (found["pg_trickle settings"].severity, found["pg_trickle settings"].mend) == (
            "ERROR",
            "Correct pg_trickle.max_concurrent_refreshes.",
        )


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_another_encoding(database18: str, encoding: str) -> None:
    name = f"t_{uuid.uuid4().hex[:12]}"
    with db.open_session(database18) as admin:
        make = "CREATE DATABASE {} TEMPLATE template0 LOCALE_PROVIDER libc LOCALE 'C' ENCODING {}"
        admin.execute(sql.SQL(make).format(sql.Identifier(name), sql.Literal(encoding)))
        try:
            found = _look(make_conninfo(database18, dbname=name))["encoding"]
        finally:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
    assert (found.severity, found.detail.split(":")[0]) == ("WARN", encoding)


@pytest.fixture
def small_server() -> Iterator[embedded.Server]:
    """As it comes: no logical decoding, and no slot for anyone."""
    with tempfile.TemporaryDirectory(prefix="pgtrickle-test-") as home:
        Path(home).chmod(0o755)
        data = Path(home) / "data"
        settings: dict[str, embedded.Setting] = {
            "fsync": False,
            "wal_level": "replica",
            "max_replication_slots": 0,
            "max_connections": 20,
            "autovacuum": False,
        }
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
        "settings",
    }
    assert found["max_connections"].severity == "ERROR"
    with psycopg.connect(small_server.dsn, autocommit=True) as admin:
        for name in ("wal_level", "max_replication_slots", "settings", "max_connections"):
            mend = found[name].mend
            assert mend is not None
            admin.execute(statement(mend.partition(";")[0]))
    embedded.stop(small_server.data_dir)
    again = embedded.start(small_server.data_dir, settings={"fsync": False})
    assert conninfo_to_dict(again.dsn)["user"] == conninfo_to_dict(small_server.dsn)["user"]
    assert {name for name, each in _look(again.dsn).items() if each.severity != "OK"} == {"catalog"}
