"""What Spark is made to do so that Java loads the classes a refresh needs. Called by `archive`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


def run(spark: SparkSession) -> None:
    """Tasks in Python that take and give Arrow batches, a join, a grouping, rows from the driver and back to it."""
    import pyarrow

    rows = pyarrow.table({"id": [1, 2, 3], "name": ["a", "b", None]})
    given = spark.createDataFrame(rows)
    read = spark.range(0, 4, 1, 2).mapInArrow(_same, "id bigint")
    read.join(given, "id", "left").groupBy("name").count().union(given.groupBy("name").count()).toArrow()
    read.mapInArrow(_same, "id bigint").toArrow()


def _same(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches
