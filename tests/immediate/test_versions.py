"""Step files in IMMEDIATE mode on every version of PostgreSQL, in a long run: `tests/steps/` runs them on one."""

from __future__ import annotations

import psycopg
import pytest

from pgtrickle import db, embedded
from tests.conftest import fresh_database
from tests.steps.parser import StepFile, read
from tests.steps.runner import name, run
from tests.steps.sources import Sources
from tests.steps.stream_table import OnWriters
from tests.steps.test_immediate import WITHOUT_CLOCK

FILES = WITHOUT_CLOCK[::3]
NEWER = (psycopg.errors.SyntaxError, psycopg.errors.UndefinedFunction, psycopg.errors.UndefinedObject)
"""What a version says to what only newer ones know."""


@pytest.mark.long
def test_step_files(server: embedded.Server) -> None:
    known, wrong = 0, list[str]()
    with fresh_database(server) as dsn:
        for path in FILES:
            file = read(path)
            if not _knows(dsn, file):
                continue
            known += 1
            try:
                run(file, OnWriters(dsn), undo_at_once=True)
            except Exception as error:  # noqa: BLE001 -- all of them are told
                wrong.append(f"{name(path)}: {error!r}")
    assert not wrong, "\n".join(wrong)
    assert known > 0.8 * len(FILES)


def _knows(dsn: str, file: StepFile) -> bool:
    """Whether the version can answer the query at all."""
    with db.open_session(dsn) as connection:
        try:
            sources = Sources(connection, file)
        except NEWER:
            return False
        try:
            sources.answer()
        except NEWER:
            return False
        finally:
            sources.drop()
        return True
