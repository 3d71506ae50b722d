"""Every step file in IMMEDIATE mode: maintained by the writers' own statements, PostgreSQL's answer as the oracle."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgtrickle.errors import Error
from pgtrickle.refresh.immediate import functions
from tests.steps.parser import read
from tests.steps.runner import ROOT, name, paths, run
from tests.steps.stream_table import OnWriters

WITH_CLOCK = [path for path in paths() if read(path).clock is not None]
WITHOUT_CLOCK = [path for path in paths() if path not in WITH_CLOCK]
LEAST = 290
"""So many files there are at least; none is left out unseen."""


def test_no_file_is_left_out() -> None:
    """Each runs in this mode, or is refused for its clock, which is asserted of it below."""
    there = set(ROOT.rglob("*.steps"))
    assert {*WITH_CLOCK, *WITHOUT_CLOCK} == there
    assert len(there) >= LEAST
    assert len(WITH_CLOCK) < 20


@pytest.mark.parametrize("path", WITH_CLOCK, ids=name)
def test_the_clock_is_refused_by_name(path: Path, database_of_steps: str) -> None:
    with pytest.raises(Error) as refused:
        run(read(path), OnWriters(database_of_steps))
    assert refused.value.code == "PT700", refused.value


@pytest.mark.parametrize("path", WITHOUT_CLOCK, ids=name)
def test_by_writers(path: Path, database_of_steps: str) -> None:
    run(read(path), OnWriters(database_of_steps), undo_at_once=True)


@pytest.mark.parametrize("path", WITHOUT_CLOCK[::6], ids=name)
def test_by_several_statements(path: Path, database_of_steps: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No number of rows is few: changes go through temporary tables."""
    monkeypatch.setattr(functions, "FEW", 0)
    run(read(path), OnWriters(database_of_steps), undo_at_once=True)


@pytest.mark.long
@pytest.mark.parametrize("path", WITHOUT_CLOCK, ids=name)
def test_all_by_several_statements(path: Path, database_of_steps: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "FEW", 0)
    run(read(path), OnWriters(database_of_steps))
