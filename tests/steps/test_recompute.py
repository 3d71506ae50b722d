"""The step files themselves are right: what they expect is how PostgreSQL's own answer changes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.steps.parser import Step, StepFile, read
from tests.steps.runner import ZSet, name, paths, run
from tests.steps.sources import Sources


class Recompute:
    """Asks the query again after each step and takes the difference."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self.sources: Sources | None = None
        self.kept: ZSet = Counter()

    def setup(self, file: StepFile) -> None:
        self.sources = Sources(self.connection, file)
        self.kept = self.answer()

    def apply(self, step: Step) -> ZSet:
        assert self.sources is not None
        self.sources.apply(step)
        old, self.kept = self.kept, self.answer()
        delta = Counter(self.kept)
        delta.subtract(old)
        return delta

    def contents(self) -> ZSet:
        return self.kept

    def answer(self) -> ZSet:
        assert self.sources is not None
        return self.sources.answer()

    def close(self) -> None:
        if self.sources is not None:
            self.sources.drop()


@pytest.mark.parametrize("path", paths(), ids=name)
def test_recompute(path: Path, steps_connection: psycopg.Connection[Any]) -> None:
    run(read(path), Recompute(steps_connection))
