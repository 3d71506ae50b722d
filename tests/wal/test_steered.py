"""Sources that the steering moves by itself, there and back, and what it makes of losses; the slot is a real one."""

from __future__ import annotations

import pytest

from pgtrickle import db
from pgtrickle.capture import handover, slot, supervise, triggers
from pgtrickle.capture.modes import CaptureMode, SlotState, Step
from pgtrickle.catalog import reader, writer
from pgtrickle.config import Settings

from .world import World, decoding, drop_slot, to_wal


def test_steering_moves_a_source_by_itself_and_back(made18: World) -> None:
    conn = made18.conn

    def step(settings: Settings | None = None) -> tuple[Step, str]:
        (found,) = supervise.supervise(conn, settings or Settings())
        assert found.error is None
        return found.decision.step, made18.mode()

    assert step() == (Step.START, CaptureMode.TRANSITIONING)
    assert step() == (Step.STAY, CaptureMode.TRANSITIONING)
    with decoding(made18):
        made18.await_true("SELECT status = 'STREAMING' FROM pgtrickle.pgt_decoder")
        made18.await_decoder()
        assert step() == (Step.COMPLETE, CaptureMode.WAL)
        assert step() == (Step.STAY, CaptureMode.WAL)
        conn.execute("INSERT INTO t VALUES (1, 1)")
        made18.await_decoder()
        writer.set_cdc_mode(conn, made18.pgt_id, "trigger")
        assert step() == (Step.FALL_BACK, CaptureMode.TRIGGER)
        made18.await_decoder()
        assert not slot.is_used(conn)
        assert step() == (Step.STAY, CaptureMode.TRIGGER)
        assert slot.inspect(conn).state is SlotState.ALIVE
    assert made18.counted() == made18.content()
    assert step() == (Step.STAY, CaptureMode.TRIGGER)
    assert slot.inspect(conn).state is SlotState.ABSENT
    (shown,) = reader.cdc_status(conn)
    assert (shown.requested, shown.reason) == ("trigger", "trigger is asked for by public.st")
    writer.set_cdc_mode(conn, made18.pgt_id, None)
    assert step() == (Step.START, CaptureMode.TRANSITIONING)
    assert step(Settings(cdc_mode="trigger")) == (Step.ABANDON, CaptureMode.TRIGGER)


def test_a_transition_that_cannot_start_is_put_off(made18: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An open transaction keeps the slot from being made: it is said, and the next look does not wait again."""
    monkeypatch.setattr(slot.ensure, "__kwdefaults__", {"give_up_after_s": 0.3})
    with db.open_session(made18.dsn, autocommit=False) as other:
        other.execute("SELECT pg_current_xact_id()")
        (found,) = supervise.supervise(made18.conn, Settings())
        assert found.error is not None
        assert found.error.code == "PT355"
        (again,) = supervise.supervise(made18.conn, Settings())
        assert (again.decision.step, again.error) == (Step.STAY, None)
        other.rollback()
    (shown,) = reader.cdc_status(made18.conn)
    assert (shown.cdc_mode, shown.failures) == ("TRIGGER", 1)
    assert "could not be made within 0.3 s" in str(shown.reason)
    made18.conn.execute("UPDATE pgtrickle.pgt_change_tracking SET next_try_at = now()")
    supervise.supervise(made18.conn, Settings())
    assert made18.mode() == "TRANSITIONING"


def test_steering_falls_back_where_it_must(made18: World) -> None:
    conn = made18.conn
    to_wal(made18)
    conn.execute("INSERT INTO t SELECT g, g FROM generate_series(1, 2000) AS g")
    tight = Settings(wal_backpressure_critical_bytes=1000, wal_backpressure_resume_bytes=500)
    (found,) = supervise.supervise(conn, tight)
    assert found.decision.step is Step.FALL_BACK
    assert "backpressure" in found.decision.reason
    (found,) = supervise.supervise(conn, Settings())
    assert (found.decision.step, made18.mode()) == (Step.STAY, CaptureMode.TRIGGER)
    with decoding(made18):
        made18.await_decoder()
        assert made18.counted() == made18.content()
        conn.execute("UPDATE pgtrickle.pgt_change_tracking SET next_try_at = NULL")
        supervise.supervise(conn, Settings())
        made18.await_true("SELECT status = 'STREAMING' FROM pgtrickle.pgt_decoder")
        made18.await_decoder()
        (found,) = supervise.supervise(conn, Settings())
        assert made18.mode() == CaptureMode.WAL
    drop_slot(made18)
    (found,) = supervise.supervise(conn, Settings())
    assert found.decision.step is Step.FALL_BACK_LOSSY
    assert made18.history()[-1][2] == "the replication slot was dropped"
    assert made18.one("SELECT count(*) FROM pg_publication") == 0


def test_an_invalidated_slot_is_a_loss_and_is_replaced(made: World) -> None:
    """By max_slot_wal_keep_size: changes are gone from the WAL, so the dependents compute anew."""
    conn = made.conn
    to_wal(made)
    try:
        conn.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
        conn.execute("SELECT pg_reload_conf()")
        made.await_true("SELECT current_setting('max_slot_wal_keep_size') = '1MB'")
        for each in range(4):
            conn.execute("INSERT INTO t VALUES (%s, 1)", (each,))
            conn.execute("SELECT pg_switch_wal()")
        conn.execute("CHECKPOINT")
        found = slot.inspect(conn)
        assert (found.state, found.wal_status) == (SlotState.LOST, "lost")
        assert found.invalidation_reason == ("wal_removed" if conn.info.server_version >= 170000 else None)
        assert made.one("SELECT alert FROM pgtrickle.check_cdc_health()") == "slot_lost"
        (steered,) = supervise.supervise(conn, Settings())
    finally:
        conn.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
        conn.execute("SELECT pg_reload_conf()")
    assert (steered.decision.step, steered.error) == (Step.FALL_BACK_LOSSY, None)
    assert made.history()[-1] == ("WAL", "TRIGGER", "the replication slot was invalidated")
    assert made.pending().truncated
    assert slot.inspect(conn).state is SlotState.ABSENT
    made.frontier = made.now()
    to_wal(made)
    conn.execute("DELETE FROM t WHERE id = 1")
    with decoding(made):
        made.await_decoder()
    assert made.counted() == {("1", "1"): -1}


def test_a_publication_dropped_by_hand_is_a_loss(made: World) -> None:
    to_wal(made)
    db.execute(made.conn, f"DROP PUBLICATION {slot.name(made.conn)}")
    made.conn.execute("INSERT INTO t VALUES (1, 1)")
    (steered,) = supervise.supervise(made.conn, Settings())
    assert (steered.decision.step, steered.error) == (Step.FALL_BACK_LOSSY, None)
    assert "publication" in made.history()[-1][2]
    made.frontier = made.now()
    made.conn.execute("UPDATE pgtrickle.pgt_change_tracking SET next_try_at = NULL")
    supervise.supervise(made.conn, Settings())
    with decoding(made):
        handover.complete(made.conn, made.oid, "r")
        made.conn.execute("INSERT INTO t VALUES (2, 2)")
        made.await_decoder()
    assert made.counted() == {("2", "2"): 1}


def test_a_source_that_is_dropped_on_wal_leaves_quietly(made18: World) -> None:
    to_wal(made18)
    made18.conn.execute("DROP TABLE t")
    (steered,) = supervise.supervise(made18.conn, Settings())
    assert (steered.decision.step, steered.error) == (Step.LET_GO, None)
    assert made18.history()[-1] == ("WAL", "TRIGGER", "the table does not exist")
    assert slot.inspect(made18.conn).state is SlotState.ABSENT
    (steered,) = supervise.supervise(made18.conn, Settings())
    assert (steered.decision.step, steered.error) == (Step.STAY, None)
    with made18.conn.transaction():
        writer.unregister(made18.conn, made18.pgt_id)
        assert triggers.detach(made18.conn, made18.oid)
