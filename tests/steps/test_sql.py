"""Every step file without Spark: the same plans, evaluated by plain SQL, with PostgreSQL's own answer as the oracle."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.steps.parser import read
from tests.steps.runner import name, paths, run
from tests.steps.stream_table import OnTable


@pytest.mark.parametrize("path", paths(), ids=name)
def test_by_plain_sql(path: Path, database_of_steps: str) -> None:
    run(read(path), OnTable(database_of_steps), undo_at_once=True)
