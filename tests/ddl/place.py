"""The database that DDL is tried on: `t(id, v, w)`, `twice()`, the view `seen`, and `st`, which reads them all.

`t` is empty and so is `st`: it is what its query answers without Spark having run, so a refresh with nothing to do, and
one that fails, need no Spark either.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession

from pgtrickle import db
from pgtrickle.api import Trickle
from pgtrickle.catalog.reader import StreamTable
from pgtrickle.db import Connection
from tests.refresh.oracle import differing

QUERY = "SELECT id, twice(v) AS v FROM seen"
NO_SPARK = "spark://nowhere.invalid:1"


@dataclass
class Place:
    """`connection` is the user's session, `trickle` the API over another one."""

    dsn: str = field(repr=False)
    connection: Connection
    trickle: Trickle

    def run(self, *statements: str) -> None:
        for each in statements:
            self.connection.execute(db.statement(each))

    def value(self, query: str) -> object:
        return db.scalar(self.connection, query)

    def stream(self, name: str = "st") -> StreamTable:
        (found,) = (each for each in self.trickle.status() if each.pgt_name == name)  # whatever its schema is by now
        return found

    def create(self, name: str, query: str) -> None:
        """A stream table over empty sources, which is populated as it is."""
        self.trickle.create_stream_table(name, query, initialize=False)
        self.connection.execute(
            "UPDATE pgtrickle.pgt_stream_tables SET is_populated = true, data_timestamp = now(), status = 'ACTIVE'"
            " WHERE pgt_name = %s",
            (name,),
        )

    def equal(self, name: str, query: str) -> bool:
        """Whether the stream table is what its query answers."""
        return differing(self.connection, name, query) == []

    def marked(self, name: str = "st") -> str | None:
        """Why the stream table is to be computed anew."""
        stream = self.stream(name)
        assert stream.needs_reinit == (stream.reinit_reason is not None)
        return stream.reinit_reason

    def noted(self) -> list[str]:
        return [
            str(reason)
            for (reason,) in self.connection.execute("SELECT reason FROM pgtrickle.pgt_source_ddl ORDER BY id")
        ]

    @contextmanager
    def session(self, **parameters: str) -> Iterator[Connection]:
        with db.open_session(make_conninfo(self.dsn, **parameters)) as other:
            yield other

    @contextmanager
    def alerts(self) -> Iterator[list[dict[str, str]]]:
        """What is told on pg_trickle_alert meanwhile."""
        found: list[dict[str, str]] = []
        with self.session() as listener:
            listener.execute("LISTEN pg_trickle_alert")
            yield found
            self.run("NOTIFY pg_trickle_alert, '{}'")  # all that was told before it has arrived when it has
            for notice in listener.notifies(timeout=20):
                if notice.payload == "{}":
                    return
                found.append(json.loads(notice.payload))
            raise AssertionError("the last notification did not arrive")


@contextmanager
def place(dsn: str, spark: SparkSession | None = None) -> Iterator[Place]:
    with Trickle(dsn, spark=spark, master=NO_SPARK) as trickle, db.open_session(dsn) as connection:
        made = Place(dsn, connection, trickle)
        made.run(
            "CREATE TABLE t (id int PRIMARY KEY, v int, w text)",
            "CREATE FUNCTION twice(a int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 2 * a'",
            "CREATE VIEW seen AS SELECT id, v FROM t WHERE v > 0",
        )
        made.create("st", QUERY)
        yield made
