"""Indexes as an option of a stream table: in every door, made after the first fill, kept by whatever comes later."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgtrickle import db, embedded
from pgtrickle.api import Trickle
from pgtrickle.db import Connection
from pgtrickle.errors import Error, UsageError
from pgtrickle.index_text import parse_index, parse_indexes
from pgtrickle.scheduler.request_executor import carry_out
from tests.conftest import fresh_database
from tests.refresh.test_table_options import Place, code, place
from tests.repair.dump import dump_and_restore

__all__ = ["place"]
QUERY = "SELECT k, v AS id, w FROM t"
SHAPES = """
SELECT regexp_replace(pg_get_indexdef(i.indexrelid), '^CREATE (UNIQUE )?INDEX .* ON \\S+ USING ', '\\1') AS shape
FROM pg_index AS i WHERE i.indrelid = %s::regclass AND i.indexprs IS NULL AND NOT i.indisprimary ORDER BY 1
"""


def shapes(conn: Connection, table: str = "st") -> list[str]:
    return [str(shape) for (shape,) in conn.execute(SHAPES, (table,))]


def on_record(conn: Connection) -> object:
    return db.scalar(conn, "SELECT indexes FROM pgtrickle.pgt_stream_tables WHERE pgt_name = 'st'")


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("region", "(region)"),
        (" Region , day ", "(region, day)"),
        ("(a)", "(a)"),
        ("using BTREE (a asc nulls last, b desc NULLS FIRST)", "(a, b DESC)"),
        ("(a NULLS FIRST, b DESC NULLS LAST)", "(a NULLS FIRST, b DESC NULLS LAST)"),
        ("unique (id)", "UNIQUE (id)"),
        ('UNIQUE ("Odd ""x", "unique") INCLUDE (c)', 'UNIQUE ("Odd ""x", "unique") INCLUDE (c)'),
        ("UNIQUE (a) NULLS NOT DISTINCT", "UNIQUE (a) NULLS NOT DISTINCT"),
        ("USING gin (tags)", "USING gin (tags)"),
        ('(a COLLATE "C" public.text_ops)', '(a COLLATE "C" public.text_ops)'),
    ],
)
def test_what_is_written_is_read_and_shown_alike(written: str, shown: str) -> None:
    index = parse_index(written)
    assert str(index) == shown
    assert parse_index(shown) == index


@pytest.mark.parametrize(
    "text",
    [
        "",
        "(",
        "()",
        "(a",
        "(a,)",
        "(a))",
        "unique",
        "unique id",
        "(a) (b)",
        "(lower(a))",
        "((a))",
        "(a b c)",
        "(a) WHERE b",
        "(a) WITH (fillfactor = 10)",
        "(a) TABLESPACE other",
        "(a); DROP TABLE t",
        "(a) -- b",
        "(a /* b */)",
        "('a')",
        "(a.b)",
        '("")',
        '("a)',
        "CREATE INDEX ON t (a)",
        "name (a)",
        "(a\0)",
        "$1",
    ],
)
def test_what_is_more_than_columns_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_index(text)
    assert (caught.value.code, "CREATE INDEX" in str(caught.value.hint)) == ("PT023", True)


def test_none_is_none_and_what_is_given_twice_is_once() -> None:
    assert parse_indexes([]) == parse_indexes(["none"]) == parse_indexes([" NONE "]) == ()
    assert parse_indexes(["a", "(A)", "b"]) == (parse_index("a"), parse_index("b"))


MODES = pytest.mark.parametrize("mode", ["AUTO", "FULL", "IMMEDIATE"])


@MODES
def test_they_are_there_after_the_first_fill_and_stay(place: Place, mode: str) -> None:
    wanted = ["(w, id DESC)", "UNIQUE (k) INCLUDE (w)"]
    made = ["UNIQUE btree (k) INCLUDE (w)", "btree (w, id DESC)"]
    place.trickle.create_stream_table("st", QUERY, refresh_mode=mode, indexes=wanted)
    assert shapes(place.conn) == made
    before = place.conn.execute("SELECT indexrelid FROM pg_index WHERE indrelid = 'st'::regclass").fetchall()
    place.run("INSERT INTO t SELECT n, n, 'x' FROM generate_series(10, 300) AS n")
    place.trickle.refresh_stream_table("st")
    place.run("TRUNCATE t", "INSERT INTO t VALUES (1, 2, 'y')")
    place.trickle.refresh_stream_table("st")
    place.trickle.refresh_stream_table("st", full=True)
    place.equal(QUERY)
    after = place.conn.execute("SELECT indexrelid FROM pg_index WHERE indrelid = 'st'::regclass").fetchall()
    assert after == before, "the same ones: not made again"
    assert "index UNIQUE (k) INCLUDE (w)" in place.trickle.explain("st")


def test_one_that_is_filled_by_the_service_gets_them_with_its_rows(place: Place) -> None:
    place.trickle.create_stream_table("st", QUERY, initialize=False, indexes=["w"])
    assert (shapes(place.conn), on_record(place.conn)) == ([], ["(w)"])
    place.trickle.alter_stream_table("st", indexes=["w", "UNIQUE (k)"])
    assert shapes(place.conn) == [], "not filled yet"
    place.trickle.refresh_stream_table("st")
    assert shapes(place.conn) == ["UNIQUE btree (k)", "btree (w)"]


def test_readers_are_not_held_up_while_they_are_made(place: Place) -> None:
    """An index is made under a lock that lets readers in, also when the table is filled."""
    locks = (
        "CREATE TABLE seen (mode text); CREATE FUNCTION note() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF tg_tag = 'CREATE INDEX' THEN INSERT INTO seen SELECT l.mode FROM pg_locks AS l WHERE l.pid ="
        " pg_backend_pid() AND l.relation = to_regclass('public.st'); END IF; END $$;"
        "CREATE EVENT TRIGGER noted ON ddl_command_end EXECUTE FUNCTION note()"
    )
    place.trickle.create_stream_table("st", QUERY, initialize=False, indexes=["w"])
    place.run(*locks.replace("END; END $$;", "END; END $$;\n").split("\n"))
    place.run("ALTER FUNCTION note() SET search_path = public")
    place.trickle.refresh_stream_table("st")
    place.trickle.alter_stream_table("st", indexes=["w", "id"])
    seen = {mode for (mode,) in place.conn.execute("SELECT mode FROM seen")}
    assert "ShareLock" in seen
    assert "AccessExclusiveLock" not in seen


def test_what_cannot_be_is_refused_and_nothing_is_left(place: Place) -> None:
    def create(*indexes: str, query: str = QUERY) -> Callable[[], object]:
        return lambda: place.trickle.create_stream_table("st", query, indexes=list(indexes))

    assert code(create("nothing")) == "PT024"
    assert code(create("UNIQUE (k)", "(k, ctid, xmin)")) == "PT024"
    assert code(create("USING nosuch (k)")) == code(create("(w nosuch_ops)")) == "PT024"
    assert code(create("j", query="SELECT to_json(v) AS j FROM t")) == "PT024"
    assert code(create("(lower(w))")) == code(create("(w); DROP TABLE t")) == "PT023"
    assert code(create("UNIQUE (one)", query="SELECT 1 AS one, k FROM t")) == "PT317", "its rows violate it"
    with pytest.raises(Error, match="indexes must be a list of texts"):
        place.trickle.create_stream_table("st", QUERY, indexes="(k)")
    with pytest.raises(Error, match='column "nothing" does not exist') as caught:
        create("nothing")()
    assert "columns that the query gives" in str(caught.value.hint)
    assert place.trickle.status() == ()
    assert db.scalar(place.conn, "SELECT to_regclass('st') IS NULL") is True


def test_a_unique_one_is_never_violated_on_the_way_and_refuses_what_violates_it(place: Place) -> None:
    place.trickle.create_stream_table("st", QUERY, indexes=["UNIQUE (id)"])
    for statement in ("UPDATE t SET v = 30 - v", "UPDATE t SET v = v + 10"):
        place.run(statement)
        place.trickle.refresh_stream_table("st")
        place.equal(QUERY)
    place.run("INSERT INTO t VALUES (3, 40, 'again'), (4, 40, 'again')")
    with pytest.raises(Error, match=r"Key \(id\)=\(40\)") as caught:
        place.trickle.refresh_stream_table("st")
    assert (caught.value.code, "indexes => …" in str(caught.value.hint)) == ("PT317", True)
    place.trickle.alter_stream_table("st", indexes=["id"], status="ACTIVE")
    place.trickle.refresh_stream_table("st")
    place.equal(QUERY)
    assert shapes(place.conn) == ["btree (id)"]
    assert code(lambda: place.trickle.alter_stream_table("st", indexes=["UNIQUE (id)"])) == "PT323"
    assert (shapes(place.conn), on_record(place.conn)) == (["btree (id)"], ["(id)"]), "nothing was changed"


def test_alter_makes_drops_and_leaves_what_is_not_its_own(place: Place) -> None:
    place.trickle.create_stream_table("st", QUERY, primary_key="k", indexes=["w", "UNIQUE (k)"])
    place.run(
        "CREATE INDEX by_hand ON st (id)",
        "CREATE INDEX lowered ON st (lower(w))",
        "CREATE INDEX large ON st (id) WHERE id > 5",
    )
    place.trickle.alter_stream_table("st", indexes=["id", "(w DESC)"])
    assert shapes(place.conn) == ["btree (id)", "btree (id) WHERE (id > 5)", "btree (w DESC)"], "id was there"
    assert place.key() == "PRIMARY KEY (k)"
    place.trickle.alter_stream_table("st", schedule="2m")
    assert on_record(place.conn) == ["(id)", "(w DESC)"]
    place.trickle.alter_stream_table("st", indexes=[])
    assert shapes(place.conn) == ["btree (id) WHERE (id > 5)"]
    assert db.scalar(place.conn, "SELECT to_regclass('lowered') IS NOT NULL") is True


def test_another_query_keeps_those_whose_columns_it_keeps(place: Place) -> None:
    place.trickle.create_stream_table("st", QUERY, indexes=["w", "(id, w)", "UNIQUE (k)"])
    oid = "SELECT min(indexrelid) FROM pg_index WHERE indrelid = 'st'::regclass AND indnatts = 1 AND indexprs IS NULL"
    before = db.scalar(place.conn, oid)
    with pytest.warns(UserWarning, match="st_id_w_idx"):
        place.trickle.alter_stream_table("st", query="SELECT k, w, v + 1 AS more FROM t")
    assert (shapes(place.conn), on_record(place.conn)) == (["UNIQUE btree (k)", "btree (w)"], ["(w)", "UNIQUE (k)"])
    assert db.scalar(place.conn, oid) == before, "the same one"
    place.trickle.alter_stream_table("st", query="SELECT k::text AS k, w, v AS id FROM t", indexes=["id", "UNIQUE (k)"])
    assert shapes(place.conn) == ["UNIQUE btree (k)", "btree (id)"]
    place.equal("SELECT k::text, w, v FROM t")
    for query in ("SELECT k, v AS id FROM t", "SELECT k, to_json(v) AS id FROM t"):
        assert code(partial(place.trickle.alter_stream_table, "st", query=query, indexes=["w"])) == "PT024"
    assert code(partial(place.trickle.alter_stream_table, "st", query="SELECT k, to_json(v) AS id FROM t")) == "PT024"
    assert shapes(place.conn) == ["UNIQUE btree (k)", "btree (id)"], "nothing was changed"
    place.trickle.refresh_stream_table("st")
    place.equal("SELECT k::text, w, v FROM t")


def test_one_that_was_dropped_by_hand_comes_back_with_a_full_refresh(place: Place) -> None:
    place.trickle.create_stream_table("st", QUERY, indexes=["w"])
    place.run("DROP INDEX st_w_idx", "INSERT INTO t VALUES (3, 30, 'c')")
    place.trickle.refresh_stream_table("st")
    assert shapes(place.conn) == []
    place.run("UPDATE t SET w = 'new'")
    place.trickle.refresh_stream_table("st", full=True)
    assert shapes(place.conn) == ["btree (w)"]
    place.run("ALTER TABLE t ALTER COLUMN v TYPE bigint", "INSERT INTO t VALUES (4, 40, 'd')", "DROP INDEX st_w_idx")
    place.trickle.refresh_stream_table("st")
    place.equal(QUERY)
    assert shapes(place.conn) == ["btree (w)"], "REINITIALIZE"


def test_by_sql_by_files_and_by_the_command_line(place: Place, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from pgtrickle.cli.main import app

    def call(*arguments: str, fails: bool = False) -> str:
        done = CliRunner().invoke(app, ["--dsn", place.dsn, *arguments])
        assert bool(done.exit_code) == fails, done.output
        return done.stderr if fails else done.stdout

    def asked(statement: str) -> object:
        request = db.scalar(place.conn, statement)
        assert carry_out(place.trickle.connection, place.trickle) == 1
        return db.scalar(place.conn, f"SELECT error_code FROM pgtrickle.pgt_requests WHERE id = {request}")

    sql_call = f"'st', '{QUERY}', indexes => ARRAY['(w, id)', 'UNIQUE (k)']"
    assert asked(f"SELECT pgtrickle.create_stream_table({sql_call})") is None
    assert shapes(place.conn) == ["UNIQUE btree (k)", "btree (w, id)"]
    call("dump", str(tmp_path))
    file = tmp_path / "public.st.sql"
    assert "-- index: (w, id)\n-- index: UNIQUE (k)\n" in file.read_text()
    assert call("apply", str(tmp_path)) == "keep   public.st\n"
    assert asked("SELECT pgtrickle.alter_stream_table('st', indexes => '{}')") is None
    assert shapes(place.conn) == []
    assert asked("SELECT pgtrickle.alter_stream_table('st', indexes => ARRAY['(nope)'])") == "PT024"
    assert asked("SELECT pgtrickle.alter_stream_table('st', indexes => ARRAY['(w); DROP TABLE t'])") == "PT023"
    assert asked(f"SELECT pgtrickle.create_or_replace_stream_table({sql_call})") is None
    assert shapes(place.conn) == ["UNIQUE btree (k)", "btree (w, id)"]
    file.write_text(file.read_text().replace("-- index: (w, id)\n", "-- index: (w DESC)\n"))
    assert "alter  public.st: no index (w, id), index (w DESC)" in call("apply", str(tmp_path))
    assert shapes(place.conn) == ["UNIQUE btree (k)", "btree (w DESC)"]
    assert call("apply", str(tmp_path)) == "keep   public.st\n"
    file.write_text(file.read_text().replace("-- index: (w DESC)\n", "-- index: (lower(w))\n"))
    assert "PT023" in call("apply", str(tmp_path), fails=True)
    call("drop", "st")
    call("create", "st", "--query", QUERY, "--index", "w", "--index", "USING hash (k)")
    assert shapes(place.conn) == ["btree (w)", "hash (k)"]
    call("alter", "st", "--index", "none")
    assert (shapes(place.conn), on_record(place.conn)) == ([], [])


def test_a_request_that_anyone_may_write_is_checked(place: Place) -> None:
    for wrong in ("(w)", [1], [None], {"a": 1}):
        args = {"name": "public.st", "query": QUERY, "indexes": wrong}
        place.conn.execute("INSERT INTO pgtrickle.pgt_requests (kind, args) VALUES ('create', %s)", (json.dumps(args),))
        assert carry_out(place.trickle.connection, place.trickle) == 1
        last = "SELECT error_code FROM pgtrickle.pgt_requests ORDER BY id DESC LIMIT 1"
        assert db.scalar(place.conn, last) == "PT015"


def test_an_operator_class_is_found_by_the_path_of_who_asks(place: Place) -> None:
    place.run(
        "CREATE SCHEMA ops",
        "CREATE OPERATOR CLASS ops.lengths FOR TYPE text USING hash AS OPERATOR 1 =, FUNCTION 1 hashtext(text)",
    )
    query = f"'st', '{QUERY}', indexes => ARRAY['USING hash (w lengths)']"
    place.run("SET search_path = public, ops", f"SELECT pgtrickle.create_stream_table({query})", "RESET search_path")
    assert carry_out(place.trickle.connection, place.trickle) == 1
    assert shapes(place.conn) == ["hash (w ops.lengths)"]
    assert on_record(place.conn) == ["USING hash (w ops.lengths)"], "for whoever makes it again"
    assert code(lambda: place.trickle.alter_stream_table("st", indexes=["USING hash (w lengths)"])) == "PT024"


def test_an_administrator_of_others_may_not_change_them(place: Place) -> None:
    role = f"admin_{place.conn.info.dbname}"
    place.trickle.create_stream_table("st", QUERY)
    place.run(f"CREATE ROLE {role} LOGIN PASSWORD 'plain'", f"GRANT pgtrickle_admin TO {role}")
    try:
        with db.open_session(make_conninfo(place.dsn, user=role, password="plain")) as admin:
            with pytest.raises(psycopg.Error) as caught:
                admin.execute("SELECT pgtrickle.alter_stream_table('public.st', indexes => ARRAY['(w)'])")
            assert caught.value.sqlstate == "PT402"
    finally:
        place.run(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_they_come_with_a_dump_and_are_made_again_where_the_table_is(place: Place, server18: embedded.Server) -> None:
    place.trickle.create_stream_table("st", QUERY, indexes=["UNIQUE (k)", "w"])
    for lost in (False, True):
        with fresh_database(server18) as dsn:
            dump_and_restore(server18, place.dsn, dsn)
            with Trickle(dsn, install_catalog=False) as trickle, db.open_session(dsn) as conn:
                if lost:
                    conn.execute("DROP TABLE st")
                there = Place(dsn, conn, trickle)
                assert {each.table: each.outcome for each in trickle.repair("st")}["public.st"] == "repaired"
                assert shapes(conn) == ["UNIQUE btree (k)", "btree (w)"]
                there.run("INSERT INTO t VALUES (3, 30, 'c')")
                trickle.refresh_stream_table("st")
                there.equal(QUERY)
