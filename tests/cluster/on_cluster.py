"""What only a cluster shows. Run by `test_cluster.py`, in a process whose Spark is the cluster's."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import DataFrame, SparkSession
from tests.cluster.standalone import descendants, is_executor, is_stopped
from tests.refresh.oracle import differing

from pgtrickle import db
from pgtrickle.api import Trickle
from pgtrickle.directories import spark_log
from pgtrickle.errors import Error
from pgtrickle.physical.table_facts import SMALL_CHANGES
from pgtrickle.refresh.evaluate import on_spark
from pgtrickle.spark.landing import Landed, to_staging
from pgtrickle.spark.parallelism import fit, tasks_at_once
from pgtrickle.spark.worker import Server

TOTALS = (
    "SELECT c.region, count(*) AS n, sum(o.amount) AS amount FROM orders o JOIN customers c ON c.id = o.customer"
    " GROUP BY c.region"
)
DETAIL = "SELECT o.id, c.name, 100 / o.amount AS share FROM orders o JOIN customers c ON c.id = o.customer"
MANY = SMALL_CHANGES + 10_000


@contextmanager
def world(dsn: str) -> Iterator[tuple[db.Connection, Trickle]]:
    """Two tables with a stream table over both, filled."""
    with db.open_session(dsn) as connection, Trickle(dsn) as trickle:
        connection.execute("CREATE TABLE customers (id int PRIMARY KEY, name text, region int)")
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY, customer int, amount numeric)")
        connection.execute("INSERT INTO customers SELECT g, 'c' || g, g % 7 FROM generate_series(1, 2000) AS g")
        connection.execute(
            "INSERT INTO orders SELECT g, g % 2000 + 1, g % 1000 / 8.0 + 1 FROM generate_series(1, 60000) AS g"
        )
        connection.execute("CREATE INDEX ON orders (customer)")
        connection.execute("ANALYZE")
        trickle.create_stream_table("detail", DETAIL, refresh_mode="DIFFERENTIAL")
        assert differing(connection, "detail", DETAIL) == []
        yield connection, trickle


def change_many(connection: db.Connection) -> None:
    connection.execute(f"UPDATE orders SET amount = amount + 1 WHERE id <= {MANY}")


def test_no_password_is_seen(database18: str, spark: SparkSession) -> None:
    """Not in the event log, nor by the UI's interface, nor in any log; also where a task fails."""
    password = conninfo_to_dict(database18)["password"]
    assert isinstance(password, str)
    with world(database18) as (connection, trickle):
        change_many(connection)
        assert trickle.refresh_stream_table("detail").action == "DIFFERENTIAL"
        connection.execute("UPDATE orders SET amount = 0 WHERE id <= 3")
        with pytest.raises(Error, match="division by zero"):
            trickle.refresh_stream_table("detail")
    application = f"{spark.sparkContext.uiWebUrl}/api/v1/applications/{spark.sparkContext.applicationId}"
    shown = {each: get(f"{application}/{each}") for each in ("environment", "stages?details=true", "sql?details=true")}
    shown |= {f"job {job['jobId']}": json.dumps(job) for job in json.loads(get(f"{application}/jobs"))}
    files = [
        *Path(os.environ["TEST_EVENT_LOG"]).rglob("*"),
        *Path(os.environ["TEST_CLUSTER"]).rglob("std*"),
        spark_log(),
    ]
    shown |= {str(file): file.read_text(errors="replace") for file in files if file.is_file()}
    assert any("MapInArrow" in text for name, text in shown.items() if "eventlog" in name or "app-" in name)
    assert "MapInArrow" in shown["sql?details=true"]
    assert [name for name, text in shown.items() if password in text] == []


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - the UI of our own session
        found = answer.read().decode()
    assert isinstance(found, str)
    return found


def _connections(connection: db.Connection, which: str) -> int:
    """How many tasks have at this moment, of those for which that holds."""
    found = db.scalar(
        connection,
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        f" AND application_name LIKE 'pgtrickle task%' AND {which}",
    )
    return int(str(found))


@contextmanager
def most_connections(dsn: str) -> Iterator[list[int]]:
    """How many connections tasks have in use, counted again and again meanwhile."""
    counted, over = list[int](), threading.Event()

    def count() -> None:
        with db.connect(dsn) as connection:
            while not over.wait(0.005):  # one that is idle may have been closed: its backend has not seen it yet
                counted.append(_connections(connection, "state <> 'idle'"))

    counter = threading.Thread(target=count)
    counter.start()
    try:
        yield counted
    finally:
        over.set()
        counter.join()


def test_connections_are_bounded(database18: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a bound no more are in use, and none is kept; without one, workers keep theirs for the next task."""
    kept, in_use = {}, {}
    monkeypatch.setenv("PGTRICKLE_SPARK_CONNECTIONS", "3")
    with world(database18) as (connection, _):
        for bound in (3, 0):
            monkeypatch.setenv("PGTRICKLE_SPARK_CONNECTIONS", str(bound))
            change_many(connection)
            with Trickle(database18) as trickle, most_connections(database18) as counted:
                assert trickle.refresh_stream_table("detail").action == "DIFFERENTIAL"
                while bound and _connections(connection, "true"):  # none is kept
                    time.sleep(0.05)
            kept[bound] = _connections(connection, "true")
            assert differing(connection, "detail", DETAIL) == []
            in_use[bound] = max(counted)
        assert 0 < in_use[3] <= 3, in_use
        assert kept[3] == 0 < kept[0], kept
        monkeypatch.setenv("PGTRICKLE_SPARK_CONNECTIONS", "1")
        change_many(connection)
        with Trickle(database18) as trickle, pytest.raises(Error, match="one task of this refresh takes") as caught:
            trickle.refresh_stream_table("detail")
        assert caught.value.code == "PT518"


class Landings:
    """What has landed in each staging table, and what of it counts."""

    def __init__(self, connection: db.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
        self.connection = connection
        self.found: list[tuple[int, Landed]] = []
        monkeypatch.setattr(on_spark, "to_staging", self._to_staging)

    def _to_staging(self, frame: DataFrame, server: Server, table: str, settings: Mapping[str, str]) -> Landed:
        landed = to_staging(frame, server, table, settings)
        self.found.append((int(str(db.scalar(self.connection, f"SELECT count(*) FROM {table}"))), landed))
        return landed

    @property
    def twice(self) -> int:
        """Rows of attempts that do not count."""
        return sum(rows - landed.rows for rows, landed in self.found)


def arm(what: str) -> None:
    """From now on that happens to the first task that comes by."""
    file = Path(os.environ["TEST_FAILPOINT"])
    file.with_name(f"{file.name}.claimed").unlink(missing_ok=True)
    file.write_text(f"once:{what}")


@pytest.fixture
def landings(database18: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Landings]:
    with db.open_session(database18) as connection:
        yield Landings(connection, monkeypatch)


def test_a_task_that_dies_after_it_has_landed_is_repeated(
    database18: str, spark: SparkSession, landings: Landings
) -> None:
    with world(database18) as (connection, trickle):
        change_many(connection)
        arm("task-landed")
        assert trickle.refresh_stream_table("detail").action == "DIFFERENTIAL"
        assert landings.twice > 0
        assert differing(connection, "detail", DETAIL) == []


def test_a_task_that_hangs_after_it_has_landed_is_run_beside(
    database18: str, spark: SparkSession, landings: Landings
) -> None:
    """Speculation: the other copy counts, whatever becomes of the first."""
    with world(database18) as (connection, trickle):
        change_many(connection)
        arm("stop:task-landed")
        assert trickle.refresh_stream_table("detail").action == "DIFFERENTIAL"
        assert landings.twice > 0
        assert differing(connection, "detail", DETAIL) == []


def test_a_worker_that_dies_while_its_tasks_land(database18: str, spark: SparkSession) -> None:
    """All of an executor's processes end at once, one of them in the middle of what it writes."""
    with world(database18) as (connection, trickle):
        change_many(connection)
        arm("stop:task-landing")
        killed, over = list[int](), threading.Event()

        def kill() -> None:
            workers = [int(pid) for pid in os.environ["TEST_WORKERS"].split(",")]
            while not (killed or over.wait(0.02)):
                executors = [pid for worker in workers for pid in descendants(worker) if is_executor(pid)]
                killed.extend(pid for pid in executors if any(map(is_stopped, descendants(pid))))
            for pid in [*killed, *(each for executor in killed for each in descendants(executor))]:
                os.kill(pid, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            assert trickle.refresh_stream_table("detail").action == "DIFFERENTIAL"
        finally:
            over.set()
            killer.join()
        assert killed
        assert differing(connection, "detail", DETAIL) == []


def test_partitions_are_the_clusters(spark: SparkSession) -> None:
    """Of two workers, whatever this machine has: once there is another executor in place of the one that died."""
    until = time.monotonic() + 120
    while tasks_at_once(spark) < 4 and time.monotonic() < until:
        time.sleep(0.2)
    fit(spark)
    assert tasks_at_once(spark) == 4
    assert spark.conf.get("spark.sql.shuffle.partitions") == "4"
