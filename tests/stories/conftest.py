"""Stories run through the real API: on both PostgreSQL versions and with sources captured from the WAL where it
matters, on 18 with triggers where it does not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.conftest import fresh_database
from tests.stories.telling import Story, telling
from tests.wal.moving import moving


@pytest.fixture(params=[(18, "trigger"), (16, "trigger"), (18, "wal")], ids=["pg18", "pg16", "pg18-wal"])
def story(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[Story]:
    version, capture = request.param
    with fresh_database(request.getfixturevalue(f"server{version}")) as dsn, telling(dsn, spark) as told:
        if capture == "trigger":
            yield told
            return
        with moving(dsn) as told.mover:
            yield told


@pytest.fixture
def story18(database18: str, spark: SparkSession) -> Iterator[Story]:
    with telling(database18, spark) as told:
        yield told


@pytest.fixture
def told(story18: Story) -> Story:
    story18.run(
        "CREATE TABLE t (id int PRIMARY KEY, kind text, v int)",
        "INSERT INTO t SELECT g, 'k' || g % 3, g FROM generate_series(1, 20) g",
    )
    return story18
