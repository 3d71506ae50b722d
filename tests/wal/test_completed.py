"""The window of a refresh when the slot is lost just then: nothing is read as if it were all there. No Spark needed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from tests.refresh.stacked import alone

from pgtrickle.capture import handover, slot
from pgtrickle.catalog import reader as catalog
from pgtrickle.config import Settings
from pgtrickle.errors import StateError
from pgtrickle.refresh.definition import define
from pgtrickle.refresh.refresher import Refresher
from pgtrickle.refresh.verification.verify import verify
from pgtrickle.refresh.window import at_snapshot, await_decoder, opened

from .world import World, decoding, world


@pytest.fixture
def made(database18: str) -> Iterator[World]:
    with world(database18) as it:
        handover.begin_transition(it.conn, it.oid, "asked")
        handover.complete(it.conn, it.oid, "caught up")
        yield it


@pytest.fixture
def refresher(made: World) -> Iterator[Refresher]:
    found = Refresher(made.dsn, Settings(), _no_spark)
    yield found
    found.close()


def _no_spark() -> SparkSession:
    raise AssertionError("nothing here is computed by Spark")


def lose_slot(made: World) -> None:
    made.conn.execute("SELECT pg_drop_replication_slot(%s)", (slot.name(made.conn),))


def test_a_loss_that_is_settled_after_the_last_look_still_shows(made: World, refresher: Refresher) -> None:
    """Between the refresh's second look at its table and its first read of the buffers."""
    made.conn.execute("INSERT INTO t VALUES (1, 1)")
    connections = refresher.connections()
    with connections.reader.transaction():
        window = at_snapshot(connections, {made.oid: made.frontier}, made.now())
        lose_slot(made)
        with opened(await_decoder(window, 5)) as whole:
            handover.back_lossy(made.conn, made.oid, "the slot was dropped")
            found = whole.pending()[made.oid]
    assert found.truncated or not found.captured


def test_what_was_not_captured_is_not_compared(made: World, refresher: Refresher) -> None:
    """The table is right at its snapshot; what the source was then can no longer be known."""
    conn = made.conn
    pgt_id = define.create(
        conn,
        "copied",
        "SELECT id, v FROM t",
        settings=Settings(),
        schedule=None,
        refresh_mode="DIFFERENTIAL",
        cdc_mode=None,
    )
    conn.execute(
        "UPDATE pgtrickle.pgt_stream_tables SET is_populated = true, frontier = pg_current_snapshot(),"
        " data_timestamp = now() WHERE pgt_id = %s",
        (pgt_id,),
    )
    conn.execute("INSERT INTO t VALUES (1, 1)")
    stream = catalog.by_id(conn, pgt_id)
    assert stream is not None
    with decoding(made):
        found = verify(refresher.connections(), stream, 10, lambda each: alone(refresher, each))
    assert (found.equal, found.compared_with) == (True, "its snapshot")
    lose_slot(made)
    with pytest.raises(StateError, match="were not captured") as caught:
        verify(refresher.connections(), stream, 10, lambda each: alone(refresher, each))
    assert caught.value.code == "PT346"
