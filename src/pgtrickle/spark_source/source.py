"""Stream tables as a data source of Spark: `spark.read.format("pgtrickle")`, and `readStream` for their changes.

Spark makes these objects in Python processes of its own: the source when a query is analysed, a stream's reader where
its driver runs, for as long as it runs, and `read` in tasks. Nothing but the offsets of a stream lasts, and the
follower's row in the catalog: an offset is a snapshot, and what is read between two is the same each time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, cast

import adbc_driver_postgresql.dbapi as adbc
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pgtrickle import db
from pgtrickle.catalog import reader as catalog
from pgtrickle.catalog.reader import StreamTable
from pgtrickle.config import Settings
from pgtrickle.errors import StateError, UsageError
from pgtrickle.model import Table
from pgtrickle.refresh import follow
from pgtrickle.refresh.follow import Followed
from pgtrickle.refresh.gather_facts import ctid_ranges
from pgtrickle.spark_source import rows
from pgtrickle.spark_source.columns import SourceColumn, columns_of
from pgtrickle.spark_source.rows import CHANGE_TYPE, Share

OPTIONS: Final = ("path", "columns", "partitions", "follower", "expires")
APPLICATION: Final = "pgtrickle source"
_BEGINNING: Final[Mapping[str, Any]] = {"follower": 0, "snapshot": ""}
_CONTENT: Final = """
SELECT coalesce(max(refresh_id), 0), coalesce(pg_relation_filenode({relid}), 0) FROM pgtrickle.pgt_refresh_history
WHERE pgt_id = {pgt_id} AND status = 'COMPLETED' AND rows_inserted + rows_deleted > 0
"""
"""Tells apart what ranges of a stream table's pages hold: another refresh with each that changes a row, in the same
commit, and another file with whatever writes all rows to other places."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the user has said: which stream table, which of its columns, for how many tasks, and as which follower."""

    table: str
    columns: tuple[str, ...]
    partitions: int
    follower: str | None
    expires: str

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Options:
        named = {name.lower(): value for name, value in given.items()}
        unknown = sorted(set(named) - set(OPTIONS))
        if unknown:
            raise UsageError(
                f"there is no option {unknown[0]!r}", code="PT562", hint=f"There are {', '.join(OPTIONS)}."
            )
        if not named.get("path"):
            raise UsageError("no stream table is named", code="PT563", hint='Name it: .load("order_totals").')
        parts = named.get("partitions", "1")
        if not parts.isdigit() or not 1 <= int(parts) <= 10_000:
            raise UsageError(
                f"partitions must be a number from 1 to 10000, not {parts!r}", code="PT564", hint="Leave it out for 1."
            )
        columns = tuple(name.strip() for name in named.get("columns", "").split(",") if name.strip())
        return cls(named["path"], columns, int(parts), named.get("follower") or None, named.get("expires", "7 days"))


class StreamTableSource(DataSource):
    """The source; `register_spark_source` makes one that knows the database and the name it is registered by."""

    dsn: ClassVar[str] = ""
    registered_as: ClassVar[str] = "pgtrickle"

    @classmethod
    def name(cls) -> str:
        return cls.registered_as

    def schema(self) -> str:
        options = Options.of(self.options)
        with _session(self.dsn) as connection:
            stream = catalog.resolve(connection, options.table)
            if options.follower:
                return ", ".join(
                    [*(column.ddl for column in _told(connection, stream, options)), f"{CHANGE_TYPE} string"]
                )
            return ", ".join(column.ddl for column in columns_of(connection, stream.pgt_relid, options.columns))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = Options.of(self.options)
        if options.follower:
            raise UsageError(
                "a follower reads changes as a stream",
                code="PT565",
                hint="Use readStream, or leave out the option follower.",
            )
        return TableReader(self.dsn, options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        options = Options.of(self.options)
        if not options.follower:
            raise UsageError(
                "a stream of changes needs a name: changes are kept until it has them",
                code="PT566",
                hint='Choose one: .option("follower", "lake").',
            )
        return ChangeReader(self.dsn, options)


@dataclass
class _Part(InputPartition):
    """What one task reads: a statement, or what tells the statement."""

    table: str
    relid: int
    columns: tuple[SourceColumn, ...]
    share: Share
    within: str = "true"
    content: tuple[str, tuple[int, int]] | None = None
    """What to ask, and the answer that it must have, if several tasks must see the same content."""
    since: str = ""
    until: str = ""


class TableReader(DataSourceReader):
    """A stream table as it is: one task reads it in one transaction; several see that they read the same content."""

    def __init__(self, dsn: str, options: Options) -> None:
        self.dsn = dsn
        self.options = options

    def partitions(self) -> Sequence[InputPartition]:
        with _session(self.dsn) as connection:
            stream = catalog.resolve(connection, self.options.table)
            columns = columns_of(connection, stream.pgt_relid, self.options.columns)
            number = self.options.partitions
            if number == 1:
                return [_Part(_qualified(stream), stream.pgt_relid, columns, Share(0, 1))]
            if stream.is_immediate:
                raise UsageError(
                    f"{stream} changes with each write to its sources, so several tasks would not read the same",
                    code="PT567",
                    hint="Leave out the option partitions.",
                )
            with connection.transaction():
                connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                asked = _CONTENT.format(pgt_id=stream.pgt_id, relid=stream.pgt_relid)
                refresh, file = connection.execute(db.statement(asked)).fetchone() or (0, 0)
                content = (asked, (int(str(refresh)), int(str(file))))
                ranges = ctid_ranges(connection, _qualified(stream), number)
        return [_Part(_qualified(stream), stream.pgt_relid, columns, Share(0, 1), within, content) for within in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        part = cast("_Part", partition)
        with rows.reading(self.dsn) as cursor:
            if part.content is not None:
                _require_content(cursor, part.table, *part.content)
            yield from rows.fetched(cursor, rows.as_it_is(part.table, part.columns, part.within), part.columns)


class ChangeReader(DataSourceStreamReader):
    """The changes of a stream table, batch by batch; the first batch has all its rows."""

    def __init__(self, dsn: str, options: Options) -> None:
        self.dsn = dsn
        self.options = options
        self._connection: db.Connection | None = None
        self._last = ""
        self._end: str | None = None
        """The snapshot that a stream with the trigger `availableNow` ends at."""

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._end = str(db.scalar(self._session(), "SELECT pg_current_snapshot()"))

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - these are Spark's names
        return dict(_BEGINNING)

    def latestOffset(self, start: dict[str, Any] | None = None, limit: object = None) -> dict[str, Any]:  # noqa: N802
        """Before PySpark 4.2 it is not said where a batch starts."""
        if start is not None and start["snapshot"]:
            followed = self._known(start)
            self._last = follow.latest(self._session(), followed, start["snapshot"], self._end)
        else:
            followed = self._registered()
            if start is not None or not self._last:
                self._last = str(db.scalar(self._session(), "SELECT pg_current_snapshot()"))
                self._end = self._end and self._last  # changes are captured from here on, not before
            else:
                self._last = follow.latest(self._session(), followed, self._last)
        return {"follower": followed.follower_id, "snapshot": self._last}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        connection, followed = self._session(), self._known(end)
        since, until = str(start["snapshot"]), str(end["snapshot"])
        if since == until:
            return []
        follow.require_told(connection, followed, since or until)
        stream = catalog.resolve(connection, self.options.table)
        columns = _told(connection, stream, self.options)
        number = self.options.partitions
        shares = [Share(place, number) for place in range(number)]
        return [
            _Part(_qualified(stream), stream.pgt_relid, columns, share, since=since, until=until) for share in shares
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        part = cast("_Part", partition)
        with rows.reading(self.dsn) as cursor:
            changes = rows.changes_since(cursor, part.table, part.relid, part.since or part.until)
            if part.since:
                query = rows.between(part.relid, part.columns, part.since, part.until, part.share)
                yield from rows.fetched(cursor, query, part.columns, told=True)
                return
            if part.share.of == 1 and not changes:
                query = rows.as_it_is(part.table, part.columns)
                yield from rows.fetched(cursor, query, part.columns, change="insert")
                return
            query = rows.as_of(part.table, part.relid, part.columns, part.until, part.share)
            yield from rows.fetched(cursor, query, part.columns, told=True)

    def commit(self, end: dict[str, Any]) -> None:
        connection = self._session()
        follow.applied(connection, self._known(end), str(end["snapshot"]), Settings.load(connection))

    def stop(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _session(self) -> db.Connection:
        if self._connection is None or self._connection.closed:
            self._connection = _session(self.dsn)
        return self._connection

    def _stream(self) -> StreamTable:
        return catalog.resolve(self._session(), self.options.table)

    def _registered(self) -> Followed:
        """The follower, registered if it is new."""
        connection, stream = self._session(), self._stream()
        names = [column.name for column in _told(connection, stream, self.options)]
        return follow.follow(connection, stream, self._name, names, self.options.expires)

    def _known(self, offset: Mapping[str, Any]) -> Followed:
        """The follower of an offset: whoever has its name now may be another one."""
        return Followed(int(offset["follower"]), self._name, self._stream().pgt_relid)

    @property
    def _name(self) -> str:
        assert self.options.follower is not None, "the source asks for it"
        return self.options.follower


with contextlib.suppress(ImportError):  # before PySpark 4.2, `availableNow` is one batch, or one that was left
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

    SupportsTriggerAvailableNow.register(ChangeReader)


def _require_content(cursor: adbc.Cursor, table: str, asked: str, wanted: tuple[int, int]) -> None:
    """An error if a task that reads a range of pages does not find there what the others do."""
    cursor.execute(f"SELECT 1 FROM {table} LIMIT 0")  # locks it: from here on its rows stay where they are
    cursor.execute(asked)
    if cursor.fetchone() != wanted:
        raise StateError(
            "the stream table was refreshed, or rewritten, while several tasks were reading it",
            code="PT568",
            hint="Read it again, or leave out the option partitions: one task reads it in one transaction.",
        )


def _told(connection: db.Connection, stream: StreamTable, options: Options) -> tuple[SourceColumn, ...]:
    """The columns that a follower gets, before how each row has changed."""
    columns = columns_of(connection, stream.pgt_relid, options.columns)
    taken = [column.name for column in columns if column.name.lower() == CHANGE_TYPE]  # Spark's names have no case
    if taken:
        raise UsageError(
            f"{stream} has a column {taken[0]!r}, and a follower is told by {CHANGE_TYPE} how each row has changed",
            code="PT569",
            hint="Give it another name in the query of the stream table, or leave it out by the option columns.",
        )
    return columns


def _session(dsn: str) -> db.Connection:
    return db.connect(dsn, application_name=APPLICATION)


def _qualified(stream: StreamTable) -> str:
    return Table(stream.pgt_relid, stream.pgt_schema, stream.pgt_name).qualified
