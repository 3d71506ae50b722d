"""When Spark or Java fails under a command, the terminal gets one line of what and one of what to do; the log that is
named there has the rest. Real failures, in processes of their own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest
from tests.cli.conftest import Call

PROGRAM = [sys.executable, "-c", "from pgtrickle.cli.main import main; main()"]
CREATE = ("create", "t", "--query")
ORDERS = "SELECT id FROM orders"
SLOW = "SELECT id, CASE WHEN id < 60 THEN slow(id) END AS slow FROM many"
SLEEPING = """CREATE FUNCTION slow(integer) RETURNS integer IMMUTABLE LANGUAGE plpgsql
AS 'BEGIN PERFORM pg_catalog.pg_sleep(0.2); RETURN $1; END'"""


def begin(shop: str, home: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*PROGRAM, *arguments],
        env={**os.environ, "PGTRICKLE_DSN": shop, "PGTRICKLE_HOME": str(home), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def told(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code, error and hint; whatever else it had said would be one line too many."""
    out, err = process.communicate(timeout=120)
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == 2, err
    assert lines[0].startswith("error: PT")
    assert lines[1].startswith("hint: ")
    assert len(lines[0]) < 400
    return process.returncode, lines[0].removeprefix("error: "), lines[1].removeprefix("hint: ")


def children(pid: int) -> list[int]:
    """By /proc: the program ps is not on every machine."""
    return [int(each) for file in Path(f"/proc/{pid}/task").glob("*/children") for each in file.read_text().split()]


def kill_java(process: subprocess.Popen[str], shop: str) -> None:
    """Once its rows are being computed."""
    with psycopg.connect(shop, autocommit=True) as connection:
        while not connection.execute("SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep'").rowcount:
            assert process.poll() is None
            time.sleep(0.05)
    for child in children(process.pid):
        os.kill(child, signal.SIGKILL)


def test_no_java_trace_reaches_the_terminal(shop: str, tmp_path: Path) -> None:
    log = tmp_path / "cache" / "spark.log"
    with psycopg.connect(shop, autocommit=True) as connection:
        connection.execute(SLEEPING.encode())
        connection.execute("CREATE TABLE many AS SELECT n AS id FROM generate_series(1, 200000) AS n")
        connection.execute("ANALYZE many")
    told_nothing = begin(shop, tmp_path, "install").communicate(timeout=60)
    assert told_nothing[1] == ""
    address = "sc://127.0.0.1:1"  # is waited for ten seconds
    elsewhere = begin(shop, tmp_path, "create", "u", "--query", ORDERS, PGTRICKLE_SPARK_MASTER=address)
    slow = begin(shop, tmp_path, "create", "slow", "--query", SLOW)
    unknown = begin(shop, tmp_path, *CREATE, ORDERS, PGTRICKLE_SPARK_MASTER="nonsense")
    kill_java(slow, shop)
    code, error, hint = told(unknown)
    assert code == 3, error
    assert error.startswith("PT511: Spark does not start with master nonsense")
    assert "Master must either be yarn or start with" in error
    assert str(log) in hint
    assert re.search(r"^\tat org\.apache\.spark", log.read_text(), re.MULTILINE), "the trace is in the log"
    code, error, hint = told(slow)
    assert (code, error) == (1, "PT341: Spark failed: its Java process has ended")
    assert str(log) in hint
    code, error, hint = told(elsewhere)
    assert code == 3, error
    assert error.startswith("PT513: cannot use Spark Connect at sc://127.0.0.1:1")
    assert "pgtrickle[connect]" in hint


@pytest.mark.long
def test_a_master_that_cannot_be_read(shop: str, tmp_path: Path) -> None:
    code, error, _ = told(begin(shop, tmp_path, *CREATE, ORDERS, PGTRICKLE_SPARK_MASTER="local[x]"))
    assert code == 3, error
    assert error.startswith("PT511: Spark does not start with master local[x]")
    assert "Could not parse Master URL" in error


def test_an_unforeseen_failure_is_told_and_its_traceback_kept(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one place where a fault is made: nothing of ours is known to fail so."""

    def broken(_conn: object) -> None:
        raise KeyError("odd")

    call("install")
    monkeypatch.setenv("PGTRICKLE_HOME", str(tmp_path))
    monkeypatch.setattr("pgtrickle.catalog.reader.list_tables", broken)
    done = call("status")
    log = tmp_path / "cache" / "errors.log"
    assert done.exit_code == 1
    assert done.stderr.splitlines() == [
        "error: PT489: unexpected KeyError: 'odd'",
        f"hint: this is a fault of pgtrickle: report it with the traceback in {log}",
    ]
    assert 'raise KeyError("odd")' in log.read_text()
