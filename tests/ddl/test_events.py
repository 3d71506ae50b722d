"""Event triggers: DDL on what a stream table uses marks it at once and tells why; all other DDL goes by unseen."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from pgtrickle import db
from pgtrickle.api import Trickle
from pgtrickle.catalog.ddl import NOT_TRACKED
from pgtrickle.catalog.install import install, load_migrations, uninstall
from tests.ddl.place import NO_SPARK, QUERY, Place

REDEFINED = "CREATE OR REPLACE FUNCTION twice(a int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 3 * a'"
CHANGES = [
    ("ALTER TABLE t RENAME COLUMN v TO amount", "column v of table public.t was renamed to amount"),
    ("ALTER TABLE t DROP COLUMN v CASCADE", "view public.seen was dropped"),
    ("ALTER TABLE t RENAME TO t2", "table public.t was renamed to public.t2"),
    ("CREATE SCHEMA other; ALTER TABLE t SET SCHEMA other", "table public.t was renamed to other.t"),
    ("ALTER SCHEMA public RENAME TO private", "table public.t was renamed to private.t"),
    (REDEFINED, "function public.twice(integer) was redefined"),
    (
        "ALTER FUNCTION twice(int) RENAME TO double",
        "function public.twice(integer) was renamed to public.double(integer)",
    ),
    ("ALTER FUNCTION twice(int) STRICT", "function public.twice(integer) was redefined"),
    ("CREATE OR REPLACE VIEW seen AS SELECT id, v FROM t WHERE v > 1", "view public.seen was redefined"),
    ("ALTER VIEW seen RENAME TO visible", "view public.seen was renamed to public.visible"),
    ("DO $$ BEGIN EXECUTE 'ALTER TABLE t RENAME v TO x'; END $$", "column v of table public.t was renamed to x"),
]
UNUSED = [
    "ALTER TABLE t ADD COLUMN more int DEFAULT 7",
    "ALTER TABLE t ALTER w TYPE varchar(5)",
    "ALTER TABLE t RENAME w TO x",
    "ALTER TABLE t DROP COLUMN x",
    "ALTER TABLE t ALTER v SET DEFAULT 1",
    "ALTER TABLE t ALTER v SET NOT NULL",
    "ALTER TABLE t SET (fillfactor = 50)",
    "ALTER TABLE t REPLICA IDENTITY FULL",
    "ALTER TABLE t ADD CHECK (v < 1000)",
    "CREATE INDEX ON t (v)",
    "CREATE FUNCTION twice(a text) RETURNS text IMMUTABLE LANGUAGE sql AS 'SELECT a'",
    "CREATE OR REPLACE VIEW other AS SELECT id FROM t",
    "CREATE TYPE mood AS ENUM ('good'); ALTER TYPE mood ADD VALUE 'bad'; DROP TYPE mood",
    "CREATE TABLE u (v int); ALTER TABLE u RENAME v TO w; ALTER TABLE u DROP COLUMN w; DROP TABLE u",
    "TRUNCATE t",
]


@pytest.mark.parametrize(("ddl", "reason"), CHANGES)
def test_what_is_used_is_noticed(made18: Place, ddl: str, reason: str) -> None:
    with made18.alerts() as told:
        made18.run(ddl)
    assert reason in made18.noted()
    assert made18.marked() == made18.noted()[-1]
    event = "source_dropped" if "dropped" in reason else "reinitialize_needed"
    table = "private.st" if "RENAME TO private" in ddl else "public.st"  # the table has moved too
    assert (event, table, reason) in [(each["event"], each["table"], each["reason"]) for each in told]


def test_what_is_not_used_is_not(made: Place) -> None:
    with made.alerts() as told:
        made.run(*UNUSED)
    assert (made.noted(), told) == ([], [])
    assert made.marked() is None


def test_on_both_versions_a_used_column_and_a_dropped_source(made: Place) -> None:
    made.run("DROP VIEW seen")  # or PostgreSQL itself would refuse the next
    made.run("ALTER TABLE t ALTER v TYPE bigint")
    assert made.noted() == ["view public.seen was dropped", "column v of table public.t now has the type bigint"]
    with made.alerts() as told:
        made.run("DROP TABLE t")
    assert told == [
        {"event": "source_dropped", "table": "public.st", "status": "ERROR", "reason": "table public.t was dropped"}
    ]
    stream = made.stream()
    assert stream.status == "ERROR"
    again = "create it again and alter the stream table with its query, or drop the stream table"
    assert stream.last_error == f"table public.t was dropped: {again}"


@pytest.mark.parametrize(
    ("ddl", "reason"),
    [
        ("DROP TABLE t CASCADE", "table public.t was dropped"),
        ("DROP VIEW seen", "view public.seen was dropped"),
        ("DROP FUNCTION twice(int)", "function public.twice(integer) was dropped"),
        ("DROP SCHEMA public CASCADE", "table public.t was dropped"),
    ],
)
def test_what_cannot_be_without_is_an_error_state(made18: Place, ddl: str, reason: str) -> None:
    made18.run(ddl)
    assert reason in made18.noted()
    row = made18.connection.execute("SELECT status, last_error FROM pgtrickle.pgt_stream_tables").fetchone()
    assert row is not None
    assert row[0] == "ERROR"
    assert "was dropped: create it again" in str(row[1])


def test_a_suspended_table_stays_suspended(made18: Place) -> None:
    made18.trickle.alter_stream_table("st", status="SUSPENDED")
    made18.run("DROP TABLE t CASCADE")
    assert made18.stream().status == "SUSPENDED"
    assert "was dropped" in str(made18.stream().last_error)


def test_every_table_that_uses_it_and_no_other(made18: Place) -> None:
    made18.create("ids", "SELECT id FROM t")
    made18.create("values", "SELECT v FROM t")
    made18.run("CREATE OR REPLACE VIEW seen AS SELECT id, 1 AS v FROM t", "ALTER TABLE t ALTER v TYPE bigint")
    assert made18.marked("ids") is None
    assert made18.marked("values") == made18.marked() == "column v of table public.t now has the type bigint"
    made18.trickle.drop_stream_table("st")
    assert made18.noted() == ["column v of table public.t now has the type bigint"]
    made18.trickle.drop_stream_table("values")
    assert made18.noted() == []
    assert made18.value("SELECT count(DISTINCT pgt_id) FROM pgtrickle.pgt_used_objects") == 1


def test_a_key_that_grouping_relies_on(made18: Place) -> None:
    made18.create("grouped", "SELECT id, v, count(*) AS n FROM t GROUP BY id")
    made18.run("ALTER TABLE t DROP CONSTRAINT t_pkey")
    assert made18.marked("grouped") == "constraint t_pkey on table public.t was dropped"
    assert made18.stream("grouped").status == "ACTIVE"
    assert made18.marked() is None


def test_a_type_renamed(made18: Place) -> None:
    made18.run("CREATE TYPE mood AS ENUM ('good')", "CREATE TABLE m (id int, mood mood)")
    made18.create("moods", "SELECT mood FROM m")
    made18.run("ALTER TYPE mood RENAME TO feeling")
    assert made18.marked("moods") == "column mood of table public.m now has the type public.feeling"


def test_a_partition_that_its_root_changes(made18: Place) -> None:
    made18.run(
        "CREATE TABLE p (id int, v int) PARTITION BY LIST (id)", "CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)"
    )
    made18.create("whole", "SELECT v FROM p")
    made18.create("part", "SELECT v FROM p1")
    made18.run("ALTER TABLE p RENAME v TO amount")
    assert made18.marked("whole") == "column v of table public.p was renamed to amount"
    assert made18.marked("part") == "column v of table public.p1 was renamed to amount"
    made18.run("CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2)", "ALTER TABLE p DETACH PARTITION p2", "DROP TABLE p2")
    assert len(made18.noted()) == 2, "partitions may come and go: the next refresh sees it"


def test_rolled_back_it_never_was(made: Place) -> None:
    with made.alerts() as told:
        with made.connection.transaction(force_rollback=True):
            made.run("ALTER TABLE t RENAME v TO amount", "DROP FUNCTION twice(int)", REDEFINED)
        with made.connection.transaction():
            with made.connection.transaction(force_rollback=True):
                made.run("DROP TABLE t CASCADE")
            made.run("ALTER TABLE t ADD COLUMN more int")
    assert (made.noted(), told) == ([], [])
    assert made.marked() is None
    assert made.stream().status == "ACTIVE"


def test_there_and_back_again_in_one_transaction(made18: Place) -> None:
    with made18.connection.transaction():
        made18.run("ALTER TABLE t RENAME v TO amount", "ALTER TABLE t RENAME amount TO v")
    assert made18.noted() == [
        "column v of table public.t was renamed to amount",
        "column v of table public.t was renamed to v",
    ]


def test_ddl_does_not_wait_for_a_refresh_nor_a_refresh_for_ddl(made18: Place) -> None:
    """A migration redefines a function, then waits for a table that a refresh reads: neither must hold the row of the
    stream table that the other needs."""
    touch = db.statement("UPDATE pgtrickle.pgt_stream_tables SET last_refresh_at = now()")
    with made18.session() as refresh:
        made18.run("SET lock_timeout = '2s'")
        refresh.execute("SET lock_timeout = '2s'")
        with made18.connection.transaction():
            made18.run(REDEFINED)
            refresh.execute(touch)
        assert made18.marked() == "function public.twice(integer) was redefined"
        with made18.alerts() as told, refresh.transaction():
            refresh.execute(touch)
            made18.run("ALTER FUNCTION twice(int) STRICT")
    assert [each["reason"] for each in told] == ["function public.twice(integer) was redefined"]
    assert len(made18.noted()) == 2


def test_a_transaction_with_an_older_snapshot_commits(made18: Place) -> None:
    made18.connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    with made18.session() as other, made18.connection.transaction():
        made18.run("SELECT 1", "ALTER FUNCTION twice(int) STRICT")
        other.execute("UPDATE pgtrickle.pgt_stream_tables SET last_refresh_at = now()")
    assert made18.noted() == ["function public.twice(integer) was redefined"]


def test_a_user_with_no_rights_on_ours(made: Place) -> None:
    role = f"writer_{made.connection.info.dbname}"
    made.run(
        f"CREATE ROLE {role}",
        f"GRANT CREATE, USAGE ON SCHEMA public TO {role}",
        f"ALTER FUNCTION twice(int) OWNER TO {role}",
    )
    try:
        made.run(f"SET ROLE {role}", REDEFINED, "RESET ROLE")
        assert made.marked() == "function public.twice(integer) was redefined"
        made.run(f"SET ROLE {role}", "DROP FUNCTION twice(int)", "RESET ROLE")
        assert made.stream().status == "ERROR"
    finally:
        made.run("RESET ROLE", f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_no_one_marks_a_stream_table_by_a_trigger_of_their_own(made18: Place) -> None:
    role = f"reader_{made18.connection.info.dbname}"
    made18.run(f"CREATE ROLE {role}", f"GRANT pgtrickle_user TO {role}", f"GRANT CREATE ON SCHEMA public TO {role}")
    try:
        function = "pgtrickle_internal.tell_source_ddl()"
        attach = f"CREATE TRIGGER mine AFTER INSERT ON mine FOR EACH ROW EXECUTE FUNCTION {function}"
        made18.run(f"SET ROLE {role}", "CREATE TABLE mine (pgt_id bigint, reason text, gone boolean)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            made18.run(attach)
        made18.run(  # and if someone allows it all the same, it has no say
            "RESET ROLE",
            f"GRANT EXECUTE ON FUNCTION {function} TO {role}",
            f"SET ROLE {role}",
            attach,
            "INSERT INTO mine SELECT pgt_id, 'mischief', true FROM pgtrickle.pgt_stream_tables",
        )
        made18.run("RESET ROLE")
        assert (made18.marked(), made18.stream().status) == (None, "ACTIVE")
    finally:
        made18.run("RESET ROLE", f"DROP OWNED BY {role}", f"DROP ROLE {role}")


@pytest.mark.parametrize(
    "broken",
    [
        "DROP TABLE pgtrickle.pgt_used_objects CASCADE",
        "ALTER TABLE pgtrickle.pgt_source_ddl DROP COLUMN reason",
        "ALTER DATABASE {} SET pg_trickle.block_source_ddl = 'perhaps'",
        "ALTER TABLE pgtrickle.pgt_stream_tables RENAME needs_reinit TO needed",
    ],
)
def test_our_own_trouble_is_a_warning_not_an_error(made18: Place, broken: str) -> None:
    made18.run(broken.format(made18.connection.info.dbname))
    warnings: list[str] = []
    with made18.session() as user:
        user.add_notice_handler(lambda notice: warnings.append(str(notice.message_primary)))
        user.execute("DROP FUNCTION twice(int)")
        user.execute("ALTER TABLE t RENAME v TO amount")
    assert len(warnings) == 2
    assert all(warning.startswith("pgtrickle could not") for warning in warnings)
    assert made18.value("SELECT count(*) FROM pg_attribute WHERE attname = 'amount'") == 1


def test_our_own_ddl_goes_by(made: Place) -> None:
    """Even where DDL is refused: other columns under a table that reads it, triggers that were disabled."""
    made.create("downstream", "SELECT id FROM st")
    made.run(
        "UPDATE pgtrickle.pgt_stream_tables SET is_populated = false",  # or it would be computed at once
        "ALTER TABLE t DISABLE TRIGGER USER",
        f"ALTER DATABASE {made.connection.info.dbname} SET pg_trickle.block_source_ddl = on",
    )
    before = made.stream().pgt_relid
    with made.alerts() as told, Trickle(made.dsn, master=NO_SPARK) as trickle:
        trickle.alter_stream_table("st", query="SELECT id, 'x' AS more FROM t")
    columns = "SELECT string_agg(attname, ' ' ORDER BY attnum) FROM pg_attribute WHERE attrelid = 'st'::regclass"
    assert made.value(f"{columns} AND attnum > 0 AND NOT attisdropped") == "id more"
    assert made.stream().pgt_relid == before
    assert (made.noted(), told) == ([], [])
    assert made.stream("downstream").status == "ACTIVE"


def test_a_new_definition_settles_what_was_noted(made18: Place) -> None:
    made18.run(REDEFINED, "ALTER TABLE t RENAME w TO x")
    assert len(made18.noted()) == 1
    made18.connection.execute("UPDATE pgtrickle.pgt_stream_tables SET is_populated = false")
    made18.trickle.alter_stream_table("st", query=QUERY)
    assert made18.noted() == []
    made18.run("ALTER TABLE t RENAME x TO w", REDEFINED)
    assert made18.noted() == [], "the same definition again is no change"


# Installing and removing


def test_installed_where_the_role_may(made: Place) -> None:
    assert made.connection.execute("SELECT noticed_by, refused FROM pgtrickle.pgt_ddl_tracking").fetchall() == [
        ("EVENT TRIGGERS", False)
    ]
    removals = [str(each) for each in uninstall(made.connection, drop_stream_tables=True)]
    assert "drop event trigger pgtrickle_ddl" in removals
    assert "drop event trigger pgtrickle_drop" in removals
    assert made.connection.execute("SELECT FROM pg_event_trigger").rowcount == 0
    made.run("ALTER TABLE t RENAME v TO amount", "DROP TABLE t CASCADE")


def test_removed_though_ddl_is_refused(made18: Place) -> None:
    made18.create("downstream", "SELECT id FROM st")
    made18.run("SET pg_trickle.block_source_ddl = on")
    uninstall(made18.connection, drop_stream_tables=True)
    assert made18.connection.execute("SELECT FROM pg_event_trigger").rowcount == 0


def test_removed_by_hand(made18: Place) -> None:
    """Whoever drops only the schema that there is to see is not bothered by what is left, and can be rid of it."""
    told: list[str | None] = []
    made18.connection.add_notice_handler(lambda each: told.append(each.message_primary))
    made18.run("DROP SCHEMA pgtrickle CASCADE", "CREATE VIEW later AS SELECT 1 AS one", "DROP TABLE t CASCADE")
    assert [each for each in told if each is not None and "could not" in each] == []
    assert "drop event trigger pgtrickle_ddl" in [
        str(each) for each in uninstall(made18.connection, drop_stream_tables=True)
    ]
    assert made18.connection.execute("SELECT FROM pg_event_trigger").rowcount == 0
    assert install(made18.connection).applied


def test_installed_without_where_it_may_not(plain: Place) -> None:
    def tracking() -> tuple[object, ...] | None:
        return plain.connection.execute("SELECT noticed_by, refused, note FROM pgtrickle.pgt_ddl_tracking").fetchone()

    assert plain.value("SELECT current_setting('is_superuser')") == "off"
    assert tracking() == ("FINGERPRINT", False, "DDL on what a stream table uses is noticed at its next refresh")
    plain.run("SET pg_trickle.block_source_ddl = on", "ALTER TABLE t RENAME v TO amount")
    found = tracking()
    assert found is not None
    assert found[:2] == ("FINGERPRINT", False)
    assert "block_source_ddl has no effect" in str(found[2])
    assert "drop schema pgtrickle" in [str(each) for each in uninstall(plain.connection, drop_stream_tables=True)]
    assert install(plain.connection).notes[-1] == NOT_TRACKED


def test_stream_tables_of_an_older_catalog_are_watched_too(database: str, tmp_path: Path) -> None:
    for each in load_migrations()[:2]:
        (tmp_path / f"{each.version:04}_{each.name}.sql").write_text(each.text, encoding="utf-8")
    with db.open_session(database) as conn:
        install(conn, directory=tmp_path)
        conn.execute("CREATE TABLE t (id int, v int, w int); CREATE TABLE st (id int)")
        conn.execute(
            "INSERT INTO pgtrickle.pgt_stream_tables (pgt_relid, pgt_schema, pgt_name, defining_query,"
            " normalized_query, refresh_mode, effective_mode, search_path) VALUES ('st'::regclass, 'public', 'st',"
            " 'SELECT id, v FROM t', 'SELECT id, v FROM t', 'AUTO', 'DIFFERENTIAL', 'public')"
        )
        conn.execute(
            "INSERT INTO pgtrickle.pgt_dependencies (pgt_id, source_relid, source_schema, source_name, columns_used)"
            " SELECT pgt_id, 't'::regclass, 'public', 't', '{id,v}' FROM pgtrickle.pgt_stream_tables"
        )
        assert install(conn).applied[0] == 3
        conn.execute("ALTER TABLE t DROP COLUMN w; ALTER TABLE t RENAME v TO amount; DROP TABLE t")
        assert conn.execute("SELECT reason FROM pgtrickle.pgt_source_ddl ORDER BY id").fetchall() == [
            ("column v of table public.t was renamed to amount",),
            ("table public.t was dropped",),
        ]
