"""Random correlated subqueries through random steps: the interpreter and Spark, with PostgreSQL as the oracle."""

from __future__ import annotations

import os
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, note, settings
from pyspark.sql import SparkSession

from tests.steps.native import force, spending_little
from tests.steps.parser import StepFile
from tests.steps.queries import files
from tests.steps.runner import Backend
from tests.steps.stream_table import OnTable
from tests.steps.test_interpreter import Interpreter

EXAMPLES = int(os.environ.get("PGTRICKLE_RANDOM_EXAMPLES", "6"))


@settings(max_examples=10 * EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(file=files())
def test_interpreter(steps_connection: psycopg.Connection[Any], file: StepFile) -> None:
    _play(file, Interpreter(steps_connection))


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(file=files())
def test_spark(database_of_steps: str, spark: SparkSession, file: StepFile) -> None:
    _play(file, OnTable(database_of_steps, spark))


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(file=files())
def test_by_spark_alone(database_of_steps: str, spark: SparkSession, file: StepFile) -> None:
    """Spark joins, matches, filters and groups whatever it can."""
    with pytest.MonkeyPatch.context() as patched, spending_little(spark):
        force(patched, by_tasks=False)
        _play(file, OnTable(database_of_steps, spark))


def _play(file: StepFile, backend: Backend) -> None:
    note(file.view)
    try:
        backend.setup(file)
        for step in file.steps:
            backend.apply(step)
            assert backend.contents() == backend.answer(), step
    finally:
        backend.close()
