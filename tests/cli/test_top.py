"""`pgtrickle top`: live on a terminal of 80 columns, also after its connection was lost; plain in a pipe; JSON."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import StringIO

import psycopg
import pytest
from rich.console import Console
from tests.cli.conftest import Call
from tests.cli.test_terminal import PROGRAM

from pgtrickle import db
from pgtrickle.catalog.health import Check
from pgtrickle.cli.top_page import compact, page, plain
from pgtrickle.monitor import overview

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A program on a terminal of 80 columns and 24 lines."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.shown = ""

    def until(self, holds: Callable[[str], bool], timeout_s: float = 60) -> None:
        """Reads on until what was shown from now on has something."""
        self.shown = ""
        deadline = time.monotonic() + timeout_s
        while not holds(CONTROL.sub("", self.shown)):
            assert time.monotonic() < deadline, self.shown
            if select.select([self._number], [], [], 0.2)[0]:
                self.shown += os.read(self._number, 65536).decode(errors="replace")

    def type(self, keys: bytes) -> None:
        os.write(self._number, keys)


@contextmanager
def on_terminal(dsn: str, *arguments: str) -> Iterator[tuple[Terminal, subprocess.Popen[bytes]]]:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PGTRICKLE_DSN": dsn, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    process = subprocess.Popen([*PROGRAM, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    try:
        yield Terminal(ours), process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)
        os.close(ours)


@pytest.fixture
def tables(call: Call, shop: str) -> str:
    for name in ("big", "small"):
        assert call("create", name, "--query", "SELECT id FROM orders", "--no-initialize").exit_code == 0
    return shop


def test_it_is_live_on_a_terminal_and_survives_the_loss_of_its_connection(call: Call, tables: str) -> None:
    with on_terminal(tables, "top", "--every", "0.2") as (terminal, process):
        terminal.until(lambda text: "small" in text and "empty" in text and "q ends" in text)
        assert "\x1b[?1049h" in terminal.shown, "what was on the terminal comes back at the end"
        lines = CONTROL.sub("", terminal.shown).replace("\r", "\n").split("\n")
        assert max(map(len, lines)) <= 80
        with psycopg.connect(tables, autocommit=True) as conn:
            ended = conn.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'pgtrickle top' AND datname = current_database()"
            ).fetchall()
        assert ended == [(True,)]
        assert call("pause", "big").exit_code == 0
        terminal.until(lambda text: "suspended" in text)
        terminal.type(b"q")
        assert process.wait(10) == 0


def test_a_pipe_gets_plain_lines_and_programs_get_objects(call: Call, tables: str) -> None:
    told = call("top", "--count", "1")
    assert told.exit_code == 0
    assert re.search(r"^small +empty +AUTO \(DIFFERENTIAL\) +- +- +- +- +- ", told.stdout, re.MULTILINE)
    assert "ERROR service: no service runs" in told.stdout
    assert "\x1b" not in told.stdout
    looks = [json.loads(line) for line in call("top", "--count", "2", "--every", "0.1", "--json").stdout.splitlines()]
    assert [[(each["name"], each["state"]) for each in look["tables"]] for look in looks] == [
        [("public.big", "empty"), ("public.small", "empty")]
    ] * 2


def test_it_only_looks(call: Call, shop: str) -> None:
    told = call("top", "--count", "1")
    assert told.exit_code == 1
    assert "install" in told.stderr
    with psycopg.connect(shop) as connection:
        assert connection.execute("SELECT to_regnamespace('pgtrickle')").fetchone() == (None,)


def test_no_stream_tables(call: Call) -> None:
    assert call("install").exit_code == 0
    assert "`pgtrickle create` makes one" in call("top", "--count", "1").stdout


def test_what_is_wrong_stands_above_and_what_has_no_room_is_counted(tables: str) -> None:
    with db.connect(tables) as conn:
        seen = overview.read(conn)
    good = replace(seen.tables[0], is_populated=True, staleness_s=1.0, period_s=60.0)
    wrong = replace(good, name="public.zz", status="ERROR", last_error="division by zero")
    checks = (
        Check("stream_tables", "WARN", "public.t01 is in state SUSPENDED"),
        Check("capture", "ERROR", "public.orders (TRIGGER): trigger_missing"),
        Check("stream_tables", "ERROR", "public.zz is in state ERROR: division by zero", "mend it"),
    )
    many = replace(seen, tables=(*(replace(good, name=f"public.t{n:02}") for n in range(40)), wrong), checks=checks)

    def drawn(height: int, width: int = 80) -> list[str]:
        text = StringIO()
        Console(width=width, height=height, file=text).print(page(many, None, 2, width, height))
        return text.getvalue().splitlines()

    lines = drawn(24)
    assert len(lines) <= 24
    long = replace(many, tables=(replace(wrong, name="public." + "a_long_name_" * 6),))
    hint = Check(
        "capture", "ERROR", "public.orders: slot_missing", "The service goes back to triggers, and " * 2 + "ends."
    )
    text = StringIO()
    Console(width=80, height=24, file=text).print(page(replace(long, checks=(hint,)), None, 2, 80, 24))
    assert re.search(r"^a_long_name_.*…  failed +(\S+ +)+", text.getvalue(), re.M), "only the name gives way"
    assert "ends." in text.getvalue(), "a hint is told in full where there is room"
    assert lines[3].startswith("zz "), lines
    shown = sum(line.startswith("t") for line in lines)
    assert f"… and {40 - shown} more" in "\n".join(lines)
    assert [line.rstrip() for line in lines if line.startswith(("ERROR", "WARN", "      → "))] == [
        "ERROR capture: public.orders (TRIGGER): trigger_missing",
        "ERROR public.zz is in state ERROR: division by zero",
        "      → mend it",
        "WARN public.t01 is in state SUSPENDED",
    ]
    assert all(f"t{n:02}" in "\n".join(drawn(80)) for n in range(40))
    assert "mode" not in drawn(24)[1]
    assert "mode" in drawn(24, 140)[1]
    assert len([line for line in plain(many, 132) if line.startswith("t")]) == 40


@pytest.mark.parametrize(
    ("number", "text"),
    [(None, "-"), (0, "0"), (9999, "9999"), (10_000, "10.0k"), (99_960, "100k"), (999_499, "999k"), (999_500, "1.0M")],
)
def test_numbers_are_short(number: int | None, text: str) -> None:
    assert compact(number) == text
