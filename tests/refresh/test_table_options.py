"""A primary key and protection against writes by hand, as options of a stream table. No Spark: tables are small."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgtrickle import db, embedded
from pgtrickle.api import Trickle
from pgtrickle.db import Connection
from pgtrickle.errors import Error
from pgtrickle.scheduler.request_executor import carry_out
from tests.conftest import fresh_database
from tests.repair.dump import dump_and_restore

QUERY = "SELECT v AS id, w FROM t"


@dataclass(frozen=True)
class Place:
    dsn: str
    conn: Connection
    trickle: Trickle

    def run(self, *statements: str) -> None:
        for each in statements:
            self.conn.execute(db.statement(each))

    def follows(self, *statements: str) -> None:
        """After the statements and a refresh the table is what its query says."""
        self.run(*statements)
        self.trickle.refresh_stream_table("st")
        self.equal()

    def equal(self, query: str = QUERY) -> None:
        both = f"(SELECT * FROM st EXCEPT ALL {query}) UNION ALL ({query} EXCEPT ALL SELECT * FROM st)"
        assert self.conn.execute(db.statement(both)).fetchall() == []

    def key(self) -> object:
        return db.scalar(
            self.conn,
            "SELECT string_agg(pg_get_constraintdef(oid), ';') FROM pg_constraint"
            " WHERE conrelid = 'st'::regclass AND contype = 'p'",
        )


@pytest.fixture
def place(database18: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv("PGTRICKLE_POSTGRES_ROWS", "100000")
    with Trickle(database18) as trickle, db.open_session(database18) as conn:
        conn.execute(
            "CREATE TABLE t (k int PRIMARY KEY, v int, w text); INSERT INTO t VALUES (1, 10, 'a'), (2, 20, 'b')"
        )
        yield Place(database18, conn, trickle)


def code(act: Callable[[], object]) -> str | None:
    with pytest.raises((Error, psycopg.Error)) as caught:
        act()
    error = caught.value
    return error.code if isinstance(error, Error) else getattr(error, "sqlstate", None)


BY_HAND = (
    "INSERT INTO st VALUES (7, 'x')",
    "UPDATE st SET w = 'x'",
    "DELETE FROM st",
    "DELETE FROM st WHERE false",
    "TRUNCATE st",
    "MERGE INTO st USING (VALUES (10)) AS n (id) ON n.id = st.id WHEN MATCHED THEN DELETE",
    "COPY st FROM PROGRAM 'true'",
    "DO $$ BEGIN EXECUTE 'DELETE FROM st -- pgtrickle_state.i_1_apply()'; END $$",
)


@pytest.mark.parametrize("mode", ["AUTO", "FULL", "IMMEDIATE"])
@pytest.mark.parametrize("triggers", [False, True], ids=["", "user_triggers"])
def test_a_key_is_never_violated_on_the_way(place: Place, mode: str, triggers: bool) -> None:
    """Values that swap places, move along, and go as others come: rows go before others come."""
    place.trickle.create_stream_table("st", QUERY, primary_key="id", refresh_mode=mode)
    if triggers:
        place.run(
            "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
            "CREATE TRIGGER seen AFTER UPDATE ON st FOR EACH ROW EXECUTE FUNCTION nothing()",
        )
    assert place.key() == "PRIMARY KEY (id)"
    place.follows("UPDATE t SET v = 30 - v")
    place.follows("UPDATE t SET v = v + 10")
    place.follows("DELETE FROM t WHERE v = 20", "INSERT INTO t VALUES (3, 20, 'c')")
    place.follows("INSERT INTO t SELECT n, n + 100, 'many' FROM generate_series(100, 400) AS n")
    place.follows("UPDATE t SET v = v + 1, w = 'other'")
    place.follows("TRUNCATE t", "INSERT INTO t VALUES (9, 21, 'd')")


def test_a_refresh_that_would_violate_it_fails_and_changes_nothing(place: Place) -> None:
    place.trickle.create_stream_table("st", QUERY, primary_key="id")
    for wrong, mended in (
        ("INSERT INTO t VALUES (3, 10, 'again')", "DELETE FROM t WHERE k = 3"),
        ("UPDATE t SET v = NULL WHERE k = 2", "UPDATE t SET v = 5 WHERE k = 2"),
    ):
        before = place.conn.execute("TABLE st").fetchall()
        place.run(wrong)
        for full in (False, True):
            with pytest.raises(Error, match="a constraint refuses rows") as caught:
                place.trickle.refresh_stream_table("st", full=full)
            assert (caught.value.code, "primary_key => 'none'" in str(caught.value.hint)) == ("PT317", True)
        assert place.conn.execute("TABLE st").fetchall() == before
        place.trickle.alter_stream_table("st", status="ACTIVE")
        place.follows(mended)
    place.run("INSERT INTO t VALUES (3, 10, 'again')")
    with pytest.raises(Error, match=r"Key \(id\)=\(10\)"):
        place.trickle.refresh_stream_table("st")
    place.trickle.alter_stream_table("st", primary_key="none", status="ACTIVE")
    assert place.key() is None
    place.follows("UPDATE t SET v = NULL WHERE k = 1")


def test_in_immediate_mode_the_writer_is_refused(place: Place) -> None:
    place.trickle.create_stream_table("st", QUERY, primary_key="id", refresh_mode="IMMEDIATE")
    assert code(lambda: place.run("INSERT INTO t VALUES (3, 10, 'again')")) == "23505"
    assert code(lambda: place.run("UPDATE t SET v = NULL WHERE k = 1")) == "23502"
    assert code(lambda: place.run("INSERT INTO t SELECT n, 10, '' FROM generate_series(50, 200) AS n")) == "23505"
    place.equal()


def test_what_cannot_be_a_key_is_refused_and_nothing_is_left(place: Place) -> None:
    def create(key: str, query: str = QUERY) -> Callable[[], object]:
        return lambda: place.trickle.create_stream_table("st", query, primary_key=key)

    assert code(create("nothing")) == "PT019"
    assert code(create("")) == code(create("id,")) == code(create("id id")) == "PT018"
    assert code(create("id, id")) == code(create("j", "SELECT to_json(v) AS j FROM t")) == "PT019"
    assert code(create("one", "SELECT 1 AS one, k FROM t")) == "PT317", "its rows violate it"
    assert place.trickle.status() == ()
    assert db.scalar(place.conn, "SELECT to_regclass('st') IS NULL") is True


def test_a_key_is_given_changed_and_taken_away(place: Place) -> None:
    place.run("INSERT INTO t VALUES (3, 10, 'c')")
    place.trickle.create_stream_table("st", QUERY)
    assert code(lambda: place.trickle.alter_stream_table("st", primary_key="id")) == "PT319"
    place.trickle.alter_stream_table("st", primary_key="w, id")
    assert place.key() == "PRIMARY KEY (w, id)"
    assert "a refresh that gives two rows the same fails" in place.trickle.explain("st")
    place.trickle.alter_stream_table("st", primary_key="w, id")
    place.trickle.alter_stream_table("st", primary_key="W")
    assert place.key() == "PRIMARY KEY (w)"
    place.follows("UPDATE t SET v = NULL WHERE k = 1")
    place.trickle.alter_stream_table("st", query='SELECT k AS "Key", w FROM t', primary_key='"Key"')
    assert place.key() == 'PRIMARY KEY ("Key")'
    assert "primary key Key: the query gives no two rows with the same" in place.trickle.explain("st")
    place.equal("SELECT k, w FROM t")
    place.trickle.alter_stream_table("st", primary_key="none")
    place.run("UPDATE t SET w = NULL")
    place.trickle.refresh_stream_table("st")
    place.equal("SELECT k, w FROM t")


@pytest.mark.parametrize("mode", ["AUTO", "IMMEDIATE"])
def test_a_protected_table_is_written_by_refreshes_alone(place: Place, mode: str) -> None:
    place.trickle.create_stream_table("st", QUERY, protect=True, refresh_mode=mode)
    role = f"writer_{place.conn.info.dbname}"
    place.run(f"CREATE ROLE {role} LOGIN PASSWORD 'plain'", f"GRANT ALL ON st, t TO {role}")
    try:
        for statement in BY_HAND:  # as a superuser and owner
            assert code(partial(place.run, statement)) == "PT318", statement
        with db.open_session(make_conninfo(place.dsn, user=role, password="plain")) as writer:
            for statement in BY_HAND[:5]:
                with pytest.raises(psycopg.Error, match="only refreshes write to it") as caught:
                    writer.execute(db.statement(statement))
                assert caught.value.sqlstate == "PT318"
            writer.execute("INSERT INTO t VALUES (50, 50, 'theirs')")
            writer.execute("UPDATE t SET v = v + 1")
            writer.execute("INSERT INTO t SELECT n, n, 'many' FROM generate_series(100, 300) AS n")
        place.follows("DELETE FROM t WHERE k = 1")
        place.follows("TRUNCATE t", "INSERT INTO t VALUES (1, 1, 'a')")
        place.trickle.refresh_stream_table("st", full=True)
        place.trickle.alter_stream_table("st", query="SELECT k, v AS id, w FROM t")
        place.equal("SELECT k, v, w FROM t")
        assert "protected: writes by others than refreshes are refused" in place.trickle.explain("st")
        assert code(lambda: place.run("DELETE FROM st")) == "PT318", "still"
        place.trickle.alter_stream_table("st", protect=False)
        place.run("DELETE FROM st")
    finally:
        place.run(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_by_sql_and_by_files(place: Place, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from pgtrickle.cli.main import app

    def call(*arguments: str) -> str:
        done = CliRunner().invoke(app, ["--dsn", place.dsn, *arguments])
        assert done.exit_code == 0, done.output
        return done.stdout

    place.run(
        "SELECT pgtrickle.create_stream_table('st', 'SELECT k, v AS \"Odd\" FROM t', primary_key => 'k, \"Odd\"',"
        " protect => true)"
    )
    assert carry_out(place.trickle.connection, place.trickle) == 1
    assert place.key() == 'PRIMARY KEY (k, "Odd")'
    call("dump", str(tmp_path))
    text = (tmp_path / "public.st.sql").read_text()
    assert '-- primary_key: k, "Odd"\n-- protect: true\n' in text
    assert call("apply", str(tmp_path)) == "keep   public.st\n"
    place.run("SELECT pgtrickle.alter_stream_table('st', primary_key => 'none', protect => false)")
    assert carry_out(place.trickle.connection, place.trickle) == 1
    assert place.key() is None
    place.run("UPDATE st SET k = k")
    assert 'primary_key none → k, "Odd", protect false → true' in call("apply", str(tmp_path))
    assert place.key() == 'PRIMARY KEY (k, "Odd")'
    assert code(lambda: place.run("DELETE FROM st")) == "PT318"
    call("drop", "st")
    call("apply", str(tmp_path))
    assert place.key() == 'PRIMARY KEY (k, "Odd")'
    call("alter", "st", "--primary-key", "k", "--no-protect")
    assert place.key() == "PRIMARY KEY (k)"
    place.run("UPDATE st SET k = k")


def test_a_dump_of_a_protected_table_is_restored(place: Place, server18: embedded.Server) -> None:
    place.trickle.create_stream_table("st", QUERY, protect=True, primary_key="id")
    with fresh_database(server18) as dsn:
        dump_and_restore(server18, place.dsn, dsn)
        with Trickle(dsn, install_catalog=False) as trickle, db.open_session(dsn) as conn:
            there = Place(dsn, conn, trickle)
            there.equal()
            assert {each.table: each.outcome for each in trickle.repair("st")}["public.st"] == "repaired"
            there.follows("INSERT INTO t VALUES (3, 30, 'c')")
            assert there.key() == "PRIMARY KEY (id)"
            assert code(lambda: there.run("DELETE FROM st")) == "PT318"
