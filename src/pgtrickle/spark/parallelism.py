"""How many tasks the cluster runs at once, as it is now. Asked by `session.py` at the start, and before large work."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pgtrickle.spark.executors import is_connect

SHUFFLE = "spark.sql.shuffle.partitions"
_UNSET = "200"
"""What Spark divides by if nobody has said how."""
_MEASURED = "pgtrickle.tasks"
_OF_LEAVES = "spark.sql.leafNodeDefaultParallelism"
_MOST_SEEN = 4096


def tasks_at_once(session: SparkSession) -> int:
    """By the cores of all executors that have come by now; of a Connect server, as it was asked last."""
    if is_connect(session):
        return int(session.conf.get(_MEASURED, None) or 1)
    return max(session.sparkContext.defaultParallelism, 1)


def measure(session: SparkSession) -> None:
    """Asks a Connect server, which says it only by what it does where nothing else is set."""
    before = session.conf.get(_OF_LEAVES, None)
    session.conf.unset(_OF_LEAVES)
    numbers = session.range(_MOST_SEEN).select(F.spark_partition_id().alias("p")).distinct()
    session.conf.set(_MEASURED, str(numbers.count()))
    if before is not None:
        session.conf.set(_OF_LEAVES, before)


def fit(session: SparkSession) -> None:
    """Rows are divided among as many tasks as run at once, unless the user has said how many."""
    if is_connect(session):
        before = str(tasks_at_once(session))
        measure(session)
        if session.conf.get(SHUFFLE) in (_UNSET, before):
            session.conf.set(SHUFFLE, str(tasks_at_once(session)))
    elif not session.sparkContext.getConf().contains(SHUFFLE):
        session.conf.set(SHUFFLE, str(tasks_at_once(session)))
