"""The end of a flow: its rows come to the driver, or tasks write them to a staging table. Called by `refresh/`."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame

from pgtrickle.spark import worker


def to_driver(frame: DataFrame) -> pa.Table:
    """The rows of a small result."""
    return frame.toArrow()


def to_staging(frame: DataFrame, dsn: str, table: str) -> int:
    """Lets each task copy its rows into `table`; returns how many landed."""
    counts = frame.mapInArrow(worker.land(dsn, table), "landed bigint").toArrow()
    return int(sum(counts["landed"].to_pylist()))
