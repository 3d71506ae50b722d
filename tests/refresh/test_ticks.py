"""Ticks: several stream tables brought to one snapshot, whatever is written meanwhile, each alone or all at once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession

from pgtrickle import db, embedded
from pgtrickle.api import Trickle
from pgtrickle.config import Settings
from pgtrickle.db import statement
from pgtrickle.errors import StateError
from pgtrickle.refresh.run import Refresher
from pgtrickle.refresh.tick import Tick, tick
from tests.conftest import fresh_database
from tests.refresh.random_queries import TableDefinition, queries, schemas, statements

EXAMPLES = int(os.environ.get("PGTRICKLE_RANDOM_EXAMPLES", "12"))


class World:
    """Stream tables over stream tables, and a view of each one's query over views of those it reads: what PostgreSQL
    answers for it at a snapshot, from the base tables alone."""

    def __init__(self, dsn: str, spark: SparkSession) -> None:
        self.dsn = dsn
        self.conn = db.connect(dsn)
        self.trickle = Trickle(dsn, spark=spark)
        self.refresher = Refresher(dsn, Settings(), lambda: spark)
        self.ids: dict[str, int] = {}

    def close(self) -> None:
        for name in reversed(self.ids):
            self.trickle.drop_stream_table(name)
        self.refresher.close()
        self.trickle.close()
        self.conn.close()

    def run(self, *statements: str) -> None:
        for each in statements:
            self.conn.execute(statement(each))

    def create(self, name: str, query: str, mode: str = "DIFFERENTIAL") -> None:
        self.trickle.create_stream_table(name, query, refresh_mode=mode)
        as_view = query
        for known in self.ids:
            as_view = as_view.replace(f" {known} ", f" v_{known} ")
        self.run(f"CREATE VIEW v_{name} AS {as_view}")
        self.ids[name] = self.trickle.status(name)[0].pgt_id

    def differing(self, name: str, at: Tick) -> list[tuple[object, ...]]:
        """Rows of the table, as it is now, and of its query at the tick's snapshot, that the other does not have."""
        with db.connect(self.dsn) as then:
            then.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            with then.transaction():
                then.execute(statement(f"SET TRANSACTION SNAPSHOT '{at.exported}'"))
                expected = then.execute(statement(f"SELECT whole::text FROM v_{name} AS whole ORDER BY 1")).fetchall()
        actual = self.conn.execute(statement(f"SELECT whole::text FROM {name} AS whole ORDER BY 1")).fetchall()
        missing = list(expected)
        extra = []
        for row in actual:
            if row in missing:
                missing.remove(row)
            else:
                extra.append(row)
        return [("missing", *row) for row in missing] + [("extra", *row) for row in extra]


@pytest.fixture
def world(database18: str, spark: SparkSession) -> Iterator[World]:
    made = World(database18, spark)
    made.run(
        "CREATE TABLE orders (id int PRIMARY KEY, region int, amount numeric)",
        "CREATE TABLE regions (id int PRIMARY KEY, name text)",
        "INSERT INTO regions SELECT g, 'r' || g FROM generate_series(0, 3) g",
        "INSERT INTO orders SELECT g, g % 3, g FROM generate_series(1, 60) g",
    )
    try:
        yield made
    finally:
        made.close()


def diamond(world: World) -> list[str]:
    """Two ways from orders to `pairs`, which reads orders itself as well."""
    world.create("totals", "SELECT region, sum(amount) AS total, max(amount) AS most FROM orders GROUP BY region")
    world.create("counts", "SELECT region, count(*) AS n FROM orders GROUP BY region")
    world.create("pairs", "SELECT t.region, t.total, t.most, c.n FROM totals t JOIN counts c ON c.region = t.region")
    world.create("shares", "SELECT o.id, o.amount, t.total, t.most FROM orders o JOIN totals t ON t.region = o.region")
    world.create(
        "top",
        "SELECT region, max(amount) AS most, min(total) AS least FROM (SELECT o.region, o.amount, t.total "
        "FROM orders o JOIN totals t ON t.region = o.region) AS x GROUP BY region",
    )
    return ["totals", "counts", "pairs", "shares", "top"]


WINDOWS = (
    ["INSERT INTO orders VALUES (100, 1, 7), (101, 9, 8)", "UPDATE orders SET region = 2 WHERE id < 9"],
    ["DELETE FROM orders WHERE amount > 50", "UPDATE orders SET amount = amount + 1 WHERE region = 1"],
    ["DELETE FROM orders WHERE region = 2"],
    ["INSERT INTO orders SELECT g, 2, g FROM generate_series(200, 260) g", "UPDATE orders SET region = region + 1"],
)
MEANWHILE = [
    "UPDATE orders SET amount = amount * 2, region = 3 - region WHERE id % 2 = 0",
    "DELETE FROM orders WHERE id = 11",
]


@pytest.mark.parametrize("together", [False, True], ids=["alone", "together"])
def test_a_diamond_is_of_one_snapshot_though_writers_go_on(world: World, together: bool) -> None:
    names = diamond(world)
    for window in WINDOWS:
        world.run(*window)
        with tick(world.dsn) as at:
            world.run(*MEANWHILE)
            if together:
                results = world.refresher.refresh_together([world.ids[name] for name in names], at)
            else:
                results = {world.ids[n]: world.refresher.refresh(world.ids[n], tick=at) for n in names}
            assert {result.action for result in results.values()} == {"DIFFERENTIAL"}
            assert {name: world.differing(name, at) for name in names} == {name: [] for name in names}
        assert all(found.equal for found in world.trickle.verify(*names))


def test_a_table_refreshed_by_hand_in_between_is_followed(world: World) -> None:
    names = diamond(world)
    world.run(*WINDOWS[0])
    world.trickle.refresh_stream_table("totals")
    world.run(*WINDOWS[1])
    with tick(world.dsn) as at:
        for name in names:
            assert world.refresher.refresh(world.ids[name], tick=at).action == "DIFFERENTIAL"
        assert [world.differing(name, at) for name in names] == [[]] * len(names)
    world.run(*WINDOWS[2])
    with tick(world.dsn) as at:
        world.run(*MEANWHILE)
        world.trickle.refresh_stream_table("totals")
        for name in names:
            world.refresher.refresh(world.ids[name], tick=at)
    assert all(found.equal for found in world.trickle.verify(*names))


def test_a_failure_leaves_the_whole_group_as_it_was(world: World) -> None:
    names = diamond(world)
    world.create("inverse", "SELECT region, 100 / (n - 3) AS x FROM counts ")
    before = {
        name: world.conn.execute(statement(f"SELECT whole::text FROM {name} AS whole ORDER BY 1")).fetchall()
        for name in names
    }
    world.run("DELETE FROM orders WHERE id > 3 AND region = 1", "INSERT INTO orders VALUES (1000, 1, 1), (1001, 1, 1)")
    world.run("DELETE FROM orders WHERE region = 1 AND id < 1000 AND id <> 1")
    group = [*names, "inverse"]
    with tick(world.dsn) as at, pytest.raises(StateError, match="division by zero"):
        world.refresher.refresh_together([world.ids[name] for name in group], at)
    after = {
        name: world.conn.execute(statement(f"SELECT whole::text FROM {name} AS whole ORDER BY 1")).fetchall()
        for name in names
    }
    assert after == before
    assert world.trickle.history("totals", 1)[0].status == "SKIPPED"
    assert "division by zero" in str(world.trickle.history("totals", 1)[0].reason)
    assert world.trickle.history("inverse", 1)[0].status == "FAILED"
    world.run("INSERT INTO orders VALUES (1002, 1, 1)")
    with tick(world.dsn) as at:
        world.refresher.refresh_together([world.ids[name] for name in group], at)
        assert [world.differing(name, at) for name in group] == [[]] * len(group)


def test_nothing_to_do_below_a_table_that_did_not_change(world: World) -> None:
    diamond(world)
    world.run("UPDATE regions SET name = name || '!'")
    with tick(world.dsn) as at:
        assert world.refresher.refresh(world.ids["totals"], tick=at).action == "NO_DATA"
        assert world.refresher.refresh(world.ids["pairs"], tick=at).action == "NO_DATA"


def test_a_full_table_in_a_group_sees_what_the_group_has_not_committed(world: World) -> None:
    world.create("totals", "SELECT region, sum(amount) AS total FROM orders GROUP BY region")
    world.create("ranks", "SELECT region, rank() OVER (ORDER BY total) AS place FROM totals ", mode="FULL")
    world.run("UPDATE orders SET amount = amount * 100 WHERE region = 1")
    with tick(world.dsn) as at:
        world.refresher.refresh_together([world.ids["totals"], world.ids["ranks"]], at)
        assert [world.differing(name, at) for name in ("totals", "ranks")] == [[], []]


Stack = tuple[list[TableDefinition], list[str], list[str], list[str], list[tuple[list[str], list[str]]], bool]


@st.composite
def stacks(draw: st.DrawFn) -> Stack:
    """Tables, stream tables with their columns over them, stream tables over all of these, and windows: what is
    written before a tick, and during it."""
    tables = draw(schemas())
    one, other = (draw(st.sampled_from(tables)).name for _ in range(2))
    forms = (
        f"SELECT i, g, n, s FROM {one} WHERE g IS NOT NULL",
        f"SELECT a.i, b.g, a.n, b.s FROM {one} a JOIN {other} b ON a.i = b.g",
        f"SELECT i, g, n, s FROM {one} UNION ALL SELECT g, i, n, s FROM {other}",
        f"SELECT i, count(*)::int AS g, sum(n) AS n, max(s) AS s FROM {one} GROUP BY i",
    )
    first = draw(st.lists(st.sampled_from(forms), min_size=1, max_size=2, unique=True))
    readable = [*tables, *(TableDefinition(f"m{place}", False, False) for place in range(len(first)))]
    second = draw(st.lists(queries(readable), min_size=1, max_size=2, unique=True))
    changes = st.lists(statements(tables), max_size=4)
    before = draw(st.lists(statements(tables), max_size=6))
    windows = draw(st.lists(st.tuples(changes, changes), min_size=1, max_size=3))
    return tables, before, first, second, windows, draw(st.booleans())


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(stack=stacks())
def test_stacks_are_of_one_snapshot(stack: Stack, playground: str, spark: SparkSession) -> None:
    tables, before, first, second, windows, together = stack
    schema = f"r_{uuid4().hex[:10]}"
    dsn = make_conninfo(playground, options=f"-csearch_path={schema}")
    with db.connect(dsn) as admin:
        admin.execute(statement(f"CREATE SCHEMA {schema}"))
        world = World(dsn, spark)
        try:
            world.run(*(table.ddl for table in tables), *before)
            for place, query in enumerate(first):
                world.create(f"m{place}", query)
            for place, query in enumerate(second):
                note(f"u{place}: {query}")
                world.create(f"u{place}", query)
            for written, meanwhile in windows:
                world.run(*written)
                with tick(dsn) as at:
                    world.run(*meanwhile)
                    if together:
                        world.refresher.refresh_together(list(world.ids.values()), at)
                    else:
                        for pgt_id in world.ids.values():
                            world.refresher.refresh(pgt_id, tick=at)
                    for name in world.ids:
                        assert world.differing(name, at) == []
        finally:
            world.close()
        admin.execute(statement(f"DROP SCHEMA {schema} CASCADE"))


@pytest.fixture(scope="module")
def playground(server18: embedded.Server) -> Iterator[str]:
    with fresh_database(server18) as dsn:
        yield dsn
