"""Random window functions through random steps: plain SQL and Spark, with PostgreSQL as the oracle."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, given, note, settings
from pyspark.sql import SparkSession

from tests.steps.parser import StepFile
from tests.steps.runner import Backend
from tests.steps.stream_table import OnTable
from tests.steps.window_queries import continued_files, files

EXAMPLES = int(os.environ.get("PGTRICKLE_RANDOM_EXAMPLES", "4"))


@settings(max_examples=6 * EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(file=files())
def test_sql(database_of_steps: str, file: StepFile) -> None:
    _play(file, OnTable(database_of_steps))


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(file=files())
def test_spark(database_of_steps: str, spark: SparkSession, file: StepFile) -> None:
    _play(file, OnTable(database_of_steps, spark))


@settings(max_examples=3 * EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(file=continued_files())
def test_continued(database_of_steps: str, file: StepFile) -> None:
    _play(file, OnTable(database_of_steps))


def _play(file: StepFile, backend: Backend) -> None:
    note(file.view)
    try:
        backend.setup(file)
        for step in file.steps:
            backend.apply(step)
            assert backend.contents() == backend.answer(), step
    finally:
        backend.close()
