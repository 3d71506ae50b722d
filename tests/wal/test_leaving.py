"""What goes when nobody needs it any more: slot, publication, replica identity, records of handovers."""

from __future__ import annotations

import pytest

from pgtrickle.capture import handover, slot, triggers
from pgtrickle.capture.modes import SlotState
from pgtrickle.capture.replication import StreamError
from pgtrickle.catalog import writer
from pgtrickle.catalog.install import Removal, uninstall
from pgtrickle.errors import StateError

from .world import World, consume, decoding, table_of, to_wal, world


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
        made.await_true("SELECT active FROM pgtrickle_internal.pgt_slot")
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
