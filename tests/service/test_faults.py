"""Faults under a running service: of the server, of Spark, of what tables are built on. Each is survived, and equal."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg import sql
from tests.conftest import FAST, _server
from tests.service.running import until
from tests.service.serving import Ear, Served, in_schema, served

from pgtrickle import db, embedded

OURS = "application_name ~ '^pgtrickle (reader|writer|aside|late|locks)'"
SLEEPING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
UNDER_WAY = "SELECT count(*) FROM pgtrickle.pgt_refresh_history WHERE status = 'RUNNING'"


@pytest.fixture(scope="module")
def own() -> Iterator[embedded.Server]:
    """A server that may be stopped."""
    with _server(18) as server:
        yield server


@pytest.fixture(scope="module")
def serving(own: embedded.Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(own.dsn, tmp_path_factory.mktemp("faults")) as found:
        yield found


@pytest.fixture
def here(serving: Served, request: pytest.FixtureRequest) -> Iterator[Served]:
    with in_schema(serving, request.node.name.removeprefix("test_")[:50]) as found:
        yield found


def failures(here: Served) -> int:
    return int(str(here.one("SELECT count(*) FROM pgtrickle.pgt_refresh_history WHERE status = 'FAILED'")))


def all_is_well(here: Served) -> None:
    """Nothing of it was counted, and nothing is left of it."""
    here.await_equal(*here.queries)
    here.until(lambda: all(here.state(name) == ("ACTIVE", 0, None) for name in here.queries), "no error is left")
    here.until(lambda: not here.one(UNDER_WAY), "no refresh is left")
    assert '"traceback":' not in here.service.log


def slowly_written(here: Served, name: str, seconds: float) -> None:
    """Whoever writes to the stream table takes so long for each statement."""
    here.run(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS"
        f" 'BEGIN PERFORM pg_sleep({seconds}); RETURN NULL; END'",
        f"CREATE TRIGGER slow AFTER INSERT ON {name} FOR EACH STATEMENT EXECUTE FUNCTION slow()",
    )


def test_sessions_and_statements_are_cut_off(here: Served) -> None:
    """Lost connections and cancelled statements pass; a statement timeout of the database's is not for refreshes."""
    here.run("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (0)")
    here.create("s", "SELECT id FROM t")
    slowly_written(here, "s", 1.5)
    this = sql.Identifier(here.conn.info.dbname)
    here.conn.execute(sql.SQL("ALTER DATABASE {} SET statement_timeout = '500ms'").format(this))
    try:
        for times, blow in enumerate(("pg_cancel_backend", "pg_terminate_backend"), start=1):
            here.run(f"INSERT INTO t VALUES ({times})")
            here.until(lambda: here.one(SLEEPING), "the refresh in the middle of its writing")
            here.run(f"SELECT {blow}(pid) FROM pg_stat_activity WHERE datname = current_database() AND {OURS}")
            here.service.await_event("refresh_failed", times)
            assert here.state("s")[:2] == ("ACTIVE", 0)
            here.await_equal("s")
        here.run("INSERT INTO t VALUES (3)")
        all_is_well(here)
    finally:
        here.conn.execute(sql.SQL("ALTER DATABASE {} RESET statement_timeout").format(this))


def test_the_disk_is_full(here: Served) -> None:
    """As the server says it (53100), for as long as a flag is there."""
    here.run(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE TABLE full_disk ()",
        "CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF to_regclass('the_disk_is_full.full_disk') IS NOT NULL THEN"
        " RAISE 'could not extend file' USING ERRCODE = 'disk_full'; END IF; RETURN NULL; END $$",
    )
    here.create("s", "SELECT id FROM t")
    here.run("CREATE TRIGGER fill AFTER INSERT ON s FOR EACH STATEMENT EXECUTE FUNCTION fill()")
    before = failures(here)
    here.run("INSERT INTO t VALUES (1)")
    here.until(lambda: failures(here) >= before + 3, "as many failures as would suspend it")
    assert here.state("s")[:2] == ("ACTIVE", 0)
    here.run("DROP TABLE full_disk")
    all_is_well(here)


WORKER = "-m\0pgtrickle.spark.daemon"
SPARK = "org.apache.spark.deploy.SparkSubmit"


def running_below(service: int, running: str) -> list[int]:
    """Processes below the service whose command line has that in it."""
    parents = {}
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                stat, told = (each / "stat").read_text(), (each / "cmdline").read_text()
            except OSError:  # it has ended
                continue
            parents[int(each.name)] = (int(stat.rsplit(")", 1)[1].split()[1]), running in told)
    below = {service}
    while more := {pid for pid, (parent, _) in parents.items() if parent in below} - below:
        below |= more
    return sorted(pid for pid in below - {service} if parents[pid][1])


def end(here: Served, running: str) -> None:
    found = running_below(here.service.process.pid, running)
    assert found
    for pid in reversed(found):
        os.kill(pid, signal.SIGKILL)


def test_an_executor_dies(here: Served) -> None:
    """The processes that ask PostgreSQL for a task's rows are killed (−9) while they wait for the answer."""
    here.run(
        "CREATE TABLE t (id int PRIMARY KEY, k int)",
        "CREATE TABLE u (k int PRIMARY KEY, v int)",
        "INSERT INTO u SELECT g, g FROM generate_series(1, 10000) AS g",
        "ANALYZE u",
        "CREATE FUNCTION slow(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS"
        " 'BEGIN IF $1 = 7 THEN PERFORM pg_sleep(2); END IF; RETURN $1; END'",
    )
    here.create("s", "SELECT t.id, an_executor_dies.slow(u.v) AS v FROM t JOIN u ON u.k = t.k")
    here.run("INSERT INTO t VALUES (1, 1)")
    here.await_equal("s")
    before = failures(here)
    here.run("INSERT INTO t VALUES (2, 7)")
    here.until(lambda: here.one(SLEEPING), "the task that asks")
    end(here, WORKER)
    here.until(lambda: failures(here) > before, "the failure")
    assert here.state("s")[:2] == ("ACTIVE", 0)
    told = here.one("SELECT error FROM pgtrickle.pgt_refresh_history WHERE status = 'FAILED' ORDER BY refresh_id DESC")
    assert "Spark failed" in str(told)
    assert "Python worker exited" in str(told)
    all_is_well(here)


def test_what_no_fingerprint_tells_is_computed_anew(here: Served) -> None:
    """A function that a query's function calls is gone, and comes back as another: suspended, then computed anew."""
    here.run(
        "CREATE TABLE t (id int PRIMARY KEY, v int)",
        "INSERT INTO t SELECT g, g FROM generate_series(1, 9) AS g",
        "CREATE FUNCTION inner_part(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1'",
        "CREATE FUNCTION outer_part(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS"
        " 'BEGIN RETURN what_no_fingerprint_tells_is_computed_anew.inner_part($1); END'",
    )
    here.create("s", "SELECT id, what_no_fingerprint_tells_is_computed_anew.outer_part(v) AS v FROM t")
    here.create("sums", "SELECT v % 2 AS k, sum(v) AS v FROM s GROUP BY 1")
    with Ear(here.dsn) as ear:
        here.run("DROP FUNCTION inner_part", "INSERT INTO t VALUES (10, 10)")
        here.until(lambda: here.state("s")[0] == "SUSPENDED", "errors in a row")
        assert here.state("s")[1] == 3
        (told,) = ear.heard("auto_suspended")
        assert "inner_part" in str(told["error"])
        (told,) = ear.heard("reinitialize_needed")
        assert "inner_part" in str(told["reason"])
    assert here.state("sums")[:2] == ("ACTIVE", 0)
    here.run("CREATE FUNCTION inner_part(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1 + 100'")
    here.ask("alter_stream_table('s', status => 'ACTIVE')")
    all_is_well(here)
    assert here.actions("s")[-1] == "REINITIALIZE"
    (state,) = here.rows(
        "SELECT relname FROM pg_class WHERE relnamespace = 'pgtrickle_state'::regnamespace AND relkind = 'r'"
    )
    here.run(f"DROP TABLE pgtrickle_state.{state[0]}", "INSERT INTO t VALUES (11, 11)")
    all_is_well(here)
    assert here.actions("sums")[-1] == "REINITIALIZE"


def test_the_server_crashes(own: embedded.Server, here: Served) -> None:
    """In the middle of a refresh, without a checkpoint, and starts again."""
    here.run(
        "CREATE TABLE t (id int PRIMARY KEY, k int)", "INSERT INTO t SELECT g, g % 3 FROM generate_series(1, 50) AS g"
    )
    here.create("s", "SELECT id, k FROM t")
    here.create("counts", "SELECT k, count(*) AS n FROM s GROUP BY 1")
    slowly_written(here, "s", 2)
    here.run("DELETE FROM t WHERE id < 10", "INSERT INTO t VALUES (100, 1)")
    here.until(lambda: here.one(UNDER_WAY), "a refresh under way")
    postmaster = int((own.data_dir / "postmaster.pid").read_text().split()[0])
    os.kill(postmaster, signal.SIGQUIT)
    until(lambda: not Path(f"/proc/{postmaster}").exists(), "the server's end")
    embedded.start(own.data_dir, settings=FAST)
    here.conn.close()
    here.conn = db.open_session(here.dsn)
    here.run("SET search_path = the_server_crashes", "UPDATE t SET k = 7 WHERE id = 20")
    here.service.await_event("lease_taken", times=2)
    all_is_well(here)


def test_all_of_spark_dies(here: Served) -> None:
    """As when the machine runs out of memory and Java is the largest: the service starts Spark anew.

    The last one: pyspark's own threads complain in the log, which the others look at.
    """
    here.run("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
    here.create("s", "SELECT t.id FROM t JOIN u USING (id)")
    here.run("INSERT INTO t VALUES (1)", "INSERT INTO u VALUES (1)")
    here.await_equal("s")
    end(here, SPARK)
    here.run("INSERT INTO t VALUES (2)", "INSERT INTO u VALUES (2)")
    here.await_equal("s")
    assert here.state("s") == ("ACTIVE", 0, None)
