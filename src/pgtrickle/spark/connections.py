"""Where the tasks of a session connect, and how many of their connections there may be. `table_refresh.py` asks."""

from __future__ import annotations

import threading

from pyspark.sql import SparkSession

from pgtrickle import db
from pgtrickle.errors import EnvironmentProblem
from pgtrickle.spark.executors import is_connect
from pgtrickle.spark.permits import Giver, Permits
from pgtrickle.spark.task_cpu import sum_of_thread
from pgtrickle.spark.worker import Server

_lock = threading.Lock()
_giver: Giver | None = None


def server_for(session: SparkSession, connection: db.Connection, most: int) -> Server:
    """The server that this connection is with; tasks may have `most` connections to it, or 0: as many as they need."""
    permits = _permits(session, most) if most else None
    return Server(db.dsn_elsewhere(connection, "pgtrickle task"), permits, sum_of_thread(session))


def _permits(session: SparkSession, most: int) -> Permits:
    global _giver
    if is_connect(session):
        raise EnvironmentProblem(
            "spark_connections cannot be kept on Spark Connect: tasks there do not reach this process",
            code="PT517",
            hint="set it to 0, and bound the tasks of the server instead (spark.cores.max); or use its master",
        )
    conf = session.sparkContext.getConf()
    host = conf.get("spark.driver.host") or "127.0.0.1"
    with _lock:
        if _giver is None:
            _giver = Giver(conf.get("spark.driver.bindAddress") or host, most)
        _giver.bound = most
        return _giver.for_tasks(host)
