"""`verify` is PostgreSQL's word on the user's own text: it says no where our engine, or a hand, was wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgtrickle.query.analyse.analysis import Analysis
from pgtrickle.query.analyse.analyze import analyze
from pgtrickle.query.builder.build import build
from pgtrickle.query.builder.column_factory import Describe
from pgtrickle.query.operators import Operator
from pgtrickle.refresh.verification.verify import AFTER_REFRESH, AT_ITS_SNAPSHOT, AT_PRESENT, Verification
from tests.stories.telling import TOTALS, Story


def answer(story: Story, name: str) -> Verification:
    (found,) = story.trickle.verify(name)
    return found


def counts(found: Verification) -> tuple[int, int, int]:
    assert found.error is None, found.error
    return found.missing, found.extra, found.different_looks


def test_a_wrong_tree_is_found_out(story18: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tree is that of another query, by which the table is computed, and computed differentially."""
    story18.run("CREATE TABLE t (id int, kind text, v int)", "INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2)")

    def wrong(analysis: Analysis, describe: Describe) -> Operator:
        other = analyze(story18.connection, analysis.sql.replace("v > 0", "v > 1"))
        return build(replace(analysis, body=other.body), describe)

    monkeypatch.setattr("pgtrickle.query.compile.build", wrong)
    story18.trickle.create_stream_table("kept", "SELECT id, v FROM t WHERE v > 0", refresh_mode="DIFFERENTIAL")
    assert counts(answer(story18, "kept")) == (1, 0, 0)
    story18.run("INSERT INTO t VALUES (3, 'c', 1)")
    assert counts(answer(story18, "kept")) == (1, 0, 0)
    story18.trickle.refresh_stream_table("kept")
    assert counts(answer(story18, "kept")) == (2, 0, 0)


def test_rows_and_looks_that_a_hand_changed(story18: Story) -> None:
    """Equal by `=` and yet to be told apart: digits, signs of zero, months and days, spaces in json."""
    story18.run(
        "CREATE TABLE t (id int PRIMARY KEY, n numeric, f float8, i interval, j json, c char(4), s text)",
        "INSERT INTO t SELECT g, 1.0, 0.0, '1 month', '{\"a\": 1}', 'a', 'x' FROM generate_series(1, 4) g",
        "INSERT INTO t VALUES (9, NULL, NULL, NULL, NULL, NULL, NULL)",
    )
    story18.create("copy", "SELECT id, n, f, i, j, c, s FROM t")
    assert counts(answer(story18, "copy")) == (0, 0, 0)
    for change, expected in (
        ("n = 1.00", (0, 0, 1)),
        ("f = '-0.0'", (0, 0, 1)),
        ("i = '30 days'", (0, 0, 1)),
        ("c = 'b'", (1, 1, 0)),
        ("j = '{\"a\":1}'", (1, 1, 0)),  # json has no equality but its text
        ("s = NULL", (1, 1, 0)),
    ):
        story18.run(f"UPDATE copy SET {change} WHERE id = 2")
        assert counts(answer(story18, "copy")) == expected, change
        story18.run("DELETE FROM copy WHERE id = 2", "INSERT INTO copy SELECT * FROM t WHERE id = 2")
    story18.run("INSERT INTO copy SELECT * FROM t WHERE id = 9", "DELETE FROM copy WHERE id = 1")
    assert counts(answer(story18, "copy")) == (1, 1, 0)
    assert not answer(story18, "copy").equal


def test_at_its_snapshot_with_changes_of_every_kind_pending(story18: Story) -> None:
    """Duplicates, NULLs, a domain, a self join, a view, a key that GROUP BY relies on, a source only counted."""
    story18.run(
        "CREATE DOMAIN positive AS int CHECK (VALUE > 0)",
        "CREATE TABLE t (id int PRIMARY KEY, kind text, v positive)",
        "CREATE TABLE many (a int, b text)",
        "CREATE VIEW kinds AS SELECT kind, count(*) AS n FROM t GROUP BY kind",
        "INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2), (3, NULL, 3)",
        "INSERT INTO many SELECT g % 3, NULL FROM generate_series(1, 9) g",
    )
    queries = {
        "totals": TOTALS,
        "pairs": "SELECT x.id, y.id AS other FROM t x JOIN t y ON y.v > x.v",
        "named": "SELECT t.id, t.kind, count(m.a) AS n FROM t LEFT JOIN many m ON m.a = t.id GROUP BY t.id",
        "viewed": "SELECT k.kind, k.n, (SELECT count(*) FROM many) AS m FROM kinds k",
        "copies": "SELECT a, b FROM many",
    }
    for name, query in queries.items():
        story18.create(name, query)
    story18.run(
        "INSERT INTO t VALUES (4, 'a', 4)",
        "UPDATE t SET kind = 'c' WHERE id = 2",
        "DELETE FROM t WHERE id = 3",
        "INSERT INTO many VALUES (1, NULL), (1, NULL), (7, 'x')",
        "DELETE FROM many WHERE ctid IN (SELECT ctid FROM many WHERE a = 2 LIMIT 2)",
        "UPDATE many SET b = 'y' WHERE a = 0",
    )
    for name in queries:
        found = answer(story18, name)
        assert (counts(found), found.compared_with) == ((0, 0, 0), AT_ITS_SNAPSHOT), name
    story18.run("UPDATE copies SET b = 'mine' WHERE ctid = (SELECT min(ctid) FROM copies)")
    assert counts(answer(story18, "copies")) == (1, 1, 0)
    assert story18.trickle.status("copies")[0].consecutive_errors == 0, "nothing was refreshed"


def test_refreshed_first_where_the_sources_of_then_are_not_known(story18: Story) -> None:
    story18.run("CREATE TABLE t (id int, kind text, v int)", "INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2)")
    story18.create("totals", TOTALS)
    story18.run("TRUNCATE t", "INSERT INTO t VALUES (3, 'c', 3)")
    found = answer(story18, "totals")
    assert (counts(found), found.compared_with) == ((0, 0, 0), AFTER_REFRESH)
    story18.equal("totals")
    story18.run("CREATE SCHEMA other", "CREATE TABLE other.t (id int, w int)", "INSERT INTO other.t VALUES (3, 9)")
    story18.create("pair", "SELECT a.id, b.w FROM t a JOIN other.t b ON b.id = a.id")
    story18.run("DELETE FROM pair", "INSERT INTO t VALUES (4, 'd', 4)", "INSERT INTO other.t VALUES (4, 16)")
    found = answer(story18, "pair")  # two tables of one name: their copies could not be told apart
    assert (counts(found), found.compared_with) == ((1, 0, 0), AFTER_REFRESH)


def test_full_tables_are_compared_with_the_present(story18: Story) -> None:
    story18.run("CREATE TABLE t (id int, kind text, v int)", "INSERT INTO t VALUES (1, 'a', 1)")
    story18.create("totals", TOTALS, mode="FULL")
    story18.run("INSERT INTO t VALUES (2, 'b', 2)")
    found = answer(story18, "totals")
    assert (counts(found), found.compared_with) == ((1, 0, 0), AT_PRESENT)


def test_a_broken_table_is_its_own_answer(story18: Story) -> None:
    story18.run("CREATE TABLE t (id int, kind text, v int)", "CREATE TABLE gone (a int)")
    story18.create("totals", TOTALS)
    story18.create("broken", "SELECT a FROM gone")
    story18.create("dropped", "SELECT id FROM t")
    story18.run("DROP TABLE gone", "DROP TABLE dropped")
    found = {each.table: each for each in story18.trickle.verify()}
    assert {name: each.equal for name, each in found.items()} == {
        "public.totals": True,
        "public.broken": False,
    }, "one that was dropped by plain SQL is removed by the look"
    assert "gone" in (found["public.broken"].error or "")


def test_names_are_looked_up_where_they_were(story18: Story) -> None:
    """The text is read under the path it was given with, whatever the session's is now."""
    story18.run("CREATE SCHEMA mine", "CREATE TABLE mine.t (a int)", "CREATE TABLE t (a int)")
    story18.run("INSERT INTO mine.t VALUES (1), (2)")
    story18.trickle.connection.execute("SET search_path = mine, public")
    story18.trickle.create_stream_table("public.found", "SELECT a FROM t")
    story18.trickle.connection.execute("SET search_path = public")
    story18.run("INSERT INTO mine.t VALUES (3)")
    assert answer(story18, "found").equal
    story18.run("DELETE FROM found WHERE a = 1")
    assert counts(answer(story18, "found")) == (1, 0, 0)
