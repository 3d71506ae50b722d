"""Stream tables as a data source of Spark: read as they are, and followed by a stream that is killed and restarted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import pgtrickle
from pgtrickle.api import Trickle

ROOT = Path(__file__).parents[2]
EVERY_TYPE = """
CREATE DOMAIN positive AS numeric(8, 3) CHECK (VALUE > 0);
CREATE TABLE things (id int, small smallint, big bigint, ok boolean, price numeric(12, 2), exact numeric, at date,
    moment timestamptz, here timestamp, said text, code char(5), half real, whole double precision, raw bytea, one uuid,
    bag jsonb, many int[], long interval, checked positive);
INSERT INTO things VALUES
    (1, -32768, 9223372036854775807, true, 1234567890.10, 1.50, '1582-10-15', '0001-01-01 00:00:00.000001Z',
     '9999-12-31 23:59:59.999999', 'a "quoted" \u00fc', 'ab', '-0', 'NaN', '\\x00ff', gen_random_uuid(),
     '{"a": 1.0}', '{1,NULL}', '1 mon 30 days', 1.5),
    (2, 32767, -9223372036854775808, false, 'NaN', 'NaN', '0044-03-15 BC', now(), now(), '', '', 'Infinity', 1e-300, '',
     NULL, 'null', '{}', '0', NULL);
INSERT INTO things (id) VALUES (3), (3);
"""


@pytest.fixture
def filled(database18: str, spark: SparkSession) -> str:
    with psycopg.connect(database18, autocommit=True) as connection:
        connection.execute(EVERY_TYPE.encode())
    with Trickle(database18) as trickle:
        trickle._refresher.without_spark = True
        trickle.create_stream_table("all_things", "SELECT * FROM things", refresh_mode="DIFFERENTIAL")
    pgtrickle.register_spark_source(spark, database18)
    return database18


def test_every_type(filled: str, spark: SparkSession) -> None:
    """As text they are PostgreSQL's, or Spark's for the same value; what a type in Spark cannot hold is an error."""
    read = spark.read.format("pgtrickle")
    names = (
        "id",
        "small",
        "big",
        "ok",
        "exact",
        "said",
        "code",
        "half",
        "whole",
        "one",
        "bag",
        "many",
        "long",
        "checked",
    )
    shown = [f"CAST({name} AS string)" for name in names] + ["CAST(unix_micros(moment) AS string)", "hex(raw)"]
    shown += ["CAST(here AS string)", "CAST(datediff(at, DATE'1970-01-01') AS string)"]
    found = read.option("columns", ", ".join([*names, "moment", "raw", "here", "at"])).load("all_things")
    rows = sorted(map(tuple, found.selectExpr(*shown).collect()), key=str)
    with psycopg.connect(filled) as connection:
        expected = connection.execute(
            "SELECT id::text, small::text, big::text, ok::text, exact::text, said, textin(bpcharout(code)), half::text,"
            " whole::text, one::text, bag::text, many::text, long::text, checked::text,"
            " (extract(epoch FROM moment) * 1000000)::bigint::text, upper(encode(raw, 'hex')), here::text,"
            " (at - '1970-01-01')::text FROM all_things"
        ).fetchall()
    spelled = {"-0": "-0.0", "1e-300": "1.0E-300"}
    assert rows == sorted((tuple(spelled.get(v, v) for v in row) for row in expected), key=str)
    assert dict(found.dtypes)["checked"] == "decimal(8,3)"
    priced = spark.read.format("pgtrickle").load("all_things")
    assert dict(priced.dtypes)["price"] == "decimal(12,2)"
    with pytest.raises(PySparkException, match="PT560: the column price has a value"):
        priced.collect()


def test_several_tasks_read_one_content(filled: str, spark: SparkSession) -> None:
    with psycopg.connect(filled, autocommit=True) as connection, Trickle(filled) as trickle:
        trickle._refresher.without_spark = True
        connection.execute("DELETE FROM things; INSERT INTO things SELECT g FROM generate_series(1, 5000) AS g")
        trickle.refresh_stream_table("all_things")
        parted = spark.read.format("pgtrickle").option("partitions", "4").option("columns", "id").load("all_things")
        assert parted.rdd.getNumPartitions() > 1
        assert sorted(row.id for row in parted.collect()) == list(range(1, 5001))
        with pytest.raises(PySparkException, match="PT565"):
            spark.read.format("pgtrickle").option("follower", "f").load("all_things").collect()
        with pytest.raises(PySparkException, match="PT301"):
            spark.read.format("pgtrickle").load("nothing").collect()


def follow(dsn: str, directory: Path, *flags: str) -> subprocess.Popen[bytes]:
    """The worked example, as a user runs it."""
    command = [
        sys.executable,
        "-W",
        "ignore",
        str(ROOT / "examples" / "lakehouse.py"),
        "totals",
        str(directory),
        *flags,
    ]
    environment = {**os.environ, "PGTRICKLE_DSN": dsn, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with (directory.parent / "example.log").open("ab") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)


def version(directory: Path) -> str | None:
    whole = sorted(directory.glob("version-*/_SUCCESS"))
    return whole[-1].parent.name if whole else None


def forget_commit(checkpoint: Path) -> None:
    """As if killed right before the end of its last batch: planned, applied perhaps, not finished."""
    planned, done = (
        max((int(each.name) for each in (checkpoint / name).iterdir() if each.name.isdigit()), default=-1)
        for name in ("offsets", "commits")
    )
    assert planned >= 0, "there is no batch"
    if planned == done:
        (checkpoint / "commits" / str(done)).unlink()
        (checkpoint / "commits" / f".{done}.crc").unlink(missing_ok=True)


def test_a_copy_in_files_follows_through_kills(database18: str, spark: SparkSession, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with psycopg.connect(database18, autocommit=True) as connection, Trickle(database18) as trickle:
        trickle._refresher.without_spark = True
        connection.execute("CREATE TABLE sales (id int PRIMARY KEY, shop text, amount numeric(10, 2))")
        connection.execute(
            "INSERT INTO sales SELECT g, nullif('s' || g % 50, 's7'), g FROM generate_series(1, 2000) AS g"
        )
        trickle.create_stream_table(
            "totals", "SELECT shop, count(*) AS n, sum(amount)::numeric(20, 2) AS amount FROM sales GROUP BY shop"
        )
        for window in range(1):
            running = follow(database18, copy)
            before, until = version(copy), time.monotonic() + 240
            while version(copy) == before and time.monotonic() < until:  # in the middle of whatever comes next
                connection.execute("UPDATE sales SET amount = amount + 1 WHERE id %% 7 = %s", [window])
                trickle.refresh_stream_table("totals")
                time.sleep(0.1)
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
            assert version(copy) != before, (tmp_path / "example.log").read_text()[-3000:]
            forget_commit(copy / "checkpoint")
            connection.execute("DELETE FROM sales WHERE id %% 11 = %s", [window])
            trickle.refresh_stream_table("totals", full=True)
        assert follow(database18, copy, "--once").wait(240) == 0, (tmp_path / "example.log").read_text()[-3000:]
        last = version(copy)
        assert last is not None
        rows = sorted((tuple(row) for row in spark.read.parquet(str(copy / last)).collect()), key=str)
        assert rows == sorted(connection.execute("SELECT shop, n, amount FROM totals").fetchall(), key=str)
        password = connection.info.password
        assert password
        assert password not in (tmp_path / "example.log").read_text()
