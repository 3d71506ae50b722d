"""Stories run through the real API, on both PostgreSQL versions where it matters, on 18 where it does not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.stories.telling import Story, telling


@pytest.fixture
def story(database: str, spark: SparkSession) -> Iterator[Story]:
    with telling(database, spark) as told:
        yield told


@pytest.fixture
def story18(database18: str, spark: SparkSession) -> Iterator[Story]:
    with telling(database18, spark) as told:
        yield told
