"""`python -m pgtrickle.demo` from outside: it ends by itself, tells the truth, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgtrickle.demo.shop import STREAMS

COMMAND = [sys.executable, "-m", "pgtrickle.demo"]


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory for temporary files that any account can enter: as root, the server runs under another one."""
    with tempfile.TemporaryDirectory(prefix="pgtrickle-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def left_behind(home: Path) -> list[Path]:
    return list(home.glob("pgtrickle-demo-*"))


def test_the_demo_ends_with_every_table_equal(home: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "--seconds", "12"],
        env={**os.environ, "TMPDIR": str(home)},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "\x1b" not in done.stdout, "no escape sequences in a pipe"
    for stream in STREAMS:
        assert re.search(rf"public\.{stream.name} +\d+ refreshes +\d+ rows changed +equal\n", done.stdout)
    for source in ("customers", "items", "orders"):
        assert re.search(rf"public\.{source} +WAL +captured from the WAL\n", done.stdout), "handed over from triggers"
    verdict = re.search(r"5 stream tables equal their queries after (\d+) transactions\.", done.stdout)
    assert verdict is not None
    assert int(verdict[1]) > 20, "there were live writes"
    assert left_behind(home) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_removes_its_server(home: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        COMMAND, env={**os.environ, "TMPDIR": str(home)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline().startswith("opening the shop"), "the server is up by now"
    (place,) = left_behind(home)
    port = int((place / "data" / "postmaster.pid").read_text().splitlines()[3])
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert errors == "interrupted; everything was removed\n"
    assert left_behind(home) == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


def test_an_unreachable_server_is_three() -> None:
    done = subprocess.run(
        [*COMMAND, "--dsn", "postgresql://127.0.0.1:1/x"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 3
    what, hint = done.stderr.splitlines()
    assert what.startswith("error: PT400")
    assert hint.startswith("hint: ")
