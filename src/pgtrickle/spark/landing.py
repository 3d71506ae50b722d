"""The end of a flow: its rows come to the driver, or tasks write them to a staging table. Called by `refresh/`."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame

from pgtrickle.spark import worker


def to_driver(frame: DataFrame) -> pa.Table:
    """The rows of a small result."""
    return frame.toArrow()


@dataclass(frozen=True, slots=True)
class Landed:
    """What is in a staging table: the attempts whose rows count, and how many rows they have."""

    attempts: tuple[int, ...]
    rows: int


def to_staging(frame: DataFrame, server: worker.Server, table: str) -> Landed:
    """Lets each task copy its rows into `table`."""
    told = frame.mapInArrow(worker.land(server, table), "attempt bigint, landed bigint").toArrow()
    return Landed(tuple(told["attempt"].to_pylist()), sum(told["landed"].to_pylist()))
