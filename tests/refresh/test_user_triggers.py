"""Triggers of the user on a stream table see a row that stays as an UPDATE, by a key of the query or of the user."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from psycopg import sql
from pyspark.sql import SparkSession

from pgtrickle import db, embedded
from pgtrickle.api import Trickle
from pgtrickle.apply import merge, update_key
from pgtrickle.config import Settings
from pgtrickle.db import Connection
from pgtrickle.errors import StateError
from pgtrickle.model import Column, PgType
from pgtrickle.postgres.statements.result import Storage
from pgtrickle.refresh.definition.define import rehearse
from tests.conftest import fresh_database
from tests.stories.telling import Story, telling

LOGGED = """
CREATE TABLE log (what text);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql SET search_path = public, pg_temp AS $$
BEGIN
    INSERT INTO log VALUES (concat(TG_OP, ' ', OLD, ' ', NEW));
    RETURN NULL;
END $$;
"""
TRIGGER = "CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON st FOR EACH ROW EXECUTE FUNCTION note()"
INT, TEXT = PgType(23, "integer"), PgType(25, "text")
STORAGE = Storage("public", "st", (Column("k", INT), Column("v", TEXT)), frozenset({0, 1}))
NAMES = (Column("c1", INT), Column("c2", TEXT))


@pytest.fixture
def conn(database18: str) -> Iterator[Connection]:
    with db.open_session(database18) as found:
        db.execute(found, LOGGED)
        merge.create(found, STORAGE)
        found.execute("INSERT INTO st VALUES (1, 'a'), (2, 'b'), (3, 'c'), (3, 'd'), (NULL, 'e')")
        db.execute(found, TRIGGER)
        yield found


def applied(
    conn: Connection, *rows: str, key: frozenset[int] | None = frozenset({0})
) -> tuple[merge.Applied, list[str]]:
    """What the delta did, and what the triggers saw of it."""
    conn.execute("TRUNCATE log")
    delta = f"SELECT * FROM (VALUES {', '.join(rows)}) AS d(c1, c2, w)"
    with conn.transaction():
        done = merge.apply_delta(conn, STORAGE, delta, NAMES, key)
    return done, sorted(str(what) for (what,) in conn.execute("SELECT what FROM log"))


def content(conn: Connection) -> list[tuple[object, ...]]:
    return conn.execute("SELECT k, v FROM st ORDER BY 1, 2").fetchall()


def test_a_row_that_stays_is_updated_and_others_come_and_go(conn: Connection) -> None:
    done, seen = applied(
        conn, "(1, 'a', -1)", "(1, 'A', 1)", "(2, 'b', -1)", "(4, 'f', 1)", "(NULL, 'e', -1)", "(NULL, 'E', 1)"
    )
    assert seen == ["DELETE (2,b) ", "INSERT  (4,f)", "UPDATE (,e) (,E)", "UPDATE (1,a) (1,A)"]
    assert (done.inserted, done.deleted) == (3, 3), "an update counts as both"
    assert content(conn) == [(1, "A"), (3, "c"), (3, "d"), (4, "f"), (None, "E")]


def test_rows_that_share_a_key_are_deleted_and_inserted(conn: Connection) -> None:
    _, seen = applied(conn, "(3, 'c', -1)", "(3, 'd', -1)", "(3, 'C', 1)", "(3, 'D', 1)", "(1, 'a', -1)", "(1, 'A', 2)")
    assert seen == ["DELETE (1,a) ", "DELETE (3,c) ", "DELETE (3,d) "] + ["INSERT  (1,A)"] * 2 + [
        "INSERT  (3,C)",
        "INSERT  (3,D)",
    ]
    _, seen = applied(conn, "(2, 'b', -1)", "(2, 'B', 1)", key=None)
    assert seen == ["DELETE (2,b) ", "INSERT  (2,B)"], "without a key"
    _, seen = applied(conn, "(2, 'B', -1)", "(9, 'x', 1)", key=frozenset())
    assert seen == ["UPDATE (2,B) (9,x)"], "one row for all: no column tells it apart"


def test_values_that_swap_under_a_unique_key_are_applied_all_the_same(conn: Connection) -> None:
    conn.execute("CREATE UNIQUE INDEX ON st (v)")
    done, seen = applied(
        conn, "(1, 'a', -1)", "(1, 'b', 1)", "(2, 'b', -1)", "(2, 'a', 1)", "(3, 'c', -1)", "(5, 'c', 1)"
    )
    assert (done.inserted, done.deleted) == (3, 3)
    assert {each.split()[0] for each in seen} == {"DELETE", "INSERT"}
    assert content(conn) == [(1, "b"), (2, "a"), (3, "d"), (5, "c"), (None, "e")]


def test_a_row_that_is_not_there_is_an_error(conn: Connection) -> None:
    with pytest.raises(StateError, match=r"1 rows were to be updated in public\.st, but only 0 are there"):
        applied(conn, "(1, 'z', -1)", "(1, 'A', 1)")
    assert content(conn)[0] == (1, "a"), "nothing was changed"


@pytest.mark.parametrize(
    ("query", "key"),
    [
        ("SELECT id, v FROM t", {0}),
        ("SELECT v, id FROM t WHERE v > 1", {1}),
        ("SELECT v FROM t", None),
        ("SELECT id + 1 AS id, v FROM t", None),
        ("SELECT v, count(*) AS n, sum(id) AS s FROM t GROUP BY v", {0}),
        ("SELECT count(*) AS n FROM t", set()),
        ("SELECT t.id, t.v, u.w FROM t JOIN u ON u.id = t.v", {0}),
        ("SELECT u.w, t.id FROM u JOIN t ON u.id = t.v", {1}),
        ("SELECT t.id, u.w FROM t LEFT JOIN u ON u.id = t.v", {0}),
        ("SELECT t.id AS a, u.id AS b FROM t JOIN u ON u.w = t.v", {0, 1}),
        ("SELECT t.id, u.w FROM t JOIN u ON u.w = t.v", None),
        ("SELECT id, v FROM t WHERE EXISTS (SELECT FROM u WHERE u.w = t.v)", {0}),
        ("SELECT id FROM t UNION ALL SELECT id FROM u", None),
    ],
)
def test_the_key_of_a_query(tables: Trickle, query: str, key: set[int] | None) -> None:
    prepared, _ = rehearse(tables.connection, query, Settings())
    found = update_key.key_of(tables.connection, 0, prepared.storage.columns, prepared.tree, "on")
    assert found == (None if key is None else frozenset(key))


@pytest.fixture(scope="module")
def tables(server18: embedded.Server) -> Iterator[Trickle]:
    with fresh_database(server18) as dsn:
        with db.open_session(dsn) as conn:
            db.execute(conn, "CREATE TABLE t (id int PRIMARY KEY, v int); CREATE TABLE u (id int PRIMARY KEY, w int)")
        with Trickle(dsn) as trickle:
            yield trickle


def test_whose_triggers_ask_for_it(conn: Connection) -> None:
    def key(asked: str) -> frozenset[int] | None:
        relid = int(str(db.scalar(conn, "SELECT 'st'::regclass::oid")))
        return update_key.key_of(conn, relid, STORAGE.columns, None, asked)

    assert [key(asked) for asked in ("auto", "on", "off")] == [None] * 3, "nothing tells its rows apart"
    conn.execute("DELETE FROM st WHERE v IN ('d', 'e')")
    conn.execute("CREATE UNIQUE INDEX ON st (k)")
    assert [key(asked) for asked in ("auto", "on", "off")] == [{0}, {0}, None]
    conn.execute("ALTER TABLE st DISABLE TRIGGER note")
    assert [key(asked) for asked in ("auto", "on", "off")] == [None, {0}, None]
    conn.execute("ALTER TABLE st DROP COLUMN k, ADD COLUMN k int PRIMARY KEY GENERATED ALWAYS AS IDENTITY")
    assert key("on") == frozenset({0}), "in the order of the query, whatever that of the table"


def test_a_refresh_updates_groups_for_triggers_and_those_who_read_it(database18: str, spark: SparkSession) -> None:
    with telling(database18, spark) as story:
        db.execute(story.connection, LOGGED)
        story.run("CREATE TABLE t (kind text, v int)", "INSERT INTO t VALUES ('a', 1), ('b', 2), ('c', 3)")
        story.create("st", "SELECT kind, sum(v) AS total FROM t GROUP BY kind")
        story.create("above", "SELECT kind, total + 1 AS more FROM st")
        story.run(TRIGGER)
        story.together("INSERT INTO t VALUES ('a', 10), ('d', 4)", "DELETE FROM t WHERE kind = 'b'")
        story.check("st")
        assert seen(story) == ["DELETE (b,2) ", "INSERT  (d,4)", "UPDATE (a,1) (a,11)"]
        story.check("above")
        this = sql.Identifier(story.connection.info.dbname)
        story.connection.execute(sql.SQL("ALTER DATABASE {} SET pg_trickle.user_triggers = 'off'").format(this))
    with telling(database18, spark) as story:
        story.queries["st"] = "SELECT kind, sum(v) AS total FROM t GROUP BY kind"
        story.run("TRUNCATE log", "UPDATE t SET v = 30 WHERE kind = 'c'")
        story.check("st")
        assert seen(story) == ["DELETE (c,3) ", "INSERT  (c,30)"]


def seen(story: Story) -> list[str]:
    return sorted(str(what) for (what,) in story.rows("SELECT what FROM log"))
