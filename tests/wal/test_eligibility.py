"""Which sources can be captured from the WAL: the verdict as a table, and the facts on real servers."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from pgtrickle import db
from pgtrickle.capture import eligibility, slot
from pgtrickle.capture.eligibility import Eligibility
from pgtrickle.catalog.install import install
from pgtrickle.db import Connection
from pgtrickle.errors import Unsupported

from .world import table_of

FACTS = {
    "is_stream_table": "false",
    "kind": "'r'",
    "persistence": "'p'",
    "is_partition": "false",
    "wal_level": "'logical'",
    "free_slots": "1",
    "free_senders": "1",
    "may_replicate": "true",
    "may_publish": "true",
    "unidentified": "NULL",
    "set_identity": "false",
    "unpublished": "NULL",
    "refused_writes": "NULL",
    "unsendable": "NULL",
    "encoding": "'UTF8'",
}


@pytest.fixture
def conn(database: str) -> Iterator[Connection]:
    with db.open_session(database) as connection:
        install(connection)
        yield connection


def check(conn: Connection, *columns: str, table: str = "t", set_identity: bool = False) -> Eligibility:
    return eligibility.check(conn, table_of(conn, table).oid, columns, set_identity=set_identity)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({}, None),
        ({"kind": "'p'"}, None),
        ({"is_stream_table": "true"}, "PT259"),
        ({"is_stream_table": "true", "unidentified": "'{t}'"}, "PT259"),
        ({"is_stream_table": "true", "kind": "NULL"}, "PT260"),
        ({"kind": "NULL", "persistence": "NULL", "is_partition": "NULL"}, "PT260"),
        ({"kind": "'f'"}, "PT261"),
        ({"kind": "'m'"}, "PT261"),
        ({"kind": "'v'"}, "PT261"),
        ({"persistence": "'u'"}, "PT262"),
        ({"persistence": "'t'"}, "PT262"),
        ({"is_partition": "true"}, "PT263"),
        ({"wal_level": "'replica'"}, "PT264"),
        ({"wal_level": "'minimal'", "free_slots": "0"}, "PT264"),
        ({"free_slots": "0"}, "PT265"),
        ({"free_senders": "0"}, "PT266"),
        ({"may_replicate": "false"}, "PT267"),
        ({"may_publish": "false"}, "PT268"),
        ({"unpublished": "'{g}'"}, "PT269"),
        ({"unidentified": "'{t}'"}, "PT270"),
        ({"unidentified": "'{t}'", "set_identity": "true"}, None),
        ({"unidentified": "'{}'"}, None),
        ({"refused_writes": "'{g}'"}, "PT271"),
        ({"refused_writes": "'{g}'", "unidentified": "'{t}'", "set_identity": "true"}, "PT271"),
        ({"unsendable": "'{a}'"}, "PT272"),
        ({"encoding": "'LATIN1'"}, "PT273"),
    ],
)
def test_verdicts(conn: Connection, changed: dict[str, str], code: str | None) -> None:
    arguments = ", ".join(f"{name} => {value}" for name, value in {**FACTS, **changed}.items())
    row = conn.execute(db.statement(f"SELECT * FROM pgtrickle_internal.wal_verdict({arguments})")).fetchone()
    assert row is not None
    assert row[0] == code
    assert all((value is None) == (code is None) for value in row)


@pytest.mark.parametrize(
    ("ddl", "columns", "code"),
    [
        ("CREATE TABLE t (id int PRIMARY KEY, v int)", ["id"], None),
        ("CREATE TABLE t (id int PRIMARY KEY, v int)", ["id", "v"], "PT270"),
        ("CREATE TABLE t (id int, v int)", ["id"], "PT270"),
        ("CREATE TABLE t (id int, v int)", [], "PT270"),
        ("CREATE TABLE t (id int PRIMARY KEY DEFERRABLE, v int)", ["id"], "PT270"),
        ("CREATE TABLE t (id int, v int); ALTER TABLE t REPLICA IDENTITY FULL", ["id", "v"], None),
        ("CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t REPLICA IDENTITY NOTHING", ["id"], "PT270"),
        (
            (
                "CREATE TABLE t (id int PRIMARY KEY, v int NOT NULL, w int); CREATE UNIQUE INDEX i ON t (v, id);"
                "ALTER TABLE t REPLICA IDENTITY USING INDEX i"
            ),
            ["id", "v"],
            None,
        ),
        (
            (
                "CREATE TABLE t (id int PRIMARY KEY, v int NOT NULL); CREATE UNIQUE INDEX i ON t (v) INCLUDE (id);"
                "ALTER TABLE t REPLICA IDENTITY USING INDEX i"
            ),
            ["id", "v"],
            "PT270",
        ),
        ("CREATE UNLOGGED TABLE t (id int PRIMARY KEY)", ["id"], "PT262"),
        ("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE heir () INHERITS (t)", ["id"], "PT640"),
        ("CREATE TABLE above (id int); CREATE TABLE t (PRIMARY KEY (id)) INHERITS (above)", ["id"], None),
        (
            (
                "CREATE TABLE t (id int) PARTITION BY LIST (id); ALTER TABLE t REPLICA IDENTITY FULL;"
                "CREATE UNLOGGED TABLE t1 PARTITION OF t DEFAULT; ALTER TABLE t1 REPLICA IDENTITY FULL"
            ),
            ["id"],
            "PT262",
        ),
        ("CREATE TABLE t (id int PRIMARY KEY, rights aclitem)", ["id"], None),  # sent as text
        ("CREATE TABLE t (id int PRIMARY KEY, rights aclitem[])", ["id"], "PT272"),
        ("CREATE TYPE pair AS (a int, b aclitem[]); CREATE TABLE t (id int PRIMARY KEY, p pair[])", ["id"], "PT272"),
        ("CREATE DOMAIN d AS aclitem[]; CREATE TABLE t (id int PRIMARY KEY, x d)", ["id"], "PT272"),
        (
            (
                "CREATE DOMAIN d AS numeric; CREATE TYPE r AS RANGE (subtype = int); CREATE TYPE mood AS ENUM ('good');"
                "CREATE TYPE pair AS (a d, b r[], c mood);"
                "CREATE TABLE t (id int PRIMARY KEY, p pair[], m r, n int4multirange, o point, j jsonb[], e mood[])"
            ),
            ["id"],
            None,
        ),
        ("CREATE VIEW t AS SELECT 1 AS id", ["id"], "PT261"),
        ("CREATE MATERIALIZED VIEW t AS SELECT 1 AS id", ["id"], "PT261"),
        (
            (
                "CREATE FOREIGN DATA WRAPPER f; CREATE SERVER s FOREIGN DATA WRAPPER f;"
                "CREATE FOREIGN TABLE t (id int) SERVER s"
            ),
            ["id"],
            "PT261",
        ),
        ("CREATE TABLE p (id int) PARTITION BY LIST (id); CREATE TABLE t PARTITION OF p DEFAULT", ["id"], "PT263"),
    ],
)
def test_tables(conn: Connection, ddl: str, columns: list[str], code: str | None) -> None:
    db.execute(conn, ddl)
    found = check(conn, *columns)
    assert found.code == code
    assert found.eligible == (code is None)
    assert (found.reason is None, found.hint is None) == (code is None, code is None)


def test_what_is_not_there(conn: Connection) -> None:
    assert eligibility.check(conn, 4242, ["id"]).code == eligibility.GONE


def test_every_partition_needs_its_identity(conn: Connection) -> None:
    db.execute(
        conn,
        "CREATE TABLE t (id int, v int, PRIMARY KEY (id)) PARTITION BY RANGE (id);"
        "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (10) TO (20)",
    )
    assert check(conn, "id").code == "PT270", "an index does not do: the root's columns are told, the leaf's sent"
    assert check(conn, "id", "v").unidentified == tuple(table_of(conn, name).oid for name in ("t", "t1", "t2"))
    conn.execute("ALTER TABLE t REPLICA IDENTITY FULL; ALTER TABLE t1 REPLICA IDENTITY FULL")
    found = check(conn, "id", "v")
    assert (found.code, found.unidentified) == ("PT270", (table_of(conn, "t2").oid,))
    assert "t2" in str(found.reason)
    allowed = check(conn, "id", "v", set_identity=True)
    assert allowed.eligible
    assert allowed.unidentified == found.unidentified


def test_stored_generated_columns_are_published_from_18_on(conn: Connection) -> None:
    conn.execute("CREATE TABLE t (id int PRIMARY KEY, g int GENERATED ALWAYS AS (id + 1) STORED)")
    conn.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    assert check(conn, "id").eligible
    assert check(conn, "g").code == (None if conn.info.server_version >= 180000 else "PT269")


def test_a_virtual_column_with_full_identity_would_stop_the_users_updates(database18: str) -> None:
    """PostgreSQL refuses them for a published table: so that is what we must not bring about."""
    with db.open_session(database18) as conn:
        install(conn)
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, v int, g int GENERATED ALWAYS AS (id + 1) VIRTUAL)")
        assert check(conn, "g").code == "PT269"
        assert check(conn, "id").eligible
        assert check(conn, "id", "v", set_identity=True).code == "PT271"
        conn.execute("ALTER TABLE t REPLICA IDENTITY FULL")
        found = check(conn, "id", "v")
        assert found.code == "PT271"
        slot.ensure(conn)
        conn.execute(db.statement(f'ALTER PUBLICATION "{slot.name(conn)}" ADD TABLE t'))
        with pytest.raises(psycopg.errors.InvalidColumnReference):
            conn.execute("UPDATE t SET v = 1")


def test_the_right_to_replicate(conn: Connection) -> None:
    conn.execute("CREATE TABLE t (id int PRIMARY KEY)")
    conn.execute("DROP ROLE IF EXISTS plain_reader; CREATE ROLE plain_reader")
    conn.execute("DROP ROLE IF EXISTS rds_replication; CREATE ROLE rds_replication")
    conn.execute(
        "GRANT USAGE ON SCHEMA pgtrickle, pgtrickle_internal TO plain_reader;"
        "GRANT SELECT ON ALL TABLES IN SCHEMA pgtrickle, pgtrickle_internal TO plain_reader"
    )
    try:
        conn.execute("SET ROLE plain_reader")
        assert check(conn, "id").code == "PT267"
        conn.execute("RESET ROLE; GRANT rds_replication TO plain_reader; SET ROLE plain_reader")
        assert check(conn, "id").code == "PT268"
        conn.execute("RESET ROLE; REVOKE rds_replication FROM plain_reader; ALTER ROLE plain_reader REPLICATION")
        db.execute(conn, f'GRANT CREATE ON DATABASE "{conn.info.dbname}" TO plain_reader')
        conn.execute("SET ROLE plain_reader")
        assert check(conn, "id").eligible
    finally:
        conn.execute("RESET ROLE; DROP OWNED BY plain_reader; DROP ROLE plain_reader; DROP ROLE rds_replication")


def test_our_own_slot_counts_as_free(conn: Connection) -> None:
    """With all slots taken, one of them by us, a second source still finds what it needs."""
    conn.execute("CREATE TABLE t (id int PRIMARY KEY)")
    free = db.scalar(conn, "SELECT current_setting('max_replication_slots')::int - count(*) FROM pg_replication_slots")
    taken = [f"taken_{place}_{conn.info.backend_pid}" for place in range(int(str(free)))]
    try:
        for each in taken:
            conn.execute("SELECT pg_create_physical_replication_slot(%s)", (each,))
        assert check(conn, "id").code == "PT265"
        conn.execute("SELECT pg_drop_replication_slot(%s)", (taken.pop(),))
        slot.ensure(conn)
        assert check(conn, "id").eligible
    finally:
        for each in taken:
            conn.execute("SELECT pg_drop_replication_slot(%s)", (each,))


def test_wal_asked_for_where_it_cannot_be_is_an_error(conn: Connection) -> None:
    conn.execute("CREATE TABLE t (id int)")
    with pytest.raises(Unsupported, match=r"replica identity of public\.t does not cover") as error:
        eligibility.require(conn, table_of(conn, "t"), ["id"])
    assert error.value.code == eligibility.IDENTITY
    assert "REPLICA IDENTITY FULL" in str(error.value.hint)
    eligibility.require(conn, table_of(conn, "t"), ["id"], set_identity=True)
