"""Shared by the benchmarks: an embedded server, timing, and the shop they all use."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pgtrickle import db, embedded
from pgtrickle.db import Connection

SETTINGS = {"shared_buffers": "1GB", "max_wal_size": "8GB", "work_mem": "64MB", "checkpoint_timeout": "30min"}


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of a result: what was measured, the figure, and the goal it is held against."""

    name: str
    value: float
    unit: str
    goal: str = ""

    def __str__(self) -> str:
        return f"{self.name:<66} {self.value:>12.3f} {self.unit:<10} {self.goal}"


@contextmanager
def server() -> Iterator[str]:
    """A private PostgreSQL with durable settings as in production; yields its DSN."""
    directory = Path(tempfile.mkdtemp(prefix="pgtrickle-bench-"))
    directory.chmod(0o755)  # started by root, PostgreSQL runs as somebody else
    started = embedded.start(data_dir=directory / "data", settings=SETTINGS)
    try:
        yield started.dsn
    finally:
        embedded.stop(directory / "data")
        shutil.rmtree(directory, ignore_errors=True)


def create_shop(connection: Connection, orders: int, customers: int) -> None:
    """Orders of customers, with the indexes a user would have."""
    connection.execute("DROP TABLE IF EXISTS orders, customers CASCADE")
    connection.execute("CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL, region int NOT NULL)")
    connection.execute("CREATE TABLE orders (id int PRIMARY KEY, customer int NOT NULL, amount numeric(10,2) NOT NULL)")
    connection.execute(
        "INSERT INTO customers SELECT g, 'customer ' || g, g %% 50 FROM generate_series(1, %s) AS g", (customers,)
    )
    connection.execute(
        "INSERT INTO orders SELECT g, 1 + (g::bigint * 7919) %% %s, (g %% 100000) / 100.0"
        " FROM generate_series(1, %s) AS g",
        (customers, orders),
    )
    connection.execute("CREATE INDEX ON orders (customer)")
    connection.execute("VACUUM ANALYZE orders")
    connection.execute("VACUUM ANALYZE customers")


def seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def median(values: list[float]) -> float:
    return statistics.median(values)


__all__ = ["Connection", "Figure", "create_shop", "db", "median", "seconds", "server"]
