"""The hand-written pages hold: what stands in them to be typed is typed here, and shows what they say it shows.

Blocks of SQL go to psql, of sh to bash, of Python to Python, in the order of the page, in its own database and beside a
service. A block of plain text below one is what it shows: each line, in this order, by its beginning. Comments before a
block say more: `<!-- service -->` runs beside what follows, `<!-- undone -->` is rolled back, and `<!-- elsewhere -->`
cannot be run here: of that, only the commands of pgtrickle are checked.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from pgtrickle import embedded
from pgtrickle.cli.main import app
from pgtrickle.config import Settings
from pgtrickle.programs import binaries
from tests.conftest import fresh_database
from tests.service.running import running

DOCS = Path(__file__).parent.parent / "docs"
PAGES = sorted(DOCS.glob("*.md"))
TYPED = {"sql", "sh", "python"}
AS_USERS_HAVE_IT = str(Settings().postgres_rows)
"""Tables this small need no Spark, which other tests ask for."""
_BLOCK = re.compile(r"(?:^<!-- (\w+) -->\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    mark: str
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in _BLOCK.findall(page.read_text())]


def is_run(page: Path) -> bool:
    return any(block.language in TYPED and block.mark != "elsewhere" for block in blocks(page))


@pytest.fixture
def environment(server18: embedded.Server) -> Iterator[dict[str, str]]:
    with fresh_database(server18) as dsn:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        yield {**os.environ, "PGTRICKLE_DSN": dsn, "PATH": path, "PGTRICKLE_POSTGRES_ROWS": AS_USERS_HAVE_IT}


def command(block: Block, dsn: str, psql: Path) -> tuple[list[str], str]:
    """What runs a block, and what is typed into it."""
    if block.language == "sql":
        text = f"BEGIN;\n{block.text}ROLLBACK;\n" if block.mark == "undone" else block.text
        return [str(psql), "-X", "-q", "-A", "-t", "-F", " | ", "-v", "ON_ERROR_STOP=1", dsn], text
    if block.language == "python":
        return [sys.executable, "-"], block.text
    return ["bash", "-euo", "pipefail"], block.text


@pytest.mark.parametrize("page", [page for page in PAGES if is_run(page)], ids=lambda page: page.stem)
def test_a_page_runs_as_typed(
    page: Path, environment: dict[str, str], server18: embedded.Server, tmp_path: Path
) -> None:
    """The service is there from the beginning of each page: only the tutorial starts it."""
    dsn = environment["PGTRICKLE_DSN"]
    psql = binaries(server18.version, None) / "psql"
    shown = ""
    with running(dsn, tmp_path, postgres_rows=AS_USERS_HAVE_IT) as service:
        service.await_event("lease_taken")
        for block in blocks(page):
            if block.language == "text":
                assert_shown(block.text, shown)
            elif block.language in TYPED and block.mark not in {"elsewhere", "service"}:
                arguments, text = command(block, dsn, psql)
                done = subprocess.run(
                    arguments,
                    input=text,
                    cwd=tmp_path,
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=120,
                    check=False,
                )
                assert done.returncode == 0, f"{block.text}\n{done.stdout}{done.stderr}"
                shown = done.stdout


def assert_shown(expected: str, shown: str) -> None:
    """Each line, in order; in between there may be others, and more in each than the page says."""
    left = [" ".join(line.split()) for line in shown.splitlines()]
    for line in expected.splitlines():
        wanted = " ".join(line.split())
        while left and not left[0].startswith(wanted):
            left.pop(0)
        assert left, f"{wanted!r} is not in\n{shown}"
        left.pop(0)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_and_their_options_exist(page: Path) -> None:
    """Everywhere on a page: in what is run elsewhere, and in the prose."""
    root: Any = typer.main.get_command(app)
    fenced = "\n".join(block.text for block in blocks(page) if block.language == "sh")
    lines = re.findall(r"^(?:\S+/)?(pgtrickle [a-z].*)$", fenced, re.MULTILINE)
    for line in [*lines, *re.findall(r"`(pgtrickle [a-z][^`\n]*)`", page.read_text())]:
        words = line.split("  #")[0].split()
        found: Any = root
        given = words[1:]
        while given and given[0] in getattr(found, "commands", {}):
            found = found.commands[given.pop(0)]
        assert found is not root, f"no verb in {line!r}"
        known = {
            name for part in (root, found) for option in part.params for name in (*option.opts, *option.secondary_opts)
        }
        unknown = {word.split("=")[0] for word in given if word.startswith("--")} - known - {"--help"}
        assert unknown == set(), line


def test_the_marks_are_those_that_there_are() -> None:
    marks = {block.mark for page in PAGES for block in blocks(page)}
    assert marks <= {"", "elsewhere", "service", "undone"}
    languages = {block.language for page in PAGES for block in blocks(page) if block.mark == ""}
    assert languages <= {*TYPED, "text", "ini", "yaml", "dockerfile"}


def test_what_is_not_shown_is_found() -> None:
    assert_shown("a  b\nd", "x\na b c\nc\nd")
    with pytest.raises(AssertionError, match="is not in"):
        assert_shown("d\na b", "a b c\nd")
