"""What else there is around a source: settings, identity columns, rows that change their partition, COPY FREEZE,
triggers that are disabled, subscriptions, and a row that a statement meets twice."""

from __future__ import annotations

import psycopg
import pytest

from pgtrickle.errors import Error
from pgtrickle.refresh.immediate import functions
from tests.immediate.telling import Told
from tests.refresh.oracle import differing

KINDS = {
    "rows_of": "SELECT k, v FROM t WHERE v < 90",
    "totals": "SELECT k, count(*) AS n, sum(v) AS total, max(v) AS most FROM t GROUP BY k",
    "lists": "SELECT k, string_agg(v::text, ',' ORDER BY v) AS list FROM t GROUP BY k",
    "pairs": "SELECT t.id, t.v, s.name FROM t JOIN s USING (k)",
    "lonely": "SELECT t.id FROM t WHERE NOT EXISTS (SELECT FROM s WHERE s.k = t.k)",
    "places": "SELECT id, rank() OVER (PARTITION BY k ORDER BY v, id) AS place FROM t",
    "first": "SELECT id, v FROM t ORDER BY v DESC, id LIMIT 3",
}


def _create(story: Told, table: str = "CREATE TABLE t (id int PRIMARY KEY, k int, v int)") -> None:
    story.run(
        table,
        "CREATE TABLE s (k int PRIMARY KEY, name text)",
        "INSERT INTO s VALUES (0, 'none'), (1, 'one'), (2, 'two')",
        "INSERT INTO t (id, k, v) SELECT g, g % 4, g % 7 FROM generate_series(1, 20) AS g",
    )
    for name, query in KINDS.items():
        story.create(name, query)


@pytest.mark.parametrize("few", [500, 0])
def test_settings_that_choose_plans(story18: Told, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They make a write slow, never wrong."""
    monkeypatch.setattr(functions, "FEW", few)
    _create(story18)
    for setting in (
        "plan_cache_mode = 'force_generic_plan'",
        "plan_cache_mode = 'force_custom_plan'",
        "enable_nestloop = off",
        "enable_hashjoin = off",
        "enable_mergejoin = off",
        "enable_indexscan = off",
        "enable_material = off",
        "enable_sort = off",
        "enable_hashagg = off",
        "enable_tidscan = off",
        "work_mem = '64kB'",
        "jit_above_cost = 0",
        "debug_parallel_query = on",
        "max_parallel_workers_per_gather = 0",
        "default_transaction_isolation = 'repeatable read'",
        "default_transaction_deferrable = on",
        "temp_tablespaces = ''",
        "default_tablespace = ''",
        "check_function_bodies = off",
        "search_path = ''",
        "role = 'none'",
        "backslash_quote = 'on'",
        "xmlbinary = 'hex'",
        "exit_on_error = off",
        "lock_timeout = '10s'",
        "statement_timeout = '60s'",
        "default_with_oids = off",
        "session_replication_role = 'replica'",
        "session_replication_role = 'local'",
    ):
        with story18.session() as session:
            session.execute(f"SET {setting}")
            for number in range(2):
                session.execute(f"INSERT INTO public.t VALUES ({100 + number}, 1, {number}), ({200 + number}, NULL, 3)")
                session.execute("UPDATE public.t SET v = v + 1, k = (k + 1) % 4 WHERE id > 15")
                session.execute("UPDATE public.s SET name = name || '.' WHERE k = 1")
        story18.right(after=setting)
        story18.write("DELETE FROM t WHERE id >= 100")


@pytest.mark.parametrize("kind", ["ALWAYS", "BY DEFAULT"])
def test_identity_columns(story18: Told, kind: str) -> None:
    story18.run(f"CREATE TABLE numbered (id int GENERATED {kind} AS IDENTITY PRIMARY KEY, k int DEFAULT 7, v int)")
    story18.create("sums", "SELECT k, count(*) AS n, max(id) AS last FROM numbered GROUP BY k")
    story18.create("itself", "SELECT a.id, b.v FROM numbered a LEFT JOIN numbered b ON b.id = a.v")
    story18.write(
        "INSERT INTO numbered (v) VALUES (2), (1), (NULL)",
        "INSERT INTO numbered DEFAULT VALUES",
        "INSERT INTO numbered (id, v) OVERRIDING SYSTEM VALUE VALUES (40, 1)",
        "UPDATE numbered SET k = DEFAULT, v = id WHERE id < 3",
        "TRUNCATE numbered RESTART IDENTITY",
        "INSERT INTO numbered (v) VALUES (1)",
    )


PARTS = (
    "CREATE TABLE t (id int, k int, v int) PARTITION BY RANGE (v)",
    "CREATE TABLE t_low PARTITION OF t FOR VALUES FROM (0) TO (4)",
    "CREATE TABLE t_high PARTITION OF t FOR VALUES FROM (4) TO (8) PARTITION BY LIST (k)",
    "CREATE TABLE t_high_one PARTITION OF t_high FOR VALUES IN (1)",
    "CREATE TABLE t_high_more PARTITION OF t_high DEFAULT",
    "CREATE TABLE t_rest PARTITION OF t DEFAULT",
    "CREATE UNIQUE INDEX ON t (id, v, k)",
)


@pytest.mark.parametrize("few", [500, 0])
def test_rows_change_their_partition(story18: Told, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "FEW", few)
    story18.run(*PARTS[:-1])
    _create(story18, PARTS[-1])
    story18.write(
        "UPDATE t SET v = v + 4 WHERE id = 1",
        "UPDATE t SET v = (v + 4) % 9, k = (k + 1) % 4",
        "UPDATE t_high SET k = 1 WHERE k <> 1",
        "UPDATE t_high SET k = NULL",
        "INSERT INTO t VALUES (300, 1, 1), (301, 1, 5) ON CONFLICT (id, v, k) DO UPDATE SET id = t.id + 1000",
        "INSERT INTO t VALUES (300, 1, 1), (301, 1, 5) ON CONFLICT (id, v, k) DO UPDATE SET id = t.id + 1000",
        "WITH gone AS (DELETE FROM t_low RETURNING *) INSERT INTO t SELECT id, k, v + 4 FROM gone",
        "MERGE INTO t USING s ON s.k = t.k WHEN MATCHED AND s.k = 1 THEN DELETE"
        " WHEN MATCHED THEN UPDATE SET v = t.v + 5 WHEN NOT MATCHED THEN INSERT VALUES (900, s.k, 3)",
    )
    story18.run("INSERT INTO t VALUES (950, 2, 1)")
    story18.fails(psycopg.errors.CheckViolation, "UPDATE t_low SET v = 7")


def test_a_row_that_a_statement_meets_twice(story18: Told) -> None:
    """PostgreSQL refuses a second change by one statement; what several statements of a function do counts."""
    _create(story18)
    story18.fails(
        psycopg.errors.CardinalityViolation,
        "INSERT INTO t VALUES (1, 1, 1), (1, 2, 2) ON CONFLICT (id) DO UPDATE SET v = excluded.v",
    )
    story18.run(
        "CREATE FUNCTION bump(which int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN"
        "  UPDATE t SET v = v + 10 WHERE id = which; UPDATE t SET k = 2 WHERE id = which; RETURN which; END $$"
    )
    story18.write(
        "SELECT bump(id) FROM t WHERE id < 4",
        "UPDATE s SET name = name || bump(5) WHERE k = 1",
        "WITH moved AS (UPDATE t SET v = v + 1 WHERE id = 6 RETURNING id)"
        " UPDATE t SET v = 50 FROM moved WHERE t.id = 6",
        "UPDATE t SET v = t.v + o.v FROM t AS o WHERE o.k = t.k",
        "INSERT INTO t VALUES (1, 1, 1), (70, 2, 2) ON CONFLICT (id) DO UPDATE SET v = bump(8)",
        "MERGE INTO t USING (VALUES (1, 9), (71, 9), (72, 9)) AS w (id, v) ON w.id = t.id"
        " WHEN MATCHED THEN UPDATE SET v = w.v WHEN NOT MATCHED AND w.id = 71 THEN DO NOTHING"
        " WHEN NOT MATCHED THEN INSERT VALUES (w.id, 1, w.v)",
        "MERGE INTO t USING s ON s.k = t.k WHEN NOT MATCHED BY SOURCE THEN DELETE"
        " WHEN MATCHED AND t.v > 5 THEN UPDATE SET k = NULL",
    )


def test_copy_freeze(story18: Told) -> None:
    _create(story18)
    with story18.connection.transaction():
        story18.run("TRUNCATE t")
        with story18.connection.cursor() as cursor, cursor.copy("COPY t FROM STDIN (FREEZE)") as copy:
            for id in range(600):
                copy.write_row((id, id % 5, id % 11))
        story18.right()
    story18.write("UPDATE t SET v = 3 WHERE id < 3", "DELETE FROM t WHERE id > 4")


def test_triggers_that_were_disabled_and_enabled(story18: Told) -> None:
    """What was written meanwhile is not there: the next refresh finds out, and computes the table."""
    _create(story18)
    for switch in ("DISABLE TRIGGER USER", "DISABLE TRIGGER ALL"):
        story18.run(f"ALTER TABLE t {switch}", "UPDATE t SET v = v + 1 WHERE k = 1", "DELETE FROM t WHERE id = 5")
        story18.run(f"ALTER TABLE t {switch.replace('DISABLE', 'ENABLE')}", "UPDATE s SET name = 'again' WHERE k = 0")
        for name in KINDS:
            assert story18.trickle.refresh_stream_table(name).action == "REINITIALIZE"
            assert story18.stream(name).is_immediate
        story18.right()
        story18.write(
            "UPDATE t SET v = v + 1 WHERE id = 3", "DELETE FROM t WHERE id = 7", "INSERT INTO t VALUES (7, 1, 1)"
        )


BY_OTHERS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "subscription": (
        (
            "CREATE SUBSCRIPTION sub CONNECTION 'dbname=x' PUBLICATION p WITH (connect = false, slot_name = NONE)",
            (
                "INSERT INTO pg_subscription_rel (srsubid, srrelid, srsubstate)"
                " SELECT oid, 't'::regclass, 'r' FROM pg_subscription WHERE subname = 'sub'"
            ),
        ),
        ("DELETE FROM pg_subscription_rel", "DROP SUBSCRIPTION sub"),
    ),
    "partition": (
        ("CREATE TABLE p (LIKE t) PARTITION BY RANGE (id)", "ALTER TABLE p ATTACH PARTITION t DEFAULT"),
        ("ALTER TABLE p DETACH PARTITION t", "DROP TABLE p"),
    ),
    "unlogged": (("ALTER TABLE t SET UNLOGGED",), ("ALTER TABLE t SET LOGGED",)),
}


@pytest.mark.parametrize("how", BY_OTHERS)
def test_a_source_that_comes_to_be_written_by_others(story18: Told, how: str) -> None:
    """Triggers of statements do not see a subscription's worker, or what comes by the partitioned table: the next
    refresh says so, and no table is taken into the mode. In another mode it is kept."""
    begin, end = BY_OTHERS[how]
    _create(story18)
    story18.run(*begin)
    try:
        with pytest.raises(Error, match=r"PT70[12]"):
            story18.trickle.create_stream_table("more", "SELECT id FROM t", refresh_mode="IMMEDIATE")
        with pytest.raises(Error, match=r"PT70[12]"):
            story18.trickle.refresh_stream_table("pairs")
        story18.trickle.alter_stream_table("pairs", refresh_mode="DIFFERENTIAL")
        story18.run("DELETE FROM t WHERE id = 4")
        story18.trickle.refresh_stream_table("pairs")
        assert differing(story18.connection, "pairs", KINDS["pairs"]) == []
    finally:
        story18.run(*end)
