"""Install, upgrade, refuse, remove."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from pgtrickle import db
from pgtrickle.capture import triggers
from pgtrickle.catalog.install import MIGRATIONS, SCHEMAS, InstallResult, install, load_migrations, uninstall
from pgtrickle.catalog.writer import Definition, register
from pgtrickle.db import Connection
from pgtrickle.errors import ServerError, StateError
from pgtrickle.model import Table

NEWEST = len(load_migrations())


@pytest.fixture
def conn(database: str) -> Iterator[Connection]:
    with db.open_session(database) as connection:
        yield connection


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A copy of the migrations, to add to."""
    return Path(
        shutil.copytree(MIGRATIONS, tmp_path / "migrations", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    )


def schemas(conn: Connection) -> set[str]:
    return {str(name) for (name,) in conn.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'pgtrickle%'")}


def oid(conn: Connection, name: str) -> int:
    row = conn.execute("SELECT to_regclass(%s)::oid::bigint", (name,)).fetchone()
    assert row is not None
    return int(str(row[0]))


def test_install_is_idempotent(conn: Connection) -> None:
    first = install(conn)
    assert first.applied == tuple(range(1, NEWEST + 1))
    assert schemas(conn) == set(SCHEMAS)
    assert install(conn) == InstallResult(NEWEST, (), ())


def test_concurrent_installs_apply_once(database: str) -> None:
    results: list[InstallResult] = []

    def work() -> None:
        with db.open_session(database) as mine:
            results.append(install(mine))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(results) == 4
    assert sum(len(each.applied) for each in results) == NEWEST


def test_an_older_catalog_is_upgraded(conn: Connection, directory: Path) -> None:
    install(conn)
    (directory / f"{NEWEST + 1:04}_more.sql").write_text("CREATE TABLE pgtrickle.more (percent text DEFAULT '100%');")
    assert install(conn, directory=directory).applied == (NEWEST + 1,)
    assert install(conn, directory=directory).applied == ()
    assert oid(conn, "pgtrickle.more")


def test_a_newer_catalog_is_refused(conn: Connection, directory: Path) -> None:
    (directory / f"{NEWEST + 1:04}_more.sql").write_text("SELECT 1;")
    install(conn, directory=directory)
    with pytest.raises(StateError, match="this pgtrickle knows") as error:
        install(conn)
    assert error.value.code == "PT360"


def test_an_edited_migration_is_refused(conn: Connection, directory: Path) -> None:
    install(conn)
    path = next(directory.glob("0001_*.sql"))
    path.write_text(path.read_text() + "-- edited\n")
    with pytest.raises(StateError) as error:
        install(conn, directory=directory)
    assert error.value.code == "PT361"


def test_a_failing_migration_leaves_nothing(conn: Connection, directory: Path) -> None:
    (directory / f"{NEWEST + 1:04}_bad.sql").write_text("CREATE TABLE pgtrickle.half (a int); SELECT 1 / 0;")
    with pytest.raises(psycopg.errors.DivisionByZero):
        install(conn, directory=directory)
    assert schemas(conn) == set()


def test_a_gap_in_the_numbers_is_refused(directory: Path) -> None:
    (directory / f"{NEWEST + 2:04}_gap.sql").write_text("SELECT 1;")
    with pytest.raises(ValueError, match="not numbered"):
        load_migrations(directory)


def test_a_foreign_schema_of_our_name_is_left_alone(conn: Connection) -> None:
    conn.execute("CREATE SCHEMA pgtrickle CREATE TABLE theirs (a int)")
    with pytest.raises(StateError) as error:
        install(conn)
    assert error.value.code == "PT362"
    assert oid(conn, "pgtrickle.theirs")


def test_a_role_without_rights_is_told_what_it_lacks(conn: Connection) -> None:
    conn.execute("DROP ROLE IF EXISTS nobody_special; CREATE ROLE nobody_special")
    try:
        conn.execute("SET ROLE nobody_special")
        with pytest.raises(ServerError) as error:
            install(conn)
        assert error.value.code == "PT402"
        assert error.value.hint is not None
        assert "GRANT CREATE ON DATABASE" in error.value.hint
    finally:
        conn.execute("RESET ROLE; DROP ROLE nobody_special")


def test_the_users_role_may_read(conn: Connection) -> None:
    assert install(conn).notes == ()
    conn.execute("SET ROLE pgtrickle_user")
    for query in ("SELECT * FROM pgtrickle.stream_tables_info", "SELECT * FROM pgtrickle.pgt_status()"):
        assert conn.execute(query).fetchall() == []
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        conn.execute("DELETE FROM pgtrickle.pgt_stream_tables")


@pytest.fixture
def populated(conn: Connection) -> None:
    """A captured source, a stream table with its identity index, and a state table."""
    install(conn)
    conn.execute(
        "CREATE TABLE src (id int); CREATE TABLE st (id int); INSERT INTO st VALUES (1);"
        "CREATE INDEX st_rows ON st (hash_record_extended(ROW(id), 0)); CREATE INDEX st_users ON st (id);"
        "CREATE TABLE pgtrickle_state.s_1_1 (a int)"
    )
    src = Table(oid(conn, "src"), "public", "src")
    with conn.transaction():
        triggers.attach(conn, src, ["id"])
        definition = Definition("q", "q", "public", "AUTO", "DIFFERENTIAL", None, None, [(src, ["id"])])
        register(conn, Table(oid(conn, "st"), "public", "st"), definition, schedule=None, requested_cdc_mode=None)


def test_uninstall_keeps_stream_tables_as_plain_tables(conn: Connection, populated: None) -> None:
    planned = uninstall(conn, drop_stream_tables=False, dry_run=True)
    assert schemas(conn) == set(SCHEMAS)
    assert uninstall(conn, drop_stream_tables=False) == planned
    text = [str(each) for each in planned]
    assert f"drop trigger pgtrickle_{oid(conn, 'src')}_insert on src" in text
    assert "keep table public.st" in text
    assert "drop index public.st_rows" in text
    assert text[-4:] == [
        "drop schema pgtrickle_state",
        "drop schema pgtrickle_internal",
        "drop schema pgtrickle_changes",
        "drop schema pgtrickle",
    ]
    assert schemas(conn) == set()
    assert conn.execute("SELECT * FROM st").fetchall() == [(1,)]
    assert conn.execute("SELECT indexname::text FROM pg_indexes WHERE tablename = 'st'").fetchall() == [("st_users",)]
    assert conn.execute("SELECT FROM pg_trigger WHERE NOT tgisinternal").rowcount == 0
    conn.execute("INSERT INTO src VALUES (1)")
    assert install(conn).applied


def test_uninstall_drops_stream_tables_when_asked(conn: Connection, populated: None) -> None:
    assert "drop table public.st" in [str(each) for each in uninstall(conn, drop_stream_tables=True)]
    assert schemas(conn) == set()
    assert conn.execute("SELECT to_regclass('st') IS NULL").fetchone() == (True,)


def test_uninstall_changes_nothing_if_something_depends_on_a_stream_table(conn: Connection, populated: None) -> None:
    conn.execute("CREATE VIEW reader AS SELECT * FROM st")
    with pytest.raises(StateError) as error:
        uninstall(conn, drop_stream_tables=True)
    assert error.value.code == "PT363"
    assert schemas(conn) == set(SCHEMAS)
    uninstall(conn, drop_stream_tables=False)


def test_uninstall_where_nothing_is(conn: Connection) -> None:
    assert uninstall(conn, drop_stream_tables=True) == []


def test_install_and_uninstall_without_superuser(conn: Connection) -> None:
    conn.execute("DROP ROLE IF EXISTS plain_installer; CREATE ROLE plain_installer")
    conn.execute(
        "DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO plain_installer', current_database()); END $$"
    )
    try:
        conn.execute("SET ROLE plain_installer")
        assert install(conn).applied
        uninstall(conn, drop_stream_tables=True)
        assert schemas(conn) == set()
    finally:
        conn.execute("RESET ROLE; DROP OWNED BY plain_installer; DROP ROLE plain_installer")
