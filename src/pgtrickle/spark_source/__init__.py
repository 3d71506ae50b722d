"""Stream tables for whoever works with Spark: read as tables, and followed as streams of changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pgtrickle import db, destination

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register_spark_source(spark: SparkSession, dsn: str | None = None, *, name: str = "pgtrickle") -> None:
    """Makes the stream tables of a database a data source of a Spark session, by that name.

    `spark.read.format("pgtrickle").load("order_totals")` reads one as it is, `spark.readStream` with the option
    `follower` its changes. The database is found as `pgtrickle.connect()` finds it; tasks log in with what that has
    resolved to, which is in no option and no plan.
    """
    from pgtrickle.spark.executors import is_connect, send_code
    from pgtrickle.spark_source.source import APPLICATION, StreamTableSource

    chosen = destination.choose(dsn)
    with db.connect(chosen.dsn) as connection:
        resolved = db.dsn_elsewhere(connection, APPLICATION)
    if is_connect(spark) or not str(spark.sparkContext.master).startswith("local"):
        send_code(spark)
    # A class of its own: Spark pickles it by value, with what it knows.
    source = type("PgtrickleSource", (StreamTableSource,), {"dsn": resolved, "registered_as": name})
    spark.dataSource.register(source)
