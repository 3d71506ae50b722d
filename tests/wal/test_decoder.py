"""The decoder against real servers: what is written to a table arrives in its buffer."""

from __future__ import annotations

from collections import Counter

import pytest

from pgtrickle import db
from pgtrickle.capture import triggers
from pgtrickle.capture.replication import (
    parse_lsn,
)
from pgtrickle.model import Table

from .captured import Wal


def test_changes_arrive_with_their_transaction_and_position(wal: Wal) -> None:
    oid = wal.table("CREATE TABLE t (id int, v text, w int)", "id", "v")
    wal.start()
    with wal.conn.transaction():
        wal.conn.execute("INSERT INTO t VALUES (1, 'a', 1), (2, NULL, 2), (3, 'c', 3)")
        wal.conn.execute("UPDATE t SET v = 'b', id = 20 WHERE id = 2")
        with wal.conn.transaction(force_rollback=True):
            wal.conn.execute("DELETE FROM t")
        with wal.conn.transaction():
            wal.conn.execute("DELETE FROM t WHERE id = 3")
        xid = db.scalar(wal.conn, "SELECT pg_current_xact_id()::text")
        before = db.scalar(wal.conn, "SELECT pg_current_wal_insert_lsn()::text")
    after = db.scalar(wal.conn, "SELECT pg_current_wal_insert_lsn()::text")
    wal.check(oid, "id", "v")
    assert wal.actions(oid) == "IIIUD"
    rows = wal.conn.execute(
        db.statement(f"SELECT DISTINCT xid::text, lsn::text, cdc_source::text FROM pgtrickle_changes.changes_{oid}")
    ).fetchall()
    assert len(rows) == 1
    assert rows[0][0] == xid
    assert rows[0][2] == "W"
    assert parse_lsn(str(before)) <= parse_lsn(str(rows[0][1])) < parse_lsn(str(after))
    assert wal.end() is None
    assert wal.record()["status"] == "STOPPED"


def test_an_update_of_columns_not_used_writes_nothing(wal18: Wal) -> None:
    oid = wal18.table("CREATE TABLE t (id int, v text, w int)", "id", "v")
    wal18.start()
    wal18.run("INSERT INTO t SELECT g, 'v', 0 FROM generate_series(1, 100) AS g", "UPDATE t SET w = 1")
    wal18.check(oid, "id", "v")
    assert wal18.actions(oid) == 100 * "I"


def test_an_identity_index_that_covers_the_columns_is_enough(wal: Wal) -> None:
    oid = wal.table(
        "CREATE TABLE t (id int NOT NULL, v text NOT NULL, w int); CREATE UNIQUE INDEX i ON t (v, id)",
        "id",
        "v",
        identity="USING INDEX i",
    )
    wal.start()
    wal.run("INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)")
    wal.run("UPDATE t SET w = 10", "UPDATE t SET v = 'z' WHERE id = 1", "DELETE FROM t WHERE id = 2")
    wal.check(oid, "id", "v")
    assert wal.actions(oid) == "IIIUD"


def test_old_values_that_the_identity_lacks_make_a_mark(wal18: Wal) -> None:
    oid = wal18.table("CREATE TABLE t (id int PRIMARY KEY, v text)", "id", "v", identity="DEFAULT")
    wal18.start()
    wal18.run("INSERT INTO t VALUES (1, 'a')")
    wal18.run("UPDATE t SET v = 'b'", "UPDATE t SET v = 'c'")
    wal18.run("DELETE FROM t")
    wal18.pass_barrier()
    assert wal18.actions(oid) == "ITT"


def test_large_values_left_alone_and_changed(wal: Wal) -> None:
    oid = wal.table("CREATE TABLE t (id int, v text, big text)", "id", "v", "big")
    wal.run("ALTER TABLE t ALTER big SET STORAGE EXTERNAL")
    wal.start()
    wal.run("INSERT INTO t SELECT g, 'v', repeat(g::text, 20000) FROM generate_series(1, 5) AS g")
    wal.run("UPDATE t SET v = 'w' WHERE id < 4")
    wal.run("UPDATE t SET big = repeat('z', 30000) WHERE id = 2", "UPDATE t SET id = 10 WHERE id = 3")
    wal.run("DELETE FROM t WHERE id = 4")
    wal.check(oid, "id", "v", "big")
    assert wal.actions(oid) == "IIIIIUUUUUD"


def test_values_of_all_kinds_arrive_as_they_are(wal: Wal) -> None:
    columns = {
        "n": ("numeric", "'NaN'", "1.50", "-12345678901234567890123456789012345678901234567890.000001"),
        "m": ("numeric(10,2)", "0", "1.5", "NULL"),
        "f": ("float8", "'-0'", "'NaN'", "0.1"),
        "b": ("bytea", "'\\x00ff'", "''", "NULL"),
        "j": ("jsonb", "'{\"a\": [1, null]}'", "'null'", "NULL"),
        "a": ("text[]", "'{a,NULL,\"b c\"}'", "'{}'", "NULL"),
        "z": ("timestamptz", "'infinity'", "'2024-02-29 12:00:00.123456+05:30'", "NULL"),
        "i": ("interval", "'1 mon -2 days 03:04:05.6'", "'0'", "NULL"),
        "r": ("int4range", "'[1,5)'", "'empty'", "NULL"),
        "u": ("uuid", "'00000000-0000-0000-0000-000000000001'", "gen_random_uuid()", "NULL"),
        "d": ("positive", "1", "2", "3"),
        "e": ("mood", "'ok'", "'sad'", "NULL"),
        "p": ("pair", "'(1,x)'", "'(,)'", "NULL"),
        "c": ("varchar(5)", "'abc'", "'ü€'", "NULL"),
        "g": ("aclitem", "'=r/postgres'", "'postgres=arw/postgres'", "NULL"),
        "Täble col": ("bit varying(9)", "B'101'", "B''", "NULL"),
    }
    definitions = ", ".join(f'"{name}" {each[0]}' for name, each in columns.items())
    oid = wal.table(
        "CREATE DOMAIN positive AS int NOT NULL CHECK (VALUE > 0); CREATE TYPE mood AS ENUM ('ok', 'sad');"
        f"CREATE TYPE pair AS (x int, y text); CREATE TABLE t ({definitions})",
        *columns,
    )
    wal.start()
    for place in (1, 2, 3):
        wal.run(f"INSERT INTO t VALUES ({', '.join(each[place] for each in columns.values())})")
    wal.check(oid, *columns)
    wal.run("INSERT INTO t SELECT t.* FROM t, generate_series(1, 50)")
    wal.run("UPDATE t SET m = 7, g = '=w/postgres' WHERE d = 2", "DELETE FROM t WHERE d = 3")
    wal.check(oid, *columns)


def test_truncate_makes_a_mark(wal: Wal) -> None:
    first = wal.table("CREATE TABLE t (id int)", "id")
    second = wal.table("CREATE TABLE u (id int)", "id", name="u")
    wal.start()
    wal.run("INSERT INTO t VALUES (1)", "TRUNCATE t, u", "INSERT INTO t VALUES (2)")
    wal.run("TRUNCATE u")
    wal.pass_barrier()
    assert wal.actions(first) == "ITI"
    assert wal.actions(second) == "TT"


def test_columns_come_and_go(wal: Wal) -> None:
    oid = wal.table("CREATE TABLE t (a int, id int, v text)", "id", "v")
    wal.start()
    wal.run("INSERT INTO t VALUES (0, 1, 'a')")
    wal.run("ALTER TABLE t ADD COLUMN more text DEFAULT 'm'", "INSERT INTO t VALUES (0, 2, 'b', 'x')")
    wal.run(
        "INSERT INTO t VALUES (0, 3, 'c', 'y')", "ALTER TABLE t DROP COLUMN a", "INSERT INTO t VALUES (4, 'd', 'z')"
    )
    wal.check(oid, "id", "v")
    assert wal.actions(oid) == "IIII"


@pytest.mark.parametrize(
    "ddl",
    [
        "ALTER TABLE t ALTER v TYPE varchar(20)",
        "ALTER TABLE t ALTER n TYPE varchar(9)",
        "ALTER TABLE t RENAME v TO x",
        "ALTER TABLE t DROP COLUMN v",
    ],
)
def test_a_change_of_a_used_column_makes_a_mark(wal18: Wal, ddl: str) -> None:
    oid = wal18.table("CREATE TABLE t (id int, v text, n varchar(5))", "id", "v", "n")
    wal18.start()
    wal18.run("INSERT INTO t VALUES (1, 'a', 'n')")
    wal18.run(ddl)
    wal18.run("INSERT INTO t (id) VALUES (2), (3)", "DELETE FROM t WHERE id = 2")
    wal18.run("INSERT INTO t (id) VALUES (4)")
    wal18.pass_barrier()
    assert wal18.actions(oid) == "ITT"


def test_a_column_that_a_new_consumer_needs_is_there_from_then_on(wal18: Wal) -> None:
    oid = wal18.table("CREATE TABLE t (id int, v text)", "id")
    wal18.start()
    wal18.run("INSERT INTO t VALUES (1, 'a')")
    wal18.pass_barrier()
    triggers.attach(wal18.conn, Table(oid, "public", "t"), ["v"])  # which takes it back to triggers
    wal18.run(
        "ALTER TABLE t DISABLE TRIGGER USER",
        "UPDATE pgtrickle.pgt_change_tracking SET cdc_mode = 'WAL'",
        f"ALTER PUBLICATION {wal18.slot} SET TABLE t",
    )
    wal18.run("INSERT INTO t VALUES (2, 'b')")
    wal18.pass_barrier()
    assert wal18.decoded(oid, "id", "v") == Counter([("1", None), ("2", "b")])


@pytest.mark.parametrize("via_root", [True, False])
def test_partitions_are_decoded_as_their_root(wal: Wal, via_root: bool) -> None:
    wal.run(f"ALTER PUBLICATION {wal.slot} SET (publish_via_partition_root = {via_root})")
    oid = wal.table(
        "CREATE TABLE t (id int, v text) PARTITION BY RANGE (id);"
        "CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (100);"
        "CREATE TABLE high (v text, gone int, id int); ALTER TABLE high DROP COLUMN gone;"
        "ALTER TABLE t ATTACH PARTITION high FOR VALUES FROM (100) TO (200);"
        "ALTER TABLE low REPLICA IDENTITY FULL; ALTER TABLE high REPLICA IDENTITY FULL",
        "id",
        "v",
    )
    for partition in ("low", "high"):
        wal.run(f"ALTER TABLE {partition} DISABLE TRIGGER USER")
    wal.start()
    wal.run("INSERT INTO t SELECT g, 'v' || g FROM generate_series(1, 199) AS g", "UPDATE t SET id = 199 - id")
    wal.run("INSERT INTO high VALUES ('direct', 150)", "DELETE FROM low WHERE id < 20", "UPDATE high SET v = 'x'")
    wal.check(oid, "id", "v")
    assert "T" not in wal.actions(oid)
    wal.run("TRUNCATE t")
    wal.pass_barrier()
    assert wal.actions(oid).endswith("T")
    wal.run("INSERT INTO t VALUES (1, 'a')", "TRUNCATE low")
    wal.pass_barrier()
    # PostgreSQL does not publish the truncation of a partition as that of its root.
    assert wal.actions(oid).endswith("I" if via_root else "IT")


def test_a_prepared_transaction_arrives_when_it_commits(wal18: Wal) -> None:
    oid = wal18.table("CREATE TABLE t (id int)", "id")
    wal18.start()
    wal18.conn.execute("BEGIN")
    wal18.conn.execute("INSERT INTO t VALUES (1)")
    xid = db.scalar(wal18.conn, "SELECT pg_current_xact_id()::text")
    wal18.conn.execute("PREPARE TRANSACTION 'later'")
    wal18.pass_barrier()
    assert wal18.actions(oid) == ""
    wal18.conn.execute("COMMIT PREPARED 'later'")
    wal18.check(oid, "id")
    assert db.scalar(wal18.conn, f"SELECT xid::text FROM pgtrickle_changes.changes_{oid}") == xid


def test_tables_that_nobody_wants_are_passed_over_until_somebody_does(wal18: Wal) -> None:
    oid = wal18.table("CREATE TABLE t (id int)", "id")
    wal18.run("UPDATE pgtrickle.pgt_change_tracking SET cdc_mode = 'TRIGGER'")
    wal18.start()
    wal18.run("INSERT INTO t VALUES (1)")
    wal18.pass_barrier()
    wal18.run("INSERT INTO t VALUES (1)")
    wal18.passed_over()
    held = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgtrickle decoder' AND state <> 'idle'"
    assert db.scalar(wal18.conn, f"{held} AND datname = current_database() AND backend_type = 'client backend'") == 0
    wal18.run("UPDATE pgtrickle.pgt_change_tracking SET cdc_mode = 'TRANSITIONING'")
    wal18.run("INSERT INTO t VALUES (2)")
    wal18.pass_barrier()
    assert wal18.decoded(oid, "id") == Counter([("2",)])


def test_changes_that_count_still_arrive_after_the_way_back(wal18: Wal) -> None:
    oid = wal18.table("CREATE TABLE t (id int)", "id")
    wal18.run("INSERT INTO t VALUES (1)")
    wal18.run(
        "UPDATE pgtrickle.pgt_change_tracking SET cdc_mode = 'TRIGGER'",
        f"INSERT INTO pgtrickle.pgt_handovers (source_relid, at, side) VALUES ({oid}, pg_current_snapshot(), 'T')",
    )
    wal18.start()
    wal18.check(oid, "id")


def test_a_buffer_dropped_in_between_does_not_stop_the_others(wal18: Wal) -> None:
    first = wal18.table("CREATE TABLE t (id int)", "id")
    second = wal18.table("CREATE TABLE u (id int)", "id", name="u")
    wal18.start()
    wal18.run("INSERT INTO t VALUES (1)", "INSERT INTO u VALUES (1)")
    wal18.pass_barrier()
    wal18.run("INSERT INTO t VALUES (2)", "INSERT INTO u VALUES (2)")
    assert triggers.detach(wal18.conn, first)
    wal18.run("INSERT INTO t VALUES (3)", "INSERT INTO u VALUES (3)")
    wal18.check(second, "id", name="u")
