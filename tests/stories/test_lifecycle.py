"""Life cycle: defining, altering, dropping, failing, suspending."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession

from pgtrickle import db, failpoints
from pgtrickle.api import Trickle
from pgtrickle.catalog.install import uninstall
from pgtrickle.errors import Error, QueryError, ServerError, StateError, Unsupported, UsageError
from pgtrickle.refresh.lock import refresh_locks
from tests.stories.telling import TOTALS, Story, telling


def refused(story: Story, kind: type[Error], code: str, query: str = TOTALS, **arguments: str) -> Error:
    """Creating a stream table is refused with this code and a hint, and leaves nothing behind."""
    with pytest.raises(kind) as caught:
        story.trickle.create_stream_table("refused", query, **arguments)  # type: ignore[arg-type]
    assert caught.value.code == code
    assert caught.value.hint
    assert story.value("SELECT to_regclass('refused')") is None
    assert story.trickle.status() == ()
    assert story.ours() == []
    return caught.value


# Creating


def test_wrong_arguments_are_clear_errors(told: Story) -> None:
    refused(told, UsageError, "PT012", schedule="61 * * * *")
    refused(told, UsageError, "PT012", schedule="@sometimes")
    refused(told, UsageError, "PT010", schedule="soon")
    refused(told, UsageError, "PT010", schedule="1x")
    refused(told, UsageError, "PT011", schedule="0s")
    refused(told, UsageError, "PT006", refresh_mode="OFTEN")
    refused(told, Unsupported, "PT700", "SELECT kind, now() AS at FROM t", refresh_mode="IMMEDIATE")
    refused(told, UsageError, "PT292", refresh_mode="IMMEDIATE", cdc_mode="wal")
    refused(told, UsageError, "PT007", cdc_mode="telepathy")


def test_a_wrong_query_is_postgres_own_error_with_its_place(told: Story) -> None:
    error = refused(told, QueryError, "PT106", "SELECT kind FROM nowhere")
    assert "nowhere" in str(error)
    assert error.at is not None
    refused(told, QueryError, "PT100", "SELECT kind, FROM t")


def test_a_name_that_is_taken(told: Story) -> None:
    with pytest.raises(StateError, match="exists already") as caught:
        told.trickle.create_stream_table("t", TOTALS)
    assert caught.value.code == "PT302"
    told.create("totals", TOTALS)
    with pytest.raises(StateError, match="exists already"):
        told.trickle.create_stream_table("totals", TOTALS)
    told.run("INSERT INTO t VALUES (30, 'k1', 1)")
    told.check("totals")


def test_a_population_that_fails_leaves_nothing_behind(told: Story) -> None:
    for mode in ("DIFFERENTIAL", "FULL"):
        error = refused(
            told, StateError, "PT343", "SELECT kind, sum(1 / (v - 1)) AS s FROM t GROUP BY kind", refresh_mode=mode
        )
        assert "division by zero" in str(error)


def test_not_initialized_then_refreshed(told: Story) -> None:
    for mode in ("DIFFERENTIAL", "AUTO"):
        assert told.trickle.create_stream_table(mode, TOTALS, refresh_mode=mode, initialize=False) is None
        stream = told.stream(mode)
        assert (stream.status, stream.is_populated) == ("INITIALIZING", False)
        told.queries[mode] = TOTALS
    with pytest.raises(StateError, match="no baseline") as caught:
        told.trickle.refresh_stream_table("DIFFERENTIAL")
    assert caught.value.code == "PT310"
    assert "full" in str(caught.value.hint)
    assert told.trickle.refresh_stream_table("DIFFERENTIAL", full=True).action == "FULL"
    assert told.check("AUTO", "FULL").reason == "not populated yet"
    told.run("INSERT INTO t VALUES (30, 'k1', 1)")
    told.follow()
    assert told.stream("AUTO").status == "ACTIVE"


# Modes


def test_a_query_unsupported_under_differential_is_refused_with_its_place(told: Story) -> None:
    query = "SELECT t.v,\n  t.ctid AS place FROM t"
    error = refused(told, Unsupported, "PT234", query, refresh_mode="DIFFERENTIAL")
    assert error.at is not None
    assert "2" in error.at
    refused(told, Unsupported, "PT202", "SELECT id, statement_timestamp() AS at FROM t", refresh_mode="DIFFERENTIAL")


def test_a_query_unsupported_under_auto_runs_in_full_and_says_why(told: Story) -> None:
    result = told.create("followed", "SELECT v, lag(v) OVER (ORDER BY id) AS w, tableoid::bigint AS r FROM t", "AUTO")
    stream = told.stream("followed")
    assert (stream.refresh_mode, stream.effective_mode) == ("AUTO", "FULL")
    told.run("DELETE FROM t WHERE id = 5")
    result = told.check("followed", "FULL")
    assert "tableoid" in result.reason
    assert "tableoid" in str(told.last("followed").reason)
    assert (result.rows_inserted, result.rows_deleted) == (1, 2), "only what differs is written"
    assert told.ours() == [], "nothing is captured for it"


def test_refresh_mode_full(told: Story) -> None:
    told.create("totals", TOTALS, "FULL")
    told.run("INSERT INTO t VALUES (30, 'k1', 1)")
    result = told.check("totals", "FULL")
    assert result.reason == "refresh mode is FULL"
    assert (result.rows_inserted, result.rows_deleted) == (1, 1)
    assert told.check("totals", "FULL").rows_inserted == 0


def test_auto_falls_back_to_full_when_much_has_changed_and_says_so(told: Story) -> None:
    told.run("INSERT INTO t SELECT g, 'k' || g % 3, g FROM generate_series(21, 400) g", "ANALYZE t")
    told.create("totals", TOTALS, "AUTO")
    told.run("UPDATE t SET v = v + 1")
    assert "above the ratio 0.15" in told.check("totals", "FULL").reason
    told.run("INSERT INTO t VALUES (1000, 'k1', 1)")
    assert told.check("totals").reason == "1 change"


def test_nothing_to_do_needs_no_spark(told: Story) -> None:
    told.create("totals", TOTALS)
    with Trickle(told.dsn, master="spark://nowhere.invalid:1") as without:
        for _ in range(2):
            assert without.refresh_stream_table("totals").action == "NO_DATA"
        assert without.history("totals")[0].action == "NO_DATA"


def test_nothing_to_do_runs_no_spark_job(told: Story, spark: SparkSession) -> None:
    told.create("totals", TOTALS)
    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup())
    told.run("UPDATE t SET v = v", "UPDATE t SET id = -id")
    told.check("totals", "NO_DATA")
    assert set(tracker.getJobIdsForGroup()) == before
    told.run("UPDATE t SET v = v + 1")
    told.check("totals")
    assert set(tracker.getJobIdsForGroup()) > before


# Altering


@pytest.mark.parametrize(
    "query",
    [
        pytest.param("SELECT kind, count(*) AS n, sum(-v) AS total FROM t GROUP BY kind", id="same-columns"),
        pytest.param("SELECT kind, count(*) AS n, sum(v) AS total, max(v) AS m FROM t GROUP BY kind", id="more"),
        pytest.param("SELECT kind, sum(v) AS total FROM t WHERE v > 3 GROUP BY kind", id="fewer"),
        pytest.param("SELECT kind, count(*)::numeric AS n, v::text AS total FROM t GROUP BY kind, v", id="retyped"),
        pytest.param("SELECT t.kind, u.v AS n, 1 AS total FROM t JOIN u ON u.id = t.id", id="other-sources"),
    ],
)
def test_altering_the_query(told: Story, query: str) -> None:
    told.run("CREATE TABLE u (id int, v int)", "INSERT INTO u VALUES (1, 1), (2, 2)")
    told.create("totals", TOTALS)
    told.run("GRANT SELECT ON totals TO PUBLIC", "INSERT INTO t VALUES (30, 'k1', 1)")
    told.trickle.alter_stream_table("totals", query=query)
    told.queries["totals"] = query
    told.equal("totals")
    assert told.last("totals").reason == "the query was altered"
    assert told.last("totals").action == "REINITIALIZE"
    assert told.value("SELECT has_table_privilege('pg_monitor', 'totals', 'SELECT')") is True
    told.run("INSERT INTO t VALUES (31, 'k1', 40)", "DELETE FROM t WHERE id = 2", "UPDATE u SET v = 9 WHERE id = 1")
    told.check("totals")


def test_altering_schedule_and_mode(told: Story) -> None:
    told.create("totals", TOTALS)
    told.trickle.alter_stream_table("totals", schedule="5m")
    assert told.stream("totals").schedule == "5m"
    told.trickle.alter_stream_table("totals", schedule=None)
    assert told.stream("totals").schedule is None
    with pytest.raises(UsageError):
        told.trickle.alter_stream_table("totals", schedule="soon")
    told.trickle.alter_stream_table("totals", refresh_mode="FULL")
    assert told.ours() == [], "FULL captures nothing and keeps no state"
    told.run("INSERT INTO t VALUES (30, 'k1', 1)")
    told.check("totals", "FULL")
    told.trickle.alter_stream_table("totals", refresh_mode="DIFFERENTIAL")
    told.run("INSERT INTO t VALUES (31, 'k1', 1)")
    assert told.check("totals", "REINITIALIZE").reason == "the refresh mode was altered"
    told.run("INSERT INTO t VALUES (32, 'k1', 1)")
    told.check("totals")


def test_an_alteration_that_is_refused_changes_nothing(told: Story) -> None:
    told.create("totals", TOTALS)
    kept = told.ours()
    for kind, query in ((QueryError, "SELECT nothing FROM t"), (Unsupported, "SELECT ctid FROM t")):
        with pytest.raises(kind):
            told.trickle.alter_stream_table("totals", query=query)
    with pytest.raises(UsageError):
        told.trickle.alter_stream_table("totals", status="TIRED")
    assert told.ours() == kept
    told.run("INSERT INTO t VALUES (30, 'k1', 1)")
    told.check("totals")


# Failing, suspending, resuming


def test_suspended_after_errors_in_a_row_and_resumed(told: Story) -> None:
    told.create("inverse", "SELECT id, 100 / v AS q FROM t")
    told.run("INSERT INTO t VALUES (30, 'k1', 0)")
    for errors in (1, 2, 3):
        with pytest.raises(StateError, match="division by zero"):
            told.trickle.refresh_stream_table("inverse")
        stream = told.stream("inverse")
        assert (stream.consecutive_errors, stream.status) == (errors, "SUSPENDED" if errors == 3 else "ACTIVE")
        assert "division by zero" in str(stream.last_error)
    assert told.trickle.refresh_stream_table("inverse").action == "SKIP"
    assert told.last("inverse").status == "SKIPPED"
    told.run("DELETE FROM t WHERE id = 30", "INSERT INTO t VALUES (31, 'k1', 5)")
    told.trickle.alter_stream_table("inverse", status="ACTIVE")
    stream = told.stream("inverse")
    assert (stream.consecutive_errors, stream.status, stream.last_error) == (0, "ACTIVE", None)
    told.check("inverse")


def test_suspended_by_hand(told: Story) -> None:
    told.create("totals", TOTALS)
    told.trickle.alter_stream_table("totals", status="SUSPENDED")
    told.run("INSERT INTO t VALUES (30, 'k1', 1)")
    assert told.trickle.refresh_stream_table("totals").action == "SKIP"
    told.trickle.alter_stream_table("totals", status="ACTIVE")
    told.check("totals")


def test_a_second_refresh_at_the_same_time_is_skipped(told: Story) -> None:
    told.create("totals", TOTALS)
    told.run("INSERT INTO t VALUES (30, 'k1', 1)")
    with told.session() as other, refresh_locks(other, [told.stream("totals").pgt_id]):
        result = told.trickle.refresh_stream_table("totals")
        assert (result.action, result.reason) == ("SKIP", "another refresh of the table is under way")
        assert told.last("totals").status == "SKIPPED"
    told.check("totals")


def test_a_refresh_that_lost_its_lock_applies_nothing_twice(told: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    told.create("totals", TOTALS)
    told.run("INSERT INTO t VALUES (30, 'k1', 1)")
    locks = "FROM pg_stat_activity WHERE application_name = 'pgtrickle locks' AND datname = current_database()"

    def reach(place: str) -> None:
        if place == "spark-done":
            monkeypatch.undo()
            told.run(f"SELECT pg_terminate_backend(pid, 5000) {locks}")
            with Trickle(told.dsn, spark=told.trickle._spark) as other:
                assert other.refresh_stream_table("totals").action == "DIFFERENTIAL"

    monkeypatch.setattr(failpoints, "reach", reach)
    with pytest.raises(StateError) as caught:
        told.trickle.refresh_stream_table("totals")
    assert caught.value.code == "PT430"
    told.check("totals", "NO_DATA")


# Stream tables on stream tables


def test_a_chain_of_two_stays_exact(told: Story) -> None:
    told.create("totals", TOTALS)
    told.create("spread", "SELECT n, count(*) AS kinds, sum(total) AS total FROM totals GROUP BY n")
    for statements in (
        ("INSERT INTO t VALUES (30, 'k1', 1), (31, 'k9', 5)",),
        ("DELETE FROM t WHERE kind = 'k2'", "UPDATE t SET kind = 'k9' WHERE id < 5"),
        ("TRUNCATE t", "INSERT INTO t VALUES (1, 'k1', 1)"),
    ):
        told.run(*statements)
        told.trickle.refresh_stream_table("totals")
        told.equal("totals")
        told.check("spread")
    told.check("spread", "NO_DATA")


def test_a_stream_table_that_another_reads_is_dropped_only_with_cascade(told: Story) -> None:
    told.create("totals", TOTALS)
    told.create("spread", "SELECT n, count(*) AS kinds FROM totals GROUP BY n")
    with pytest.raises(StateError, match="spread") as caught:
        told.trickle.drop_stream_table("totals")
    assert caught.value.code == "PT303"
    assert told.trickle.drop_stream_table("totals", cascade=True) == ["public.spread", "public.totals"]
    assert told.trickle.status() == ()
    assert told.ours() == []


# Dropping, uninstalling


def test_dropping_the_last_consumer_removes_all_that_was_made(told: Story) -> None:
    told.create("totals", TOTALS)
    told.create("copies", "SELECT id, kind FROM t")
    assert any(name.startswith("s_") for name in told.ours())
    told.trickle.drop_stream_table("totals")
    assert not any(name.startswith("s_") for name in told.ours())
    del told.queries["totals"]
    told.run("INSERT INTO t VALUES (30, 'k1', 1)")
    told.check("copies")
    told.trickle.drop_stream_table("copies")
    assert told.ours() == []
    assert told.value("SELECT to_regclass('totals') IS NULL AND to_regclass('copies') IS NULL") is True
    told.run("INSERT INTO t VALUES (31, 'k1', 1)")
    with pytest.raises(StateError, match="no stream table") as caught:
        told.trickle.refresh_stream_table("copies")
    assert caught.value.code == "PT301"


def test_dropped_and_created_again_under_the_same_name(told: Story) -> None:
    told.create("totals", TOTALS)
    told.trickle.drop_stream_table("totals")
    told.create("totals", "SELECT kind, max(v) AS most FROM t GROUP BY kind")
    told.run("DELETE FROM t WHERE id = 20")
    told.check("totals")
    assert len(told.trickle.history("totals")) == 2


@pytest.mark.parametrize("dropped", [True, False], ids=["dropped", "kept"])
def test_uninstalling(told: Story, dropped: bool) -> None:
    told.create("totals", TOTALS)
    told.create("copies", "SELECT id, kind FROM t")
    content = told.content("totals")
    planned = uninstall(told.connection, drop_stream_tables=dropped, dry_run=True)
    assert told.value("SELECT to_regclass('pgtrickle.pgt_stream_tables') IS NOT NULL") is True
    assert uninstall(told.connection, drop_stream_tables=dropped) == planned
    assert told.rows("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'pgtrickle%'") == []
    assert told.rows("SELECT tgname FROM pg_trigger WHERE tgname LIKE 'pgtrickle%'") == []
    told.run("INSERT INTO t VALUES (30, 'k1', 1)")
    if dropped:
        assert told.value("SELECT to_regclass('totals') IS NULL AND to_regclass('copies') IS NULL") is True
    else:
        assert told.content("totals") == content
        assert told.rows("SELECT indexname FROM pg_indexes WHERE tablename IN ('totals', 'copies')") == []


# Roles


@pytest.fixture
def plain_role(database18: str) -> Iterator[str]:
    """A role that may log in and nothing else; it belongs to the server, so it goes at the end."""
    with db.open_session(database18) as admin:
        name = f"plain_{admin.info.dbname}"
        admin.execute(db.statement(f"CREATE ROLE {name} LOGIN PASSWORD 'plain'"))
        try:
            yield name
        finally:
            admin.execute(db.statement(f"REASSIGN OWNED BY {name} TO CURRENT_USER"))
            admin.execute(db.statement(f"DROP OWNED BY {name}"))
            admin.execute(db.statement(f"DROP ROLE {name}"))


def test_no_superuser_anywhere(database18: str, plain_role: str, spark: SparkSession) -> None:
    """A role that owns the database, and nothing else, can do all there is to do."""
    with db.open_session(database18) as admin:
        admin.execute(db.statement(f"ALTER DATABASE {admin.info.dbname} OWNER TO {plain_role}"))
    with telling(make_conninfo(database18, user=plain_role, password="plain"), spark) as told:
        assert told.value("SELECT current_setting('is_superuser')") == "off"
        told.run(
            "CREATE SCHEMA shop",
            "SET search_path = shop",
            "CREATE TABLE shop.t (id int PRIMARY KEY, kind text, v int)",
            "INSERT INTO shop.t SELECT g, 'k' || g % 3, g FROM generate_series(1, 20) g",
        )
        told.create(
            "shop.totals",
            "SELECT kind, sum(v) AS s, string_agg(id::text, ',' ORDER BY id) AS ids FROM shop.t GROUP BY kind",
        )
        told.create("shop.paired", "SELECT a.id, b.v FROM shop.t a JOIN shop.t b ON b.id = a.v + 1")
        told.run("INSERT INTO shop.t VALUES (30, 'k1', 1)", "DELETE FROM shop.t WHERE id = 3")
        told.follow()
        told.run("TRUNCATE shop.t")
        for name in told.queries:
            told.check(name, "REINITIALIZE")
        told.trickle.drop_stream_table("shop.totals")
        told.trickle.drop_stream_table("shop.paired")
        assert told.ours() == []
        uninstall(told.connection, drop_stream_tables=True)


def test_a_role_that_owns_nothing_gets_a_clear_error(told: Story, plain_role: str, spark: SparkSession) -> None:
    dsn = make_conninfo(told.dsn, user=plain_role, password="plain")
    told.create("totals", TOTALS)
    with pytest.raises(ServerError) as caught:
        Trickle(dsn, spark=spark)
    assert caught.value.code == "PT402"
    assert caught.value.hint
    uninstall(told.connection, drop_stream_tables=True)
    with pytest.raises(ServerError) as caught:
        Trickle(dsn, spark=spark)
    assert caught.value.code == "PT402"
    assert caught.value.hint


def test_a_stream_table_can_be_read_while_it_is_refreshed_and_is_never_half_new(told: Story) -> None:
    told.create("totals", TOTALS)
    with told.session() as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with reader.transaction():
            before = reader.execute("SELECT * FROM totals ORDER BY 1").fetchall()
            told.run("UPDATE t SET v = v + 1")
            told.check("totals")
            assert told.trickle.refresh_stream_table("totals", full=True).action == "FULL"
            assert reader.execute("SELECT * FROM totals ORDER BY 1").fetchall() == before
