"""Unlogged sources: a crash empties them, and no trigger sees it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgtrickle import embedded
from pgtrickle.capture import eligibility
from tests.conftest import FAST
from tests.stories.telling import TOTALS, Story, telling


@pytest.fixture
def own(open_directory: Path) -> Iterator[embedded.Server]:
    """A server that may crash."""
    directory = open_directory / "data"
    try:
        yield embedded.start(directory, settings=FAST)
    finally:
        embedded.stop(directory)


def crash(server: embedded.Server) -> None:
    """Ends the server without a checkpoint, with all that was committed in the WAL; starts it again."""
    postmaster = int((server.data_dir / "postmaster.pid").read_text().split()[0])
    os.kill(postmaster, signal.SIGQUIT)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{postmaster}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    embedded.start(server.data_dir, settings=FAST)


def test_what_a_crash_empties(own: embedded.Server, spark: SparkSession) -> None:
    """Each stream table is recomputed once: two over the same source, one over a partition, one over a source that was
    made logged before anyone looked; one over a logged source is not."""
    with telling(own.dsn, spark) as told:
        told.run(
            "SET synchronous_commit = on",
            "CREATE UNLOGGED TABLE t (id int PRIMARY KEY, kind text, v int)",
            "INSERT INTO t SELECT g, 'k' || g % 3, g FROM generate_series(1, 20) g",
            "CREATE TABLE p (id int, v int) PARTITION BY LIST (id)",
            "CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1)",
            "CREATE UNLOGGED TABLE p2 PARTITION OF p DEFAULT",
            "INSERT INTO p SELECT g, g FROM generate_series(1, 3) g",
            "CREATE UNLOGGED TABLE repaired (id int)",
            "INSERT INTO repaired VALUES (1)",
            "CREATE TABLE kept (id int)",
        )
        told.create("totals", TOTALS)
        told.create("big", "SELECT id FROM t WHERE v > 10")
        told.create("parts", "SELECT id, v FROM p")
        told.create("was", "SELECT id FROM repaired")
        told.create("safe", "SELECT id FROM kept")
        told.run("INSERT INTO t VALUES (30, 'k1', 30)", "UPDATE p SET v = 7 WHERE id = 2", "DELETE FROM p WHERE id = 3")
        told.follow()
        found = eligibility.check(told.connection, told.oid("t"), ["id"])
        assert found.code == "PT262"
        queries = told.queries
        told.run("INSERT INTO t VALUES (31, 'k1', 31)", "INSERT INTO kept VALUES (1)")
    crash(own)
    with telling(own.dsn, spark) as told:
        told.queries = queries
        assert told.value("SELECT count(*) FROM t") == 0
        told.run("SET synchronous_commit = on", "ALTER TABLE repaired SET LOGGED", "INSERT INTO t VALUES (1, 'k9', 1)")
        assert told.check("totals", "REINITIALIZE").reason == "changes of public.t were not captured for a time"
        told.check("totals", "NO_DATA")
        for name in ("big", "parts", "was"):
            told.check(name, "REINITIALIZE")
        told.check("safe")
        told.run("INSERT INTO t VALUES (2, 'k9', 20)", "INSERT INTO p VALUES (5, 5)", "INSERT INTO repaired VALUES (2)")
        for name in ("totals", "big", "parts", "was"):
            told.check(name)
        assert told.rows("SELECT source_relid::regclass::text FROM pgtrickle.pgt_unlogged ORDER BY 1") == [
            ("p",),
            ("t",),
        ]


def test_a_source_that_becomes_unlogged(told: Story) -> None:
    """Nothing is lost yet, but from now on its row must be there."""
    told.create("totals", TOTALS)
    told.run("ALTER TABLE t SET UNLOGGED", "INSERT INTO t VALUES (30, 'k1', 30)")
    told.check("totals", "REINITIALIZE")
    told.run("INSERT INTO t VALUES (31, 'k1', 30)")
    told.check("totals")
    told.run("DELETE FROM pgtrickle.pgt_unlogged")  # what a crash does
    told.check("totals", "REINITIALIZE")
    told.trickle.drop_stream_table("totals")
    assert told.value("SELECT count(*) FROM pgtrickle.pgt_unlogged") == 0
