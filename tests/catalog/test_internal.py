"""Migrations 22 and 30: what only we use is moved to a schema of its own, also in catalogs in use, with rights as they
are."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from pgtrickle import db
from pgtrickle.catalog.install import MIGRATIONS, install
from pgtrickle.db import Connection
from pgtrickle.errors import StateError

_NAMED = re.compile(r"\b(pgtrickle(?:_internal)?)\.([a-z_]+)\s*\(")
_RELATION = re.compile(
    r"\b(pgtrickle(?:_internal)?)\.(pg_stat_stream_tables|pgt_[a-z_]+|stream_tables_info)\b(?!\s*\()"
)


@pytest.fixture
def conn(database: str) -> Iterator[Connection]:
    with db.open_session(database) as connection:
        yield connection


def up_to(tmp_path: Path, last: int) -> Path:
    """The first migrations alone."""
    directory = tmp_path / "before"
    directory.mkdir()
    for path in MIGRATIONS.glob("*.sql"):
        if int(path.name[:4]) <= last:
            shutil.copy(path, directory)
    return directory


def routines(conn: Connection) -> list[tuple[object, ...]]:
    """All that our schemas have, each with its text, rights, owner and settings."""
    return conn.execute(
        "SELECT p.proname::text, pg_get_function_identity_arguments(p.oid), p.prosrc, p.proacl::text, p.prosecdef,"
        " p.proconfig, p.provolatile, obj_description(p.oid, 'pg_proc') FROM pg_proc AS p"
        " JOIN pg_namespace AS n ON n.oid = p.pronamespace WHERE n.nspname IN ('pgtrickle', 'pgtrickle_internal')"
        " AND p.prokind IN ('f', 'p') ORDER BY 1, 2"
    ).fetchall()


def test_bodies_name_what_is_there(conn: Connection) -> None:
    """PostgreSQL does not look into a body before it runs. A migration that uses an old name fails here."""
    install(conn)
    there = {
        (str(schema), str(name))
        for schema, name in conn.execute("SELECT pronamespace::regnamespace::text, proname::text FROM pg_proc")
    }
    for name, _, body, *_ in routines(conn):
        missing = [found for found in _NAMED.findall(str(body)) if found not in there and not _is_relation(conn, found)]
        missing += [found for found in _RELATION.findall(str(body)) if not _is_relation(conn, found)]
        assert missing == [], f"in the body of {name}"


def _is_relation(conn: Connection, found: tuple[str, str]) -> bool:
    """A table, as in INSERT INTO pgtrickle.pgt_requests (kind, …)."""
    return db.scalar(conn, f"SELECT to_regclass('{'.'.join(found)}') IS NOT NULL") is True


def _text(row: tuple[object, ...]) -> str:
    """A body as it was before anything was moved."""
    return str(row[2]).replace("pgtrickle_internal.", "pgtrickle.").replace(", 'pgtrickle_internal'", "")


def rights(conn: Connection) -> list[tuple[object, ...]]:
    """Tables and views, each with its owner and who may do what to it; without what `install` itself grants."""
    return conn.execute(
        "SELECT c.relname::text, pg_get_userbyid(c.relowner), ARRAY("
        "  SELECT a.grantee::regrole::text || ' ' || a.privilege_type FROM aclexplode(c.relacl) AS a ORDER BY 1)"
        " FROM pg_class AS c WHERE c.relnamespace::regnamespace::text IN ('pgtrickle', 'pgtrickle_internal')"
        " AND c.relkind IN ('r', 'v') ORDER BY 1"
    ).fetchall()


@pytest.mark.parametrize("last", [21, 28])
def test_a_catalog_in_use_is_upgraded_and_nothing_else_changes(conn: Connection, tmp_path: Path, last: int) -> None:
    install(conn, directory=up_to(tmp_path, last))
    conn.execute("DROP ROLE IF EXISTS reader_by_hand; CREATE ROLE reader_by_hand")
    try:
        for schema in ("pgtrickle", "pgtrickle_internal")[: 1 if last < 22 else 2]:
            conn.execute(sql.SQL("GRANT USAGE ON SCHEMA {} TO reader_by_hand").format(sql.Identifier(schema)))
        conn.execute("GRANT SELECT ON ALL TABLES IN SCHEMA pgtrickle TO reader_by_hand")
        older, readable = routines(conn), rights(conn)
        told: list[str | None] = []
        conn.add_notice_handler(lambda notice: told.append(notice.message_primary))
        assert install(conn).applied[0] == last + 1
        assert told == [], "event triggers pass over it"
        newer = routines(conn)
        assert [row for row in readable if row not in rights(conn)] == []
        for row in older:
            if row[0] not in CHANGED:
                twin = [each for each in newer if each[:2] == row[:2]]
                assert twin, f"{row[:2]} is gone"
                assert _text(twin[0]) == _text(row), row[0]
                assert [twin[0][3], *twin[0][4:7]] == [row[3], *row[4:7]], row[0]
        conn.execute("SET ROLE reader_by_hand")
        conn.execute("SELECT * FROM pgtrickle.pgt_status()")
        conn.execute("SELECT * FROM pgtrickle.health_check()")
        with pytest.raises(psycopg.errors.UndefinedTable, match="there is no stream table"):
            conn.execute("SELECT pgtrickle.explain_st('none')")
    finally:
        conn.execute("RESET ROLE; DROP OWNED BY reader_by_hand; DROP ROLE reader_by_hand")


CHANGED = frozenset(
    {
        "on_source_ddl",
        "on_subscription_ddl",
        "explain_full_name",
        "lease_problems",
        "explain_st",
        "is_done",
        "request_progress",
        "health_check",
        "check_cdc_health",
    }
) | {
    f"{verb}_stream_table{rest}"
    for verb, rest in [("create", ""), ("alter", ""), ("create", "_if_not_exists"), ("create_or_replace", "")]
}
"""Routines that this migration, or a later one, gave another body."""


def test_somebody_elses_schema_of_that_name_is_left_alone(conn: Connection, tmp_path: Path) -> None:
    install(conn, directory=up_to(tmp_path, 21))
    conn.execute("CREATE SCHEMA pgtrickle_internal CREATE TABLE theirs (a int)")
    with pytest.raises(StateError) as error:
        install(conn)
    assert error.value.code == "PT362"
    conn.execute("TABLE pgtrickle_internal.theirs")
    conn.execute("DROP SCHEMA pgtrickle_internal CASCADE")
    assert install(conn).applied[0] == 22
