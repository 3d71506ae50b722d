"""A Spark Connect server runs what local Spark runs: the same tests, told to use it.

Its workers' Python lacks pgtrickle and all that it needs: our code is sent with the session, and the archive that
`pgtrickle package` has written.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.connect_server import ConnectServer, connect_server, free_port
from tests.cluster.passing import ROOT, STEPS, both_ways, passed_on
from tests.cluster.standalone import bare_python

from pgtrickle.spark import dependencies

OPEN = """
from pgtrickle.config import Settings
from pgtrickle.spark import session

session.configured(Settings.load())
"""
SAMPLE = ("subqueries/not_in",)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    directory = tmp_path_factory.mktemp("connect")
    packed = dependencies.write(directory / "packages.tar.gz")
    python = bare_python(directory / "python", without=tuple(each.partition(" ")[0] for each in packed))
    with connect_server(directory, python, free_port()) as found:
        yield found


def told(server: ConnectServer) -> dict[str, str]:
    return {
        "PGTRICKLE_SPARK_ARCHIVE": str(server.directory / "packages.tar.gz"),
        "TEST_SERVER": str(server.directory),
        "TEST_SERVER_PID": str(server.pid),
        "TEST_PYTHON": str(server.directory / "python" / "bin" / "python"),
        "TEST_UI": server.ui,
    }


def test_what_workers_lack_is_told(server: ConnectServer) -> None:
    """Without the archive."""
    done = subprocess.run(
        [sys.executable, "-c", OPEN],
        cwd=ROOT,
        env={**os.environ, "PGTRICKLE_SPARK_MASTER": server.url},
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stderr.splitlines()[-1]
    assert "PT485: the Python workers of the SparkSession have no p" in said


def test_on_connect(server: ConnectServer) -> None:
    """Step files by both ways, and what only Spark Connect shows (`on_connect.py`), with a large window."""
    steps = both_ways(*SAMPLE)
    tests = [*steps, "tests/cluster/on_connect.py"]
    assert passed_on(server.url, "", *tests, more=told(server)) == len(steps) + 6


@pytest.mark.long
def test_all_step_files_and_tpch(tmp_path: Path) -> None:
    tests = (STEPS, "tests/tpch/test_tpch.py::test_all_queries_follow_all_tables", "tests/refresh/test_large.py")
    with connect_server(tmp_path, bare_python(tmp_path / "python", without=("pgtrickle",)), free_port()) as server:
        assert passed_on(server.url, "", *tests) > 300
