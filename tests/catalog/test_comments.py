"""Everything in our schemas that psql can show has a comment; a stream table has ours until its owner has another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pgtrickle import db
from pgtrickle.api import Trickle
from pgtrickle.catalog.install import install, uninstall
from pgtrickle.db import Connection
from pgtrickle.model import STREAM_TABLE_COMMENT

WITHOUT = """
SELECT 'function ' || p.proname AS name FROM pg_proc AS p
WHERE p.pronamespace IN ('pgtrickle'::regnamespace, 'pgtrickle_internal'::regnamespace)
  AND obj_description(p.oid, 'pg_proc') IS NULL
UNION ALL
SELECT 'relation ' || c.relname FROM pg_class AS c
WHERE c.relnamespace = 'pgtrickle'::regnamespace AND c.relkind IN ('r', 'v', 'm', 'f', 'p')
  AND obj_description(c.oid, 'pg_class') IS NULL
UNION ALL
SELECT 'schema ' || n.nspname FROM pg_namespace AS n
WHERE n.nspname LIKE 'pgtrickle%' AND obj_description(n.oid, 'pg_namespace') IS NULL
ORDER BY name
"""


@pytest.fixture
def conn(database18: str) -> Iterator[Connection]:
    with db.open_session(database18) as connection:
        install(connection)
        yield connection


def test_nothing_of_ours_is_without_a_comment(conn: Connection) -> None:
    assert [name for (name,) in conn.execute(WITHOUT)] == [], "COMMENT ON it, in the migration that makes it"
    conn.execute("CREATE FUNCTION pgtrickle.bare() RETURNS int LANGUAGE sql AS 'SELECT 1'")
    conn.execute("CREATE VIEW pgtrickle.plain AS SELECT 1 AS a")
    assert [name for (name,) in conn.execute(WITHOUT)] == ["function bare", "relation plain"]


def test_internal_functions_are_out_of_sight(conn: Connection) -> None:
    """`\\df pgtrickle.*` shows what users may call, and the other schema nothing of that."""
    told = conn.execute(
        "SELECT pronamespace::regnamespace::text, proname FROM pg_proc"
        " WHERE pronamespace::regnamespace::text IN ('pgtrickle', 'pgtrickle_internal')"
        " AND (obj_description(oid, 'pg_proc') LIKE 'Internal:%')"
        "  <> (pronamespace = 'pgtrickle_internal'::regnamespace)"
    ).fetchall()
    assert told == []
    shown = {
        str(name)
        for (name,) in conn.execute("SELECT proname FROM pg_proc WHERE pronamespace = 'pgtrickle'::regnamespace")
    }
    assert len(shown) < 40
    assert {"create_stream_table", "wait_for", "why_waiting", "health_check"} <= shown


def comment(conn: Connection, name: str) -> object:
    return db.scalar(conn, f"SELECT obj_description('{name}'::regclass, 'pg_class')")


def test_a_stream_table_says_what_it_is_until_its_owner_does(conn: Connection, database18: str) -> None:
    conn.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    with Trickle(database18) as trickle:
        trickle.create_stream_table("ours", "SELECT id, v FROM t", initialize=False)
        trickle.create_stream_table("theirs", "SELECT id, v FROM t", initialize=False)
        conn.execute("COMMENT ON TABLE theirs IS 'what we sold'")
        for name in ("ours", "theirs"):
            trickle.alter_stream_table(name, schedule="5s")
            trickle.alter_stream_table(name, refresh_mode="FULL")
        assert comment(conn, "ours") == STREAM_TABLE_COMMENT
        assert comment(conn, "theirs") == "what we sold"
    removed = [str(each) for each in uninstall(conn, drop_stream_tables=False)]
    assert "drop comment on public.ours" in removed
    assert "drop comment on public.theirs" not in removed
    assert comment(conn, "ours") is None, "a plain table from now on"
    assert comment(conn, "theirs") == "what we sold"
