"""Every help page: fits 80 columns, no sentence cut off, words of a person and not of a program."""

from __future__ import annotations

import re

import pytest
import typer
from typer.testing import CliRunner

from pgtrickle.cli.main import app

ROOT = typer.main.get_command(app)
SUBCOMMANDS = [*getattr(ROOT, "commands", {}), "postgres start", "postgres stop", "postgres status"]


@pytest.mark.parametrize("verb", ["", *SUBCOMMANDS])
def test_a_help_page_reads_well(verb: str) -> None:
    told = CliRunner().invoke(app, [*verb.split(), "--help"], env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})
    assert told.exit_code == 0
    page = told.output
    assert max(map(len, page.splitlines())) <= 80
    listed = page.split("Commands:")[-1] if "Commands:" in page else ""
    assert "..." not in listed, "the first sentence says it all"
    for word in ("int range", " anew", "to be as given", "else the embedded", "INTEGER", "TEXT"):
        assert word not in page, word
    for sentence in re.split(r"\.\s", page.split("Options:")[0]):
        assert len(sentence.split()) <= 25, sentence
