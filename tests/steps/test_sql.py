"""Every step file without Spark: the same plans, evaluated by plain SQL, with PostgreSQL's own answer as the oracle."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgtrickle.physical import lower_delta, table_facts
from tests.steps.parser import read
from tests.steps.runner import name, paths, run
from tests.steps.stream_table import OnTable


@pytest.mark.parametrize("path", paths(), ids=name)
def test_by_plain_sql(path: Path, database_of_steps: str) -> None:
    run(read(path), OnTable(database_of_steps), undo_at_once=True)


USED_OFTEN = [path for path in paths() if name(path).startswith("subqueries/cte_of_")]
JOINS = [path for path in paths() if name(path).startswith("joins/")]


@pytest.mark.parametrize("path", USED_OFTEN, ids=name)
def test_unshared(path: Path, database_of_steps: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every delta counts as large: each use of a WITH query has its own."""
    monkeypatch.setattr(lower_delta, "SHARED_ROWS", 0)
    run(read(path), OnTable(database_of_steps), undo_at_once=True)


@pytest.mark.parametrize("path", JOINS, ids=name)
def test_by_key(path: Path, database_of_steps: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing counts as so small that it is read whole, and two tables as too many for PostgreSQL to put in order."""
    monkeypatch.setattr(table_facts, "_SCAN_IN_SERVER_SECONDS", 1e9)
    monkeypatch.setattr(lower_delta, "AT_ONCE", 1)
    run(read(path), OnTable(database_of_steps), undo_at_once=True)
