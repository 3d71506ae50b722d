"""Names come and go, relations stay: what is ours is known by oid. A stream table that is renamed, moved, swapped or
dropped by plain SQL; its name taken by a user's table; a source replaced by something of its name. With the event
triggers and without them, since only a superuser may have them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from pgtrickle.errors import Error, QueryError, StateError, UsageError
from tests.ddl.place import place
from tests.stories.telling import TOTALS, Story, telling

BY_ID = "SELECT id, v FROM t"


@pytest.fixture(params=["events", "no-events"])
def named(database18: str, spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[Story]:
    with telling(database18, spark) as story:
        story.run(
            "CREATE TABLE t (id int PRIMARY KEY, kind text, v int)",
            "INSERT INTO t SELECT g, 'k' || g % 3, g FROM generate_series(1, 20) g",
        )
        if request.param == "no-events":
            story.run("DROP EVENT TRIGGER pgtrickle_ddl", "DROP EVENT TRIGGER pgtrickle_drop")
        yield story


def users_table(story: Story, name: str) -> None:
    """A table of the user's under the name that a stream table had; nobody but the user changes its rows (MINE)."""
    story.run(f"CREATE TABLE {name} AS SELECT 'mine'::text AS kind, 7::bigint AS n, 7::bigint AS total")


MINE: list[tuple[object, ...]] = [("mine", 7, 7)]


def test_its_name_taken_by_a_users_table(named: Story) -> None:
    named.create("st", TOTALS)
    named.run("ALTER TABLE st RENAME TO st_old")
    named.queries["st_old"] = TOTALS
    users_table(named, "st")

    named.run("INSERT INTO t VALUES (100, 'k1', 5)")
    named.check("st_old")
    assert named.trickle.refresh_stream_table("st_old", full=True).action == "FULL"
    named.run("TRUNCATE t", "INSERT INTO t VALUES (1, 'k', 1)")
    named.check("st_old", "REINITIALIZE")
    assert named.trickle.verify("st_old")[0].equal
    for wrong in (
        lambda: named.trickle.refresh_stream_table("st"),
        lambda: named.trickle.drop_stream_table("public.st"),
        lambda: named.trickle.alter_stream_table("st", query=BY_ID),
    ):
        with pytest.raises(StateError, match="st is not a stream table") as caught:
            wrong()
        assert caught.value.code == "PT301"
    assert named.rows("SELECT * FROM st") == MINE

    named.trickle.alter_stream_table("st_old", query=BY_ID)  # other columns: the storage is made anew
    named.queries["st_old"] = BY_ID
    named.equal("st_old")
    assert named.rows("SELECT * FROM st") == MINE
    assert named.trickle.drop_stream_table("st_old") == ["public.st_old"]
    assert named.value("SELECT to_regclass('st_old') IS NULL")
    assert named.rows("SELECT * FROM st") == MINE
    assert named.ours() == []


def test_renamed_and_moved_and_what_reads_it_goes_on(named: Story) -> None:
    named.create("st", TOTALS)
    named.create("over", "SELECT s.kind, s.total + 1 AS more FROM st AS s WHERE s.n > 0")
    named.create("plain", "SELECT st.kind FROM st")
    readers = ("over", "plain")
    for ddl, now in (
        ("ALTER TABLE st RENAME TO totals", "public.totals"),
        ("CREATE SCHEMA app", "public.totals"),
        ("ALTER TABLE totals SET SCHEMA app", "app.totals"),
        ("ALTER SCHEMA app RENAME TO apps", "apps.totals"),
    ):
        named.run(ddl)
        assert now in [str(each) for each in named.trickle.status()]
        assert now in [row[0] for row in named.rows("SELECT name FROM pgtrickle.pgt_status()")]
        named.queries |= {now: TOTALS, "over": f"SELECT kind, total + 1 AS more FROM {now}"}
        named.queries["plain"] = f"SELECT kind FROM {now}"
        named.run("INSERT INTO t SELECT max(id) + 1, 'k1', 1 FROM t")
        named.trickle.refresh_stream_table(now)
        named.equal(now)
        for reader in readers:
            named.trickle.refresh_stream_table(reader)
            named.equal(reader)
            assert named.stream(reader).status == "ACTIVE"
    named.run("INSERT INTO t SELECT max(id) + 1, 'k2', 1 FROM t")
    for table in ("apps.totals", *readers):
        named.check(table)
    with pytest.raises(StateError, match="no stream table"):
        named.trickle.status("st")


def test_rows_of_tables_that_inherit_from_it_are_not_ours(named: Story) -> None:
    named.create("st", TOTALS)
    named.run("CREATE TABLE kid () INHERITS (st)", "INSERT INTO kid SELECT 'mine', g, g FROM generate_series(1, 9) g")
    named.run("UPDATE t SET v = v + 1")
    assert named.trickle.refresh_stream_table("st").rows_deleted == 3
    named.trickle.refresh_stream_table("st", full=True)
    assert named.value("SELECT count(*) FROM kid") == 9
    assert named.value("SELECT count(*) FROM ONLY st") == 3


def test_two_swapped(named: Story) -> None:
    other = "SELECT kind, count(*) AS n, max(v)::bigint AS total FROM t GROUP BY kind"
    named.create("a", TOTALS)
    named.create("b", other)
    named.create("reads_a", "SELECT total FROM a")
    named.together("ALTER TABLE a RENAME TO x", "ALTER TABLE b RENAME TO a", "ALTER TABLE x RENAME TO b")
    named.queries |= {"a": other, "b": TOTALS, "reads_a": "SELECT total FROM b"}  # the table, not its name
    named.run("INSERT INTO t VALUES (200, 'k1', 50)")
    for name in ("a", "b"):
        named.trickle.refresh_stream_table(name)
        named.equal(name)
    named.trickle.refresh_stream_table("reads_a")
    named.equal("reads_a")
    assert named.trickle.drop_stream_table("a") == ["public.a"]
    assert named.value("SELECT count(*) FROM b") == named.value(f"SELECT count(*) FROM ({TOTALS}) q")


def test_dropped_by_plain_sql(named: Story) -> None:
    named.create("st", TOTALS)
    named.create("over", "SELECT kind FROM st")
    named.create("other", "SELECT count(*) AS n FROM t")
    with named.session() as listener:
        listener.execute("LISTEN pg_trickle_alert")
        named.run("DROP TABLE st")
        assert "public.st" not in {str(each) for each in named.trickle.status() if each.status == "ACTIVE"}
        told = [each.payload for each in listener.notifies(timeout=1)]
    assert any('"stream_table_dropped"' in each and "public.st" in each for each in told)
    streams = {str(each): each for each in named.trickle.status()}
    assert set(streams) == {"public.over", "public.other"}
    assert streams["public.over"].status == "ERROR"
    assert "public.st" in str(streams["public.over"].last_error)
    found = {str(each.table): each for each in named.trickle.verify()}
    assert found["public.other"].equal
    assert not found["public.over"].equal
    with pytest.raises(Error, match="st"):
        named.trickle.refresh_stream_table("over")
    named.run("INSERT INTO t VALUES (300, 'k1', 1)")
    named.check("other")
    for name in ("over", "other"):
        named.trickle.drop_stream_table(name)
    assert named.ours() == []
    assert named.value("SELECT count(*) FROM pgtrickle.pgt_change_tracking") == 0


def test_dropped_with_all_that_was_kept_for_it(named: Story) -> None:
    named.create("st", TOTALS)
    users_table(named, "u")
    named.run("DROP TABLE st", "ALTER TABLE u RENAME TO st")
    assert named.trickle.status() == ()
    assert named.ours() == []
    assert named.rows("SELECT * FROM st") == MINE
    named.run("DROP TABLE st")
    named.create("st", TOTALS)


def test_another_owner(named: Story) -> None:
    named.create("st", TOTALS)
    named.run("CREATE ROLE names_owner")
    try:
        named.run("GRANT CREATE, USAGE ON SCHEMA public TO names_owner", "ALTER TABLE st OWNER TO names_owner")
        assert named.stream("st").owner == "names_owner"
        assert named.value("SELECT owner FROM pgtrickle.stream_tables_info") == "names_owner"
    finally:
        named.run("REASSIGN OWNED BY names_owner TO CURRENT_USER", "DROP OWNED BY names_owner", "DROP ROLE names_owner")
    named.run("INSERT INTO t VALUES (300, 'k1', 1)")
    named.check("st")


def test_a_source_replaced_waits_for_the_owners_word(named: Story) -> None:
    named.create("st", TOTALS)
    kind = "TABLE"
    for replacement in ("TABLE", "VIEW", "MATERIALIZED VIEW"):
        before = named.content("st")
        named.run(f"DROP {kind} t", f"CREATE {replacement} t AS SELECT 1 AS id, '{replacement}'::text AS kind, 1 AS v")
        for _ in range(2):
            with pytest.raises(StateError, match=r"public\.t") as caught:
                named.trickle.refresh_stream_table("st")
            assert (caught.value.code, bool(caught.value.hint)) == ("PT313", True)
            assert named.stream("st").status == "ERROR"
        assert named.content("st") == before
        named.trickle.alter_stream_table("st", query=TOTALS, refresh_mode="AUTO")  # the same text counts as a word
        named.equal("st")
        assert named.stream("st").status == "ACTIVE"
        kind = replacement


def test_nothing_of_what_replaced_a_source_is_run(named: Story) -> None:
    """Not even by planning the query over it, which evaluates an immutable function."""
    named.create("st", TOTALS)
    named.run(
        "CREATE TABLE ran (at timestamptz)",
        "CREATE FUNCTION note() RETURNS int LANGUAGE sql AS 'INSERT INTO ran VALUES (now()) RETURNING 1'",
        "CREATE FUNCTION one() RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN note(); END'",
        "DROP TABLE t",
        "CREATE VIEW t AS SELECT one() AS id, 'x'::text AS kind, one() AS v",
    )
    for _ in range(2):
        with pytest.raises(StateError, match="PT313"):
            named.trickle.refresh_stream_table("st")
    with telling(named.dsn, None) as another:  # that has nothing compiled
        assert "PT313" in (another.trickle.verify("st")[0].error or "")
    assert named.value("SELECT count(*) FROM ran") == 0


def test_a_view_replaced_by_another_waits_for_the_owners_word(named: Story) -> None:
    named.run("CREATE VIEW seen AS SELECT kind, v FROM t")
    query = "SELECT kind, v FROM seen"
    named.create("st", query)
    named.run("DROP VIEW seen", "CREATE VIEW seen AS SELECT 'secret'::text AS kind, 1 AS v")
    with pytest.raises(StateError, match=r"public\.seen"):
        named.trickle.refresh_stream_table("st")
    assert named.stream("st").status == "ERROR"
    named.run("DROP VIEW seen", "ALTER TABLE t RENAME TO seen")  # a source, but not the one of that name
    with pytest.raises(StateError, match=r"public\.seen"):
        named.trickle.refresh_stream_table("st")
    named.trickle.alter_stream_table("st", query=query)
    named.equal("st")


def test_a_source_renamed_stays_a_source(named: Story) -> None:
    named.create("st", TOTALS)
    named.run("ALTER TABLE t RENAME TO items", "CREATE TABLE t (LIKE items)", "INSERT INTO t VALUES (1, 'no', 1)")
    named.queries["st"] = TOTALS.replace("FROM t", "FROM items")
    named.run("INSERT INTO items VALUES (400, 'k1', 9)")
    named.trickle.refresh_stream_table("st")
    named.equal("st")
    named.run("INSERT INTO items VALUES (401, 'k1', 9)")
    named.check("st")
    assert "public.items" in named.stream("st").defining_query


def test_a_view_renamed_stays_a_source(named: Story) -> None:
    named.run("CREATE VIEW seen AS SELECT kind, v FROM t")
    query = "SELECT a.kind, seen.v FROM seen JOIN seen AS a ON a.kind = seen.kind WHERE (SELECT max(v) FROM seen) > 2"
    named.create("st", query)
    named.run("ALTER VIEW seen RENAME TO visible", "INSERT INTO t VALUES (400, 'k1', 9)")
    named.queries["st"] = query.replace("FROM seen JOIN seen", "FROM visible AS seen JOIN visible").replace(
        "FROM seen)", "FROM visible)"
    )
    named.trickle.refresh_stream_table("st")
    named.equal("st")
    named.run("INSERT INTO t VALUES (401, 'k1', 9)")
    named.check("st")


def test_our_own_schemas_are_refused(database18: str) -> None:
    with place(database18) as made:
        made.run("CREATE VIEW ours AS SELECT pgt_id FROM pgtrickle.pgt_refresh_history", "CREATE SCHEMA app")
        oid = made.value("SELECT 't'::regclass::oid")
        for query in (
            "SELECT pgt_id FROM pgtrickle.pgt_stream_tables",
            "SELECT pgt_id FROM ours",
            f"SELECT change_id FROM pgtrickle_changes.changes_{oid}",
            "SELECT name FROM pgtrickle.pgt_status()",
        ):
            for refused in (
                lambda query=query: made.trickle.create_stream_table("app.x", query, refresh_mode="FULL"),
                lambda query=query: made.trickle.alter_stream_table("st", query=query),
                lambda query=query: made.trickle.explain(query=query),
            ):
                with pytest.raises(QueryError) as caught:
                    refused()
                assert (caught.value.code, bool(caught.value.hint)) == ("PT315", True)
        for schema in (
            "pgtrickle",
            "pgtrickle_changes",
            "pgtrickle_internal",
            "pgtrickle_state",
            "pg_catalog",
            "pg_temp",
            "pg_toast",
        ):
            with pytest.raises(UsageError) as denied:
                made.trickle.create_stream_table(f"{schema}.x", "SELECT id FROM t", initialize=False)
            assert (denied.value.code, bool(denied.value.hint)) == ("PT314", True)
        with pytest.raises(UsageError, match="information_schema"):
            made.trickle.create_stream_table("information_schema.x", "SELECT id FROM t", initialize=False)
        with pytest.raises(Exception, match="there can be no stream table in the schema pgtrickle_state"):
            made.run("SELECT pgtrickle.create_stream_table('pgtrickle_state.x', 'SELECT id FROM t')")
