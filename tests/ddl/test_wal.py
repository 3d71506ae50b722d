"""DDL on a source captured from the WAL: unused columns come and go, used ones mark, a table that is gone is left."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pyspark.sql import SparkSession

from pgtrickle.capture import handover, slot, supervise
from pgtrickle.capture.modes import Step
from pgtrickle.config import Settings
from pgtrickle.errors import QueryError
from tests.ddl.place import QUERY, Place, place
from tests.wal.world import World, decoding, table_of


@contextmanager
def in_transition(made: Place) -> Iterator[World]:
    """The source on its way to WAL mode, and a decoder that reads it."""
    made.run("SET synchronous_commit = on", "ALTER TABLE t REPLICA IDENTITY FULL")
    world = World(made.dsn, made.connection, table_of(made.connection, "t"), ["id", "v"], made.stream().pgt_id)
    with decoding(world):
        handover.begin_transition(made.connection, world.oid, "asked")
        yield world


@contextmanager
def in_wal(made: Place) -> Iterator[World]:
    with in_transition(made) as world:
        handover.complete(made.connection, world.oid, "caught up")
        yield world


@pytest.mark.parametrize("noticed", ["events", "fingerprint"])
def test_columns_come_and_go(database: str, spark: SparkSession, noticed: str) -> None:
    with place(database, spark) as made:
        refresh = made.trickle.refresh_stream_table
        if noticed == "fingerprint":
            made.run("DROP EVENT TRIGGER pgtrickle_ddl", "DROP EVENT TRIGGER pgtrickle_drop")
        made.run("INSERT INTO t SELECT g, g, 'w' FROM generate_series(1, 99) g", "ANALYZE t")
        refresh("st", full=True)
        with in_wal(made) as world:
            assert (made.noted(), made.marked()) == ([], None), "the handover's own DDL is no news"
            made.run("ALTER TABLE t ADD COLUMN more int DEFAULT 1", "INSERT INTO t VALUES (100, 100, 'w', 2)")
            assert refresh("st").action == "DIFFERENTIAL"
            made.run("ALTER TABLE t DROP COLUMN w", "DELETE FROM t WHERE id = 1")
            assert refresh("st").action == "DIFFERENTIAL"
            assert made.equal("st", QUERY)
            assert world.mode() == "WAL"

            made.run("CREATE OR REPLACE VIEW seen AS SELECT id, id AS v FROM t")
            made.run("ALTER TABLE t ALTER v TYPE bigint", "INSERT INTO t VALUES (101, 101)")
            made.run("CREATE OR REPLACE VIEW seen AS SELECT id, v::int AS v FROM t")
            redefined = "view public.seen was redefined"
            expected = [redefined, "column v of table public.t now has the type bigint", redefined]
            assert made.noted() == (expected if noticed == "events" else [])
            assert refresh("st").action == "REINITIALIZE"
            assert made.equal("st", QUERY)
            made.run("DELETE FROM t WHERE id = 2")
            assert refresh("st").action == "DIFFERENTIAL"
            assert made.equal("st", QUERY)


def test_altered_in_mid_transition(database: str, spark: SparkSession) -> None:
    with place(database, spark) as made:
        refresh = made.trickle.refresh_stream_table
        made.run("INSERT INTO t SELECT g, g, 'w' FROM generate_series(1, 99) g", "ANALYZE t")
        refresh("st", full=True)
        with in_transition(made) as world:
            made.run("ALTER TABLE t ADD COLUMN more int DEFAULT 1", "INSERT INTO t VALUES (100, 100, 'w', 2)")
            assert refresh("st").action == "DIFFERENTIAL"
            made.run("CREATE OR REPLACE VIEW seen AS SELECT id, id AS v FROM t")
            made.run("ALTER TABLE t ALTER v TYPE bigint", "INSERT INTO t VALUES (101, 101)")
            made.run("CREATE OR REPLACE VIEW seen AS SELECT id, v::int AS v FROM t")
            world.await_decoder()
            handover.complete(made.connection, world.oid, "caught up")
            made.run("INSERT INTO t VALUES (102, 102)")
            assert refresh("st").action == "REINITIALIZE"
            assert made.equal("st", QUERY)
            made.run("DELETE FROM t WHERE id IN (2, 101)")
            assert refresh("st").action == "DIFFERENTIAL"
            assert made.equal("st", QUERY)


def test_a_table_that_is_gone_is_let_go_of_and_left_alone(made: Place) -> None:
    assert made.trickle.refresh_stream_table("st").action == "NO_DATA"
    with in_wal(made) as world:
        changes = len(world.history())
        made.run("INSERT INTO t VALUES (1, 1)", "DROP TABLE t CASCADE")
        assert made.stream().status == "ERROR"
        assert made.value("SELECT count(*) FROM pg_publication_rel") == 0
        for step in (Step.LET_GO, Step.STAY, Step.STAY):
            (found,) = supervise.supervise(made.connection, Settings())
            assert (found.decision.step, found.decision.reason) == (step, "the table does not exist")
            assert found.error is None
            with pytest.raises(QueryError):
                made.trickle.refresh_stream_table("st")
            assert made.stream().status == "ERROR"
        assert len(world.history()) == changes + 1, "it does not move between modes for ever"
        assert made.connection.execute("SELECT source_table, eligible FROM pgtrickle.pgt_cdc_status").fetchall() == [
            ("public.t", False)  # the name that it had
        ]
    made.trickle.drop_stream_table("st")
    assert made.value("SELECT count(*) FROM pgtrickle.pgt_change_tracking") == 0
    slot.drop_if_unused(made.connection)
    assert made.value("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()") == 0
