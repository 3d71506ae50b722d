"""What only Spark Connect shows. Run by `test_connect.py`, in a process whose Spark is a Connect server."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import SparkSession
from tests.cluster.connect_server import connect_server
from tests.cluster.on_cluster import DETAIL, change_many, get, world
from tests.refresh.oracle import differing

import pgtrickle
from pgtrickle.api import Trickle
from pgtrickle.directories import spark_log
from pgtrickle.spark import connect
from pgtrickle.spark.executors import is_connect
from pgtrickle.spark.parallelism import tasks_at_once

SERVER = Path(os.environ["TEST_SERVER"])


def test_no_password_is_seen(database18: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in plans, which travel to the server here, nor in its logs and event logs, nor by its UI."""
    assert is_connect(spark)
    password = conninfo_to_dict(database18)["password"]
    assert isinstance(password, str)
    with world(database18) as (connection, trickle):
        change_many(connection)
        assert trickle.refresh_stream_table("detail").action == "DIFFERENTIAL"
        assert differing(connection, "detail", DETAIL) == []
        connection.execute("UPDATE orders SET amount = 0 WHERE id <= 3")
        with pytest.raises(pgtrickle.Error, match="division by zero"):
            trickle.refresh_stream_table("detail")
        monkeypatch.setenv("PGTRICKLE_SPARK_CONNECTIONS", "3")  # for which tasks would have to ask this process
        with Trickle(database18) as bounded, pytest.raises(pgtrickle.Error) as caught:
            bounded.refresh_stream_table("detail")
        assert caught.value.code == "PT517"
    ui = f"{os.environ['TEST_UI']}/api/v1/applications"
    application = f"{ui}/{json.loads(get(ui))[0]['id']}"
    shown = {each: get(f"{application}/{each}") for each in ("environment", "stages?details=true", "sql?details=true")}
    shown["connect"] = get(f"{os.environ['TEST_UI']}/connect/")
    files = [*SERVER.rglob("*.log"), *(SERVER / "events").rglob("*"), spark_log()]
    shown |= {str(file): file.read_text(errors="replace") for file in files if file.is_file()}
    assert any("MapInArrow" in text for name, text in shown.items() if "/events/" in name)
    assert "MapInArrow" in shown["sql?details=true"]
    assert [name for name, text in shown.items() if password in text] == []


@pytest.mark.parametrize(
    ("code", "settings"),
    [
        ("PT550", {"spark.executor.memory": "4g"}),
        ("PT551", {connect.ARCHIVES: "s3a://bucket/packages.tar.gz#packages"}),
    ],
)
def test_settings_that_a_session_cannot_have(spark: SparkSession, code: str, settings: dict[str, str]) -> None:
    with pytest.raises(pgtrickle.Error) as caught:
        connect.session_at(os.environ["PGTRICKLE_SPARK_MASTER"], {}, settings)
    assert caught.value.code == code


def test_partitions_are_the_servers(spark: SparkSession) -> None:
    assert tasks_at_once(spark) == 2
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark.conf.get("spark.sql.leafNodeDefaultParallelism") == "1"


def test_a_session_that_is_handed_over_stays_as_it_is(database18: str, spark: SparkSession) -> None:
    given = SparkSession.builder.remote(os.environ["PGTRICKLE_SPARK_MASTER"]).create()
    given.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        with psycopg.connect(database18, autocommit=True) as connection:
            connection.execute("CREATE TABLE moments (at timestamptz, n integer)")
            connection.execute("INSERT INTO moments SELECT now(), g FROM generate_series(1, 20) AS g")
        with Trickle(database18, spark=given) as trickle:
            trickle.create_stream_table("made", "SELECT at, n FROM moments", refresh_mode="DIFFERENTIAL")
            assert trickle.verify("made")[0].equal
        assert given.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
    finally:
        given.stop()


@pytest.mark.filterwarnings("ignore:.RETRIES_EXCEEDED.:UserWarning")  # pyspark's own word on it
def test_a_server_that_was_started_again_is_found(database18: str, spark: SparkSession) -> None:
    """The session that we had went with it: the refresh in between fails by a code, the next one has another session.
    (The last test: the server of the others has gone afterwards.)"""
    with world(database18) as (connection, trickle):
        os.kill(int(os.environ["TEST_SERVER_PID"]), signal.SIGKILL)
        change_many(connection)
        port = int(os.environ["PGTRICKLE_SPARK_MASTER"].rpartition(":")[2])
        with pytest.raises(pgtrickle.Error) as caught:
            trickle.refresh_stream_table("detail")
        assert caught.value.code == "PT513"
        with connect_server(SERVER / "again", Path(os.environ["TEST_PYTHON"]), port):
            assert trickle.refresh_stream_table("detail").action == "DIFFERENTIAL"
            assert differing(connection, "detail", DETAIL) == []
