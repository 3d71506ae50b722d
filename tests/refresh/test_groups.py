"""Groups: stream tables committed together, of one version of all they read, or left as they were, and why."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import pytest
from pyspark.sql import SparkSession

from pgtrickle import failpoints
from pgtrickle.capture import handover
from pgtrickle.capture.eligibility import Eligibility
from pgtrickle.capture.modes import CaptureMode
from pgtrickle.config import Settings
from pgtrickle.db import statement
from pgtrickle.errors import StateError
from pgtrickle.refresh import plan
from pgtrickle.refresh.group.group_refresh import GroupMember
from pgtrickle.refresh.refresher import Refresher
from pgtrickle.refresh.units import refresh_group
from tests.refresh.oracle import differing
from tests.refresh.stacked import World, alone, orders, refresh_together, tick
from tests.refresh.test_ticks import MEANWHILE, WINDOWS, operators
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


def test_a_group_that_would_read_a_stream_table_from_the_wal_is_computed_in_full(world: World, mover: Moving) -> None:
    """What is not committed is not decoded."""
    kept = counted(world)
    mover.to(kept, CaptureMode.WAL)
    alone(world.refresher, world.ids["counts"])
    world.run("INSERT INTO orders VALUES (1000, 1, 1), (1001, 2, 1)")
    with tick(world.dsn) as at:
        results = refresh_together(world.refresher, [world.ids["kept"], world.ids["counts"]], at)
        assert world.is_at(at)
        assert [world.differing(name, at) for name in ("kept", "counts")] == [[], []]
    assert results[world.ids["kept"]].action == "DIFFERENTIAL"
    assert results[world.ids["counts"]].action == "FULL"
    assert "not captured by triggers alone" in results[world.ids["counts"]].reason
    world.run("INSERT INTO orders VALUES (1002, 2, 1)")
    world.trickle.refresh_stream_table("kept")
    world.trickle.refresh_stream_table("counts")
    assert all(found.equal for found in world.trickle.verify())
    mover.to(kept, CaptureMode.TRIGGER)


def test_no_tick_overlooks_a_stream_table_that_went_to_the_wal_amid_it(world: World, mover: Moving) -> None:
    kept = counted(world)
    mover.step(kept)
    world.run("INSERT INTO orders VALUES (1000, 1, 1), (1001, 2, 1)")
    with tick(world.dsn) as at:
        mover.to(kept, CaptureMode.WAL)
        assert alone(world.refresher, world.ids["kept"], tick=at).action == "DIFFERENTIAL"
        assert alone(world.refresher, world.ids["counts"], tick=at).action == "DIFFERENTIAL"
    assert all(found.equal for found in world.trickle.verify())
    mover.to(kept, CaptureMode.TRIGGER)


def test_all_members_see_one_version_of_a_stream_table_outside(world: World, spark: SparkSession) -> None:
    world.create("kept", "SELECT id, region FROM orders WHERE amount > 0")
    world.create("one", "SELECT count(*) AS n FROM kept")
    world.create("other", "SELECT count(*) AS n FROM kept")
    members = [world.ids["one"], world.ids["other"]]
    world.run("INSERT INTO orders VALUES (999, 1, 1)")
    with tick(world.dsn) as at:
        alone(world.refresher, world.ids["kept"], tick=at)
        with refreshed_amid(world, spark, "kept"):
            refresh_together(world.refresher, members, at)
    assert world.conn.execute("SELECT one.n, other.n FROM one, other").fetchall() == [(61, 61)]
    with tick(world.dsn) as at:
        refresh_together(world.refresher, members, at)
    assert all(found.equal for found in world.trickle.verify())


def test_a_full_member_reads_base_tables_of_the_tick_and_what_the_group_has_not_committed(world: World) -> None:
    """No one place has both."""
    world.create("counts", "SELECT count(*) AS n FROM orders")
    query = "SELECT c.n AS counted, (SELECT count(*) FROM orders) AS direct FROM counts c"
    world.create("compared", query, mode="FULL")
    world.run("INSERT INTO orders VALUES (999, 1, 1)")
    with tick(world.dsn) as at:
        world.run("INSERT INTO orders VALUES (1000, 1, 1)")
        refresh_together(world.refresher, [world.ids["counts"], world.ids["compared"]], at)
        assert world.is_at(at)
    assert world.conn.execute("SELECT n, counted, direct FROM counts, compared").fetchall() == [(61, 61, 61)]
    assert "RUNNING" not in {each.status for name in ("counts", "compared") for each in world.trickle.history(name)}


def test_a_full_member_reads_no_later_version_than_the_others(world: World, spark: SparkSession) -> None:
    world.create("kept", "SELECT id, region FROM orders WHERE amount > 0")
    world.create("counts", "SELECT count(*) AS n FROM kept")
    world.create("ranks", "SELECT id, rank() OVER (ORDER BY id) AS place FROM kept ", mode="FULL")
    members = [world.ids["counts"], world.ids["ranks"]]
    world.run("INSERT INTO orders VALUES (999, 1, 1)")
    with tick(world.dsn) as at:
        alone(world.refresher, world.ids["kept"], tick=at)
        with refreshed_amid(world, spark, "kept"):
            refresh_together(world.refresher, members, at)
    reasons = [each.reason or "" for each in world.trickle.history("ranks", 2)]
    assert "refreshed meanwhile" in reasons[1], "and then again, with what is there"
    assert world.conn.execute("SELECT n, (SELECT count(*) FROM ranks) FROM counts").fetchall() == [(62, 62)]
    assert all(found.equal for found in world.trickle.verify())


@pytest.mark.parametrize("fails", [False, True], ids=["committed", "failed"])
def test_a_large_group_leaves_no_staging_tables(world: World, monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    """Its writer has them locked until the end: whoever drops one sooner waits for ever."""
    monkeypatch.setattr(plan, "SMALL_CHANGES", -1)
    world.create("totals", "SELECT region, sum(amount) AS total FROM orders GROUP BY region")
    world.create("inverse", "SELECT region, 100 / (total - 1) AS part FROM totals")
    world.refresher.connections().aside.execute("SET lock_timeout = '20s'")
    world.run(f"INSERT INTO orders VALUES (999, 9, {1 if fails else 2})")
    with tick(world.dsn) as at, pytest.raises(StateError) if fails else nullcontext():
        refresh_together(world.refresher, [world.ids["totals"], world.ids["inverse"]], at)
    assert world.conn.execute("SELECT relname FROM pg_class WHERE relname LIKE 'stage\\_%'").fetchall() == []
    assert world.trickle.history("totals", 1)[0].status == ("SKIPPED" if fails else "COMPLETED")


def test_auto_that_must_be_computed_in_full_is_so_within_its_group(world: World) -> None:
    """A delta meets a pair of rows that the present does not have; that is no failure of the group's."""
    world.run("CREATE TABLE a (k int, x int)", "INSERT INTO a VALUES (1, 5)")
    world.run("CREATE TABLE b (k int, y int)", "INSERT INTO b VALUES (1, 0)")
    world.create("copied", "SELECT k, x FROM a", mode="AUTO")
    world.create("divided", "SELECT a.k, 100 / (a.x - b.y) AS z FROM a JOIN b ON a.k = b.k", mode="AUTO")
    world.run("UPDATE a SET x = 1", "UPDATE b SET y = 5")
    steady = Refresher(world.dsn, Settings(differential_max_change_ratio=100), world.refresher.session)
    with tick(world.dsn) as at:
        results = refresh_together(steady, [world.ids["copied"], world.ids["divided"]], at)
        assert [world.differing(name, at) for name in ("copied", "divided")] == [[], []]
    steady.close()
    assert results[world.ids["copied"]].action == "DIFFERENTIAL"
    assert results[world.ids["divided"]].action == "FULL"
    assert "division by zero" in results[world.ids["divided"]].reason
    for name in ("copied", "divided"):
        assert world.trickle.status(name)[0].consecutive_errors == 0
    assert [each.status for each in world.trickle.history("divided", 2)] == ["COMPLETED", "SKIPPED"]


@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
def test_every_operator_in_full_within_a_group(world: World, monkeypatch: pytest.MonkeyPatch, large: bool) -> None:
    """Base tables are of the tick, though writers go on, and stream tables as the group has them; the state that is
    built serves the differential refresh that follows."""
    if large:
        monkeypatch.setattr(plan, "SMALL_CHANGES", -1)
    names = operators(world)
    for number, window in enumerate(WINDOWS[:3]):
        world.run(*window)
        with tick(world.dsn) as at:
            world.run(*MEANWHILE)
            why = "to see it" if number != 1 else None
            results = refresh_group(
                world.refresher, {world.ids[name]: GroupMember("SCHEDULER", why) for name in names}, at
            )
            assert world.is_at(at)
            assert {name: world.differing(name, at) for name in names} == {name: [] for name in names}
        assert {result.action for result in results.values()} == {"FULL"} if why else {"DIFFERENTIAL", "NO_DATA"}


WHOLE = {
    "directly": "SELECT k.id, rank() OVER (ORDER BY o.amount, o.id) AS place FROM kept k JOIN orders o ON o.id = k.id",
    "through_views": "SELECT id, amount, n, rank() OVER (ORDER BY amount, id) AS place FROM above",
    "whole_rows": "SELECT k.id, to_jsonb(k) AS row, row_number() OVER (ORDER BY o.id) AS n"
    " FROM kept k JOIN orders o USING (id)",
    "with": "WITH RECURSIVE up(id) AS (SELECT min(id) FROM kept UNION ALL SELECT k.id FROM up JOIN kept k"
    " ON k.id = up.id + 1) SELECT up.id, o.amount FROM up JOIN orders o ON o.id = up.id",
    "through_views_elsewhere": "SELECT o.id, b.n, rank() OVER (ORDER BY o.amount, o.id) AS place"
    " FROM orders o JOIN elsewhere.apart b ON b.region = o.region",
    "twice": "SELECT k.id, l.id AS other, ntile(3) OVER (ORDER BY k.id, o.id) AS part"
    " FROM kept k JOIN kept l ON l.id = k.id + 1 JOIN orders o ON o.id = k.id",
}
BELOW = "SELECT region, count(*) AS n FROM kept GROUP BY region"
ABOVE = "SELECT o.id, o.amount, b.n FROM orders o JOIN below b ON b.region = o.region"
"""Queries that only PostgreSQL evaluates, over a stream table and a base table."""


@pytest.mark.parametrize("what", WHOLE)
def test_a_whole_query_reads_copies_in_the_place_of_stream_tables(world: World, what: str) -> None:
    world.create("kept", "SELECT id, region FROM orders WHERE amount > 3")
    world.run(f"CREATE VIEW below AS {BELOW}", f"CREATE VIEW above AS {ABOVE}")
    world.run("CREATE SCHEMA elsewhere", f"CREATE VIEW elsewhere.apart AS {BELOW}")
    world.trickle.create_stream_table("whole", WHOLE[what], refresh_mode="FULL")
    pgt_id = world.trickle.status("whole")[0].pgt_id
    for number in range(2):
        world.run(
            f"UPDATE orders SET amount = amount - 3 WHERE id > {number}", f"DELETE FROM orders WHERE id = {9 + number}"
        )
        expected = world.conn.execute(
            statement(
                f"WITH kept AS (SELECT id, region FROM orders WHERE amount > 3), below AS ({BELOW}),"
                f" above AS ({ABOVE}), apart AS ({BELOW}), whole AS ({WHOLE[what].replace('elsewhere.', '')})"
                " SELECT w::text FROM whole w ORDER BY 1"
            )
        ).fetchall()
        with tick(world.dsn) as at:
            world.run(
                "UPDATE orders SET amount = amount + 10, region = 0 WHERE id % 2 = 0",
                "DELETE FROM orders WHERE id = 12",
            )
            results = refresh_together(world.refresher, [world.ids["kept"], pgt_id], at)
        assert [each.action for each in results.values()] == ["DIFFERENTIAL", "FULL"]
        assert world.conn.execute("SELECT w::text FROM whole w ORDER BY 1").fetchall() == expected
    world.trickle.drop_stream_table("whole")
    world.run("DROP VIEW above", "DROP VIEW below", "DROP SCHEMA elsewhere CASCADE")


@pytest.mark.parametrize("mode", ["FULL", "DIFFERENTIAL"])
def test_a_copy_has_the_rows_of_heirs_apart(world: World, mode: str) -> None:
    """A query that reads ONLY a stream table of its group, and the same with what inherits from it."""
    world.create("kept", "SELECT id, region FROM orders WHERE amount > 3")
    world.run("CREATE TABLE heir () INHERITS (kept)", "INSERT INTO heir VALUES (5, 100), (6, NULL), (6, NULL)")
    query = (
        "SELECT o.id, k.region, (SELECT count(*) FROM kept a WHERE a.id = o.id) AS n"
        " FROM orders o LEFT JOIN ONLY kept k ON k.id = o.id"
    )
    world.trickle.create_stream_table("told", query, refresh_mode=mode)
    told = world.trickle.status("told")[0].pgt_id
    world.run("UPDATE orders SET amount = amount - 3 WHERE id > 3", "UPDATE heir SET id = 7 WHERE id = 5")
    with tick(world.dsn) as at:
        members = {each: GroupMember("SCHEDULER", "to see it") for each in (world.ids["kept"], told)}
        results = refresh_group(world.refresher, members, at)
    assert {each.action for each in results.values()} == {"FULL"}
    assert differing(world.conn, "told", query) == []
    world.trickle.drop_stream_table("told")
    world.run("DROP TABLE heir")


def test_a_whole_query_that_copies_cannot_stand_in_for_is_left_with_its_group(world: World) -> None:
    """PostgreSQL prints a table's name in full beside a WITH of the same name: then no copy shadows it."""
    world.create("kept", "SELECT id, region FROM orders WHERE amount > 3")
    query = (
        "WITH kept AS (SELECT o.id FROM orders o JOIN public.kept k ON k.id = o.id)"
        " SELECT id, rank() OVER (ORDER BY id) AS n FROM kept"
    )
    with pytest.raises(StateError, match="cannot be filled together with the atomic group") as refused:
        world.trickle.create_stream_table("whole", query, refresh_mode="FULL")
    assert refused.value.code == "PT347"
    world.trickle.create_stream_table("whole", query, refresh_mode="FULL", diamond_consistency="none")
    pgt_id = world.trickle.status("whole")[0].pgt_id
    world.run("INSERT INTO orders VALUES (999, 1, 9)")
    with tick(world.dsn) as at:
        results = refresh_together(world.refresher, [world.ids["kept"], pgt_id], at)
    assert {each.action for each in results.values()} == {"SKIP"}
    assert "public.whole cannot be computed in full with its group" in results[pgt_id].reason
    assert world.conn.execute("SELECT FROM kept WHERE id = 999").fetchall() == []
    world.trickle.drop_stream_table("whole")


BEYOND_COPIES = {
    "function": ("region_of(o.id)", r"the function public.region_of\(\) may read tables by itself"),
    "text": ("query_to_xml('TABLE kept', true, true, '')::text", "may read tables by itself"),
    "regclass": ("'kept'::regclass::oid::bigint", "it asks for the oid of a table that it reads"),
    "tableoid": ("k.tableoid::bigint", "a system column has another value in a copy"),
}
"""What would be of the table itself beside its copy, or of the copy."""


@pytest.mark.parametrize("what", BEYOND_COPIES)
def test_what_would_not_be_of_the_copy_is_refused(world: World, what: str) -> None:
    expression, reason = BEYOND_COPIES[what]
    world.create("kept", "SELECT id, region FROM orders WHERE amount > 3")
    world.run(
        "CREATE FUNCTION region_of(int) RETURNS int LANGUAGE sql STABLE"
        " AS $$ SELECT region::int FROM public.kept WHERE id = $1 $$"
    )
    query = f"SELECT o.id, {expression} AS found FROM orders o JOIN kept k ON k.id = o.id"
    with pytest.raises(StateError, match=reason):
        world.trickle.create_stream_table("whole", query, refresh_mode="FULL")
    world.run("DROP FUNCTION region_of")


def test_a_group_that_waits_for_the_decoder_in_vain_says_so_of_each(world: World, mover: Moving) -> None:
    world.create("names", "SELECT id, name FROM regions")
    world.create("amounts", "SELECT id, amount FROM orders")
    world.run("ALTER TABLE orders REPLICA IDENTITY FULL")
    source = table_of(world.conn, "orders").oid
    mover.to(source, CaptureMode.WAL)
    mover.stop()
    world.run("UPDATE regions SET name = name || '!'", "UPDATE orders SET amount = amount + 1")
    hasty = Refresher(world.dsn, Settings(decoder_wait_timeout=1), world.refresher.session)
    with tick(world.dsn) as at:
        results = refresh_together(hasty, [world.ids["names"], world.ids["amounts"]], at)
    hasty.close()
    assert {result.action for result in results.values()} == {"SKIP"}
    for name in ("names", "amounts"):
        last, before = world.trickle.history(name, 2)
        assert (last.status, last.reason) == ("SKIPPED", results[world.ids[name]].reason)
        assert "decoder" in str(last.reason)
        assert before.initiated_by == "INITIAL"
    handover.back_lossy(world.conn, source, "the test ends")


@contextmanager
def refreshed_amid(world: World, spark: SparkSession, name: str) -> Iterator[None]:
    """Another session writes an order and refreshes that table, once the first member of a group is done."""
    done = False

    def reach(place: str) -> None:
        nonlocal done
        if place == "after-commit" and not done:
            done = True
            world.run("INSERT INTO orders VALUES (1000, 1, 1)")
            other = Refresher(world.dsn, Settings(), lambda: spark)
            assert alone(other, world.ids[name]).action == "DIFFERENTIAL"
            other.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(failpoints, "reach", reach)
        yield
    assert done
