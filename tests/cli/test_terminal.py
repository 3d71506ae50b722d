"""What a terminal sees and a pipe does not: progress of long work, tables drawn, and the question before uninstall."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

import psycopg
import pytest
from tests.cli.conftest import Call

from pgtrickle.cli import output, progress

PROGRAM = [sys.executable, "-c", "from pgtrickle.cli.main import main; main()"]


def on_terminal(command: list[str], dsn: str, typed: bytes = b"", columns: int = 200) -> tuple[int, str]:
    """Run with all three streams on a terminal; returns the exit code and what it showed."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PGTRICKLE_DSN": dsn, "TERM": "xterm", "COLUMNS": str(columns)}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    os.write(ours, typed)
    shown = b""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if select.select([ours], [], [], 0.2)[0]:
            try:
                shown += os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
        elif process.poll() is not None:
            break
    os.close(ours)
    return process.wait(timeout=10), shown.decode()


def test_work_over_a_second_shows_its_phase_on_a_terminal_only(shop: str) -> None:
    code = "import time; from pgtrickle.cli.progress import progress\nwith progress('sorting'): time.sleep(2)"
    assert "sorting: asking PostgreSQL" in on_terminal([sys.executable, "-c", code], shop)[1]
    piped = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert (piped.stdout, piped.stderr) == ("", "")


def test_short_work_shows_nothing(shop: str) -> None:
    code = "from pgtrickle.cli.progress import progress\nwith progress('sorting'): pass"
    assert on_terminal([sys.executable, "-c", code], shop) == (0, "")
    assert progress._PATIENCE == 1.0


def test_uninstall_asks_on_a_terminal(call: Call, shop: str) -> None:
    call("install")
    code, shown = on_terminal([*PROGRAM, "uninstall"], shop, b"n\n")
    assert code == 1
    assert "drop schema pgtrickle" in shown
    assert call("uninstall", "--dry-run").stdout.endswith("nothing was changed (dry run)\n")
    code, _ = on_terminal([*PROGRAM, "uninstall"], shop, b"y\n")
    assert code == 0
    with psycopg.connect(shop) as connection:
        assert connection.execute("SELECT to_regnamespace('pgtrickle')").fetchone() == (None,)


def test_status_is_a_drawn_table_on_a_terminal(call: Call, shop: str) -> None:
    call("create", "big", "--query", "SELECT id FROM orders", "--no-initialize")
    code, shown = on_terminal([*PROGRAM, "status"], shop)
    assert code == 0
    assert "public.big" in shown
    assert "───" in shown
    assert "───" not in call("status").stdout
    for verb, wanted in (("status", "calculated"), ("cdc", "public.orders")):
        call("alter", "big", "--schedule", "calculated")
        narrow = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", on_terminal([*PROGRAM, verb], shop, columns=80)[1])
        assert wanted in narrow
        assert max(map(len, narrow.splitlines())) <= 80, verb
    examined = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", on_terminal([*PROGRAM, "doctor"], shop, columns=80)[1])
    assert max(map(len, examined.splitlines())) <= 80
    assert examined.count("severity") == 1, "a table, whose last column is folded"
    assert re.search(r"max_connections +(OK|WARN) +\d+ of \d+", examined)


def test_status_is_watched_until_it_is_interrupted(call: Call, shop: str) -> None:
    call("create", "big", "--query", "SELECT id FROM orders", "--no-initialize", "--schedule", "5m")
    environment = {**os.environ, "PGTRICKLE_DSN": shop}
    command = [*PROGRAM, "status", "--watch", "--every", "0.2", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as running:
        assert running.stdout is not None
        seen = [next(line for line in running.stdout if '"schedule"' in line)]
        call("alter", "big", "--schedule", "7m")
        while '"7m"' not in seen[-1]:
            seen.append(next(line for line in running.stdout if '"schedule"' in line))
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=20)
    assert '"5m"' in seen[0]
    assert (running.returncode, errors) == (0, "")
    shown = watched_on_terminal([*PROGRAM, "status", "--watch", "--every", "0.2"], shop)
    assert shown.count("every 0.2 s, Ctrl-C ends") >= 2
    assert "\x1b[2J" in shown, "it takes the place of what was there"


def watched_on_terminal(command: list[str], dsn: str) -> str:
    """What a command shows until it has shown it twice, and is interrupted as by Ctrl-C."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PGTRICKLE_DSN": dsn, "TERM": "xterm"}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    deadline = time.monotonic() + 60
    while shown.count(b"public.big") < 2 and time.monotonic() < deadline:
        if select.select([ours], [], [], 0.2)[0]:
            shown += os.read(ours, 65536)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 0
    os.close(ours)
    return shown.decode()


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-"), (0.4, "0s"), (59, "59s"), (200, "3m 20s"), (187_200, "2d 4h"), (3600, "1h")]
)
def test_durations_read_well(seconds: float | None, text: str) -> None:
    assert output.duration(seconds) == text
