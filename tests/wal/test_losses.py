"""What is done to a source behind our back while it is captured from the WAL, and undone again: it must show."""

from __future__ import annotations

import threading

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgtrickle import db, embedded
from pgtrickle.capture import eligibility, handover, slot, supervise, triggers
from pgtrickle.capture.decoder import Decoder
from pgtrickle.capture.modes import CaptureMode, Step
from pgtrickle.catalog.install import install
from pgtrickle.config import Settings
from pgtrickle.errors import StateError

from .world import World, decoding, table_of, world

PARTITIONED = (
    "CREATE TABLE t (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);"
    "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (100);"
    "ALTER TABLE t REPLICA IDENTITY FULL; ALTER TABLE t1 REPLICA IDENTITY FULL"
)


def to_wal(made: World) -> None:
    handover.begin_transition(made.conn, made.oid, "asked")
    handover.complete(made.conn, made.oid, "caught up")


def publish(made: World, what: str) -> None:
    db.execute(made.conn, f"ALTER PUBLICATION {slot.name(made.conn)} SET (publish = '{what}')")


@pytest.mark.parametrize("back", [False, True])
def test_a_publication_that_told_less_for_a_time(made18: World, back: bool) -> None:
    made18.conn.execute("INSERT INTO t VALUES (1, 1)")
    to_wal(made18)
    assert made18.pending().captured
    publish(made18, "insert")
    made18.conn.execute("DELETE FROM t")
    if back:
        publish(made18, "insert, update, delete, truncate")
    assert not made18.pending().captured
    assert made18.one("SELECT published FROM pgtrickle.pgt_cdc_status") is False
    assert made18.one("SELECT alert FROM pgtrickle.check_cdc_health()") == "not_published"
    (found,) = supervise.supervise(made18.conn, Settings())
    assert (found.decision.step, made18.mode()) == (Step.FALL_BACK_LOSSY, CaptureMode.TRIGGER)
    to_wal(made18)
    made18.frontier = made18.now()
    assert made18.pending().captured, "published anew"


@pytest.mark.parametrize("change", ["DELETE FROM t WHERE id = 1", "UPDATE t SET id = 7 WHERE id = 2"])
def test_a_partition_whose_identity_was_another_for_a_time(database: str, change: str) -> None:
    with world(database, table=PARTITIONED) as made, decoding(made):
        made.conn.execute("INSERT INTO t VALUES (1, 1), (2, 2)")
        to_wal(made)
        made.frontier = made.now()
        made.conn.execute("ALTER TABLE t1 REPLICA IDENTITY DEFAULT")
        made.conn.execute(change.encode())
        made.conn.execute("ALTER TABLE t1 REPLICA IDENTITY FULL")
        made.await_decoder()
        assert made.pending().truncated
        made.frontier = made.now()
        made.conn.execute("UPDATE t SET v = 3")
        made.await_decoder()
        assert made.pending().changes > 0
        assert not made.pending().truncated, "whole again"


@pytest.mark.parametrize("spoil", ["ALTER TABLE t REPLICA IDENTITY DEFAULT", "ALTER TABLE t ADD COLUMN a aclitem[]"])
def test_a_source_that_is_no_longer_eligible_is_taken_back(made18: World, spoil: str) -> None:
    conn = made18.conn
    to_wal(made18)
    assert not triggers.attach(conn, made18.source, made18.columns)
    assert made18.mode() == CaptureMode.WAL
    conn.execute(spoil.encode())
    assert triggers.attach(conn, made18.source, made18.columns)
    assert made18.mode() == CaptureMode.TRIGGER
    assert made18.pending().truncated
    assert "no longer tells" in made18.history()[-1][2]


@pytest.mark.parametrize("values", ["mood", "mood, rights"])
def test_a_value_that_is_refused_later_marks_its_source_only(database18: str, values: str) -> None:
    """Read behind time, the WAL has an enum's label as it was. With a column sent as text, it is cast, not copied."""
    ddl = (
        "CREATE TYPE mood AS ENUM ('good'); CREATE TABLE t (id int, mood mood, rights aclitem);"
        "ALTER TABLE t REPLICA IDENTITY FULL"
    )
    with world(database18, "id", *values.split(", "), table=ddl) as made:
        to_wal(made)
        made.conn.execute("INSERT INTO t VALUES (1, 'good', NULL)")
        made.conn.execute("ALTER TYPE mood RENAME VALUE 'good' TO 'fine'")
        with pytest.raises(psycopg.DataError, match="good"), decoding(made):
            made.await_true("SELECT status = 'ERROR' FROM pgtrickle.pgt_decoder")
        with decoding(made):
            made.await_decoder()
            assert made.pending().truncated
            made.frontier = made.now()
            made.conn.execute("INSERT INTO t VALUES (2, 'fine', NULL)")
            made.await_decoder()
            assert not made.pending().truncated
            assert made.pending().changes == 1


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_in_another_encoding_stays_with_triggers(server18: embedded.Server, encoding: str) -> None:
    name = sql.Identifier(f"encoded_{encoding.lower()}")
    with psycopg.connect(server18.dsn, autocommit=True) as admin:
        admin.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE template0 LOCALE 'C' ENCODING {}").format(name, sql.Literal(encoding))
        )
        try:
            with db.open_session(make_conninfo(server18.dsn, dbname=f"encoded_{encoding.lower()}")) as conn:
                install(conn)
                conn.execute("CREATE TABLE t (id int PRIMARY KEY)")
                found = eligibility.check(conn, table_of(conn, "t").oid, ["id"])
                assert (found.code, found.reason) == ("PT273", f"the encoding of the database is {encoding}")
        finally:
            admin.execute(sql.SQL("DROP DATABASE {}").format(name))


def test_a_slot_moved_on_by_hand(made18: World) -> None:
    """While the decoder is away: what the slot passed over never comes, and it counts as lost."""
    with decoding(made18):
        to_wal(made18)
        made18.conn.execute("INSERT INTO t VALUES (1, 1)")
        made18.await_decoder()
        made18.frontier = made18.now()
    assert made18.pending().captured, "a decoder that ended is no loss"
    made18.conn.execute("INSERT INTO t VALUES (2, 2)")
    made18.conn.execute("SELECT pg_replication_slot_advance(pgtrickle_internal.slot_name(), pg_current_wal_lsn())")
    assert not made18.pending().captured
    name = slot.name(made18.conn)
    with pytest.raises(StateError, match="by another hand") as caught:
        Decoder(made18.dsn, name, name).run(threading.Event())
    assert caught.value.code == "PT351"
    (found,) = supervise.supervise(made18.conn, Settings())
    assert (found.decision.step, made18.mode()) == (Step.FALL_BACK_LOSSY, CaptureMode.TRIGGER)
    with decoding(made18):
        to_wal(made18)
        made18.frontier = made18.now()
        made18.conn.execute("INSERT INTO t VALUES (3, 3)")
        made18.await_decoder()
        assert made18.pending().captured
        assert made18.pending().changes == 1
