"""Triggers to WAL and back, step by step: what each step leaves, what it refuses, and that nothing is lost or doubled.

The slot is a real one. Where a test needs no decoder, what the slot holds is read from it (`in_slot`).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pgtrickle import db
from pgtrickle.capture import change_window, handover, mode_change, slot, triggers
from pgtrickle.capture.modes import ModeDecision, SlotState, Step
from pgtrickle.catalog import reader, writer
from pgtrickle.catalog.install import MIGRATIONS, install, load_migrations
from pgtrickle.db import Connection
from pgtrickle.errors import StateError

from .world import World, consume, decoding, drop_slot, in_slot, to_wal, world


def test_there_and_back(made: World) -> None:
    conn = made.conn
    with db.open_session(made.dsn) as listener:
        listener.execute("LISTEN pg_trickle_cdc_transition; LISTEN pg_trickle_alert")
        conn.execute("INSERT INTO t VALUES (1, 1)")
        handover.begin_transition(conn, made.oid, "auto is asked for")
        assert made.mode() == "TRANSITIONING"
        conn.execute("INSERT INTO t VALUES (2, 2)")
        assert (made.buffered("T"), in_slot(made)) == (["I", "I"], ["I"])
        handover.complete(conn, made.oid, "the decoder has caught up")
        assert made.mode() == "WAL"
        conn.execute("INSERT INTO t VALUES (3, 3)")
        assert (made.buffered("T"), in_slot(made)) == (["I", "I"], ["I", "I"])
        handover.back(conn, made.oid, "trigger is asked for")
        assert made.mode() == "TRIGGER"
        conn.execute("INSERT INTO t VALUES (4, 4)")
        assert (made.buffered("T"), in_slot(made)) == (["I", "I", "I"], ["I", "I"])
        notices = [(each.channel, json.loads(each.payload)) for each in listener.notifies(timeout=60, stop_after=6)]
    steps = [("TRIGGER", "TRANSITIONING"), ("TRANSITIONING", "WAL"), ("WAL", "TRIGGER")]
    for channel in ("pg_trickle_cdc_transition", "pg_trickle_alert"):
        told = [payload for each, payload in notices if each == channel]
        assert [(each["old_mode"], each["new_mode"]) for each in told] == steps
        assert {(each["source_table"], each["slot_name"]) for each in told} == {("public.t", slot.name(conn))}
    assert [payload["event"] for channel, payload in notices if channel == "pg_trickle_alert"] == [
        "cdc_transition_started",
        "cdc_transition_complete",
        "cdc_transition_complete",
    ]
    assert [row[:2] for row in made.history()] == steps
    assert [change.reason for change in reader.cdc_history(conn, made.oid)] == [
        "trigger is asked for",
        "the decoder has caught up",
        "auto is asked for",
    ]
    sides = made.sides()
    assert sides is not None
    assert [each.side for each in sides.handovers] == ["W", "T"]
    assert sides.awaits is not None


def test_dependencies_follow_the_mode(made: World) -> None:
    def shown() -> tuple[str | None, str | None, bool]:
        (found,) = reader.dependencies(made.conn, made.pgt_id)
        return found.cdc_mode, found.slot_name, found.transition_started_at is not None

    name = slot.name(made.conn)
    assert shown() == ("TRIGGER", None, False)
    handover.begin_transition(made.conn, made.oid, "r")
    assert shown() == ("TRANSITIONING", name, True)
    handover.complete(made.conn, made.oid, "r")
    assert shown() == ("WAL", name, False)
    made.conn.execute("CREATE TABLE late (id int)")
    later = consume(made.conn, "late", made.source, ["id"])
    assert made.mode() == "WAL"
    assert reader.dependencies(made.conn, later)[0].cdc_mode == "WAL"
    assert writer.note_decoded(made.conn) == 2
    assert writer.note_decoded(made.conn) == 0
    assert reader.dependencies(made.conn, later)[0].decoder_confirmed_lsn is not None
    handover.back(made.conn, made.oid, "r")
    assert shown() == ("TRIGGER", None, False)


def test_a_transaction_that_took_its_xid_before_all_of_it(made: World, other: Connection) -> None:
    """It is open across begin, complete and back, and writes only to other tables until late: wholly on one side."""
    conn = made.conn
    slot.ensure(conn)  # waits for open transactions, so it comes first
    other.autocommit = False
    other.execute("SELECT pg_current_xact_id()")
    to_wal(made)
    other.execute("INSERT INTO t VALUES (1, 1), (2, 2)")
    other.execute("SAVEPOINT s; DELETE FROM t WHERE id = 1; ROLLBACK TO s")
    other.commit()
    assert (made.buffered("T"), in_slot(made)) == ([], ["I", "I"])
    other.execute("SELECT pg_current_xact_id()")
    handover.back(conn, made.oid, "r")
    other.execute("UPDATE t SET v = 3 WHERE id = 1")
    other.commit()
    assert (made.buffered("T"), in_slot(made)) == (["U"], ["I", "I"])
    with decoding(made):
        made.await_decoder()
        assert made.counted() == made.content()


def test_a_writer_is_waited_for_not_cut(made: World, other: Connection) -> None:
    handover.begin_transition(made.conn, made.oid, "r")
    other.autocommit = False
    other.execute("INSERT INTO t VALUES (1, 1)")
    with pytest.raises(StateError) as error:
        handover.complete(made.conn, made.oid, "r", give_up_after_s=0.3)
    assert error.value.code == "PT326"
    assert made.mode() == "TRANSITIONING"
    assert [row[:2] for row in made.history()] == [("TRIGGER", "TRANSITIONING")]
    other.commit()
    handover.complete(made.conn, made.oid, "r")
    assert made.buffered("T") == ["I"]
    assert made.counted() == made.content()


def test_making_the_slot_waits_for_open_transactions_and_gives_up(made: World, other: Connection) -> None:
    other.autocommit = False
    other.execute("SELECT pg_current_xact_id()")
    with pytest.raises(StateError) as error:
        slot.ensure(made.conn, give_up_after_s=0.5)
    assert error.value.code == "PT355"
    assert slot.inspect(made.conn).state is SlotState.ABSENT
    assert made.mode() == "TRIGGER"
    other.rollback()
    assert slot.ensure(made.conn).state is SlotState.ALIVE


@pytest.mark.parametrize("stage", ["TRANSITIONING", "WAL"])
def test_truncate_is_seen_at_each_stage(made: World, stage: str) -> None:
    conn = made.conn
    handover.begin_transition(conn, made.oid, "r")
    if stage == "WAL":
        handover.complete(conn, made.oid, "r")
    with decoding(made):
        conn.execute("TRUNCATE t")
        made.await_decoder()
    assert made.pending().truncated
    assert (made.buffered("T"), made.buffered("W")) == (["T"], ["T"])


def test_a_partition_truncated_by_itself_is_seen_though_the_wal_does_not_tell(database18: str) -> None:
    ddl = (
        "CREATE TABLE t (id int, v int, PRIMARY KEY (id, v)) PARTITION BY RANGE (id);"
        "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (10) TO (20);"
        "ALTER TABLE t REPLICA IDENTITY FULL; ALTER TABLE t1 REPLICA IDENTITY FULL;"
        "ALTER TABLE t2 REPLICA IDENTITY FULL"
    )
    with world(database18, table=ddl) as made, decoding(made):
        to_wal(made)
        made.conn.execute(
            "INSERT INTO t VALUES (1, 1), (11, 1); INSERT INTO t2 VALUES (12, 1); UPDATE t SET id = 13 WHERE id = 1"
        )
        made.await_decoder()
        assert made.buffered("T") == []
        assert made.counted() == made.content()
        assert not made.pending().truncated
        handover.back(made.conn, made.oid, "r")
        made.conn.execute("DELETE FROM t2 WHERE id = 12")
        made.await_decoder()
        assert made.counted() == made.content()
        to_wal(made)
        made.conn.execute("TRUNCATE t2")
        made.await_decoder()
        assert made.buffered("W").count("T") == 0
        assert made.pending() == change_window.Pending(made.pending().changes, truncated=True, captured=True)


def _disable(made: World) -> None:
    made.conn.execute("ALTER TABLE t DISABLE TRIGGER ALL; ALTER TABLE t ENABLE TRIGGER ALL")


def _lose_identity(made: World) -> None:
    made.conn.execute("ALTER TABLE t REPLICA IDENTITY DEFAULT")


def _unpublish(made: World) -> None:
    db.execute(made.conn, f"ALTER PUBLICATION {slot.name(made.conn)} DROP TABLE t")


def _republish(made: World) -> None:
    _unpublish(made)
    db.execute(made.conn, f"ALTER PUBLICATION {slot.name(made.conn)} ADD TABLE t")


@pytest.mark.parametrize("spoil", [_disable, _lose_identity, _unpublish, _republish, drop_slot])
def test_complete_is_refused_where_something_broke_in_between(made18: World, spoil: object) -> None:
    handover.begin_transition(made18.conn, made18.oid, "r")
    assert callable(spoil)
    spoil(made18)
    with pytest.raises(StateError) as error:
        handover.complete(made18.conn, made18.oid, "r")
    assert error.value.code == "PT359"
    assert made18.mode() == "TRANSITIONING"
    handover.abandon(made18.conn, made18.oid, "broken")
    assert made18.mode() == "TRIGGER"
    assert made18.one("SELECT count(*) FROM pg_publication_rel") == 0
    row = reader.tracking(made18.conn, made18.oid)
    assert row is not None
    assert (row.failures, row.last_error) == (1, "broken")
    assert row.next_try_at is not None


def test_steps_only_from_the_mode_they_leave(made18: World) -> None:
    conn, oid = made18.conn, made18.oid
    for step in (handover.complete, handover.abandon, handover.back):
        with pytest.raises(StateError, match="it is in mode TRIGGER"):
            step(conn, oid, "r")
    to_wal(made18)
    with pytest.raises(StateError, match="it is in mode WAL, not TRIGGER"):
        handover.begin_transition(conn, oid, "r")
    with pytest.raises(StateError, match="not captured any more"):
        handover.back(conn, 4242, "r")


def test_pauses_grow_with_failures_and_end_with_what_was_asked_for(made18: World) -> None:
    for failures in (1, 2, 3):
        to_wal(made18)
        handover.back(made18.conn, made18.oid, "backpressure", failed=True)
        row = reader.tracking(made18.conn, made18.oid)
        assert row is not None
        assert row.failures == failures
        assert row.next_try_at is not None
        assert round((row.next_try_at - row.mode_since).total_seconds() / 30) == 2 ** (failures - 1)
    to_wal(made18)
    handover.back(made18.conn, made18.oid, "asked")
    row = reader.tracking(made18.conn, made18.oid)
    assert row is not None
    assert (row.failures, row.next_try_at, row.last_error) == (0, None, None)


def test_wal_mode_is_captured_though_triggers_are_disabled(made18: World) -> None:
    to_wal(made18)
    assert made18.pending().captured
    assert not triggers.attach(made18.conn, made18.source, made18.columns)
    made18.conn.execute("ALTER TABLE t DISABLE TRIGGER ALL")
    assert not made18.pending().captured
    assert triggers.attach(made18.conn, made18.source, made18.columns)
    assert made18.mode() == "TRIGGER"
    assert made18.pending().captured


def test_taken_out_of_the_publication_and_put_back_shows(made18: World) -> None:
    """Changes in between were not published. Attaching again, as a refresh does, makes all dependents compute anew."""
    to_wal(made18)
    _unpublish(made18)
    made18.conn.execute("INSERT INTO t VALUES (1, 1)")
    db.execute(made18.conn, f"ALTER PUBLICATION {slot.name(made18.conn)} ADD TABLE t")
    assert not made18.pending().captured
    assert triggers.attach(made18.conn, made18.source, made18.columns)
    assert made18.mode() == "TRIGGER"
    assert made18.pending() == change_window.Pending(1, truncated=True, captured=True)
    table = reader.by_id(made18.conn, made18.pgt_id)
    assert table is not None
    assert table.needs_reinit
    assert "publication" in str(table.reinit_reason)


def test_a_new_consumer_with_more_columns_brings_the_source_back_first(made18: World) -> None:
    """So every row from then on has them; the rows before it count as they are for who needs no more."""
    with decoding(made18):
        to_wal(made18)
        made18.conn.execute("ALTER TABLE t ADD COLUMN w int DEFAULT 7")
        made18.conn.execute("INSERT INTO t VALUES (1, 1)")
        made18.conn.execute("CREATE TABLE wide (id int)")
        consume(made18.conn, "wide", made18.source, ["id", "w"])
        assert made18.history()[-1][1:] == ("TRIGGER", "a stream table uses other columns of it")
        wide = World(made18.dsn, made18.conn, made18.source, ["id", "v", "w"], 0, made18.now())
        before = made18.content()
        made18.conn.execute("INSERT INTO t VALUES (2, 2)")
        made18.await_decoder()
        assert made18.counted() == made18.content() != before
        assert wide.counted() == {("2", "2", "7"): 1}
        to_wal(made18)
        made18.conn.execute("UPDATE t SET w = 8")
        made18.await_decoder()
        assert wide.counted() == {("1", "1", "7"): -1, ("1", "1", "8"): 1, ("2", "2", "8"): 1}
        assert made18.counted() == made18.content()


def test_lost_changes_are_said_and_computed_anew(made18: World) -> None:
    to_wal(made18)
    drop_slot(made18)
    made18.conn.execute("INSERT INTO t VALUES (1, 1)")
    with db.open_session(made18.dsn) as listener:
        listener.execute("LISTEN pg_trickle_alert")
        handover.back_lossy(made18.conn, made18.oid, "the replication slot was dropped")
        events = [json.loads(each.payload)["event"] for each in listener.notifies(timeout=60, stop_after=2)]
    assert sorted(events) == ["cdc_fallback", "reinitialize_needed"]
    assert made18.history()[-1] == ("WAL", "TRIGGER", "the replication slot was dropped")
    assert made18.pending() == change_window.Pending(1, truncated=True, captured=True)
    table = reader.by_id(made18.conn, made18.pgt_id)
    assert table is not None
    assert table.needs_reinit
    assert table.reinit_reason == "changes of a source were lost: the replication slot was dropped"
    sides = made18.sides()
    assert sides is not None
    assert sides.awaits is None
    made18.frontier = made18.now()
    made18.conn.execute("INSERT INTO t VALUES (2, 2)")
    assert made18.counted() == {("2", "2"): 1}


def test_a_slot_lost_while_the_source_drains_is_a_loss(made18: World) -> None:
    to_wal(made18)
    made18.conn.execute("INSERT INTO t VALUES (1, 1)")
    handover.back(made18.conn, made18.oid, "asked")
    assert made18.one("SELECT count(*) FROM pgtrickle_internal.pgt_draining") == 1
    assert not slot.drop_if_unused(made18.conn)
    drop_slot(made18)
    with pytest.raises(StateError) as error:
        slot.ensure(made18.conn)
    assert error.value.code == "PT356"
    handover.carry_out(made18.conn, made18.oid, ModeDecision(Step.FALL_BACK_LOSSY, "lost", failed=True))
    assert made18.pending().truncated
    assert made18.one("SELECT count(*) FROM pgtrickle_internal.pgt_draining") == 0
    assert slot.ensure(made18.conn).state is SlotState.ALIVE


def test_a_snapshot_older_than_the_lock_is_not_accepted(made18: World) -> None:
    with made18.conn.transaction():
        made18.conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        with pytest.raises(AssertionError, match="older snapshot"):
            mode_change.hand_over(made18.conn, made18.oid, "W")


def test_an_installed_catalog_is_upgraded_with_its_sources(database: str, tmp_path: Path) -> None:
    first = load_migrations()[0]
    (tmp_path / f"{first.version:04}_{first.name}.sql").write_text(first.text, encoding="utf-8")
    with db.open_session(database) as conn:
        install(conn, directory=tmp_path)
        conn.execute(
            "INSERT INTO pgtrickle.pgt_change_tracking"
            " (source_relid, buffer_name, columns, trigger_names, trigger_count, trigger_level)"
            " VALUES (4242, 'b', '{id}', '{}', 4, 'STATEMENT')"
        )
        assert install(conn, directory=MIGRATIONS).applied == tuple(range(2, len(load_migrations()) + 1))
        row = reader.tracking(conn, 4242)
        assert row is not None
        assert (row.cdc_mode, row.failures) == ("TRIGGER", 0)
        (shown,) = reader.cdc_status(conn)
        assert (shown.source_table, shown.cdc_mode, shown.eligible) == ("4242", "TRIGGER", False)
        conn.execute("SET ROLE pgtrickle_user")
        assert [each.source_relid for each in reader.cdc_status(conn)] == [4242]
        assert conn.execute("SELECT * FROM pgtrickle.slot_health()").fetchall() == []
        conn.execute("RESET ROLE")


def test_health(made: World) -> None:
    def alert() -> object:
        return made.one("SELECT alert FROM pgtrickle.check_cdc_health()")

    conn = made.conn
    assert alert() is None
    assert conn.execute("SELECT * FROM pgtrickle.slot_health()").fetchall() == []
    slot.ensure(conn)
    assert made.one("SELECT alert FROM pgtrickle.slot_health()") == "slot_unused"
    to_wal(made)
    assert alert() == "decoder_not_connected"
    (shown,) = reader.cdc_status(conn)
    assert (shown.source_table, shown.cdc_mode, shown.slot_name) == ("public.t", "WAL", slot.name(conn))
    assert (shown.trigger_active, shown.eligible, shown.reason, shown.published) == (False, True, None, True)
    assert shown.slot_lag_bytes is not None
    with decoding(made):
        made.await_decoder()
        made.await_true("SELECT decoder_status = 'STREAMING' FROM pgtrickle.slot_health()")
        assert alert() is None
        assert made.one("SELECT decoder_status FROM pgtrickle.pg_stat_stream_tables") == "STREAMING"
    conn.execute("ALTER TABLE t REPLICA IDENTITY DEFAULT")
    assert alert() == "not_eligible"
    (shown,) = reader.cdc_status(conn)
    assert not shown.eligible
    assert "replica identity" in str(shown.reason)
    _unpublish(made)
    assert alert() == "not_published"
    drop_slot(made)
    assert alert() == "slot_missing"
    handover.back_lossy(conn, made.oid, "lost")
    assert alert() is None
    conn.execute("ALTER TABLE t DISABLE TRIGGER ALL")
    assert alert() == "trigger_missing"


def test_triggers_that_were_off_for_a_time_are_told_to_every_consumer(made18: World) -> None:
    """Whoever attaches first makes the triggers stand again: the others learn it from the buffer."""
    made18.conn.execute("ALTER TABLE t DISABLE TRIGGER ALL; INSERT INTO t VALUES (1, 1)")
    assert triggers.attach(made18.conn, made18.source, made18.columns)
    assert made18.pending() == change_window.Pending(1, truncated=True, captured=True)
