"""Rounds of steering where something stands in the way: one source must not hold up the others, or the slot."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pgtrickle.capture import handover, slot
from pgtrickle.capture.modes import SlotState
from pgtrickle.config import Settings
from pgtrickle.scheduler.steering import Steering

from .world import World, consume, table_of, world


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
    steering = Steering(made.dsn)
    try:
        for _ in range(3):
            steering.round(Settings(cdc_mode="trigger"))
        assert made.mode() == "TRIGGER"
        assert slot.inspect(conn).state is SlotState.ABSENT
    finally:
        steering.close()


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
    assert len(list(conn.notifies(timeout=5, stop_after=9))) == 9
