"""Rounds of steering where something stands in the way: one source must not hold up the others, or the slot."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import pytest

from pgtrickle import db
from pgtrickle.capture import handover, slot, supervise
from pgtrickle.capture.locks import _pauses
from pgtrickle.capture.modes import ModeDecision, SlotState, Step
from pgtrickle.capture.supervise import Rests, Supervised
from pgtrickle.catalog import reader as catalog
from pgtrickle.config import Settings
from pgtrickle.errors import StateError, Unsupported
from pgtrickle.refresh.definition import define
from pgtrickle.scheduler.capture_loop import CaptureLoop

from .world import World, consume, decoding, table_of, world


@pytest.fixture
def made(database18: str) -> Iterator[World]:
    with world(database18) as it:
        yield it


def to_wal(made: World) -> None:
    handover.begin_transition(made.conn, made.oid, "asked")
    handover.complete(made.conn, made.oid, "caught up")


def test_a_dropped_source_ends_no_round_and_holds_no_slot(made: World) -> None:
    conn = made.conn
    conn.execute("CREATE TABLE kept (id int); CREATE TABLE over_kept (id int)")
    consume(conn, "over_kept", table_of(conn, "kept"), ["id"])
    to_wal(made)
    conn.execute("DROP TABLE t")
    steering = CaptureLoop(made.dsn)
    try:
        for _ in range(3):
            steering.round(Settings(cdc_mode="trigger"))
        assert made.mode() == "TRIGGER"
        assert slot.inspect(conn).state is SlotState.ABSENT
    finally:
        steering.close()


def test_a_stream_table_stays_on_triggers_and_one_that_did_not_comes_back(made: World) -> None:
    conn = made.conn
    conn.execute("CREATE TABLE over_st (id int); ALTER TABLE st REPLICA IDENTITY FULL; CREATE TABLE base (id int)")
    consume(conn, "over_st", table_of(conn, "st"), ["id"])
    to_wal(made)
    consume(conn, "t", table_of(conn, "base"), ["id"])  # as from before it was a reason
    with decoding(made):
        steered = {each.source_oid: each.decision for each in supervise.supervise(conn, Settings(cdc_mode="wal"))}
    assert steered[made.oid].step is Step.FALL_BACK
    assert steered[table_of(conn, "st").oid].step is Step.STAY
    assert "it is a stream table" in steered[table_of(conn, "st").oid].reason
    shown = conn.execute(
        "SELECT source_table, cdc_mode, eligible FROM pgtrickle.pgt_cdc_status"
        " WHERE reason LIKE 'it is a stream table%' ORDER BY 1"
    )
    assert shown.fetchall() == [("public.st", "TRIGGER", False), ("public.t", "TRIGGER", False)]


def test_wal_asked_for_by_name_is_for_the_sources_that_are_no_stream_tables(made: World) -> None:
    def create(name: str, query: str) -> None:
        define.create(
            made.conn, name, query, settings=Settings(), schedule=None, refresh_mode="DIFFERENTIAL", cdc_mode="wal"
        )

    create("both", "SELECT st.id, t.v FROM st JOIN t ON t.id = st.id")
    with pytest.raises(Unsupported, match="st cannot be captured from the WAL: it is a stream table") as error:
        create("only", "SELECT id FROM st")
    assert (error.value.code, error.value.hint is not None) == ("PT259", True)
    asked = catalog.get(made.conn, "public", "st")
    assert asked is not None
    define.ask_for(made.conn, asked, "wal", Settings())


def test_a_reason_too_long_for_a_notice_is_cut_there_only(made: World) -> None:
    conn = made.conn
    handover.begin_transition(conn, made.oid, "asked")
    reason = "ein sehr langer Grund \N{GRINNING FACE} " * 500
    conn.execute("LISTEN pg_trickle_alert; LISTEN pg_trickle_cdc_transition")
    handover.abandon(conn, made.oid, reason)
    assert made.history()[-1] == ("TRANSITIONING", "TRIGGER", reason)
    to_wal(made)
    handover.back_lossy(conn, made.oid, "\N{GRINNING FACE}" * 9000)
    assert made.mode() == "TRIGGER"
    assert len(list(conn.notifies(timeout=60, stop_after=9))) == 9


def test_wal_held_back_by_an_open_transaction_is_backpressure(made: World) -> None:
    """The decoder is at the end of the WAL; the server must keep what that transaction may still need decoded."""
    conn = made.conn
    to_wal(made)
    conn.execute("SELECT set_config('pg_trickle.slot_lag_warning_threshold_mb', '1', false)")
    conn.execute("CREATE TABLE elsewhere (id int)")
    with decoding(made), db.open_session(made.dsn, autocommit=False) as other:
        other.execute("INSERT INTO elsewhere VALUES (1)")
        conn.execute("SELECT pg_logical_emit_message(false, 'test', repeat('x', 3000000))")
        made.await_decoder()
        made.await_true("SELECT lag_bytes < 1000000 FROM pgtrickle_internal.pgt_slot")
        assert made.one("SELECT alert FROM pgtrickle.slot_health()") == "slot_lag_warning"
        assert slot.inspect(conn).held_bytes > 3_000_000
        tight = Settings(wal_backpressure_critical_bytes=2_000_000, wal_backpressure_resume_bytes=1_000_000)
        (steered,) = supervise.supervise(conn, tight)
        assert steered.decision.step is Step.FALL_BACK
        assert "backpressure" in steered.decision.reason
        other.rollback()


def test_a_drain_gets_its_time_from_when_there_is_a_decoder(made: World) -> None:
    """The service was down for longer than a handover may take."""
    conn = made.conn
    to_wal(made)
    conn.execute("INSERT INTO t VALUES (1, 1)")
    handover.back(conn, made.oid, "asked")
    conn.execute("UPDATE pgtrickle.pgt_handovers SET created_at = created_at - interval '1 hour'")
    conn.execute("UPDATE pgtrickle.pgt_decoder SET updated_at = updated_at - interval '1 hour'")
    steering = CaptureLoop(made.dsn)
    try:
        steering.round(Settings(cdc_mode="trigger"))
        made.await_decoder()
        steering.round(Settings(cdc_mode="trigger"))
    finally:
        steering.close()
    assert made.history()[-1] == ("WAL", "TRIGGER", "asked")
    assert not made.pending().truncated
    assert made.counted() == made.content()


def test_a_step_that_a_long_writer_keeps_from_its_lock_is_not_tried_at_once_again(
    made: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "PATIENCE_S", 0.3)
    conn, rests = made.conn, Rests()
    to_wal(made)
    ask_for_triggers = Settings(cdc_mode="trigger")
    with db.open_session(made.dsn, autocommit=False) as other:
        other.execute("INSERT INTO t VALUES (1, 1)")
        (tried,) = supervise.supervise(conn, ask_for_triggers, rests=rests)
        assert tried.decision.step is Step.FALL_BACK
        assert tried.error is not None
        assert tried.error.code == "PT326"
        (left_alone,) = supervise.supervise(conn, ask_for_triggers, rests=rests)
        assert (left_alone.decision.step, left_alone.error) == (Step.STAY, None)
        other.rollback()
    made.await_true("SELECT pg_sleep(1.0) IS NOT NULL")
    (taken,) = supervise.supervise(conn, ask_for_triggers, rests=rests)
    assert (taken.decision.step, taken.error, made.mode()) == (Step.FALL_BACK, None, "TRIGGER")


def test_rests_grow_with_failures_and_end_with_a_step_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    rests = Rests()
    failed = Supervised(7, ModeDecision(Step.COMPLETE, "r"), StateError("locked", code="PT326"))
    ends = []
    for _ in range(8):
        rests.note(failed)
        begun = now
        while rests.rests(7):
            now += 1.0
        ends.append(now - begun)
    assert ends == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert not rests.rests(8)
    rests.note(Supervised(7, ModeDecision(Step.COMPLETE, "r")))
    rests.note(failed)
    now += 1.0
    assert not rests.rests(7)


def test_pauses_between_tries_of_a_lock_grow() -> None:
    pauses = list(itertools.islice(_pauses(), 12))
    assert 0.05 <= pauses[0] <= 0.1
    assert pauses[0] < pauses[2] < pauses[4]
    assert all(1.25 <= pause <= 2.5 for pause in pauses[5:])
