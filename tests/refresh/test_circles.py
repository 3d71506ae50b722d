"""Stream tables that read each other in a circle: always what WITH RECURSIVE says, or refused, or as they were."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession

from pgtrickle import db, embedded
from pgtrickle.api import Trickle
from pgtrickle.db import statement
from pgtrickle.errors import StateError
from pgtrickle.refresh.refresher import Refresher
from pgtrickle.refresh.result import RefreshResult
from pgtrickle.refresh.units import refresh_table
from tests.conftest import fresh_database
from tests.refresh.oracle import differing
from tests.refresh.stacked import alone, tick

EXAMPLES = int(os.environ.get("PGTRICKLE_RANDOM_EXAMPLES", "6"))

DIRECT = "SELECT src, dst FROM edge GROUP BY src, dst"
REACH = (
    "SELECT src, dst FROM (SELECT src, dst FROM edge UNION ALL"
    " SELECT r.src, e.dst FROM reach r JOIN edge e ON e.src = r.dst) AS u GROUP BY src, dst"
)
SQUARED = REACH.replace("FROM reach r JOIN edge e", "FROM squared r JOIN squared e")
RECURSIVE = (
    "WITH RECURSIVE r AS (SELECT src, dst FROM edge UNION SELECT r.src, e.dst FROM r JOIN edge e ON e.src = r.dst)"
    " SELECT src, dst FROM r"
)


class World:
    """A database with edges, and circles allowed in it."""

    def __init__(self, dsn: str, spark: SparkSession) -> None:
        self.dsn = dsn
        self.spark = spark
        self.conn = db.open_session(dsn)
        self.trickle = self.connect("-cpg_trickle.allow_circular=on -cpg_trickle.max_fixpoint_iterations=30")
        self.run("CREATE TABLE edge (src int, dst int)")

    def connect(self, options: str) -> Trickle:
        return Trickle(make_conninfo(self.dsn, options=options), spark=self.spark)

    def close(self) -> None:
        while names := [str(each) for each in self.trickle.status()]:
            self.trickle.drop_stream_table(names[0], cascade=True)
        self.trickle.close()
        self.conn.close()

    def run(self, *statements: str) -> None:
        for each in statements:
            self.conn.execute(statement(each))

    def create(self, name: str, query: str, altered: str | None = None) -> None:
        """A stream table, altered to its final query."""
        self.trickle.create_stream_table(name, query, refresh_mode="DIFFERENTIAL")
        if altered is not None:
            self.trickle.alter_stream_table(name, query=altered)

    def reach(self) -> None:
        self.create("reach", DIRECT, REACH)

    def refresh(self, name: str = "reach") -> RefreshResult:
        return self.trickle.refresh_stream_table(name)

    def rows(self, name: str) -> list[tuple[object, ...]]:
        return self.conn.execute(statement(f"SELECT * FROM {name} ORDER BY 1, 2")).fetchall()

    def right(self) -> bool:
        return not differing(self.conn, "reach", RECURSIVE)


@contextmanager
def world_in(dsn: str, spark: SparkSession) -> Iterator[World]:
    made = World(dsn, spark)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def world(database18: str, spark: SparkSession) -> Iterator[World]:
    with world_in(database18, spark) as made:
        yield made


def test_reachability_follows_inserts_deletes_and_updates(database: str, spark: SparkSession) -> None:
    with world_in(database, spark) as world:
        follow_changes(world)


def follow_changes(world: World) -> None:
    world.run("INSERT INTO edge VALUES (1, 2), (2, 3), (3, 1), (4, 5)")
    world.reach()
    assert world.right()
    assert world.refresh().action == "NO_DATA"
    world.run("INSERT INTO edge VALUES (3, 4), (4, 5)")
    grown = world.refresh()
    assert (grown.action, grown.rows_deleted) == ("DIFFERENTIAL", 0)
    assert "went on from what was there, settled after 2 rounds" in grown.reason
    assert world.right()
    world.run("DELETE FROM edge WHERE src = 3 AND dst = 1")  # 1, 2 and 3 had reached themselves
    shrunk = world.refresh()
    assert shrunk.action == "FULL"
    assert "rows of public.edge are gone; computed from nothing" in shrunk.reason
    assert world.right()
    world.run("UPDATE edge SET dst = 1 WHERE src = 4", "INSERT INTO edge VALUES (NULL, 1), (5, NULL)")
    assert world.refresh().action == "FULL"
    assert world.right()
    world.run("INSERT INTO edge VALUES (9, 9)", "DELETE FROM edge WHERE src = 9")
    assert world.refresh().rows_inserted == 0
    world.run("TRUNCATE edge", "INSERT INTO edge VALUES (7, 8), (8, 7)")
    assert world.refresh().action == "REINITIALIZE"
    assert world.right()
    assert [found.equal for found in world.trickle.verify("reach")] == [True]
    assert "public.reach → public.reach" in world.trickle.explain("reach")


def test_two_tables_of_a_circle_are_one(world: World) -> None:
    """Even and odd distances; a table above the circle, one below, and a refresh of either member brings both."""
    world.run("INSERT INTO edge SELECT g, g + 1 FROM generate_series(1, 9) g")
    world.create("hops", "SELECT src AS at, dst FROM edge WHERE src <> 99")
    world.create("odd", "SELECT dst FROM hops WHERE at = 1 GROUP BY dst")
    world.create("even", "SELECT h.dst FROM odd w JOIN hops h ON h.at = w.dst GROUP BY h.dst")
    world.trickle.alter_stream_table(
        "odd",
        query="SELECT dst FROM (SELECT dst FROM hops WHERE at = 1 UNION ALL"
        " SELECT h.dst FROM even w JOIN hops h ON h.at = w.dst) AS u GROUP BY dst",
    )
    world.create("meeting", "SELECT o.dst AS x, e.dst AS y FROM odd o JOIN even e ON e.dst = o.dst")

    def expected(parity: int) -> str:
        return (
            "WITH RECURSIVE r AS (SELECT dst, 1 AS p FROM edge WHERE src = 1 AND src <> 99"
            " UNION SELECT e.dst, 1 - p FROM r JOIN edge e ON e.src = r.dst AND e.src <> 99)"
            f" SELECT dst FROM r WHERE p = {parity}"
        )

    def right() -> bool:
        return not differing(world.conn, "odd", expected(1)) and not differing(world.conn, "even", expected(0))

    assert right()
    for asked, change in (("even", "INSERT INTO edge VALUES (5, 2)"), ("odd", "DELETE FROM edge WHERE src = 5")):
        world.run(change)
        world.refresh("hops")
        world.refresh(asked)
        assert right()
        assert {len(world.trickle.history(name, 50)) > 0 for name in ("odd", "even")} == {True}
        first, second = (world.trickle.status(name)[0] for name in ("odd", "even"))
        assert (first.frontier, first.upstream_frontier) == (second.frontier, second.upstream_frontier)
        assert world.refresh(asked).action == "NO_DATA"
        world.refresh("meeting")
    world.run("INSERT INTO edge VALUES (5, 5), (3, 3)")
    with tick(world.dsn) as at:  # what they read is refreshed after the snapshot was taken, and edges go on changing
        world.run("INSERT INTO edge VALUES (6, 6)")
        refresher = Refresher(world.dsn, world.trickle.settings, lambda: world.spark)
        try:
            ids = {str(each).removeprefix("public."): each.pgt_id for each in world.trickle.status()}
            alone(refresher, ids["hops"], tick=at)
            results = refresh_table(refresher, ids["odd"], tick=at)
            assert {each: result.action for each, result in results.items()} == {
                ids["odd"]: "DIFFERENTIAL",
                ids["even"]: "DIFFERENTIAL",
            }
            alone(refresher, ids["meeting"], tick=at)
        finally:
            refresher.close()
    world.run("DELETE FROM edge WHERE src = 6 AND dst = 6")
    assert right()
    assert not differing(world.conn, "meeting", "SELECT o.dst, e.dst FROM odd o JOIN even e ON e.dst = o.dst")
    assert all(found.equal for found in world.trickle.verify())
    world.run("UPDATE pgtrickle.pgt_stream_tables SET is_populated = false WHERE pgt_name = 'hops'")
    with pytest.raises(StateError, match=r"public\.hops, which it reads, was never filled") as refused:
        world.refresh("odd")
    assert refused.value.code == "PT453"
    with pytest.raises(StateError, match="reads") as refused:
        world.trickle.drop_stream_table("odd")
    assert refused.value.code == "PT303"
    assert sorted(world.trickle.drop_stream_table("odd", cascade=True)) == [
        "public.even",
        "public.meeting",
        "public.odd",
    ]


def test_a_circle_that_is_opened_again_is_maintained_as_before(world: World) -> None:
    world.run("INSERT INTO edge VALUES (1, 2), (2, 3), (3, 1)")
    world.create("reach", DIRECT)
    world.create("copies", "SELECT src, dst FROM reach GROUP BY src, dst")
    world.trickle.alter_stream_table("reach", query=REACH.replace("FROM reach", "FROM copies"))
    assert world.right()
    assert not differing(world.conn, "copies", RECURSIVE)
    world.run(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not this one'; END $$",
        "CREATE TRIGGER refuse BEFORE INSERT ON copies FOR EACH ROW EXECUTE FUNCTION refuse()",
        "INSERT INTO edge VALUES (1, 4)",
    )
    before = world.rows("reach")
    with pytest.raises(StateError, match="not this one"):
        world.refresh()
    assert world.rows("reach") == before, "both or none"
    assert {world.trickle.history(name, 1)[0].status for name in ("reach", "copies")} == {"FAILED"}
    world.run("DROP TRIGGER refuse ON copies")
    assert world.refresh("copies").action == "DIFFERENTIAL"
    assert world.right()
    world.trickle.alter_stream_table("reach", query=DIRECT)
    assert not differing(world.conn, "reach", DIRECT)
    assert "reach, which it was in a circle with, was defined again" in world.refresh("copies").reason
    world.run("DELETE FROM edge WHERE src = 1", "INSERT INTO edge VALUES (8, 9)")
    for name in ("reach", "copies"):
        assert world.refresh(name).action == "DIFFERENTIAL"
        assert not differing(world.conn, name, DIRECT)


def test_a_view_may_close_a_circle_and_open_it_again(world: World) -> None:
    world.run("INSERT INTO edge VALUES (1, 2), (2, 3), (3, 1)", "CREATE VIEW link AS SELECT src, dst FROM edge")
    world.create("reach", REACH.replace("FROM reach", "FROM link"))
    world.run("CREATE OR REPLACE VIEW link AS SELECT src, dst FROM reach", "INSERT INTO edge VALUES (3, 4)")
    assert world.refresh().action == "REINITIALIZE"
    assert world.right()
    world.run("DELETE FROM edge WHERE src = 2")
    assert world.refresh().action == "FULL"
    assert world.right()
    world.run("CREATE OR REPLACE VIEW link AS SELECT src, dst FROM edge WHERE src < 0")
    assert world.refresh().action == "REINITIALIZE"
    assert not differing(world.conn, "reach", DIRECT)
    assert world.trickle.circle("reach") is None


def test_a_circle_that_does_not_settle_changes_nothing(world: World) -> None:
    world.run("INSERT INTO edge VALUES (1, 2)")
    query = "SELECT src, dst FROM edge UNION ALL SELECT r.src + 1, r.dst FROM reach r WHERE r.src BETWEEN 10 AND {}"
    world.create("reach", "SELECT src, dst FROM edge", query.format(20))
    world.create("reader", "SELECT src, dst FROM reach")
    before = world.rows("reach")
    world.trickle.alter_stream_table("reach", query=query.format(10000))
    world.run("INSERT INTO edge VALUES (10, 3)")
    for _ in range(2):
        with pytest.raises(StateError, match=r"reach → public\.reach has not settled after 30 rounds") as failed:
            world.refresh()
        assert failed.value.code == "PT373"
        assert "max_fixpoint_iterations" in str(failed.value.hint)
        assert world.rows("reach") == before
    last = world.trickle.history("reach", 1)[0]
    assert (last.status, last.error_code) == ("FAILED", "PT373")
    assert world.trickle.status("reach")[0].consecutive_errors == 2
    world.run("DELETE FROM edge WHERE src = 10", "INSERT INTO edge VALUES (9990, 4)")
    world.refresh()
    assert [row for row in world.rows("reach") if row[0] == 10001]
    assert len(world.rows("reach")) == 13


def test_bags_count_every_way(world: World) -> None:
    """Without DISTINCT rows are as many as there are ways: of a graph without cycles these are finitely many."""
    world.run("CREATE TABLE names (id int, name numeric)", "INSERT INTO names VALUES (1, 1.0), (2, 2.00)")
    world.run("INSERT INTO edge VALUES (1, 2), (1, 2), (2, 3), (2, 4), (3, 5), (4, 5)")
    ways = "SELECT src, dst FROM edge UNION ALL SELECT r.src, e.dst FROM reach r JOIN {} e ON e.src = r.dst"
    world.create("reach", "SELECT src, dst FROM edge", ways.format("edge"))
    inner = "SELECT r.src, e.dst FROM r JOIN edge e ON e.src = r.dst"
    every = f"WITH RECURSIVE r AS (SELECT src, dst FROM edge UNION ALL {inner}) SELECT src, dst FROM r"
    assert not differing(world.conn, "reach", every)
    world.run("INSERT INTO edge VALUES (5, 6), (2, 3)")
    assert world.refresh().action == "DIFFERENTIAL"
    assert not differing(world.conn, "reach", every)
    world.run("DELETE FROM edge WHERE ctid IN (SELECT ctid FROM edge WHERE src = 2 LIMIT 1)")
    assert world.refresh().action == "FULL"
    assert not differing(world.conn, "reach", every)
    world.run("INSERT INTO edge VALUES (6, 2)")
    with pytest.raises(StateError, match="has not settled"):
        world.refresh()
    world.run("DELETE FROM edge WHERE src = 6")
    distinct_inside = "SELECT n.id AS src, d.dst FROM names n JOIN ({}) AS d ON d.src = n.id"
    world.trickle.alter_stream_table("reach", query=distinct_inside.format(REACH))
    expected = (
        "WITH RECURSIVE r AS (SELECT src, dst FROM edge UNION SELECT r.src, e.dst FROM r JOIN edge e ON e.src = r.dst"
        " WHERE r.src IN (SELECT id FROM names)) SELECT n.id, r.dst FROM names n JOIN r ON r.src = n.id"
    )
    assert not differing(world.conn, "reach", expected)
    world.run("INSERT INTO edge VALUES (6, 7)", "INSERT INTO names VALUES (3, 3)")
    assert world.refresh().action == "DIFFERENTIAL"
    assert not differing(world.conn, "reach", expected)


def test_rows_are_the_same_where_postgresql_says_so(world: World) -> None:
    """Equal numbers may look different."""
    world.run(
        "CREATE TABLE road (src numeric, dst numeric, n float)",
        "INSERT INTO road VALUES (1, 2.0, 0), (2, 3, '-0'), (3.00, 1.0, 0)",
    )
    world.create(
        "ways",
        "SELECT src, dst, n FROM road GROUP BY src, dst, n",
        "SELECT src, dst, n FROM (SELECT src, dst, n FROM road UNION ALL SELECT w.src, r.dst, r.n FROM ways w"
        " JOIN road r ON r.src = w.dst AND r.n = w.n) AS u GROUP BY src, dst, n",
    )
    assert world.conn.execute("SELECT count(*), count(DISTINCT (src, dst, n)) FROM ways").fetchone() == (9, 9)
    world.run("INSERT INTO road VALUES (3.0, 4, 0), (1.000, 2, '-0')")
    assert world.refresh("ways").rows_inserted == 3
    assert world.conn.execute("SELECT count(*), count(DISTINCT (src, dst, n)) FROM ways").fetchone() == (12, 12)


def test_a_group_inside_a_circle_may_look_another_way_in_a_later_round(world: World) -> None:
    """The circle keeps the look that it found first; nothing is taken away."""
    world.run(
        "CREATE TABLE road (src numeric, dst numeric)",
        "CREATE TABLE names (id numeric)",
        "INSERT INTO road VALUES (1, 2.00), (2, 3), (3, 1), (1, 4), (4, 2.0)",
        "INSERT INTO names VALUES (1), (2), (3)",
    )
    union = "SELECT src, dst FROM road UNION ALL SELECT r.src, e.dst FROM ways r JOIN road e ON e.src = r.dst"
    groups = (
        f"SELECT n.id AS src, d.dst FROM names n JOIN (SELECT DISTINCT src, dst FROM ({union}) u) d ON d.src = n.id"
    )
    inside = "SELECT r.src, e.dst FROM r JOIN road e ON e.src = r.dst WHERE r.src IN (SELECT id FROM names)"
    expected = (
        f"WITH RECURSIVE r AS (SELECT src, dst FROM road UNION {inside}) "
        "SELECT src, dst FROM r WHERE src IN (SELECT id FROM names)"
    )
    world.create("ways", "SELECT src, dst FROM road", groups)
    assert not differing(world.conn, "ways", expected)
    world.run("INSERT INTO road VALUES (3.0, 2), (4, 3.0), (2, 5)", "INSERT INTO names VALUES (4)")
    world.refresh("ways")
    assert not differing(world.conn, "ways", expected)


def test_what_is_not_monotone_is_refused_by_name(world: World) -> None:
    world.run("INSERT INTO edge VALUES (1, 2)")
    world.create("reach", DIRECT)
    world.create("counts", "SELECT src, count(*)::int AS n FROM reach GROUP BY src")
    closing = "SELECT src, dst FROM edge UNION ALL SELECT src, n FROM counts"
    with pytest.raises(StateError) as refused:
        world.trickle.alter_stream_table("reach", query=closing)
    assert refused.value.code == "PT372"
    assert "public.reach → public.counts → public.reach" in refused.value.message
    assert "in public.counts, aggregate count is not monotone" in refused.value.message
    with pytest.raises(StateError, match=r"in public.reach, window function is not monotone") as refused:
        world.trickle.alter_stream_table(
            "reach", refresh_mode="AUTO", query="SELECT src, row_number() OVER ()::int AS dst FROM reach"
        )
    for source in ("reach", "counts"):
        with pytest.raises(StateError, match="other columns") as refused:
            world.trickle.alter_stream_table("reach", query=f"SELECT src FROM {source}")
        assert refused.value.code == "PT376"
    assert not differing(world.conn, "reach", DIRECT)
    most = "SELECT src, m AS dst FROM edge e JOIN (SELECT max(dst) AS m FROM edge) AS x ON m > src UNION ALL {}"
    world.trickle.alter_stream_table("reach", query=most.format("SELECT src, dst FROM reach WHERE src < 0"))
    world.run("INSERT INTO edge VALUES (3, 7)")
    assert "some below aggregate max in public.reach" in world.refresh().reason
    assert world.rows("reach") == [(1, 7), (3, 7)]


def test_circles_are_refused_unless_allowed(world: World) -> None:
    world.run("INSERT INTO edge VALUES (1, 2)")
    world.create("reach", DIRECT)
    world.create("copies", "SELECT src, dst FROM reach")
    strict = world.connect("-cpg_trickle.allow_circular=off")
    try:
        for query, way in (
            (REACH, "public.reach → public.reach"),
            ("SELECT src, dst FROM copies", "→ public.copies →"),
        ):
            with pytest.raises(StateError, match=way) as refused:
                strict.alter_stream_table("reach", query=query)
            assert refused.value.code == "PT371"
            assert "allow_circular" in str(refused.value.hint)
        assert world.trickle.circle("reach") is None
        world.trickle.alter_stream_table("reach", query=REACH)
        with pytest.raises(StateError, match=r"public\.reach → public\.reach"):
            strict.refresh_stream_table("reach")
        assert strict.refresh_stream_table("copies").action in {"DIFFERENTIAL", "NO_DATA"}
    finally:
        strict.close()
    assert world.right()


edges = st.tuples(st.integers(0, 6), st.integers(0, 6))
changes = st.one_of(
    st.lists(edges, min_size=1, max_size=4).map(
        lambda found: f"INSERT INTO edge VALUES {', '.join(f'({s}, {d})' for s, d in found)}"
    ),
    edges.map(lambda found: f"DELETE FROM edge WHERE src = {found[0]} AND dst <= {found[1]}"),
    edges.map(lambda found: f"UPDATE edge SET dst = {found[1]} WHERE dst = {found[0]}"),
)


@pytest.fixture(scope="module")
def playground(server18: embedded.Server, spark: SparkSession) -> Iterator[World]:
    """Reachability by one edge at a time, and by ways put together."""
    with fresh_database(server18) as dsn, world_in(dsn, spark) as made:
        made.reach()
        made.create("squared", DIRECT, SQUARED)
        yield made


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(
    first=st.lists(changes, max_size=3),
    windows=st.lists(st.lists(changes, min_size=1, max_size=3), min_size=1, max_size=4),
)
def test_reachability_is_what_postgresql_says(first: list[str], windows: list[list[str]], playground: World) -> None:
    for window in ["TRUNCATE edge", *first], *windows:
        playground.run(*window)
        for name in ("reach", "squared"):
            note(f"{window}: {playground.refresh(name).reason}")
            assert not differing(playground.conn, name, RECURSIVE)
