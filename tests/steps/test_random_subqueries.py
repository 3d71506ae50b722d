"""Random correlated subqueries, kept by the interpreter through random steps; PostgreSQL's answer is the oracle."""

from __future__ import annotations

from typing import Any

import psycopg
from hypothesis import HealthCheck, given, note, settings

from tests.steps.parser import StepFile
from tests.steps.queries import files
from tests.steps.test_interpreter import Interpreter


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
@given(file=files())
def test_random_subqueries(steps_connection: psycopg.Connection[Any], file: StepFile) -> None:
    note(file.view)
    kept = Interpreter(steps_connection)
    try:
        kept.setup(file)
        for step in file.steps:
            kept.apply(step)
            assert kept.contents() == kept.answer(), step
    finally:
        kept.close()
