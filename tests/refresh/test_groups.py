"""Groups: stream tables committed together, of one version of all they read, or left as they were, and why."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from pgtrickle import failpoints
from pgtrickle.capture import handover
from pgtrickle.capture.eligibility import Eligibility
from pgtrickle.capture.modes import Mode
from pgtrickle.config import Settings
from pgtrickle.refresh.run import NotInTick, Refresher
from pgtrickle.refresh.tick import tick
from tests.refresh.stacked import World, orders
from tests.wal.moving import Moving, moving
from tests.wal.world import table_of


@pytest.fixture
def world(database18: str, spark: SparkSession) -> Iterator[World]:
    with orders(database18, spark) as made:
        yield made


@pytest.fixture
def mover(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Moving]:
    """Moves stream tables to the WAL as well, as was done once."""
    monkeypatch.setattr(handover, "_eligibility", lambda *_, **__: Eligibility(True))
    with moving(world.dsn) as made:
        yield made


def counted(world: World) -> int:
    """`kept`, and `counts` over it; the oid of the first."""
    world.create("kept", "SELECT id, region FROM orders WHERE amount > 0")
    world.create("counts", "SELECT region, count(*) AS n FROM kept GROUP BY region")
    world.run("ALTER TABLE kept REPLICA IDENTITY FULL")
    return table_of(world.conn, "kept").oid


def test_no_group_reads_a_stream_table_from_the_wal(world: World, mover: Moving) -> None:
    """What is not committed is not decoded."""
    kept = counted(world)
    mover.to(kept, Mode.WAL)
    world.refresher.refresh(world.ids["counts"])
    world.run("INSERT INTO orders VALUES (1000, 1, 1), (1001, 2, 1)")
    with tick(world.dsn) as at, pytest.raises(NotInTick, match="not captured by triggers alone"):
        world.refresher.refresh_together([world.ids["kept"], world.ids["counts"]], at)
    world.trickle.refresh_stream_table("kept")
    world.trickle.refresh_stream_table("counts")
    assert all(found.equal for found in world.trickle.verify())
    mover.to(kept, Mode.TRIGGER)


def test_no_tick_overlooks_a_stream_table_that_went_to_the_wal_amid_it(world: World, mover: Moving) -> None:
    kept = counted(world)
    mover.step(kept)
    world.run("INSERT INTO orders VALUES (1000, 1, 1), (1001, 2, 1)")
    with tick(world.dsn) as at:
        mover.to(kept, Mode.WAL)
        assert world.refresher.refresh(world.ids["kept"], tick=at).action == "DIFFERENTIAL"
        assert world.refresher.refresh(world.ids["counts"], tick=at).action == "DIFFERENTIAL"
    assert all(found.equal for found in world.trickle.verify())
    mover.to(kept, Mode.TRIGGER)


def test_all_members_see_one_version_of_a_stream_table_outside(
    world: World, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.create("kept", "SELECT id, region FROM orders WHERE amount > 0")
    world.create("one", "SELECT count(*) AS n FROM kept")
    world.create("other", "SELECT count(*) AS n FROM kept")
    members = [world.ids["one"], world.ids["other"]]
    world.run("INSERT INTO orders VALUES (999, 1, 1)")
    with tick(world.dsn) as at, monkeypatch.context() as patch:
        world.refresher.refresh(world.ids["kept"], tick=at)
        refresh_amid(world, spark, patch, "kept", "INSERT INTO orders VALUES (1000, 1, 1)")
        world.refresher.refresh_together(members, at)
    assert world.conn.execute("SELECT one.n, other.n FROM one, other").fetchall() == [(61, 61)]
    with tick(world.dsn) as at:
        world.refresher.refresh_together(members, at)
    assert all(found.equal for found in world.trickle.verify())


def refresh_amid(world: World, spark: SparkSession, patch: pytest.MonkeyPatch, name: str, change: str) -> None:
    """Another session changes a source and refreshes that table, once the first member of a group is done."""
    done = False

    def reach(place: str) -> None:
        nonlocal done
        if place == "after-commit" and not done:
            done = True
            world.run(change)
            other = Refresher(world.dsn, Settings(), lambda: spark)
            assert other.refresh(world.ids[name]).action in ("DIFFERENTIAL", "FULL")
            other.close()

    patch.setattr(failpoints, "reach", reach)
