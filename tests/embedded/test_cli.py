"""`pgtrickle postgres start|stop|status`: output and exit codes."""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner, Result

from pgtrickle import embedded
from pgtrickle.cli.postgres import app


@pytest.fixture
def data_dir() -> Iterator[Path]:
    home = Path(tempfile.mkdtemp(prefix="pgtrickle-test-"))
    home.chmod(0o755)
    yield home / "pg"
    embedded.stop(home / "pg")
    shutil.rmtree(home)


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.mark.parametrize("version", ["18", "16"])
def test_start_status_stop(data_dir: Path, version: str) -> None:
    assert call("status", "--data-dir", data_dir).exit_code == 1
    started = call("start", "--data-dir", data_dir, "--pg-version", version, "--json")
    assert started.exit_code == 0, started.output
    facts = json.loads(started.stdout)
    with psycopg.connect(facts["dsn"]) as connection:
        assert connection.info.server_version // 10000 == int(version) == facts["version"]
    assert json.loads(call("status", "--data-dir", data_dir, "--json").stdout) == facts
    assert facts["dsn"] in call("status", "--data-dir", data_dir).stdout
    assert json.loads(call("stop", "--data-dir", data_dir, "--json").stdout)["stopped"]
    assert call("stop", "--data-dir", data_dir).exit_code == 0
    told = call("status", "--data-dir", data_dir, "--json")
    assert (told.exit_code, json.loads(told.stdout)["running"]) == (1, False)


def test_a_taken_port_is_one_line_of_what_and_one_of_what_to_do(data_dir: Path) -> None:
    with socket.socket() as other:
        other.bind((embedded.HOST, 0))
        other.listen()
        told = call("start", "--data-dir", data_dir, "--port", str(other.getsockname()[1]))
    assert told.exit_code == 3
    what, hint = told.stderr.splitlines()
    assert what.startswith("error: PT501: port ")
    assert hint.startswith("hint: ")


def test_wrong_usage_is_two(data_dir: Path) -> None:
    assert call("start", "--data-dir", data_dir, "--pg-version", "9").exit_code == 2
    assert call("start", "--data-dir", data_dir, "--port", "70000").exit_code == 2
