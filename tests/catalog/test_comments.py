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
WHERE c.relnamespace IN ('pgtrickle'::regnamespace, 'pgtrickle_internal'::regnamespace)
  AND c.relkind IN ('r', 'v', 'm', 'f', 'p')
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


FOR_USERS = {
    "create_stream_table",
    "create_or_replace_stream_table",
    "create_stream_table_if_not_exists",
    "alter_stream_table",
    "drop_stream_table",
    "refresh_stream_table",
    "repair_stream_table",
    "pause_stream_table",
    "resume_stream_table",
    "pause_all",
    "resume_all",
    "validate_query",
    "wait_for",
    "wait_for_request",
    "why_waiting",
    "pgt_status",
    "st_refresh_stats",
    "get_refresh_history",
    "get_staleness",
    "explain_st",
    "explain_delta",
    "slot_health",
    "check_cdc_health",
    "health_check",
    "diamond_groups",
    "dependency_tree",
    "pgt_id_of",
    "drop_follower",
}
"""The functions that a user has a purpose for. One that is added to the schema `pgtrickle` is added here."""
OURS = """
SELECT 'function' AS kind, proname AS name, pronamespace::regnamespace::text AS place,
       obj_description(oid, 'pg_proc') LIKE 'Internal:%' AS internal FROM pg_proc
WHERE pronamespace::regnamespace::text IN ('pgtrickle', 'pgtrickle_internal')
UNION ALL
SELECT 'relation', relname, relnamespace::regnamespace::text, obj_description(oid, 'pg_class') LIKE 'Internal:%'
FROM pg_class WHERE relnamespace::regnamespace::text IN ('pgtrickle', 'pgtrickle_internal') AND relkind IN ('r', 'v')
"""


def test_what_is_internal_is_out_of_sight(conn: Connection) -> None:
    """`\\df pgtrickle.*` and `\\d pgtrickle.*` show what users may use, and the other schema nothing of that."""
    found = conn.execute(OURS).fetchall()
    assert [row for row in found if row[3] != (row[2] == "pgtrickle_internal")] == []
    assert {name for kind, name, place, _ in found if (kind, place) == ("function", "pgtrickle")} == FOR_USERS
    assert {"pgt_locks", "pgt_slot"} <= {name for *_, name, place, _ in found if place == "pgtrickle_internal"}


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
