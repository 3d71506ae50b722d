"""A copy of a stream table in Parquet files, kept up to date by a stream of Spark: each batch writes a new version.

    python examples/lakehouse.py order_totals /data/order_totals        follows until it is ended, or killed
    python examples/lakehouse.py order_totals /data/order_totals --once  takes what there is, and ends

The database is found as `pgtrickle` finds it (PGTRICKLE_DSN). Kill it whenever you like: Spark repeats a batch that it
has not finished, the source reads it again as it was, and it makes the same version again from the one before.
"""

import argparse
import shutil
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import pgtrickle


def version(directory: Path, number: int) -> Path:
    return directory / f"version-{number:08}"


def current(directory: Path) -> Path | None:
    """The last version that is whole: Spark writes `_SUCCESS` when it is."""
    whole = sorted(directory.glob("version-*/_SUCCESS"))
    return whole[-1].parent if whole else None


def follow(spark: SparkSession, table: str, directory: Path, *, once: bool = False) -> None:
    def apply(changes: DataFrame, batch: int) -> None:
        changes = changes.persist()
        inserted, deleted = (
            changes.where(f"_change_type = '{each}'").drop("_change_type") for each in ("insert", "delete")
        )
        if batch:
            before = spark.read.schema(inserted.schema).parquet(str(version(directory, batch - 1)))
            inserted = before.exceptAll(deleted).unionAll(inserted)
        inserted.write.mode("overwrite").parquet(str(version(directory, batch)))
        changes.unpersist()
        shutil.rmtree(version(directory, batch - 2), ignore_errors=True)  # readers of it have had a batch's time

    changes = spark.readStream.format("pgtrickle").option("follower", f"files of {table}").load(table)
    stream = changes.writeStream.foreachBatch(apply).option("checkpointLocation", str(directory / "checkpoint"))
    stream = stream.trigger(availableNow=True) if once else stream.trigger(processingTime="1 second")
    stream.start().awaitTermination()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--once", action="store_true")
    given = parser.parse_args()
    spark = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    pgtrickle.register_spark_source(spark)
    follow(spark, given.table, given.directory, once=given.once)


if __name__ == "__main__":
    main()
