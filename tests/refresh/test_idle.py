"""Tables with nothing to do, found and settled many at a time: what their own refreshes would have found."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from pgtrickle import db
from pgtrickle.api import Trickle
from pgtrickle.catalog import reader as catalog
from pgtrickle.catalog.reader import StreamTable
from pgtrickle.config import Settings
from pgtrickle.db import statement
from pgtrickle.refresh import idle, tick
from pgtrickle.refresh.lock import refresh_locks
from pgtrickle.refresh.prepared import Prepared
from pgtrickle.refresh.refresher import Refresher


class World:
    """Three tables over two sources and a function; `other` reads the second source."""

    def __init__(self, dsn: str, spark: SparkSession) -> None:
        self.conn = db.open_session(dsn)
        self.trickle = Trickle(dsn, spark=spark)
        self.refresher = Refresher(dsn, Settings(), lambda: spark)
        self.ticking, self.looking = tick.connect(dsn), tick.connect(dsn)
        self.definitions = idle.Definitions()
        self.run(
            "CREATE TABLE t (id int PRIMARY KEY, v int)",
            "CREATE TABLE u (id int PRIMARY KEY)",
            "CREATE FUNCTION twice(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 2 * $1'",
            "INSERT INTO t VALUES (1, 1)",
        )
        queries = {
            "first": "SELECT id, twice(v) AS v FROM t",
            "second": "SELECT v FROM first WHERE v > 0",
            "other": "SELECT id FROM u",
        }
        for name, query in queries.items():
            self.trickle.create_stream_table(name, query, refresh_mode="DIFFERENTIAL")

    def close(self) -> None:
        self.refresher.close()
        self.trickle.close()
        for each in (self.conn, self.ticking, self.looking):
            each.close()

    def run(self, *statements: str) -> None:
        for each in statements:
            self.conn.execute(statement(each))

    def streams(self) -> dict[str, StreamTable]:
        return {each.pgt_name: each for each in catalog.list_tables(self.conn)}

    def look(self) -> tuple[set[str], set[str]]:
        """The tables that are defined as they were, and those of which no source has changes; the idle are settled."""
        streams = self.streams()
        compiled: dict[StreamTable, Prepared] = {each: self.refresher.prepared(each) for each in streams.values()}
        with tick.held(self.ticking) as at:
            with tick.seen(self.looking, at):
                unchanged = self.definitions.unchanged(self.looking, compiled)
                quiet = idle.without_changes(self.looking, self.conn, at, compiled)
            resting = [stream for stream in streams.values() if stream.pgt_id in unchanged & quiet]
            self.settled = idle.settle(self.conn, at, resting, time.monotonic())
        names = {stream.pgt_id: name for name, stream in streams.items()}
        return {names[each] for each in unchanged}, {names[each] for each in quiet}


@pytest.fixture
def world(database: str, spark: SparkSession) -> Iterator[World]:
    made = World(database, spark)
    try:
        yield made
    finally:
        made.close()


ALL = {"first", "second", "other"}


def test_nothing_changed(world: World) -> None:
    before = world.streams()
    for _ in range(2):
        assert world.look() == (ALL, ALL)
        assert len(world.settled) == 3
    after = world.streams()
    assert len({stream.frontier for stream in after.values()} | {None}) == 2, "all are of one snapshot"
    for name, stream in after.items():
        moved = stream.data_timestamp, before[name].data_timestamp
        assert moved[0] is not None
        assert moved[1] is not None
        assert moved[0] > moved[1]
        said, first = world.trickle.history(name)
        assert (said.action, said.data_timestamp, first.initiated_by) == ("NO_DATA", moved[0], "INITIAL")
    assert world.trickle.refresh_stream_table("other").action == "NO_DATA"
    assert world.look() == (ALL, ALL)
    told = [each.initiated_by for each in world.trickle.history("other")]
    assert told == ["SCHEDULER", "MANUAL", "SCHEDULER", "INITIAL"], "only the last one is moved on"
    assert all(found.equal for found in world.trickle.verify())


def test_the_clock_moves_by_itself(world: World) -> None:
    for name, condition in (("sliding", "now() > '2020-01-01'"), ("daily", "CURRENT_DATE > '2020-01-01'")):
        world.trickle.create_stream_table(name, f"SELECT id FROM t WHERE {condition} AND id > extract(year FROM now())")
        world.trickle.create_stream_table(f"{name}_shown", f"SELECT id, {condition.split()[0]} AS at FROM t")
    still = ALL | {"sliding", "daily", "daily_shown"}
    assert world.look() == (still | {"sliding_shown"}, still)
    assert all(found.equal for found in world.trickle.verify())


def test_changes_are_seen_where_they_are(world: World) -> None:
    world.run("INSERT INTO t VALUES (2, 2)")
    assert world.look() == (ALL, {"second", "other"})
    world.trickle.refresh_stream_table("first")
    assert world.look() == (ALL, {"first", "other"})
    world.trickle.refresh_stream_table("second")
    assert world.look() == (ALL, ALL)
    assert all(found.equal for found in world.trickle.verify())


def test_a_function_of_a_query_is_another(world: World) -> None:
    assert world.look() == (ALL, ALL)
    world.run("CREATE OR REPLACE FUNCTION twice(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1 + $1 + 1'")
    assert world.look() == ({"second", "other"}, ALL)
    assert world.look() == ({"second", "other"}, ALL), "as long as it is so"
    assert world.trickle.refresh_stream_table("first").action == "REINITIALIZE"
    world.trickle.refresh_stream_table("second")
    assert world.look() == (ALL, ALL)


def test_a_source_that_is_not_captured_is_not_quiet(world: World) -> None:
    world.run("ALTER TABLE u DISABLE TRIGGER ALL")
    assert world.look() == (ALL, {"first", "second"})
    world.run("ALTER TABLE u ENABLE TRIGGER ALL")
    assert world.look() == (ALL, {"first", "second"}), "it was not, for a time"
    world.trickle.refresh_stream_table("other")
    assert world.look() == (ALL, ALL)


def test_one_that_is_being_refreshed_is_left_alone(world: World) -> None:
    busy = world.streams()["other"]
    with db.open_session(world.trickle.dsn) as another, refresh_locks(another, [busy.pgt_id]) as locked:
        assert locked
        assert world.look() == (ALL, ALL)
        assert len(world.settled) == 2
    assert world.streams()["other"] == busy


def test_one_that_was_refreshed_meanwhile_is_left_alone(world: World) -> None:
    """A frontier never goes back."""
    streams = world.streams()
    with tick.held(world.ticking) as at:
        world.run("INSERT INTO u VALUES (7)")
        world.trickle.refresh_stream_table("other")
        settled = idle.settle(world.conn, at, list(streams.values()), time.monotonic())
        compiled = {each: world.refresher.prepared(each) for each in world.streams().values()}
        with tick.seen(world.looking, at):
            quiet = idle.without_changes(world.looking, world.conn, at, compiled)
    assert settled == {streams["first"].pgt_id, streams["second"].pgt_id}
    assert streams["other"].pgt_id not in quiet
    assert all(found.equal for found in world.trickle.verify())
