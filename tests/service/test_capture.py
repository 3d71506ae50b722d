"""Capture as the service does it: sources move to the WAL by themselves and come back; nothing is lost or doubled."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from tests.service.running import Running, running, until
from tests.wal.world import World, consume, table_of, world

from pgtrickle import db
from pgtrickle.api import Trickle
from pgtrickle.capture import slot, triggers
from pgtrickle.capture.modes import SlotState
from pgtrickle.catalog import reader, writer

THERE = [("TRIGGER", "TRANSITIONING"), ("TRANSITIONING", "WAL")]
BACK = [*THERE, ("WAL", "TRIGGER")]


@pytest.fixture
def made(database18: str) -> Iterator[World]:
    with world(database18) as it:
        yield it


def await_mode(made: World, mode: str, service: Running) -> None:
    until(lambda: made.mode() == mode, lambda: f"{made.mode()}, not {mode}: {made.history()}\n{service.log}")


def modes(made: World) -> list[tuple[str, str]]:
    return [row[:2] for row in made.history()]


def needs_reinit(made: World) -> bool:
    return bool(made.one(f"SELECT needs_reinit FROM pgtrickle.pgt_stream_tables WHERE pgt_id = {made.pgt_id}"))


@contextmanager
def writing(dsn: str) -> Iterator[None]:
    """Two sessions that insert, update and delete without a pause, each in rows of its own."""
    stop = threading.Event()

    def write(first: int) -> None:
        with psycopg.connect(dsn, autocommit=True) as conn:
            key = first
            while not stop.is_set():
                with conn.transaction():
                    conn.execute("INSERT INTO t VALUES (%s, 0), (%s, 0)", (key, key + 2))
                    conn.execute("UPDATE t SET v = v + 1 WHERE id = %s", (key,))
                conn.execute("DELETE FROM t WHERE id = %s", (key + 2,))
                key += 4

    threads = [threading.Thread(target=write, args=(first,)) for first in (0, 1)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def forget(made: World) -> None:
    """Drop the one consumer."""
    with made.conn.transaction():
        writer.unregister(made.conn, made.pgt_id)
        assert triggers.detach(made.conn, made.oid)


def drop_slot(made: World) -> None:
    """By hand, while the decoder reads it: it is disconnected, and comes back at once, so this may take some tries."""

    def dropped() -> bool:
        try:
            made.conn.execute(
                "SELECT pg_terminate_backend(active_pid, 1000) FROM pg_replication_slots WHERE database = %s",
                (made.conn.info.dbname,),
            )
            made.conn.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s",
                (made.conn.info.dbname,),
            )
        except psycopg.errors.ObjectInUse:
            return False
        return True

    until(dropped, "the slot stays in use")


def test_a_source_moves_to_the_wal_by_itself_under_writes(database: str, tmp_path: Path) -> None:
    with world(database) as made, db.open_session(database) as listener:
        listener.execute("LISTEN pg_trickle_cdc_transition; LISTEN pg_trickle_alert")
        with running(database, tmp_path) as service, writing(database):
            await_mode(made, "WAL", service)
            before = len(made.buffered("W"))
            until(lambda: len(made.buffered("W")) > before + 20, "nothing is decoded")
            notices = [(each.channel, json.loads(each.payload)) for each in listener.notifies(timeout=60, stop_after=4)]
        with running(database, tmp_path):
            made.await_decoder()
        assert made.counted() == made.content()
        assert made.buffered("T")
        for channel in ("pg_trickle_cdc_transition", "pg_trickle_alert"):
            told = [payload for each, payload in notices if each == channel]
            assert [(each["old_mode"], each["new_mode"]) for each in told] == THERE
        assert modes(made) == THERE
        (shown,) = reader.dependencies(made.conn, made.pgt_id)
        assert (shown.cdc_mode, shown.slot_name) == ("WAL", slot.name(made.conn))
        assert shown.decoder_confirmed_lsn is not None


def test_killed_at_any_time_it_goes_on_from_the_slot(made: World, tmp_path: Path) -> None:
    with running(made.dsn, tmp_path) as service:
        await_mode(made, "WAL", service)
        service.kill()
    with writing(made.dsn):
        with running(made.dsn, tmp_path, failpoint="decoder-committed") as service:
            assert service.process.wait(20) == -signal.SIGKILL
        with running(made.dsn, tmp_path) as service:
            until(lambda: made.buffered("W"), "nothing is decoded")
            service.kill()
    made.conn.execute("INSERT INTO t VALUES (-1, 0)")
    with running(made.dsn, tmp_path):
        made.await_decoder()
    assert made.counted() == made.content()
    assert modes(made) == THERE


def test_one_leads_and_the_other_takes_over(made: World, tmp_path: Path) -> None:
    with running(made.dsn, tmp_path) as first:
        first.await_event("lease_taken")
        with running(made.dsn, tmp_path) as second:
            second.await_event("lease_awaited")
            assert second.events("lease_awaited")[0]["reason"] == "another service leads"
            await_mode(made, "WAL", first)
            made.conn.execute("INSERT INTO t VALUES (1, 1)")
            assert not second.events("decoder_started")
            first.kill()
            second.await_event("lease_taken")
            made.conn.execute("INSERT INTO t VALUES (2, 2)")
            made.await_decoder()
            assert made.counted() == made.content()

            made.conn.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name LIKE 'pgtrickle lease%' AND datname = current_database()"
            )
            second.await_event("lease_given_up")
            second.await_event("lease_taken", times=2)
            second.await_event("decoder_started", times=2)
            made.conn.execute("INSERT INTO t VALUES (3, 3)")
            made.await_decoder()
            assert made.counted() == made.content()
    assert modes(made) == THERE


def test_it_looks_at_once_when_woken(made: World, tmp_path: Path) -> None:
    """The next look is an hour away: what follows is done when someone asks, and the end does not wait for it."""

    def moved() -> bool:
        made.conn.execute("NOTIFY pg_trickle_wake")
        return made.mode() == "WAL"

    with running(made.dsn, tmp_path, scheduler_interval_ms="3600000") as service:
        service.await_event("decoder_started")
        made.await_true("SELECT status = 'STREAMING' FROM pgtrickle.pgt_decoder")
        assert made.mode() == "TRANSITIONING"
        until(moved, lambda: service.log)


def test_one_source_that_cannot_move_does_not_keep_others(made: World, tmp_path: Path) -> None:
    made.conn.execute(
        "CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF EXISTS (SELECT FROM pg_event_trigger_ddl_commands() WHERE object_identity LIKE 'public.a %') THEN"
        " RAISE 'not this one'; END IF; END $$;"
        " CREATE EVENT TRIGGER refuse ON ddl_command_end WHEN TAG IN ('ALTER PUBLICATION') EXECUTE FUNCTION refuse()"
    )
    made.conn.execute("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE sa (id int)")
    first = table_of(made.conn, "a")
    made.conn.execute("CREATE TABLE z (id int PRIMARY KEY); CREATE TABLE sz (id int)")
    consume(made.conn, "sa", first, ["id"])
    last = table_of(made.conn, "z")
    consume(made.conn, "sz", last, ["id"])
    with running(made.dsn, tmp_path) as service:
        query = "SELECT cdc_mode = 'WAL' FROM pgtrickle.pgt_change_tracking WHERE source_relid = {}"
        for oid in (made.oid, last.oid):
            made.await_true(query.format(oid), 30)
        (told,) = service.events("capture_step_failed")
    assert (told["source"], "not this one" in str(told["error"])) == (first.oid, True)
    shown = {each.source_table: (each.cdc_mode, each.reason) for each in reader.cdc_status(made.conn)}
    assert shown["public.a"] == ("TRIGGER", "PT340: PostgreSQL refused: not this one")


def test_a_slot_dropped_by_hand_is_a_loss(made: World, tmp_path: Path) -> None:
    with running(made.dsn, tmp_path) as service:
        await_mode(made, "WAL", service)
        drop_slot(made)
        await_mode(made, "TRIGGER", service)
        made.conn.execute("INSERT INTO t VALUES (1, 1)")
    assert made.history()[-1] == ("WAL", "TRIGGER", "the replication slot was dropped")
    assert needs_reinit(made)
    assert made.buffered("T")[-1] == "I"
    assert slot.inspect(made.conn).state is SlotState.ABSENT


def test_a_publication_dropped_by_hand_is_a_loss(made: World, tmp_path: Path) -> None:
    with running(made.dsn, tmp_path) as service:
        await_mode(made, "WAL", service)
        made.conn.execute(sql.SQL("DROP PUBLICATION {}").format(sql.Identifier(slot.name(made.conn))))
        made.conn.execute("INSERT INTO t VALUES (1, 1)")
        await_mode(made, "TRIGGER", service)
        until(lambda: slot.inspect(made.conn).state is SlotState.ABSENT, lambda: service.log)
    assert "publication" in made.history()[-1][2]
    assert needs_reinit(made)


def test_a_replica_identity_that_is_lost_is_a_loss(made: World, tmp_path: Path) -> None:
    with running(made.dsn, tmp_path) as service:
        await_mode(made, "WAL", service)
        made.conn.execute("ALTER TABLE t REPLICA IDENTITY NOTHING")
        await_mode(made, "TRIGGER", service)
    assert "replica identity of public.t does not cover" in made.history()[-1][2]
    assert needs_reinit(made)


def test_a_decoder_that_fails_for_good_brings_sources_back_and_still_drains(made: World, tmp_path: Path) -> None:
    """A buffer refuses a row, which the next try meets again. What had been written is decoded once it is let."""
    buffer = sql.Identifier("pgtrickle_changes", f"changes_{made.oid}")
    with running(made.dsn, tmp_path) as service:
        await_mode(made, "WAL", service)
        made.conn.execute(sql.SQL("ALTER TABLE {} ADD CONSTRAINT no CHECK (new_v <> 666)").format(buffer))
        made.conn.execute("INSERT INTO t VALUES (1, 1), (2, 666)")
        await_mode(made, "TRIGGER", service)
        assert len(service.events("decoder_failed")) == 3
        made.conn.execute("INSERT INTO t VALUES (3, 3)")
        assert made.one("SELECT count(*) FROM pgtrickle_internal.pgt_draining") == 1
        made.conn.execute(sql.SQL("ALTER TABLE {} DROP CONSTRAINT no").format(buffer))
        made.await_true("SELECT NOT EXISTS (SELECT FROM pgtrickle_internal.pgt_draining)", 30)
        assert made.counted() == made.content()
        until(lambda: slot.inspect(made.conn).state is SlotState.ABSENT, lambda: service.log)
    assert made.history()[-1][2].startswith("the decoder failed: CheckViolation")
    assert not needs_reinit(made)
    assert "Traceback" not in service.log


def test_what_is_asked_for_is_read_again_on_sighup(made: World, tmp_path: Path) -> None:
    name = sql.Identifier(made.conn.info.dbname)
    with running(made.dsn, tmp_path) as service:
        await_mode(made, "WAL", service)
        made.conn.execute("INSERT INTO t VALUES (1, 1)")
        made.conn.execute(sql.SQL("ALTER DATABASE {} SET pg_trickle.cdc_mode = 'trigger'").format(name))
        service.signal(signal.SIGHUP)
        await_mode(made, "TRIGGER", service)
        until(lambda: slot.inspect(made.conn).state is SlotState.ABSENT, lambda: service.log)
        assert made.counted() == made.content()
        assert made.history()[-1][2] == "trigger is asked for by the setting cdc_mode"
        assert modes(made) == BACK
        made.conn.execute(sql.SQL("ALTER DATABASE {} SET pg_trickle.enabled = 'perhaps'").format(name))
        service.signal(signal.SIGHUP)
        service.await_event("settings_not_read")
        assert service.process.poll() is None


def test_a_live_table_is_altered_from_the_one_to_the_other_and_back(made: World, tmp_path: Path) -> None:
    """Two tables share the source: the safer of what they ask for wins, and it is said."""
    made.conn.execute("CREATE TABLE late (id int)")
    other = consume(made.conn, "late", made.source, ["id"])
    with running(made.dsn, tmp_path) as service, Trickle(made.dsn) as trickle:
        with writing(made.dsn):
            await_mode(made, "WAL", service)
            trickle.alter_stream_table("late", cdc_mode="trigger")
            await_mode(made, "TRIGGER", service)
            said = "trigger is asked for by public.late, which wins over auto by public.st"
            assert made.history()[-1][2] == said
            trickle.alter_stream_table("late", cdc_mode="wal")
            await_mode(made, "WAL", service)
            writer.set_cdc_mode(made.conn, other, None)
            trickle.alter_stream_table("st", cdc_mode="trigger")
            await_mode(made, "TRIGGER", service)
        until(lambda: slot.inspect(made.conn).state is SlotState.ABSENT, "the slot stays")
    assert made.counted() == made.content()


def test_the_last_consumer_takes_slot_and_publication_with_it(made: World, tmp_path: Path) -> None:
    with running(made.dsn, tmp_path) as service:
        await_mode(made, "WAL", service)
        forget(made)
        until(lambda: slot.inspect(made.conn).state is SlotState.ABSENT, lambda: service.log)
        # dropped by a transaction, unlike the slot: it may be seen a little later
        until(lambda: made.one("SELECT count(*) FROM pg_publication") == 0, lambda: service.log)
        service.await_event("decoder_stopped")


def test_a_slot_that_a_killed_service_left_is_removed_at_the_next_start(made: World, tmp_path: Path) -> None:
    with running(made.dsn, tmp_path) as service:
        await_mode(made, "WAL", service)
        service.kill()
    forget(made)
    assert slot.inspect(made.conn).state is SlotState.ALIVE
    with running(made.dsn, tmp_path) as service:
        until(lambda: slot.inspect(made.conn).state is SlotState.ABSENT, lambda: service.log)
    assert not service.events("decoder_started")


def test_alerts_are_raised_once(made: World, tmp_path: Path) -> None:
    settings = {"slot_lag_warning_threshold_mb": "1", "buffer_growth_warning_rows": "1000"}
    with running(made.dsn, tmp_path, **settings) as service, db.open_session(made.dsn) as listener:
        await_mode(made, "WAL", service)
        listener.execute("LISTEN pg_trickle_alert")
        with made.conn.transaction():
            made.conn.execute(f"LOCK TABLE pgtrickle_changes.changes_{made.oid} IN SHARE MODE".encode())
            with psycopg.connect(made.dsn) as other:
                other.execute("INSERT INTO t SELECT g, g FROM generate_series(1, 30000) AS g")
                other.execute("SELECT pg_logical_emit_message(true, 'test', 'flushes')")
            told = [json.loads(each.payload) for each in listener.notifies(timeout=60, stop_after=1)]
            assert not list(listener.notifies(timeout=1))  # some rounds later
        assert [each["event"] for each in told] == ["slot_lag_warning"]
        assert told[0]["lag_bytes"] > told[0]["threshold_bytes"] == 1 << 20
        made.await_decoder()
        for notice in listener.notifies(timeout=60):
            alert = json.loads(notice.payload)
            if alert["event"] != "slot_lag_warning":  # again: what the decoder writes is WAL too
                break
        assert (alert["event"], alert["source_table"]) == ("buffer_growth_warning", "public.t")
        assert alert["rows"] > alert["threshold_rows"] == 1000
        assert not list(listener.notifies(timeout=1))
