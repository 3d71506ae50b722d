"""What a tick could not get to comes first in the next, without holding up the others."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from pyspark.sql import SparkSession

from pgtrickle import db
from pgtrickle.api import Trickle, connect
from pgtrickle.config import Settings
from pgtrickle.scheduler import refresh_loop as module
from pgtrickle.scheduler.refresh_loop import RefreshLoop


@dataclass
class World:
    """A database, and rounds of refreshes in this thread."""

    conn: db.Connection
    trickle: Trickle
    rounds: RefreshLoop

    def round(self) -> bool:
        time.sleep(1.1)  # all are due
        return self.rounds.round(Settings())

    def stamps(self) -> dict[str, object]:
        rows = self.conn.execute("SELECT pgt_name, data_timestamp FROM pgtrickle.pgt_stream_tables")
        return {str(name): stamp for name, stamp in rows}

    def differing(self, name: str, query: str) -> list[tuple[object, ...]]:
        both = f"(TABLE {name} EXCEPT ALL ({query})) UNION ALL (({query}) EXCEPT ALL TABLE {name})"
        return self.conn.execute(db.statement(both)).fetchall()


@pytest.fixture
def world(database18: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(RefreshLoop, "_session", lambda self: spark)
    with db.open_session(database18) as conn, connect(database18, spark=spark) as trickle:
        rounds = RefreshLoop(database18)
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
        conn.execute("INSERT INTO t SELECT g, g FROM generate_series(1, 20) g")
        yield World(conn, trickle, rounds)
        rounds.close()


def test_what_is_left_does_not_hold_up_the_others(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        world.trickle.create_stream_table(name, "SELECT id FROM t", schedule="1s")
    world.round()
    world.conn.execute("INSERT INTO t VALUES (100, 1)")
    with monkeypatch.context() as patch:
        patch.setattr(module, "LONGEST_TICK_S", -1.0)
        assert world.round(), "nothing is begun in a tick that is too old"
    world.trickle.alter_stream_table("a", status="SUSPENDED")
    before = world.stamps()
    world.round()
    assert world.stamps()["a"] == before["a"]
    assert world.differing("b", "SELECT id FROM t") == []
    after = world.stamps()
    world.round()
    assert world.stamps()["b"] != after["b"]


def test_a_group_of_which_all_must_be_defined_anew_is_done_in_one_tick(world: World) -> None:
    """Though its policy is to wait for the slowest, which would not be due again."""
    queries = {
        "p": "SELECT id FROM t WHERE v > 0",
        "q": "SELECT id FROM t WHERE v > 3",
        "pq": "SELECT p.id FROM p JOIN q ON p.id = q.id",
        "other": "SELECT count(*) AS n FROM t",
    }
    for name, query in queries.items():
        world.trickle.create_stream_table(name, query, schedule="1h" if name == "q" else "1s")
    world.trickle.alter_stream_table("pq", diamond_schedule_policy="slowest")
    world.conn.execute("UPDATE pgtrickle.pgt_stream_tables SET data_timestamp = data_timestamp - interval '3 hours'")
    world.conn.execute("ALTER TABLE t ALTER COLUMN v TYPE bigint")
    assert not world.round()
    for name in ("p", "q", "pq"):
        assert world.trickle.history(name, 1)[0].action in {"REINITIALIZE", "NO_DATA"}, name
        assert world.differing(name, queries[name]) == []
    world.conn.execute("INSERT INTO t VALUES (200, 200)")
    world.round()
    assert world.differing("other", queries["other"]) == []
    pq = "SELECT p.id FROM p JOIN q ON p.id = q.id"
    assert world.differing("pq", pq) == []
    versions = world.conn.execute(
        "SELECT count(DISTINCT data_timestamp) FROM pgtrickle.pgt_stream_tables WHERE pgt_name <> 'other'"
    )
    assert versions.fetchone() == (1,)
