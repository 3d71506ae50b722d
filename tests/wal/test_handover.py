"""Triggers to WAL and back, step by step: what each step leaves, what it refuses, and that nothing is lost or doubled.

The slot is a real one. Where a test needs no decoder, what the slot holds is read from it (`in_slot`).
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgtrickle import db
from pgtrickle.capture import handover, shift, slot, steer, triggers, window
from pgtrickle.capture.modes import Decision, Mode, SlotState, Step
from pgtrickle.capture.replication import StreamError
from pgtrickle.catalog import reader, writer
from pgtrickle.catalog.install import MIGRATIONS, Removal, install, load_migrations, uninstall
from pgtrickle.config import Settings
from pgtrickle.db import Connection
from pgtrickle.errors import StateError

from .world import World, consume, decoding, table_of, world


@pytest.fixture
def made(database: str) -> Iterator[World]:
    with world(database) as it:
        yield it


@pytest.fixture
def made18(database18: str) -> Iterator[World]:
    with world(database18) as it:
        yield it


@pytest.fixture
def other(database: str) -> Iterator[Connection]:
    """A second session, whose transactions the test opens and ends itself."""
    with db.connect(database) as connection:
        yield connection
        connection.rollback()


def to_wal(made: World) -> str:
    handover.begin_transition(made.conn, made.oid, "asked")
    return handover.complete(made.conn, made.oid, "caught up")


def in_slot(made: World) -> list[str]:
    """The kinds of the row changes that the slot has still to give: I, U, D, T."""
    made.conn.execute("SELECT pg_logical_emit_message(true, 'test', 'flushes what others have committed')")
    found = made.conn.execute(
        "SELECT get_byte(data, 0) FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL,"
        " 'proto_version', '1', 'publication_names', %s, 'messages', 'true')",
        (slot.name(made.conn), slot.name(made.conn)),
    )
    return [kind for (byte,) in found if (kind := chr(int(str(byte)))) in "IUDT"]


def test_there_and_back(made: World) -> None:
    conn = made.conn
    with db.connect(made.dsn) as listener:
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
        notices = [(each.channel, json.loads(each.payload)) for each in listener.notifies(timeout=5, stop_after=6)]
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
    def shown() -> tuple[str, str | None, bool]:
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
        assert made.pending() == window.Pending(made.pending().changes, truncated=True, captured=True)


def _disable(made: World) -> None:
    made.conn.execute("ALTER TABLE t DISABLE TRIGGER ALL; ALTER TABLE t ENABLE TRIGGER ALL")


def _lose_identity(made: World) -> None:
    made.conn.execute("ALTER TABLE t REPLICA IDENTITY DEFAULT")


def _unpublish(made: World) -> None:
    db.execute(made.conn, f"ALTER PUBLICATION {slot.name(made.conn)} DROP TABLE t")


def _republish(made: World) -> None:
    _unpublish(made)
    db.execute(made.conn, f"ALTER PUBLICATION {slot.name(made.conn)} ADD TABLE t")


def _drop_slot(made: World) -> None:
    made.conn.execute("SELECT pg_drop_replication_slot(%s)", (slot.name(made.conn),))


@pytest.mark.parametrize("spoil", [_disable, _lose_identity, _unpublish, _republish, _drop_slot])
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
    assert made18.pending() == window.Pending(1, truncated=True, captured=True)
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
    _drop_slot(made18)
    made18.conn.execute("INSERT INTO t VALUES (1, 1)")
    with db.connect(made18.dsn) as listener:
        listener.execute("LISTEN pg_trickle_alert")
        handover.back_lossy(made18.conn, made18.oid, "the replication slot was dropped")
        events = [json.loads(each.payload)["event"] for each in listener.notifies(timeout=5, stop_after=2)]
    assert sorted(events) == ["cdc_fallback", "reinitialize_needed"]
    assert made18.history()[-1] == ("WAL", "TRIGGER", "the replication slot was dropped")
    assert made18.pending() == window.Pending(1, truncated=True, captured=True)
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
    assert made18.one("SELECT count(*) FROM pgtrickle.pgt_draining") == 1
    assert not slot.drop_if_unused(made18.conn)
    _drop_slot(made18)
    with pytest.raises(StateError) as error:
        slot.ensure(made18.conn)
    assert error.value.code == "PT356"
    handover.carry_out(made18.conn, made18.oid, Decision(Step.FALL_BACK_LOSSY, "lost", failed=True))
    assert made18.pending().truncated
    assert made18.one("SELECT count(*) FROM pgtrickle.pgt_draining") == 0
    assert slot.ensure(made18.conn).state is SlotState.ALIVE


def test_the_last_consumer_takes_all_with_it(made: World) -> None:
    with decoding(made):
        to_wal(made)
        made.conn.execute("INSERT INTO t VALUES (1, 1)")
        made.await_decoder()
    with made.conn.transaction():
        writer.unregister(made.conn, made.pgt_id)
        assert triggers.detach(made.conn, made.oid)
    assert slot.drop_if_unused(made.conn)
    for what in ("pg_publication", "pg_publication_rel", "pgtrickle.pgt_decoder", "pgtrickle.pgt_handovers"):
        assert made.one(f"SELECT count(*) FROM {what}") == 0
    assert made.one("SELECT count(*) FROM pg_trigger WHERE tgrelid = 't'::regclass") == 0
    assert slot.inspect(made.conn).state is SlotState.ABSENT
    assert slot.drop_if_unused(made.conn)


def test_the_slot_stays_while_another_source_needs_it(made18: World) -> None:
    made18.conn.execute("CREATE TABLE u (id int PRIMARY KEY); CREATE TABLE su (id int)")
    second = table_of(made18.conn, "u")
    consume(made18.conn, "su", second, ["id"])
    to_wal(made18)
    handover.begin_transition(made18.conn, second.oid, "r")
    with made18.conn.transaction():
        writer.unregister(made18.conn, made18.pgt_id)
        assert triggers.detach(made18.conn, made18.oid)
    assert not slot.drop_if_unused(made18.conn)
    handover.abandon(made18.conn, second.oid, "asked", failed=False)
    assert slot.drop_if_unused(made18.conn)


def test_uninstall_drops_a_slot_that_is_being_read(made: World) -> None:
    to_wal(made)
    name = slot.name(made.conn)
    planned = uninstall(made.conn, drop_stream_tables=False, dry_run=True)
    with pytest.raises(StreamError):
        _uninstall_while_decoding(made, planned)
    assert {f"drop publication {name}", f"drop replication slot {name}"} <= {str(each) for each in planned}
    assert made.one(f"SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{name}'") == 0
    assert made.one("SELECT count(*) FROM pg_publication") == 0


def _uninstall_while_decoding(made: World, planned: list[Removal]) -> None:
    with decoding(made):
        made.await_decoder()
        made.await_true("SELECT active FROM pgtrickle.pgt_slot")
        assert uninstall(made.conn, drop_stream_tables=False) == planned


def test_a_replica_identity_we_set_is_put_back(database18: str) -> None:
    ddl = (
        "CREATE TABLE t (id int NOT NULL, v int, PRIMARY KEY (id)) PARTITION BY RANGE (id);"
        "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (10) TO (20);"
        "ALTER TABLE t1 REPLICA IDENTITY NOTHING; CREATE UNIQUE INDEX i2 ON t2 (id);"
        "ALTER TABLE t2 REPLICA IDENTITY USING INDEX i2"
    )
    identities = (
        "SELECT string_agg(relreplident::text, '' ORDER BY relname) FROM pg_class WHERE relname IN ('t', 't1', 't2')"
    )
    with world(database18, table=ddl) as made:
        assert made.one(identities) == "dni"
        with pytest.raises(StateError, match="replica identity"):
            handover.begin_transition(made.conn, made.oid, "r")
        handover.begin_transition(made.conn, made.oid, "r", set_identity=True)
        assert made.one(identities) == "fff"
        handover.complete(made.conn, made.oid, "r")
        with made.conn.transaction():
            writer.unregister(made.conn, made.pgt_id)
            triggers.detach(made.conn, made.oid)
        assert made.one(identities) == "dni"


def test_handovers_are_forgotten_when_no_window_reaches_them(made18: World) -> None:
    conn, oid = made18.conn, made18.oid

    def left() -> list[str]:
        sides = made18.sides()
        return [] if sides is None else [each.side for each in sides.handovers]

    def move_frontier(pgt_id: int) -> None:
        conn.execute(
            "UPDATE pgtrickle.pgt_stream_tables SET frontier = pg_current_snapshot() WHERE pgt_id = %s", (pgt_id,)
        )

    conn.execute("CREATE TABLE slow (id int)")
    slow = consume(conn, "slow", made18.source, ["id"])
    for _ in range(2):
        to_wal(made18)
        handover.back(conn, oid, "r")
    to_wal(made18)
    move_frontier(made18.pgt_id)
    assert handover.prune(conn, oid) == 0
    assert left() == ["W", "T", "W", "T", "W"]
    move_frontier(slow)
    assert handover.prune(conn, oid) == 4
    assert left() == ["W"]
    handover.back(conn, oid, "r")
    assert handover.prune(conn, oid) == 0
    move_frontier(made18.pgt_id)
    move_frontier(slow)
    assert handover.prune(conn, oid) == 2
    assert left() == []
    made18.frontier = made18.now()
    conn.execute("INSERT INTO t VALUES (1, 1)")
    assert made18.counted() == {("1", "1"): 1}


def test_a_snapshot_older_than_the_lock_is_not_accepted(made18: World) -> None:
    with made18.conn.transaction():
        made18.conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        with pytest.raises(AssertionError, match="older snapshot"):
            shift.hand_over(made18.conn, made18.oid, "W")


def test_an_installed_catalog_is_upgraded_with_its_sources(database: str, tmp_path: Path) -> None:
    first = load_migrations()[0]
    (tmp_path / f"{first.version:04}_{first.name}.sql").write_text(first.text, encoding="utf-8")
    with db.connect(database) as conn:
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
    _drop_slot(made)
    assert alert() == "slot_missing"
    handover.back_lossy(conn, made.oid, "lost")
    assert alert() is None
    conn.execute("ALTER TABLE t DISABLE TRIGGER ALL")
    assert alert() == "trigger_missing"


def test_triggers_that_were_off_for_a_time_are_told_to_every_consumer(made18: World) -> None:
    """Whoever attaches first makes the triggers stand again: the others learn it from the buffer."""
    made18.conn.execute("ALTER TABLE t DISABLE TRIGGER ALL; INSERT INTO t VALUES (1, 1)")
    assert triggers.attach(made18.conn, made18.source, made18.columns)
    assert made18.pending() == window.Pending(1, truncated=True, captured=True)


class Writers:
    """Threads that write to `t` without pause: all kinds of changes, savepoints, rollbacks, old transaction ids."""

    def __init__(self, made: World, count: int) -> None:
        self._stop = threading.Event()
        self._failures: list[Exception] = []
        self.committed = 0
        self._threads = [threading.Thread(target=self._run, args=(made.dsn, place)) for place in range(count)]

    def __enter__(self) -> Writers:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for each in self._threads:
            each.join(20)
        assert not any(each.is_alive() for each in self._threads)
        assert self._failures == []

    def _run(self, dsn: str, place: int) -> None:
        chance = random.Random(place)
        try:
            with db.connect(dsn) as conn:
                while not self._stop.is_set():
                    self._transaction(conn, chance, place)
                    self.committed += 1
        except Exception as error:  # noqa: BLE001 - asserted on above
            self._failures.append(error)

    def _transaction(self, conn: Connection, chance: random.Random, place: int) -> None:
        key = chance.randrange(50) * 10 + place
        with conn.transaction(force_rollback=chance.random() < 0.1):
            if chance.random() < 0.4:
                conn.execute("SELECT pg_current_xact_id()")
                time.sleep(chance.random() * 0.02)
            conn.execute(
                "INSERT INTO t VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET v = t.v + 1", (key, chance.randrange(9))
            )
            if chance.random() < 0.3:
                with conn.transaction(force_rollback=chance.random() < 0.5):
                    conn.execute("DELETE FROM t WHERE id = %s", (key,))
            if chance.random() < 0.3:
                conn.execute("UPDATE t SET v = v + 1 WHERE id %% 10 = %s AND id < 100", (place,))
        time.sleep(chance.random() * 0.01)


def test_moved_to_and_fro_under_load_nothing_is_lost_or_doubled(database: str) -> None:
    """With the real decoder: what counts in the buffer adds up to the table, after every move and at the end."""
    with world(database) as made, decoding(made), Writers(made, 4) as writers:
        deadline = time.monotonic() + 8
        moves = 0
        while time.monotonic() < deadline:
            handover.begin_transition(made.conn, made.oid, "soak")
            time.sleep(0.1)
            handover.complete(made.conn, made.oid, "soak")
            time.sleep(0.3)
            handover.back(made.conn, made.oid, "soak")
            time.sleep(0.1)
            moves += 1
        handover.begin_transition(made.conn, made.oid, "soak")
        handover.complete(made.conn, made.oid, "soak")
        writers.__exit__()
        made.await_decoder()
        sides = made.sides()
        assert sides is not None
        assert len(sides.handovers) == 2 * moves + 1
        assert moves >= 3
        assert made.counted() == made.content()
        assert writers.committed > 50
        assert len(made.buffered("T")) > 10
        assert len(made.buffered("W")) > 10


def test_steering_moves_a_source_by_itself_and_back(made18: World) -> None:
    conn = made18.conn

    def step(settings: Settings | None = None) -> tuple[Step, str]:
        (found,) = steer.steer(conn, settings or Settings())
        assert found.error is None
        return found.decision.step, made18.mode()

    assert step() == (Step.START, Mode.TRANSITIONING)
    assert step() == (Step.STAY, Mode.TRANSITIONING)
    with decoding(made18):
        made18.await_true("SELECT status = 'STREAMING' FROM pgtrickle.pgt_decoder")
        made18.await_decoder()
        assert step() == (Step.COMPLETE, Mode.WAL)
        assert step() == (Step.STAY, Mode.WAL)
        conn.execute("INSERT INTO t VALUES (1, 1)")
        made18.await_decoder()
        writer.set_cdc_mode(conn, made18.pgt_id, "trigger")
        assert step() == (Step.FALL_BACK, Mode.TRIGGER)
        made18.await_decoder()
        assert not slot.is_used(conn)
        assert step() == (Step.STAY, Mode.TRIGGER)
        assert slot.inspect(conn).state is SlotState.ALIVE
    assert made18.counted() == made18.content()
    assert step() == (Step.STAY, Mode.TRIGGER)
    assert slot.inspect(conn).state is SlotState.ABSENT
    (shown,) = reader.cdc_status(conn)
    assert (shown.requested, shown.reason) == ("trigger", "trigger is asked for by public.st")
    writer.set_cdc_mode(conn, made18.pgt_id, None)
    assert step() == (Step.START, Mode.TRANSITIONING)
    assert step(Settings(cdc_mode="trigger")) == (Step.ABANDON, Mode.TRIGGER)


def test_a_transition_that_cannot_start_is_put_off(made18: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An open transaction keeps the slot from being made: it is said, and the next look does not wait again."""
    monkeypatch.setattr(slot.ensure, "__kwdefaults__", {"give_up_after_s": 0.3})
    with db.connect(made18.dsn, autocommit=False) as other:
        other.execute("SELECT pg_current_xact_id()")
        (found,) = steer.steer(made18.conn, Settings())
        assert found.error is not None
        assert found.error.code == "PT355"
        (again,) = steer.steer(made18.conn, Settings())
        assert (again.decision.step, again.error) == (Step.STAY, None)
        other.rollback()
    (shown,) = reader.cdc_status(made18.conn)
    assert (shown.cdc_mode, shown.failures) == ("TRIGGER", 1)
    assert "could not be made within 0.3 s" in str(shown.reason)
    made18.conn.execute("UPDATE pgtrickle.pgt_change_tracking SET next_try_at = now()")
    steer.steer(made18.conn, Settings())
    assert made18.mode() == "TRANSITIONING"


def test_steering_falls_back_where_it_must(made18: World) -> None:
    conn = made18.conn
    to_wal(made18)
    conn.execute("INSERT INTO t SELECT g, g FROM generate_series(1, 2000) AS g")
    tight = Settings(wal_backpressure_critical_bytes=1000, wal_backpressure_resume_bytes=500)
    (found,) = steer.steer(conn, tight)
    assert found.decision.step is Step.FALL_BACK
    assert "backpressure" in found.decision.reason
    (found,) = steer.steer(conn, Settings())
    assert (found.decision.step, made18.mode()) == (Step.STAY, Mode.TRIGGER)
    with decoding(made18):
        made18.await_decoder()
        assert made18.counted() == made18.content()
        conn.execute("UPDATE pgtrickle.pgt_change_tracking SET next_try_at = NULL")
        steer.steer(conn, Settings())
        made18.await_true("SELECT status = 'STREAMING' FROM pgtrickle.pgt_decoder")
        made18.await_decoder()
        (found,) = steer.steer(conn, Settings())
        assert made18.mode() == Mode.WAL
    _drop_slot(made18)
    (found,) = steer.steer(conn, Settings())
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
        (steered,) = steer.steer(conn, Settings())
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
    (steered,) = steer.steer(made.conn, Settings())
    assert (steered.decision.step, steered.error) == (Step.FALL_BACK_LOSSY, None)
    assert "publication" in made.history()[-1][2]
    made.frontier = made.now()
    made.conn.execute("UPDATE pgtrickle.pgt_change_tracking SET next_try_at = NULL")
    steer.steer(made.conn, Settings())
    with decoding(made):
        handover.complete(made.conn, made.oid, "r")
        made.conn.execute("INSERT INTO t VALUES (2, 2)")
        made.await_decoder()
    assert made.counted() == {("2", "2"): 1}


def test_a_source_that_is_dropped_on_wal_leaves_quietly(made18: World) -> None:
    to_wal(made18)
    made18.conn.execute("DROP TABLE t")
    (steered,) = steer.steer(made18.conn, Settings())
    assert (steered.decision.step, steered.error) == (Step.LET_GO, None)
    assert made18.history()[-1] == ("WAL", "TRIGGER", "the table does not exist")
    assert slot.inspect(made18.conn).state is SlotState.ABSENT
    (steered,) = steer.steer(made18.conn, Settings())
    assert (steered.decision.step, steered.error) == (Step.STAY, None)
    with made18.conn.transaction():
        writer.unregister(made18.conn, made18.pgt_id)
        assert triggers.detach(made18.conn, made18.oid)
