"""A SparkSession that the user hands over is checked at `connect`: what it lacks is said there, by code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg

STORY = """
import os, signal, sys, types
import pyspark
from pyspark.sql import SparkSession
import pgtrickle

dsn, lame = sys.argv[1:]

def tell(label, action):
    try:
        print(label, action())
    except pgtrickle.Error as error:
        print(label, error.code, error.message)
        assert error.hint

def connect(spark):
    with pgtrickle.connect(dsn, spark=spark) as trickle:
        return "works"

class Connect(types.SimpleNamespace):
    __module__ = "pyspark.sql.connect.session"
    __hash__ = object.__hash__
    is_stopped, version, conf = False, pyspark.__version__, {}

tell("connect", lambda: connect(Connect()))
own = {"spark.ui.enabled": "false", "spark.sql.session.timeZone": "Asia/Tokyo", "spark.sql.ansi.enabled": "false"}
spark = SparkSession.builder.master("local[1]").config(map=own).getOrCreate()
context = spark.sparkContext
context.setLogLevel("OFF")
right = context.pythonExec, context.pythonVer
for label, executable, version in (
    ("missing", "/nonexistent/python", right[1]),
    ("lame", lame, right[1]),
    ("version", right[0], "3.9"),
):
    context.pythonExec, context.pythonVer = executable, version
    tell(label, lambda: connect(spark))
context.pythonExec, context.pythonVer = right
actual = SparkSession.version
SparkSession.version = property(lambda self: "3.5.1")
tell("other", lambda: connect(spark))
SparkSession.version = actual
with pgtrickle.connect(dsn, spark=spark) as trickle:
    trickle.create_stream_table("made", "SELECT at, n FROM moments")
    print("equal", trickle.verify("made")[0].equal)
    print("kept", spark.conf.get("spark.sql.session.timeZone"), spark.conf.get("spark.sql.ansi.enabled"))
    os.kill(context._gateway.proc.pid, signal.SIGKILL)
    context._gateway.proc.wait()
    tell("dead", lambda: trickle.refresh_stream_table("made", full=True))
    tell("again", lambda: connect(spark))
    print("reads", len(trickle.status()))
"""


def test_what_a_session_lacks_is_told_at_connect(database18: str, tmp_path: Path) -> None:
    """One Spark, whose Python is made wrong in several ways; then as it should be, with settings of its own."""
    with psycopg.connect(database18, autocommit=True) as connection:
        connection.execute("CREATE TABLE moments (at timestamptz, n integer)")
        connection.execute("INSERT INTO moments VALUES (now(), 1), (NULL, 2)")
    without = tmp_path / "without"
    without.mkdir()
    (without / "pyarrow.py").write_text("raise ModuleNotFoundError(\"No module named 'pyarrow'\", name='pyarrow')\n")
    lame = tmp_path / "python"
    lame.write_text(f'#!/bin/sh\nPYTHONPATH="{without}:$PYTHONPATH" exec "{sys.executable}" "$@"\n')
    lame.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", STORY, database18, str(lame)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.stdout.splitlines() == [
        "connect PT487 a session of Spark Connect that is handed over must have the settings that results depend on",
        "missing PT484 the Python workers of the SparkSession cannot be started (/nonexistent/python)",
        "lame PT485 the Python workers of the SparkSession have no pyarrow",
        "version PT484 the Python workers of the SparkSession are of another version than this one",
        f"other PT486 the SparkSession runs Spark 3.5.1, and this Python has pyspark {_pyspark()}",
        "equal True",
        "kept Asia/Tokyo false",
        "dead PT483 the SparkSession that was handed over has stopped",
        "again PT483 the SparkSession that was handed over has stopped",
        "reads 1",
    ], done.stderr


def _pyspark() -> str:
    from importlib.metadata import version

    return version("pyspark")
