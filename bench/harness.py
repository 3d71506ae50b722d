"""Shared by the benchmarks: an embedded server, the service, timing, and the shop they all use."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from psycopg import sql
from psycopg.conninfo import make_conninfo

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


@contextmanager
def database(dsn: str, name: str) -> Iterator[str]:
    """A database of its own on the same server, dropped afterwards; yields its DSN."""
    with db.open_session(dsn) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield make_conninfo(dsn, dbname=name)
        finally:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@contextmanager
def service(dsn: str) -> Iterator[subprocess.Popen[bytes]]:
    """A `pgtrickle run` for the database, as in production; its log is shown if it ends by itself."""
    with tempfile.TemporaryFile() as log:
        command = [str(Path(sys.executable).parent / "pgtrickle"), "run"]
        process = subprocess.Popen(command, env={**os.environ, "PGTRICKLE_DSN": dsn}, stderr=log)
        try:
            yield process
        finally:
            process.terminate()
            if process.wait() != 0:
                log.seek(0)
                sys.stderr.write(log.read().decode())


def wait_until(holds: Callable[[], object], what: str, timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.01)


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


def quantile(values: list[float], share: float) -> float:
    """The value that `share` of all values do not exceed."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


__all__ = [
    "Connection",
    "Figure",
    "create_shop",
    "database",
    "db",
    "median",
    "quantile",
    "seconds",
    "server",
    "service",
    "wait_until",
]
