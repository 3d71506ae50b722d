"""The service through what happens to it and to its server: restarts, standbys, lost slots, signals, wrong starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import cast

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from tests.conftest import FAST, _drop, _server
from tests.service.running import PROGRAM, Running, running, until
from tests.wal.world import World, world

from pgtrickle import db, embedded
from pgtrickle.api import connect
from pgtrickle.capture import slot
from pgtrickle.capture.modes import SlotState


@dataclass
class Own:
    """A server that a test may stop. Its port and password stay."""

    directory: Path

    @property
    def server(self) -> embedded.Server:
        found = embedded.status(self.directory)
        assert found is not None
        return found

    def restart(self, **settings: embedded.Setting) -> None:
        embedded.stop(self.directory)
        embedded.start(self.directory, settings={**FAST, **settings})


@pytest.fixture(scope="module")
def own() -> Iterator[Own]:
    with _server(18) as server:
        yield Own(server.data_dir)


@pytest.fixture
def made(own: Own) -> Iterator[World]:
    """A world of its own on the server that may be stopped: whoever stops it reconnects."""
    name = f"t_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(own.server.dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    with world(make_conninfo(own.server.dsn, dbname=name)) as it:
        yield it
        it.conn.close()
    with psycopg.connect(own.server.dsn, autocommit=True) as admin:
        _drop(admin, name)


@pytest.fixture
def made18(database18: str) -> Iterator[World]:
    with world(database18) as it:
        yield it


def await_mode(made: World, mode: str, service: Running) -> None:
    until(lambda: made.mode() == mode, lambda: f"{made.mode()}, not {mode}: {made.history()}\n{service.log}")


def reconnect(made: World) -> None:
    made.conn.close()
    made.conn = db.open_session(made.dsn)
    made.conn.execute("SET synchronous_commit = on")


def test_it_goes_on_when_the_server_was_restarted(own: Own, made: World, tmp_path: Path) -> None:
    with running(made.dsn, tmp_path) as service:
        await_mode(made, "WAL", service)
        made.conn.execute("INSERT INTO t VALUES (1, 1)")
        own.restart()
        reconnect(made)
        made.conn.execute("INSERT INTO t VALUES (2, 2)")
        made.await_decoder()
        assert made.counted() == made.content()
        service.await_event("lease_taken", times=2)
        assert made.mode() == "WAL"
        assert len(made.history()) == 2
        assert service.events("connection_lost")
        assert "Traceback" not in service.log


def test_a_slot_that_the_server_gave_up_is_a_loss(own: Own, made: World, tmp_path: Path) -> None:
    with running(made.dsn, tmp_path) as service:
        await_mode(made, "WAL", service)
        service.signal(signal.SIGSTOP)  # a decoder that does not come along
        made.conn.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
        made.conn.execute("SELECT pg_reload_conf()")
        made.await_true("SELECT current_setting('max_slot_wal_keep_size') = '1MB'")
        for each in range(4):
            made.conn.execute("INSERT INTO t VALUES (%s, 1)", (each,))
            made.conn.execute("SELECT pg_switch_wal()")
        made.conn.execute("CHECKPOINT")
        assert slot.inspect(made.conn).state is SlotState.LOST
        made.conn.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
        made.conn.execute("SELECT pg_reload_conf()")
        service.signal(signal.SIGCONT)
        await_mode(made, "TRIGGER", service)
        until(lambda: slot.inspect(made.conn).state is SlotState.ABSENT, lambda: service.log)
    assert made.history()[-1] == ("WAL", "TRIGGER", "the replication slot was invalidated")
    assert made.one("SELECT needs_reinit AND reinit_reason LIKE '%invalidated%' FROM pgtrickle.pgt_stream_tables")


def test_wal_level_lowered_over_a_restart(own: Own, made: World, tmp_path: Path) -> None:
    """The server does not start so with the slot still there: whoever lowers it has dropped the slot."""
    with running(made.dsn, tmp_path) as service:
        await_mode(made, "WAL", service)
        service.signal(signal.SIGSTOP)
        name = slot.name(made.conn)
        made.conn.execute(
            "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots WHERE slot_name = %s", (name,)
        )
        made.conn.execute("SELECT pg_drop_replication_slot(%s)", (name,))
        own.restart(wal_level="replica")
        try:
            service.signal(signal.SIGCONT)
            reconnect(made)
            await_mode(made, "TRIGGER", service)
            made.conn.execute("UPDATE pgtrickle.pgt_change_tracking SET next_try_at = NULL, last_error = NULL")
            made.conn.execute("INSERT INTO t VALUES (1, 1)")
            made.await_true("SELECT note = 'wal_level is replica' FROM pgtrickle.pgt_change_tracking")
        finally:
            own.restart()
        reconnect(made)
        await_mode(made, "WAL", service)  # it may again
    assert made.history()[2][:2] == ("WAL", "TRIGGER")
    assert made.history()[2][2] == "the replication slot was dropped"
    assert made.one("SELECT needs_reinit FROM pgtrickle.pgt_stream_tables")


def test_on_a_standby_it_waits_for_promotion(own: Own, made: World, tmp_path: Path) -> None:
    embedded.stop(own.directory)
    owner = own.directory.stat()
    marker = own.directory / "standby.signal"
    marker.touch()
    os.chown(marker, owner.st_uid, owner.st_gid)
    embedded.start(own.directory, settings=FAST)
    reconnect(made)
    assert made.one("SELECT pg_is_in_recovery()")
    with running(made.dsn, tmp_path) as service:
        service.await_event("lease_awaited")
        assert "standby" in str(service.events("lease_awaited")[0]["reason"])
        made.conn.execute("SELECT pg_promote()")
        service.await_event("lease_taken")
        await_mode(made, "WAL", service)


def test_sigterm_ends_it_and_all_of_it(made18: World, tmp_path: Path) -> None:
    with running(made18.dsn, tmp_path) as service:
        await_mode(made18, "WAL", service)
        children = Path(f"/proc/{service.process.pid}/task/{service.process.pid}/children")
        left = children.read_text().split() if children.exists() else []
        assert service.stop() == 0
    assert not [pid for pid in left if Path(f"/proc/{pid}").exists()]
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    made18.await_true(f"SELECT ({sessions}) = 0")
    assert [event["event"] for event in map(json.loads, service.log.splitlines())][-1] == "service_stopped"
    assert slot.inspect(made18.conn).state is SlotState.ALIVE
    assert made18.one("SELECT status FROM pgtrickle.pgt_decoder") == "STOPPED"


def test_sigint_ends_it_in_the_middle_of_a_step_that_waits(made18: World, tmp_path: Path) -> None:
    """Making a slot waits for open transactions. The server must not go on waiting when the service is gone."""
    with db.open_session(made18.dsn, autocommit=False) as other:
        other.execute("SELECT pg_current_xact_id()")
        with running(made18.dsn, tmp_path) as service:
            made18.await_true(
                "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE query LIKE '%pg_create_logical_replication_slot%'"
                " AND application_name LIKE 'pgtrickle capture%' AND datname = current_database())"
            )
            service.signal(signal.SIGINT)
            assert service.process.wait(10) == 0
        (told,) = service.events("rounds_cut_off")
        assert told["rounds"] == ["capture"]
        made18.await_true("SELECT NOT EXISTS (SELECT FROM pgtrickle_internal.pgt_slot)")
        other.rollback()


def test_what_is_due_is_refreshed_unless_paused(database18: str, tmp_path: Path) -> None:
    """On an empty source a stream table is populated without any work, and Spark is not needed."""
    with connect(database18) as trickle, db.open_session(database18) as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY)")
        for name, query in (("a", "SELECT id FROM t"), ("b", "SELECT id FROM a"), ("off", "SELECT id FROM t")):
            trickle.create_stream_table(name, query, schedule="1s", initialize=False)
        trickle.create_stream_table("bare", "SELECT id FROM t", schedule="1s", initialize=False)
        conn.execute("CREATE TABLE u (id int PRIMARY KEY)")
        trickle.create_stream_table("broken", "SELECT id FROM u", schedule="1s", initialize=False)
        conn.execute(
            "UPDATE pgtrickle.pgt_stream_tables SET is_populated = true, status = 'ACTIVE', data_timestamp = now()"
            " WHERE pgt_name <> 'bare'"
        )
        conn.execute("UPDATE pgtrickle.pgt_stream_tables SET fill_when_due = false")  # 'bare' has a maker who fills it
        trickle.alter_stream_table("off", status="SUSPENDED")
        conn.execute("DROP TABLE u")

        def refreshed() -> dict[str, datetime]:
            """The tables that the service found with nothing to do, and when last."""
            rows = conn.execute(
                "SELECT t.pgt_name, max(h.finished_at) FROM pgtrickle.pgt_refresh_history AS h"
                " JOIN pgtrickle.pgt_stream_tables AS t USING (pgt_id)"
                " WHERE h.initiated_by = 'SCHEDULER' AND h.action = 'NO_DATA' GROUP BY 1"
            )
            return {str(name): at for name, at in rows if isinstance(at, datetime)}

        this = sql.Identifier(conn.info.dbname)
        conn.execute(sql.SQL("ALTER DATABASE {} SET pg_trickle.enabled = off").format(this))
        with running(database18, tmp_path) as service:
            until(lambda: "WAL" in modes(conn), lambda: service.log)
            assert refreshed() == {}
            conn.execute(sql.SQL("ALTER DATABASE {} SET pg_trickle.enabled = on").format(this))
            service.signal(signal.SIGHUP)
            until(lambda: refreshed().keys() >= {"a", "b"}, lambda: service.log)
            service.await_event("refresh_failed")
            before = refreshed()["b"]
            until(lambda: refreshed()["b"] > before, lambda: service.log)
        assert refreshed().keys() == {"a", "b"}
        assert failed_tables(service) == {"public.broken"}
        assert "traceback" not in service.log
        first = conn.execute(
            "SELECT t.pgt_name FROM pgtrickle.pgt_refresh_history AS h JOIN pgtrickle.pgt_stream_tables AS t"
            " USING (pgt_id) WHERE t.pgt_name IN ('a', 'b') ORDER BY h.refresh_id LIMIT 1"
        ).fetchone()
        assert first == ("a",)


def test_what_comes_to_be_due_is_refreshed_at_once(database18: str, tmp_path: Path) -> None:
    """The next look is an hour away: another schedule, or status, has the service look when it is committed."""
    with connect(database18) as trickle, db.open_session(database18) as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY)")
        for name in ("scheduled", "resumed", "other"):
            trickle.create_stream_table(name, "SELECT id FROM t", schedule="1h" if name != "resumed" else "1s")
        trickle.alter_stream_table("resumed", status="SUSPENDED")

        def refreshed() -> set[object]:
            rows = conn.execute(
                "SELECT t.pgt_name FROM pgtrickle.pgt_refresh_history AS h JOIN pgtrickle.pgt_stream_tables AS t"
                " USING (pgt_id) WHERE h.initiated_by = 'SCHEDULER'"
            )
            return {name for (name,) in rows}

        with running(database18, tmp_path, scheduler_interval_ms="3600000", cdc_mode="trigger") as service:
            service.await_event("settings_read")
            time.sleep(1.2)  # the first look is over
            trickle.alter_stream_table("scheduled", schedule="1s")
            until(lambda: refreshed() == {"scheduled"}, lambda: service.log)
            conn.execute("SELECT pgtrickle.alter_stream_table('resumed', status => 'ACTIVE')")
            until(lambda: refreshed() == {"scheduled", "resumed"}, lambda: service.log)


def test_sigterm_ends_it_in_the_middle_of_a_refresh(database18: str, tmp_path: Path) -> None:
    """One that waits for a lock. The table after it is not begun any more."""
    with connect(database18) as trickle, db.open_session(database18) as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY)")
        for name in ("a", "b"):
            trickle.create_stream_table(name, "SELECT id FROM t", schedule="1s", initialize=False)
        conn.execute(
            "UPDATE pgtrickle.pgt_stream_tables SET is_populated = true, status = 'ACTIVE', data_timestamp = now()"
        )
        with conn.transaction():
            conn.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
            with running(database18, tmp_path, cdc_mode="trigger", max_concurrent_refreshes="1") as service:
                waits = "SELECT count(*) FROM pg_locks WHERE relation = 't'::regclass AND NOT granted"
                until(lambda: db.scalar(conn, waits), lambda: service.log)
                assert service.stop() == 0
        (told,) = service.events("rounds_cut_off")
        assert told["rounds"] == ["refreshes"]
        assert failed_tables(service) <= {"public.a"}
        left = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        until(lambda: not db.scalar(conn, f"{left} AND application_name LIKE 'pgtrickle _%'"), "sessions are left")


def failed_tables(service: Running) -> set[str]:
    failed = service.events("refresh_failed")
    return {str(table) for event in failed for table in cast(list[str], event["tables"])}


def modes(conn: db.Connection) -> set[str]:
    return {str(mode) for (mode,) in conn.execute("SELECT cdc_mode FROM pgtrickle.pgt_change_tracking")}


def test_a_wrong_start_is_told_and_ends(database18: str) -> None:
    def start(dsn: str) -> tuple[int, str]:
        done = subprocess.run([PROGRAM, "--dsn", dsn, "run"], capture_output=True, text=True, timeout=120, check=False)
        return done.returncode, done.stderr

    code, said = start("postgresql://someone:secret@127.0.0.1:1/nothing")
    assert (code, "secret" in said) == (3, False)
    last = json.loads(said.splitlines()[-1])
    assert last["event"] == "service_failed"
    assert last["hint"].startswith("Check that the server runs")
    with connect(database18), db.open_session(database18) as conn:
        conn.execute("INSERT INTO pgtrickle.pgt_migrations (version, name, checksum) VALUES (99, 'later', '')")
    code, said = start(database18)
    assert code == 1
    assert [json.loads(line).get("code") for line in said.splitlines()][-1] == "PT360"
