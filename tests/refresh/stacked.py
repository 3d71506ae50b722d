"""Stream tables over stream tables, refreshed in ticks by hand: for the tests of ticks and of groups."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from math import isnan

import psycopg
from pyspark.sql import SparkSession

from pgtrickle import db
from pgtrickle.api import Trickle
from pgtrickle.config import Settings
from pgtrickle.db import statement
from pgtrickle.refresh import tick as ticks
from pgtrickle.refresh.group.group_refresh import GroupMember
from pgtrickle.refresh.refresher import Refresher
from pgtrickle.refresh.result import RefreshResult
from pgtrickle.refresh.tick import Tick
from pgtrickle.refresh.units import refresh_group, refresh_table


class World:
    """Stream tables over stream tables, and a view of each one's query over views of those it reads: what PostgreSQL
    answers for it at a snapshot, from the base tables alone."""

    def __init__(self, dsn: str, spark: SparkSession) -> None:
        self.dsn = dsn
        self.conn = db.open_session(dsn)
        self.trickle = Trickle(dsn, spark=spark)
        self.refresher = Refresher(dsn, Settings(), lambda: spark)
        self.ids: dict[str, int] = {}

    def close(self) -> None:
        for name in reversed(self.ids):
            self.trickle.drop_stream_table(name)
        self.refresher.close()
        self.trickle.close()
        self.conn.close()

    def run(self, *statements: str) -> None:
        for each in statements:
            self.conn.execute(statement(each))

    def create(self, name: str, query: str, mode: str = "DIFFERENTIAL") -> None:
        self.trickle.create_stream_table(name, query, refresh_mode=mode)
        as_view = re.sub(r"\b(FROM|JOIN) (\w+)\b", lambda m: f"{m[1]} {self._view(m[2])}", query)
        self.run(f"CREATE VIEW v_{name} AS {as_view}")
        self.ids[name] = self.trickle.status(name)[0].pgt_id

    def _view(self, name: str) -> str:
        return f"v_{name}" if name in self.ids else name

    def is_at(self, at: Tick) -> bool:
        """Whether all tables are at the tick's snapshot."""
        return {table.frontier for table in self.trickle.status()} == {at.moment.snapshot}

    def differing(self, name: str, at: Tick) -> list[tuple[object, ...]]:
        """Rows of the table, as it is now, and of its query at the tick's snapshot, that the other does not have."""
        with db.open_session(self.dsn) as then:
            then.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            with then.transaction():
                then.execute(statement(f"SET TRANSACTION SNAPSHOT '{at.exported}'"))
                expected = _rows(then, f"v_{name}")
        actual = _rows(self.conn, name)
        return [("missing", *row) for row in (expected - actual).elements()] + [
            ("extra", *row) for row in (actual - expected).elements()
        ]


def _rows(connection: db.Connection, relation: str) -> Counter[tuple[object, ...]]:
    """Its rows by value, as EXCEPT ALL compares them: 1.0 and 1.00 are the same, and so is NaN."""
    found = connection.execute(statement(f"SELECT * FROM {relation}")).fetchall()
    return Counter(tuple(map(_value, row)) for row in found)


def _value(value: object) -> object:
    """What equals itself, and can be counted."""
    if isinstance(value, dict | list):
        return json.dumps(value, sort_keys=True)
    return "NaN" if isinstance(value, Decimal | float) and isnan(value) else value


@contextmanager
def orders(dsn: str, spark: SparkSession) -> Iterator[World]:
    """A world with orders and their regions."""
    made = World(dsn, spark)
    made.run(
        "CREATE TABLE orders (id int PRIMARY KEY, region int, amount numeric)",
        "CREATE TABLE regions (id int PRIMARY KEY, name text)",
        "INSERT INTO regions SELECT g, 'r' || g FROM generate_series(0, 3) g",
        "INSERT INTO orders SELECT g, g % 3, g FROM generate_series(1, 60) g",
    )
    try:
        yield made
    finally:
        made.close()


def alone(refresher: Refresher, pgt_id: int, tick: Tick | None = None) -> RefreshResult:
    """The refresh of one stream table by itself."""
    return refresh_table(refresher, pgt_id, tick=tick)[pgt_id]


def refresh_together(refresher: Refresher, pgt_ids: Sequence[int], at: Tick) -> Mapping[int, RefreshResult]:
    """As the service refreshes an atomic group."""
    return refresh_group(refresher, dict.fromkeys(pgt_ids, GroupMember("SCHEDULER")), at)


@contextmanager
def tick(dsn: str) -> Iterator[Tick]:
    """A tick on a connection of its own; its snapshot can be taken up while the block runs."""
    with ticks.connect(dsn) as connection, ticks.held(connection) as at:
        yield at
