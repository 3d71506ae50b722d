"""What a refresh costs PostgreSQL is on record: of the refresh's own sessions, and of the tasks it has on Spark."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from uuid import uuid4

import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pyspark.sql import SparkSession

from pgtrickle import db
from pgtrickle.api import Trickle
from pgtrickle.physical.table_facts import SMALL_CHANGES
from pgtrickle.server_cpu import UNKNOWN, Backends, Told, question
from tests.refresh.oracle import differing

BURN = "(SELECT sum(sqrt(g)) FROM generate_series(1, t.work) AS g)"
QUERY = f"SELECT t.id, u.name, {BURN} > 0 AS done FROM t JOIN u ON u.id = t.id"
LIGHT, HEAVY = 10, 3_000_000
ELSEWHERE = ("unshare", "--pid", "--fork", "--mount-proc")
"""By these a program sees no process but its own, as one on another machine."""
REFRESH = """
import sys
from pgtrickle.api import Trickle
with Trickle(sys.argv[1]) as trickle:
    trickle._refresher.without_spark = True
    trickle.create_stream_table("st", "SELECT a, count(*) AS n FROM source GROUP BY a", refresh_mode="DIFFERENTIAL")
    trickle.connection.execute("INSERT INTO public.source VALUES (2)")
    trickle.refresh_stream_table("st")
    print([row.server_cpu_ms for row in trickle.history("st")])
"""


def newest(trickle: Trickle) -> float:
    found = trickle.history("st", 1)[0]
    assert found.server_cpu_ms is not None, found
    return found.server_cpu_ms


@pytest.mark.parametrize("on_spark", [True, False])
def test_a_heavy_window_costs_more_than_a_light_one(database18: str, spark: SparkSession, *, on_spark: bool) -> None:
    """Whoever evaluates it: on Spark the work is that of a task's session."""
    with db.open_session(database18) as conn, Trickle(database18, spark=spark) as trickle:
        trickle._refresher.without_spark = not on_spark
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, work int); CREATE TABLE u (id int PRIMARY KEY, name text)")
        conn.execute("INSERT INTO u SELECT g, 'u' FROM generate_series(1, 100) AS g")
        trickle.create_stream_table("st", QUERY, refresh_mode="DIFFERENTIAL")
        found = []
        for number, work in enumerate((LIGHT, HEAVY, LIGHT, HEAVY), start=1):
            conn.execute("INSERT INTO t VALUES (%s, %s)", (number, work))
            trickle.refresh_stream_table("st")
            found.append(newest(trickle))
        assert min(found) > 0
        alone = cpu_of(conn, f"SELECT {BURN} FROM (VALUES ({HEAVY})) AS t(work)")
        assert alone > 50
        assert min(found[1], found[3]) > min(found[0], found[2]) + 0.5 * alone, found
        assert min(found[1], found[3]) < max(found[0], found[2]) + 10 * alone, found


def cpu_of(conn: db.Connection, query: str) -> float:
    """Milliseconds, as the kernel counts them for the session of the test."""
    backends = Backends.of(conn.execute(db.statement(question())).fetchall())
    before = backends.here_ms()
    db.scalar(conn, query)
    after = backends.here_ms()
    assert before is not None
    assert after is not None
    return after - before


def test_tasks_that_read_and_land_count(database18: str, spark: SparkSession) -> None:
    """Those of large work: each row of it burns a little."""
    rows = SMALL_CHANGES + 1000
    with db.open_session(database18) as conn, Trickle(database18, spark=spark) as trickle:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, work int)")
        conn.execute("INSERT INTO t SELECT g, 1 FROM generate_series(1, %s) AS g", (rows,))
        conn.execute("ANALYZE t")
        trickle.create_stream_table("st", f"SELECT t.id, {BURN} > 0 AS done FROM t", refresh_mode="FULL")
        light = newest(trickle)
        conn.execute("UPDATE t SET work = 300")
        trickle.refresh_stream_table("st")
        alone = cpu_of(conn, f"SELECT count(*) FROM (SELECT t.id, {BURN} > 0 AS done FROM t OFFSET 0) AS s WHERE done")
        assert newest(trickle) > light + 0.5 * alone


@pytest.fixture
def login(database18: str) -> Iterator[str]:
    """A plain role that may refresh, as DSN."""
    name = sql.Identifier(f"plain_{uuid4().hex[:8]}")
    with db.open_session(database18) as conn:
        conn.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'plain'").format(name))
        database = sql.Identifier(conn.info.dbname)
        conn.execute(sql.SQL("GRANT CREATE ON DATABASE {} TO {}").format(database, name))
        conn.execute(sql.SQL("GRANT CREATE ON SCHEMA public TO {}").format(name))
        try:
            yield make_conninfo(database18, user=name.as_string().strip('"'), password="plain")
        finally:
            conn.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(name))
            conn.execute(sql.SQL("DROP ROLE {}").format(name))


@pytest.mark.parametrize("rights", ["none", "to call", "to read", "both", "superuser"])
def test_from_elsewhere_who_may_asks_the_server(database18: str, login: str, rights: str) -> None:
    """And who may not is told nothing, and refreshes all the same. Both rights are needed: PostgreSQL would refuse."""
    if subprocess.run([*ELSEWHERE, "true"], capture_output=True).returncode:
        pytest.skip("this account may not start a program that sees no other's processes")
    role = sql.Identifier(str(conninfo_to_dict(login)["user"]))
    with db.open_session(database18) as conn:
        if rights in {"to read", "both"}:
            conn.execute(sql.SQL("GRANT pg_read_server_files TO {}").format(role))
        if rights in {"to call", "both"}:
            conn.execute(
                sql.SQL("GRANT EXECUTE ON FUNCTION pg_read_file(text, bigint, bigint, boolean) TO {}").format(role)
            )
    dsn = database18 if rights == "superuser" else login
    with db.open_session(dsn) as conn:
        conn.execute("CREATE TABLE source (a int); INSERT INTO source VALUES (1)")
    done = subprocess.run([*ELSEWHERE, sys.executable, "-c", REFRESH, dsn], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = [None if each == "None" else float(each) for each in done.stdout.strip("[]\n ").split(", ")]
    if rights in {"both", "superuser"}:
        assert len(found) == 2
        assert all(each is not None and 0 < each < 60_000 for each in found), found
    else:
        assert set(found) == {None}


def test_a_process_of_another_machine_is_not_taken_for_the_servers(database18: str) -> None:
    """It must have begun when the session did, and be PostgreSQL's."""
    with db.open_session(database18) as conn:
        ((pid, started, _),) = conn.execute(db.statement(question())).fetchall()
    with db.open_session(database18) as conn:
        ((pid, started, _),) = conn.execute(db.statement(question())).fetchall()
        assert Backends.of([(pid, started, False)]).told is Told.BY_KERNEL
        later = Backends.of([(pid, float(str(started)) + 60, False)])
        assert (later.told, later.here_ms(), later.sql) == (Told.BY_NOBODY, None, UNKNOWN)
        mine = Backends.of([(conn.fileno(), started, False), (pid, started, False)])
        assert mine.told is Told.BY_NOBODY


SUMS = (
    "SELECT c.region, count(*) AS n, sum(o.amount) AS amount, sum(o.amount * o.parts) AS worth, avg(o.parts) AS mean,"
    " max(o.amount) AS most, min(o.amount) AS least, sum(o.amount + c.region) AS a, sum(o.amount - o.parts) AS b,"
    " sum(o.amount * c.region) AS d, max(o.amount * o.parts) AS e"
    " FROM orders o JOIN customers c ON c.id = o.customer GROUP BY c.region"
)


def test_a_source_that_is_to_be_spared_is(
    database18: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark then joins and groups what PostgreSQL only reads; and AUTO has it evaluate everything."""
    monkeypatch.setenv("PGTRICKLE_POSTGRES_ROWS", "10000000")
    spent: dict[str, float] = {}
    with db.open_session(database18) as conn:
        conn.execute("CREATE TABLE customers (id int PRIMARY KEY, region int)")
        conn.execute("CREATE TABLE orders (id int, customer int, amount numeric(10,2), parts int)")
        conn.execute("INSERT INTO customers SELECT g, g % 7 FROM generate_series(1, 5000) AS g")
        conn.execute(
            "INSERT INTO orders SELECT g, g % 5000, nullif(g % 1000, 7) / 8.0, g % 5 FROM generate_series(1, 300000) g"
        )
        conn.execute("ANALYZE orders")
        conn.execute("ANALYZE customers")
        for spare in ("false", "true"):
            monkeypatch.setenv("PGTRICKLE_SPARE_SOURCE", spare)
            with Trickle(database18, spark=spark) as trickle:
                if not trickle.status():
                    trickle.create_stream_table("st", SUMS, refresh_mode="DIFFERENTIAL")
                for _ in range(3):
                    trickle.refresh_stream_table("st", full=True)
                    assert differing(conn, "st", SUMS) == []
                spent[spare] = min(each.server_cpu_ms or 0 for each in trickle.history("st", 3))
                trickle.create_stream_table(f"auto_{spare}", SUMS, refresh_mode="AUTO")
                conn.execute("UPDATE orders SET parts = parts + 1 WHERE id % 1000 = 1")
                trickle.refresh_stream_table(f"auto_{spare}")
                assert differing(conn, f"auto_{spare}", SUMS) == []
                ways = {str(each.way).partition(" ")[2] for each in trickle.history(f"auto_{spare}")}
                assert ways == {"on Spark" if spare == "true" else "by PostgreSQL"}
        assert 0 < spent["true"] < 0.6 * spent["false"], spent
