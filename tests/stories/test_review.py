"""Stories found by review: each once gave wrong rows, or a refresh that could never succeed."""

from __future__ import annotations

import threading

import pytest
from pyspark.sql import SparkSession

from pgtrickle import db
from pgtrickle.api import Trickle
from pgtrickle.errors import StateError
from pgtrickle.physical import table_facts
from pgtrickle.refresh import plan
from tests.refresh.oracle import differing


def test_a_lost_trigger_is_noticed_by_every_consumer(database18: str, spark: SparkSession) -> None:
    with db.open_session(database18) as connection, Trickle(database18, spark=spark) as trickle:
        connection.execute("CREATE TABLE d (id int)")
        for name in ("x", "y"):
            trickle.create_stream_table(name, "SELECT id FROM d", refresh_mode="DIFFERENTIAL")
        connection.execute("ALTER TABLE d DISABLE TRIGGER ALL")
        connection.execute("INSERT INTO d VALUES (2)")
        connection.execute("ALTER TABLE d ENABLE TRIGGER ALL")
        for name in ("x", "y"):
            assert trickle.refresh_stream_table(name).action == "REINITIALIZE"
            assert differing(connection, name, "SELECT id FROM d") == []


def test_a_column_rewritten_in_its_own_type_is_noticed(database18: str, spark: SparkSession) -> None:
    with db.open_session(database18) as connection, Trickle(database18, spark=spark) as trickle:
        connection.execute("CREATE TABLE d AS SELECT generate_series(1, 3) AS id")
        trickle.create_stream_table("x", "SELECT id FROM d", refresh_mode="DIFFERENTIAL")
        connection.execute("ALTER TABLE d ALTER COLUMN id TYPE int USING id * 10")
        assert trickle.refresh_stream_table("x").action == "REINITIALIZE"
        assert differing(connection, "x", "SELECT id FROM d") == []


def test_a_database_with_repeatable_read_as_default(
    database18: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nested aggregates land twice; the second landing must be seen by a transaction that began before it."""
    monkeypatch.setattr(plan, "SMALL_CHANGES", -1)
    query = "SELECT n, count(*) AS c FROM (SELECT k, count(*) AS n FROM a JOIN b USING (k) GROUP BY k) q GROUP BY n"
    with db.open_session(database18) as connection:
        connection.execute(
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = %L',"
            " current_database(), 'repeatable read'); END $$"
        )
        connection.execute("CREATE TABLE a AS SELECT g % 5 AS k FROM generate_series(1, 50) AS g")
        connection.execute("CREATE TABLE b AS SELECT generate_series(0, 3) AS k")
        with Trickle(database18, spark=spark) as trickle:
            trickle.create_stream_table("x", query, refresh_mode="DIFFERENTIAL")
            assert differing(connection, "x", query) == []
            connection.execute("DELETE FROM b WHERE k = 1")
            assert trickle.refresh_stream_table("x").action == "DIFFERENTIAL"
            assert differing(connection, "x", query) == []


def test_a_type_whose_equality_is_not_on_the_search_path(database18: str, spark: SparkSession) -> None:
    """GROUP BY uses the type's own equality; so must the search for a group's state."""
    with db.open_session(database18) as connection, Trickle(database18, spark=spark) as trickle:
        connection.execute("CREATE SCHEMA ext")
        connection.execute("CREATE TYPE ext.pair AS (v text)")
        connection.execute(
            "CREATE FUNCTION ext.lower_cmp(ext.pair, ext.pair) RETURNS int IMMUTABLE LANGUAGE sql AS"
            " $$ SELECT CASE WHEN lower(($1).v) < lower(($2).v) THEN -1"
            " WHEN lower(($1).v) = lower(($2).v) THEN 0 ELSE 1 END $$"
        )
        for operator, test in (("<", "< 0"), ("<=", "<= 0"), ("=", "= 0"), (">=", ">= 0"), (">", "> 0")):
            name = {"<": "lt", "<=": "le", "=": "eq", ">=": "ge", ">": "gt"}[operator]
            connection.execute(
                f"CREATE FUNCTION ext.{name}(ext.pair, ext.pair) RETURNS bool IMMUTABLE LANGUAGE sql AS"
                f" $$ SELECT ext.lower_cmp($1, $2) {test} $$"
            )
            connection.execute(
                f"CREATE OPERATOR ext.{operator} (LEFTARG = ext.pair, RIGHTARG = ext.pair, FUNCTION = ext.{name})"
            )
        connection.execute(
            "CREATE OPERATOR CLASS ext.pair_ops DEFAULT FOR TYPE ext.pair USING btree AS"
            " OPERATOR 1 ext.<, OPERATOR 2 ext.<=, OPERATOR 3 ext.=,"
            " OPERATOR 4 ext.>=, OPERATOR 5 ext.>,"
            " FUNCTION 1 ext.lower_cmp(ext.pair, ext.pair)"
        )
        connection.execute("CREATE TABLE t (k ext.pair)")
        connection.execute("INSERT INTO t VALUES (ROW('a')::ext.pair)")
        query = "SELECT k, count(*) AS n FROM t GROUP BY k"
        trickle.create_stream_table("x", query, refresh_mode="DIFFERENTIAL")
        connection.execute("INSERT INTO t VALUES (ROW('A')::ext.pair)")
        assert trickle.refresh_stream_table("x").action == "DIFFERENTIAL"
        assert connection.execute("SELECT n FROM x").fetchall() == [(2,)]


def test_a_computed_nan_can_be_deleted(database18: str, spark: SparkSession) -> None:
    """PostgreSQL's own NaN from infinities has another sign bit than one that was read from text."""
    query = "SELECT g, sum(v) AS s FROM f GROUP BY g"
    with db.open_session(database18) as connection, Trickle(database18, spark=spark) as trickle:
        connection.execute("CREATE TABLE f (g int, v float8)")
        connection.execute("INSERT INTO f VALUES (1, 'inf'), (1, '-inf')")
        trickle.create_stream_table("x", query, refresh_mode="DIFFERENTIAL")
        connection.execute("DELETE FROM f WHERE v < 0")
        assert trickle.refresh_stream_table("x").action == "DIFFERENTIAL"
        assert differing(connection, "x", query) == []
        assert trickle.refresh_stream_table("x", full=True).action == "FULL"
        assert differing(connection, "x", query) == []


def test_a_union_of_aggregates_is_never_scanned_for_a_delta(
    database18: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_facts, "_LOOKUP_SECONDS", 1e9)
    monkeypatch.setattr(table_facts, "_SCAN_IN_SERVER_SECONDS", 1e9)
    query = (
        "SELECT t.k, u.n FROM t JOIN (SELECT k, count(*) AS n FROM a GROUP BY k"
        " UNION ALL SELECT k, count(*) FROM b GROUP BY k) u ON u.k = t.k"
    )
    with db.open_session(database18) as connection, Trickle(database18, spark=spark) as trickle:
        for name in "tab":
            connection.execute(f"CREATE TABLE {name} AS SELECT g % 3 AS k FROM generate_series(1, 7) AS g")
        trickle.create_stream_table("x", query, refresh_mode="DIFFERENTIAL")
        connection.execute("INSERT INTO t VALUES (1), (2)")
        connection.execute("DELETE FROM a WHERE k = 1")
        assert trickle.refresh_stream_table("x").action == "DIFFERENTIAL"
        assert differing(connection, "x", query) == []


def test_rows_that_never_met_cannot_fail_an_auto_table(database18: str, spark: SparkSession) -> None:
    """The delta joins each side's change with the other; a division by zero there is not in the present."""
    query = "SELECT l.id, l.x / r.y AS q FROM l JOIN r ON l.k = r.k"
    with db.open_session(database18) as connection, Trickle(database18, spark=spark) as trickle:
        connection.execute(
            "CREATE TABLE l AS SELECT 1 AS id, 1 AS k, 10 AS x UNION ALL SELECT g, 9, 1 FROM generate_series(10, 99) g"
        )
        connection.execute(
            "CREATE TABLE r AS SELECT 1 AS k, 2 AS y UNION ALL SELECT 2, 5"
            " UNION ALL SELECT g, 1 FROM generate_series(10, 99) g"
        )
        trickle.create_stream_table("x", query, refresh_mode="AUTO")
        with connection.transaction():
            connection.execute("UPDATE l SET k = 2 WHERE id = 1")
            connection.execute("UPDATE r SET y = 0 WHERE k = 1")
        result = trickle.refresh_stream_table("x")
        assert result.action in {"FULL", "DIFFERENTIAL"}
        assert result.action == "DIFFERENTIAL" or "division by zero" in result.reason
        assert differing(connection, "x", query) == []


def test_full_reads_what_cannot_be_locked(database18: str, spark: SparkSession) -> None:
    with db.open_session(database18) as connection, Trickle(database18, spark=spark) as trickle:
        connection.execute("CREATE TABLE d AS SELECT generate_series(1, 3) AS id")
        connection.execute("CREATE MATERIALIZED VIEW mv AS SELECT id FROM d")
        trickle.create_stream_table("x", "SELECT id FROM mv")
        connection.execute("INSERT INTO d VALUES (4)")
        connection.execute("REFRESH MATERIALIZED VIEW mv")
        assert trickle.refresh_stream_table("x").action == "FULL"
        assert differing(connection, "x", "SELECT id FROM mv") == []


def test_altering_waits_for_the_refresh_under_way(
    database18: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full refresh of the old query may not commit after the query was altered."""
    from pgtrickle.apply import merge

    computed, go_on = threading.Event(), threading.Event()
    replace = merge.replace

    def slow(*given: object) -> object:
        computed.set()
        assert go_on.wait(60)
        return replace(*given)  # type: ignore[arg-type]

    old, new = "SELECT id FROM d WHERE id <= 2", "SELECT id FROM d WHERE id > 2"
    with (
        db.open_session(database18) as connection,
        Trickle(database18, spark=spark) as one,
        Trickle(database18, spark=spark) as other,
    ):
        connection.execute("CREATE TABLE d AS SELECT generate_series(1, 5) AS id")
        one.create_stream_table("x", old)
        monkeypatch.setattr(merge, "replace", slow)
        refreshing = threading.Thread(target=lambda: one.refresh_stream_table("x", full=True))
        altering = threading.Thread(target=lambda: other.alter_stream_table("x", query=new))
        refreshing.start()
        assert computed.wait(60)
        altering.start()
        go_on.set()
        refreshing.join(60)
        altering.join(60)
        assert differing(connection, "x", new) == []


def test_a_suspended_table_stays_suspended(database18: str, spark: SparkSession) -> None:
    with db.open_session(database18) as connection, Trickle(database18, spark=spark) as trickle:
        connection.execute("CREATE TABLE d (id int)")
        trickle.create_stream_table("x", "SELECT id FROM d", refresh_mode="DIFFERENTIAL")
        trickle.alter_stream_table("x", status="SUSPENDED")
        result = trickle.refresh_stream_table("x", full=True)
        assert (result.action, "ACTIVE" in result.reason) == ("SKIP", True)
        assert trickle.status("x")[0].status == "SUSPENDED"


def test_the_parts_of_a_delta_show_the_same_of_equal_values(database18: str, spark: SparkSession) -> None:
    """Of 1 and 1.0 PostgreSQL's max() shows either: if two parts of one delta differed in it, they would take away what
    is not there."""
    query = (
        "SELECT x.id, y.id AS other, x.m"
        " FROM (SELECT t.id, t.k, (SELECT max(r.n) FROM r WHERE r.k = t.k) AS m FROM t) AS x"
        " LEFT JOIN r AS y ON y.k = x.k"
    )
    with db.open_session(database18) as connection, Trickle(database18, spark=spark) as trickle:
        connection.execute("CREATE TABLE t AS SELECT g AS id, 1 AS k FROM generate_series(1, 2) AS g")
        connection.execute("CREATE TABLE r (id int, k int, n numeric)")
        trickle.create_stream_table("x", query, refresh_mode="DIFFERENTIAL")
        with connection.transaction():
            connection.execute("INSERT INTO r VALUES (10, 1, 1), (11, 1, 1.0)")
            connection.execute("UPDATE t SET k = k")
        assert trickle.refresh_stream_table("x").action == "DIFFERENTIAL"
        assert differing(connection, "x", query) == []


def test_state_that_somebody_changed_is_made_anew(database18: str, spark: SparkSession) -> None:
    query = "SELECT k, count(*) AS n FROM t GROUP BY k"
    with db.open_session(database18) as connection, Trickle(database18, spark=spark) as trickle:
        connection.execute("CREATE TABLE t AS SELECT g AS id, g % 3 AS k FROM generate_series(1, 9) AS g")
        trickle.create_stream_table("x", query, refresh_mode="DIFFERENTIAL")
        connection.execute("UPDATE pgtrickle_state.s_1_1 SET n = 1")
        connection.execute("DELETE FROM t WHERE k = 0")
        with pytest.raises(StateError, match="PT331"):
            trickle.refresh_stream_table("x")
        assert trickle.refresh_stream_table("x").action == "REINITIALIZE"
        assert differing(connection, "x", query) == []


@pytest.mark.parametrize(
    "query",
    ["SELECT k, count(*) AS n FROM t GROUP BY k", "SELECT id, k FROM t ORDER BY k, id LIMIT 2"],
    ids=["groups", "firsts"],
)
def test_state_that_another_version_kept_is_made_anew(database18: str, spark: SparkSession, query: str) -> None:
    with db.open_session(database18) as connection:
        connection.execute("CREATE TABLE t AS SELECT g AS id, g % 3 AS k FROM generate_series(1, 9) AS g")
        with Trickle(database18, spark=spark) as trickle:
            trickle.create_stream_table("x", query, refresh_mode="DIFFERENTIAL")
        connection.execute("COMMENT ON TABLE pgtrickle_state.s_1_1 IS NULL")
        connection.execute("INSERT INTO t VALUES (10, 0)")
        with Trickle(database18, spark=spark) as trickle:
            result = trickle.refresh_stream_table("x")
            assert (result.action, "in another way" in result.reason) == ("REINITIALIZE", True)
            connection.execute("INSERT INTO t VALUES (11, 0)")
            assert trickle.refresh_stream_table("x").action == "DIFFERENTIAL"
        with Trickle(database18, spark=spark) as trickle:
            connection.execute("DELETE FROM t WHERE id = 3")
            assert trickle.refresh_stream_table("x").action == "DIFFERENTIAL"
        assert differing(connection, "x", query) == []
