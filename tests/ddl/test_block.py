"""block_source_ddl: DDL on what a stream table uses is refused in the user's transaction, all other DDL passes."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from tests.ddl.place import Place
from tests.ddl.test_events import REDEFINED, UNUSED

REFUSED = [
    ("ALTER TABLE t RENAME v TO amount", "column v of table public.t"),
    ("ALTER TABLE t DROP COLUMN id CASCADE", "column id of table public.t, view public.seen"),
    ("ALTER TABLE t RENAME TO t2", "table public.t"),
    ("ALTER TABLE t ALTER w TYPE int USING 1, DROP COLUMN v CASCADE", "column v of table public.t, view public.seen"),
    ("DROP TABLE t CASCADE", "table public.t, view public.seen"),
    ("DROP VIEW seen", "view public.seen"),
    ("ALTER SCHEMA public RENAME TO private", "function public.twice(integer), table public.t, view public.seen"),
    (REDEFINED, "function public.twice(integer)"),
    ("DROP FUNCTION twice(int)", "function public.twice(integer)"),
]


def recorded(place: Place) -> object:
    """What the stream table is, and what it reads, as the catalog has it."""
    return (
        place.stream(),
        place.noted(),
        place.connection.execute(
            "SELECT u.*, d.* FROM pgtrickle.pgt_used_objects AS u,"
            " pgtrickle_internal.describe_object(u.classid, u.objid, u.objsubid) AS d ORDER BY u.title"
        ).fetchall(),
    )


def test_refused_with_our_code_and_what_to_do(made: Place) -> None:
    made.run("SET pg_trickle.block_source_ddl = on")
    before = recorded(made)
    with made.alerts() as told:
        for ddl, objects in REFUSED:
            with pytest.raises(psycopg.errors.DependentObjectsStillExist) as caught:
                made.run(ddl)
            assert caught.value.diag.message_primary == f"PT370: {objects} is used by the stream table public.st"
            assert "block_source_ddl" in str(caught.value.diag.message_detail)
            assert "Alter or drop the stream table first" in str(caught.value.diag.message_hint)
    assert told == []
    assert recorded(made) == before


def test_what_is_not_used_passes(made: Place) -> None:
    made.run("SET pg_trickle.block_source_ddl = on", *UNUSED)
    assert made.noted() == []


def test_the_users_transaction_goes_on_after_a_savepoint(made18: Place) -> None:
    made18.run("SET pg_trickle.block_source_ddl = on")
    with made18.connection.transaction():
        made18.run("INSERT INTO t VALUES (1, 1, 'a')")
        with pytest.raises(psycopg.errors.DependentObjectsStillExist), made18.connection.transaction():
            made18.run("ALTER TABLE t DROP COLUMN v CASCADE")
        made18.run("ALTER TABLE t ADD COLUMN more int")
    assert made18.value("SELECT count(*) FROM t WHERE v = 1 AND more IS NULL") == 1
    assert made18.noted() == []


def test_set_for_the_database_and_lifted_by_a_session(made: Place) -> None:
    made.run(f"ALTER DATABASE {made.connection.info.dbname} SET pg_trickle.block_source_ddl = on")
    with made.session() as user:
        with pytest.raises(psycopg.errors.DependentObjectsStillExist):
            user.execute("ALTER TABLE t RENAME TO t2")
        assert user.execute("SELECT refused FROM pgtrickle.pgt_ddl_tracking").fetchall() == [(True,)]
        user.execute("SET pg_trickle.block_source_ddl = off")
        user.execute("ALTER TABLE t RENAME TO t2")
    assert made.marked() == "table public.t was renamed to public.t2"


def test_set_for_a_role(made18: Place) -> None:
    role = f"owner_{made18.connection.info.dbname}"
    made18.run(
        f"CREATE ROLE {role} LOGIN PASSWORD 'plain'",
        f"ALTER TABLE t OWNER TO {role}",
        f"ALTER ROLE {role} SET pg_trickle.block_source_ddl = on",
        f"GRANT CREATE ON SCHEMA public TO {role}",
    )
    try:
        with psycopg.connect(make_conninfo(made18.dsn, user=role, password="plain"), autocommit=True) as owner:
            owner.execute("ALTER TABLE t DROP COLUMN w")
            with pytest.raises(psycopg.errors.DependentObjectsStillExist, match="PT370"):
                owner.execute("ALTER TABLE t RENAME v TO amount")
        made18.run("ALTER TABLE t RENAME v TO amount")
    finally:
        made18.run("ALTER TABLE t OWNER TO CURRENT_USER", f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_once_no_stream_table_uses_it_it_passes(made18: Place) -> None:
    made18.run("SET pg_trickle.block_source_ddl = on")
    made18.trickle.drop_stream_table("st")
    made18.run("ALTER TABLE t ALTER w TYPE int USING 1, DROP COLUMN v CASCADE", "DROP TABLE t")
