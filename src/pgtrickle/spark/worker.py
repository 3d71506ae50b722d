"""What runs inside Spark's tasks: reading, looking up and landing rows over the task's own connection.

A connection is kept by the Python worker between tasks, unless the number of connections is bounded, but never a
transaction: each task opens one at the refresh's exported snapshot and ends it, so an idle worker holds nothing back.
Rows go as Arrow both ways. Sent to the executors by `frames.py` and `landing.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import adbc_driver_postgresql.dbapi as adbc
import psycopg
import pyarrow as pa
from psycopg.sql import SQL, Identifier
from pyspark import TaskContext

from pgtrickle import db, failpoints
from pgtrickle.answers import stored
from pgtrickle.model import Column
from pgtrickle.physical.lookup_order import AT_ONCE
from pgtrickle.postgres.copy import copy_arrow
from pgtrickle.postgres.wire import WEIGHT, Wire, wire
from pgtrickle.spark.permits import Permits
from pgtrickle.spark.task_cpu import Spending, Spent

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator

Batches = Iterator[pa.RecordBatch]
_kept: dict[str, adbc.Connection] = {}
_in_effect: dict[str, dict[str, str]] = {}
"""The settings that each of the connections has been given last."""
_spending: dict[str, Spending] = {}
"""What the server has spent on each of them."""
_MOST_KEPT = 4
_ARROW = {Wire.INTEGER: pa.int64(), Wire.BOOLEAN: pa.bool_(), Wire.TEXT: pa.string()}


@dataclass(frozen=True, slots=True)
class Server:
    """Where tasks connect. What it shows of itself has no password: plans and errors may quote it."""

    dsn: str = field(repr=False)
    permits: Permits | None = None
    """Those that connections need, if their number is bounded."""
    spent: Accumulator[Spent] | None = field(default=None, repr=False, compare=False)
    """What the server has spent on tasks, if there is a way to tell the driver."""

    def asking_for(self, permits: int) -> Server:
        """The same, for tasks that may have so many connections."""
        return self if self.permits is None else replace(self, permits=self.permits.of(permits))

    @contextmanager
    def permitted(self) -> Iterator[None]:
        """Within it, the task may be connected; if that takes permits, no connection outlives it."""
        if self.permits is None:
            yield
            return
        with self.permits.held():
            try:
                yield
            finally:
                _close_kept(self.dsn)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Where a task reads: the server, and the snapshot the refresh exported there."""

    server: Server
    name: str | None
    """None: what is committed by then. For tables that no one writes to any more."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Those stored with the stream table: its query is evaluated under them."""

    @classmethod
    def export(cls, server: Server, connection: db.Connection, settings: Mapping[str, str]) -> Snapshot:
        """The snapshot of the connection's transaction, for as long as that lasts."""
        return cls(server, str(db.scalar(connection, "SELECT pg_export_snapshot()")), settings)

    @contextmanager
    def cursor(self) -> Iterator[adbc.Cursor]:
        """A cursor in a transaction at the snapshot."""
        with self.server.permitted(), self._cursor() as cursor:
            yield cursor

    @contextmanager
    def _cursor(self) -> Iterator[adbc.Cursor]:
        dsn, spent = self.server.dsn, self.server.spent
        with _connection(dsn).cursor() as cursor:
            _use(cursor, dsn, self.settings)
            failpoints.reach("task-begun")
            try:
                at = "" if self.name is None else f"; SET TRANSACTION SNAPSHOT '{self.name}'"
                cursor.executescript(f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY{at}")
                yield cursor
            finally:
                cursor.execute("ROLLBACK")
            if spent is not None:
                _spending.setdefault(dsn, Spending()).add(spent, lambda sql: _asked(cursor, sql))


def _asked(cursor: adbc.Cursor, sql: str) -> tuple[object, ...]:
    cursor.execute(sql)
    row = cursor.fetchone()
    assert row is not None, sql
    return tuple(row)


def _connection(dsn: str) -> adbc.Connection:
    """The worker's connection with that login: the one it has, if it still answers. It keeps those used last."""
    for known in [dsn_ for dsn_ in _kept if not _alive(_kept[dsn_])]:
        _close_kept(known)
    if dsn in _kept:
        _kept[dsn] = _kept.pop(dsn)  # the last used comes last
        return _kept[dsn]
    while len(_kept) >= _MOST_KEPT:
        _close_kept(next(iter(_kept)))
    connection = adbc.connect(db.own_path_dsn(dsn), autocommit=True)  # which asks for the server's types by itself
    with connection.cursor() as cursor:
        path, pinned = db.session_sql()
        cursor.execute(path)
        cursor.execute(pinned)
        cursor.fetchall()
        # DDL may wait for the refresh's reader, which waits for us: PostgreSQL does not see that circle
        cursor.execute(f"SET lock_timeout = '{db.LOCK_TIMEOUT}'")
        cursor.execute(f"SET join_collapse_limit = {AT_ONCE}")
        cursor.execute(f"SET from_collapse_limit = {AT_ONCE}")
    _kept[dsn] = connection
    return connection


def _close_kept(dsn: str) -> None:
    """Closes the worker's connection with that login, if it has one."""
    _in_effect.pop(dsn, None)
    _spending.pop(dsn, None)
    if dsn in _kept:
        _kept.pop(dsn).close()


def _use(cursor: adbc.Cursor, dsn: str, settings: Mapping[str, str]) -> None:
    """Puts the settings in effect where others are. Outside of a transaction: none can take them back. Of what another
    table has, and this one has not, the session's own value is in effect again."""
    wanted, known = stored(settings), _in_effect.pop(dsn, {})
    for name in known.keys() - wanted.keys():
        cursor.execute(SQL("RESET {}").format(Identifier(name)).as_string(None))
    if wanted and known != wanted:
        calls = (SQL("pg_catalog.set_config({}, {}, false)").format(*pair) for pair in wanted.items())
        cursor.execute(SQL("SELECT {}").format(SQL(", ").join(calls)).as_string(None))
        cursor.fetchall()
    _in_effect[dsn] = wanted


def _alive(connection: adbc.Connection) -> bool:
    """Whether a kept connection still answers: the server may have restarted since."""
    try:
        with connection.cursor() as cursor:
            cursor.executescript("SELECT")
    except adbc.Error:
        return False
    return True


def arrow_schema(columns: Iterable[Column]) -> pa.Schema:
    """The Arrow schema of rows with these columns and a weight."""
    fields = [(column.name, _ARROW[wire(column.type)]) for column in columns]
    return pa.schema([*fields, (WEIGHT, pa.int64())])


def read_queries(snapshot: Snapshot) -> Callable[[Batches], Batches]:
    """Runs each query of the one-column rows it is given, and yields their rows."""

    def run(batches: Batches) -> Batches:
        with snapshot.cursor() as cursor:
            for batch in batches:
                for query in batch.column(0).to_pylist():
                    cursor.execute(query)
                    yield from cursor.fetch_record_batch()

    return run


def look_up(snapshot: Snapshot, sql: str, *, whole: bool = False) -> Callable[[Batches], Batches]:
    """Sends each batch, or all as one, to PostgreSQL as an array a column, and yields what the query makes of it."""

    def run(batches: Batches) -> Batches:
        with snapshot.cursor() as cursor:
            for batch in _together(batches) if whole else batches:
                if batch.num_rows:
                    cursor.execute(sql, parameters=arrays(batch.columns))
                    yield from cursor.fetch_record_batch()

    return run


def _together(batches: Batches) -> Batches:
    rows = list(batches)
    if rows:
        yield from pa.Table.from_batches(rows).combine_chunks().to_batches()


def send_together(snapshot: Snapshot, sql: str, columns: list[list[str]], side: str) -> Callable[[Batches], Batches]:
    """Sends the rows of several deltas (told apart by the `side` column) in one query, if the first has any."""

    def run(batches: Batches) -> Batches:
        rows = list(batches)
        if not rows:
            return
        table = pa.Table.from_batches(rows)
        parts = [
            table.filter(pa.compute.equal(table[side], number)).select([*names, WEIGHT])
            for number, names in enumerate(columns)
        ]
        if not parts[0].num_rows:
            return
        with snapshot.cursor() as cursor:
            cursor.execute(sql, parameters=arrays([c.combine_chunks() for part in parts for c in part.columns]))
            yield from cursor.fetch_record_batch()

    return run


def arrays(columns: list[pa.Array]) -> pa.RecordBatch:
    """One row whose values are the columns, as arrays."""
    lists = [pa.ListArray.from_arrays(pa.array([0, len(column)], pa.int32()), column) for column in columns]
    return pa.RecordBatch.from_arrays(lists, names=[f"p{position}" for position in range(len(lists))])


def land(server: Server, table: str, settings: Mapping[str, str]) -> Callable[[Batches], Batches]:
    """Copies the rows of a task into a staging table, under the attempt's number; yields that, and how many.

    Spark may run a task twice, even at once: the driver hears of one attempt a task, and reads the rows of those.
    """

    def run(batches: Batches) -> Batches:
        context = TaskContext.get()
        assert context is not None
        attempt, landed = context.taskAttemptId(), 0
        with server.permitted(), psycopg.connect(server.dsn) as connection:
            db.prepare_session(connection)
            db.use_settings(connection, settings)
            for batch in batches:
                rows = pa.Table.from_batches([batch])
                landed += rows.num_rows
                copy_arrow(connection, table, rows.append_column("attempt", pa.repeat(attempt, rows.num_rows)))
                failpoints.reach("task-landing")
            if server.spent is not None:
                Spending().add(server.spent, lambda sql: db.row(connection, sql))
        failpoints.reach("task-landed")
        yield pa.RecordBatch.from_pydict({"attempt": [attempt], "landed": [landed]})

    return run
