"""Ticks: several stream tables brought to one snapshot, whatever is written meanwhile, each alone or all at once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, event, given, note, settings
from hypothesis import strategies as st
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession

from pgtrickle import db, embedded, failpoints
from pgtrickle.catalog import reader as catalog
from pgtrickle.config import Settings
from pgtrickle.db import statement
from pgtrickle.errors import StateError
from pgtrickle.physical import lower_delta, table_facts
from pgtrickle.refresh import plan
from pgtrickle.refresh.definition import define
from pgtrickle.refresh.tick import Tick
from tests.conftest import fresh_database
from tests.refresh.random_queries import (
    NO_EXTREMES,
    OTHERS,
    TYPES,
    TableDefinition,
    queries,
    schemas,
    statements,
)
from tests.refresh.stacked import World, alone, orders, refresh_together, tick

EXAMPLES = int(os.environ.get("PGTRICKLE_RANDOM_EXAMPLES", "6"))


@pytest.fixture
def world(database18: str, spark: SparkSession) -> Iterator[World]:
    with orders(database18, spark) as made:
        yield made


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


OPERATORS = {
    "left_joined": "SELECT o.id, o.amount, t.total, t.most FROM orders o LEFT JOIN totals t ON t.region = o.region + 1",
    "joined_and_left_joined": "SELECT o.id, t.total, c.n FROM orders o JOIN totals t ON t.region = o.region "
    "LEFT JOIN counts c ON c.region = o.region AND c.n < t.most",
    "right_joined": "SELECT o.id, t.region, t.total FROM orders o RIGHT JOIN totals t ON t.region = o.region + 1",
    "full_joined": "SELECT t.region, c.region AS other, t.total, c.n FROM totals t "
    "FULL JOIN counts c ON c.region = t.most",
    "below_join": "SELECT r.name, x.id, x.total FROM regions r JOIN (SELECT o.id, o.region, t.total FROM orders o "
    "LEFT JOIN totals t ON t.region = o.region AND t.most > o.amount) AS x ON x.region = r.id",
    "to_aggregate": "SELECT r.name, x.n FROM regions r LEFT JOIN (SELECT t.region, count(*) AS n FROM totals t "
    "JOIN orders o ON o.region = t.region AND o.amount < t.most GROUP BY t.region) AS x ON x.region = r.id",
    "existing": "SELECT o.id FROM orders o WHERE EXISTS (SELECT FROM totals t WHERE t.region = o.region "
    "AND t.most > o.amount + 30)",
    "not_existing": "SELECT t.region, t.total FROM totals t WHERE NOT EXISTS (SELECT FROM orders o "
    "WHERE o.region = t.region AND o.amount * 9 > t.total)",
    "marked": "SELECT c.region, c.n, c.region IN (SELECT p.region FROM pairs p WHERE p.total > 500) AS much "
    "FROM counts c",
    "united": "SELECT region FROM totals UNION SELECT id FROM regions",
    "rest": "SELECT id AS region FROM regions EXCEPT ALL SELECT region FROM totals",
    "firsts": "SELECT DISTINCT ON (t.region) t.region, o.id, o.amount, t.total FROM orders o JOIN totals t "
    "ON t.region = o.region ORDER BY t.region, o.amount DESC, o.id",
    "best": "SELECT o.id, o.amount, t.total FROM orders o LEFT JOIN totals t ON t.region = o.region "
    "ORDER BY t.total DESC, o.amount, o.id LIMIT 5 OFFSET 1",
    "ranked": "SELECT o.id, o.amount, t.total, rank() OVER (PARTITION BY t.region ORDER BY o.amount) AS place, "
    "sum(o.amount) OVER (ORDER BY o.id) AS so_far FROM orders o JOIN totals t ON t.region = o.region",
    "beside_ranks": "SELECT t.region, t.total, x.id FROM totals t LEFT JOIN (SELECT o.id, o.region, row_number() "
    "OVER (PARTITION BY o.region ORDER BY o.amount DESC, o.id) AS n FROM orders o) AS x "
    "ON x.region = t.region AND x.n < 3",
    "above_average": "SELECT region, total FROM totals WHERE total >= (SELECT avg(total) FROM totals)",
    "compared": "SELECT o.id, (SELECT sum(t.total) FROM totals t WHERE t.region = o.region) AS above FROM orders o",
}
"""Stream tables over stream tables and tables, each of another operator."""


def operators(world: World) -> list[str]:
    names = diamond(world)
    for name, query in OPERATORS.items():
        world.create(name, query)
    return [*names, *OPERATORS]


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


@pytest.mark.parametrize(
    "together", [pytest.param(False, id="alone", marks=pytest.mark.long), pytest.param(True, id="together")]
)
def test_all_tables_are_of_one_snapshot_though_writers_go_on(world: World, together: bool) -> None:
    names = operators(world)
    for window in WINDOWS:
        world.run(*window)
        with tick(world.dsn) as at:
            world.run(*MEANWHILE)
            if together:
                results = refresh_together(world.refresher, [world.ids[name] for name in names], at)
            else:
                results = {world.ids[n]: alone(world.refresher, world.ids[n], tick=at) for n in names}
            assert {result.action for result in results.values()} <= {"DIFFERENTIAL", "NO_DATA"}
            assert world.is_at(at)
            assert {name: world.differing(name, at) for name in names} == {name: [] for name in names}
        assert all(found.equal for found in world.trickle.verify(*names))


def test_a_refresh_that_commits_after_the_tick_began_is_not_overlooked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its snapshot is older than the tick's, which does not see the state that it left."""
    world.create(
        "totals",
        "SELECT r.id, r.name, t.total FROM regions r JOIN (SELECT region, sum(amount) AS total "
        "FROM orders GROUP BY region) AS t ON t.region = r.id",
    )
    world.run("UPDATE orders SET amount = amount + 1")
    with ExitStack() as held:
        ticks: list[Tick] = []

        def reach(place: str) -> None:
            if place == "before-commit" and not ticks:
                world.run("UPDATE regions SET name = name || '!'")
                ticks.append(held.enter_context(tick(world.dsn)))

        monkeypatch.setattr(failpoints, "reach", reach)
        world.trickle.refresh_stream_table("totals")
        alone(world.refresher, world.ids["totals"], tick=ticks[0])
    assert all(found.equal for found in world.trickle.verify("totals"))


def test_a_table_altered_since_the_tick_began_is_left_to_itself(world: World) -> None:
    """Its buffer has got another column since: rows captured before have none of its values."""
    world.create("ids", "SELECT id FROM orders")
    world.create("altered", "SELECT id FROM regions")
    stream = catalog.by_id(world.conn, world.ids["altered"])
    assert stream is not None
    with tick(world.dsn) as at:
        world.run("INSERT INTO orders VALUES (700, 1, 77)", "UPDATE orders SET id = 701 WHERE id = 7")
        query = "SELECT id, amount FROM orders"
        define.redefine(world.conn, stream, settings=Settings(), reason="altered", query=query)
        alone(world.refresher, world.ids["altered"], tick=at)
    world.run("DELETE FROM orders WHERE id = 700")
    world.trickle.refresh_stream_table("altered")
    assert all(found.equal for found in world.trickle.verify("altered"))


def test_a_refresh_in_no_tick_has_nothing_to_divide(world: World) -> None:
    """Aggregates joined with tables, below projections, on both sides of a join."""
    grouped = "(SELECT region, sum(amount) AS total FROM orders GROUP BY region)"
    side = f"(SELECT g.region, g.total + r.id AS y FROM {grouped} AS g JOIN regions r ON r.id = g.region)"
    world.create("pairs", f"SELECT a.y, b.y AS z FROM {side} AS a JOIN {side} AS b ON a.region = b.region")
    world.run("INSERT INTO orders VALUES (999, 1, 1), (1000, 77, 5)", "INSERT INTO regions VALUES (77, 'x')")
    assert alone(world.refresher, world.ids["pairs"]).action == "DIFFERENTIAL"
    assert all(found.equal for found in world.trickle.verify("pairs"))


def test_a_table_refreshed_by_hand_in_between_is_followed(world: World) -> None:
    names = diamond(world)
    world.run(*WINDOWS[0])
    world.trickle.refresh_stream_table("totals")
    world.run(*WINDOWS[1])
    with tick(world.dsn) as at:
        for name in names:
            assert alone(world.refresher, world.ids[name], tick=at).action == "DIFFERENTIAL"
        assert [world.differing(name, at) for name in names] == [[]] * len(names)
    world.run(*WINDOWS[2])
    with tick(world.dsn) as at:
        world.run(*MEANWHILE)
        world.trickle.refresh_stream_table("totals")
        for name in names:
            alone(world.refresher, world.ids[name], tick=at)
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
        refresh_together(world.refresher, [world.ids[name] for name in group], at)
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
        refresh_together(world.refresher, [world.ids[name] for name in group], at)
        assert [world.differing(name, at) for name in group] == [[]] * len(group)


def test_nothing_to_do_below_a_table_that_did_not_change(world: World) -> None:
    diamond(world)
    world.run("UPDATE regions SET name = name || '!'")
    with tick(world.dsn) as at:
        assert alone(world.refresher, world.ids["totals"], tick=at).action == "NO_DATA"
        assert alone(world.refresher, world.ids["pairs"], tick=at).action == "NO_DATA"


def test_a_full_table_in_a_group_sees_what_the_group_has_not_committed(world: World) -> None:
    world.create("totals", "SELECT region, sum(amount) AS total FROM orders GROUP BY region")
    world.create("ranks", "SELECT region, rank() OVER (ORDER BY total) AS place FROM totals ", mode="FULL")
    world.run("UPDATE orders SET amount = amount * 100 WHERE region = 1")
    with tick(world.dsn) as at:
        refresh_together(world.refresher, [world.ids["totals"], world.ids["ranks"]], at)
        assert [world.differing(name, at) for name in ("totals", "ranks")] == [[], []]


@dataclass(frozen=True)
class Window:
    """What is written before a tick, which stream tables are refreshed by hand then, and what is written during it."""

    before: list[str]
    by_hand: list[str]
    during: list[str]


@dataclass(frozen=True)
class Stack:
    """Tables with rows, stream tables over them, and stream tables over all of these. `large`: nothing is small."""

    tables: list[TableDefinition]
    rows: list[str]
    streams: dict[str, str]
    windows: list[Window]
    together: bool
    large: bool


def _any_of(name: str, kind: str) -> str:
    """A value of a group's, or a constant, of the same type."""
    if kind == "truth":
        return f"bool_or({name})"
    return f"NULL::{TYPES.get(kind, kind)}" if kind in NO_EXTREMES else f"min({name})"


@st.composite
def stacks(draw: st.DrawFn) -> Stack:
    tables = draw(schemas())
    one, other = (draw(st.sampled_from(tables)).name for _ in range(2))
    rest, of_a = ", ".join(OTHERS), ", ".join(f"a.{name}" for name in OTHERS)
    kept = ", ".join(f"{_any_of(name, kind)} AS {name}" for name, kind in OTHERS.items())
    forms = (
        f"SELECT i, g, n, s, {rest} FROM {one} WHERE g IS NOT NULL",
        f"SELECT a.i, b.g, a.n, b.s, {of_a} FROM {one} a JOIN {other} b ON a.i = b.g",
        f"SELECT a.i, b.g, a.n, b.s, {of_a} FROM {one} a FULL JOIN {other} b ON a.i = b.g",
        f"SELECT i, g, n, s, {rest} FROM {one} a WHERE NOT EXISTS (SELECT FROM {other} b WHERE b.i = a.g)",
        f"SELECT i, g, n, s, {rest} FROM {one} UNION ALL SELECT g, i, n, s, {rest} FROM {other}",
        f"SELECT i, count(*)::int AS g, sum(n) AS n, max(s) AS s, {kept} FROM {one} GROUP BY i",
    )
    first = draw(st.lists(st.sampled_from(forms), min_size=1, max_size=2, unique=True))
    streams = {f"m{place}": query for place, query in enumerate(first)}
    readable = [*tables, *(TableDefinition(name, False, False) for name in streams)]
    second = draw(st.lists(queries(readable), min_size=1, max_size=3, unique=True))
    changes = st.lists(statements(tables), max_size=4)
    by_hand = st.lists(st.sampled_from(list(streams)), max_size=1)
    windows = draw(st.lists(st.builds(Window, changes, by_hand, changes), min_size=1, max_size=3))
    rows = draw(st.lists(statements(tables), max_size=6))
    streams |= {f"u{place}": query for place, query in enumerate(second)}
    return Stack(tables, rows, streams, windows, draw(st.booleans()), draw(st.integers(0, 4)) == 0)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(stack=stacks())
def test_stacks_are_of_one_snapshot(stack: Stack, playground: str, spark: SparkSession) -> None:
    schema = f"r_{uuid4().hex[:10]}"
    dsn = make_conninfo(playground, options=f"-csearch_path={schema}")
    with db.open_session(dsn) as admin, pytest.MonkeyPatch.context() as patch:
        admin.execute(statement(f"CREATE SCHEMA {schema}"))
        if stack.large:
            patch.setattr(plan, "SMALL_CHANGES", -1)
            patch.setattr(lower_delta, "LARGE_WINDOW", -1)
            patch.setattr(table_facts, "_LOOKUP_SECONDS", 1e9)
            patch.setattr(table_facts, "_SCAN_IN_SERVER_SECONDS", 1e9)
        world = World(dsn, spark)
        try:
            world.run(*(table.ddl for table in stack.tables), *stack.rows)
            for name, query in stack.streams.items():
                note(f"{name}: {query}")
                world.create(name, query)
            for window in stack.windows:
                _play(world, window, together=stack.together)
        finally:
            world.close()
        admin.execute(statement(f"DROP SCHEMA {schema} CASCADE"))


def _play(world: World, window: Window, *, together: bool) -> None:
    """Afterwards all tables are of the tick's snapshot; where one cannot be brought to it, each is of its own."""
    world.run(*window.before)
    for name in window.by_hand:
        world.trickle.refresh_stream_table(name)
    with tick(world.dsn) as at:
        world.run(*window.during)
        if together:
            results = refresh_together(world.refresher, list(world.ids.values()), at)
            assert "SKIP" not in {result.action for result in results.values()}
        else:
            for pgt_id in world.ids.values():
                alone(world.refresher, pgt_id, tick=at)
        if world.is_at(at):
            assert {name: world.differing(name, at) for name in world.ids} == {name: [] for name in world.ids}
            return
    event("not at the tick")
    assert [str(found) for found in world.trickle.verify() if not found.equal] == []


@pytest.fixture(scope="module")
def playground(server18: embedded.Server) -> Iterator[str]:
    with fresh_database(server18) as dsn:
        yield dsn
