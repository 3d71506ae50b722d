"""Evaluates the flows of a refresh on Spark: small ones come to the driver, large ones are landed by tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pgtrickle import failpoints, tracing
from pgtrickle.apply import staging_tables
from pgtrickle.db import Connection, execute, scalar, statement, use_settings
from pgtrickle.errors import StateError
from pgtrickle.physical.flow import Flow, Merged, Place, Read, asked, is_native
from pgtrickle.physical.flow_sql import flow_sql
from pgtrickle.postgres.copy import pipe
from pgtrickle.postgres.statements import state
from pgtrickle.postgres.statements.script import Scratch
from pgtrickle.postgres.statements.state import StateTable
from pgtrickle.postgres.wire import send_rows
from pgtrickle.refresh.connections import Connections
from pgtrickle.refresh.evaluate.evaluator import Leaves, columns_of
from pgtrickle.refresh.gather_facts import ctid_ranges
from pgtrickle.refresh.window import Window
from pgtrickle.spark.frames import Frames
from pgtrickle.spark.java_errors import stopped_at
from pgtrickle.spark.landing import to_staging
from pgtrickle.spark.parallelism import fit, tasks_at_once
from pgtrickle.spark.task_cpu import Spent
from pgtrickle.spark.transport import read_sql
from pgtrickle.spark.worker import Snapshot, arrow_schema

MOST_HANDED_OVER = 50_000
"""Up to so many rows that tasks cannot read where they are go through the driver's memory."""


@dataclass(slots=True)
class OnSpark:
    """`scratch` names what lands in the transaction. `small`: the short path, by the driver and one job. `snapshot` is
    where tasks read."""

    pgt_id: int
    scratch: Scratch
    connections: Connections
    window: Window
    session: SparkSession
    snapshot: Snapshot
    small: bool
    _frames: Frames = field(init=False)
    _leaves: Leaves = field(init=False)
    _staging: list[str] = field(default_factory=list)
    _landings: int = 0
    _spent_before: Spent = field(default_factory=Spent)
    _stopped: str | None = None
    """Why Spark could not evaluate what it was to: from then on PostgreSQL is asked."""

    def __post_init__(self) -> None:
        self._leaves = Leaves(self.connections, self.window)
        if self.snapshot.server.spent is not None:
            self._spent_before = self.snapshot.server.spent.value
        if not self.small:
            fit(self.session)
        self._frames = Frames(
            self.session, self.snapshot, self._late(), self.small, self._read_here, self._handed_over, self._ranges
        )

    def expect(self, flows: Sequence[Flow]) -> None:
        self._frames.expect(flows)

    def release(self) -> None:
        self._frames.release()

    @property
    def notes(self) -> tuple[str, ...]:
        return () if self._stopped is None else (f"evaluated by PostgreSQL, not by Spark: {self._stopped}",)

    @property
    def server_ms(self) -> float | None:
        spent = self.snapshot.server.spent
        return None if spent is None else spent.value.since(self._spent_before)

    def land(self, flow: Flow, *, consolidate: bool = False) -> str:
        if not is_native(flow) or self._stopped is not None:
            return self._land(asked(flow), consolidate=consolidate)
        try:
            return self._land(flow, consolidate=consolidate)
        except (PySparkException, Py4JError) as error:  # it is still py4j's where a table was to go to all tasks
            self._stopped = stopped_at(error)
            if self._stopped is None:
                raise
        return self._land(asked(flow), consolidate=consolidate)

    def _land(self, flow: Flow, *, consolidate: bool) -> str:
        self._landings += 1
        if isinstance(flow, Merged):
            return self._land_merged(flow)
        return self._land_small(flow) if self.small else self._land_staged(flow, consolidate=consolidate)

    def fill(self, flow: Flow, kept: StateTable) -> None:
        execute(self.connections.writer, f"INSERT INTO {kept.name} {state.of_groups(kept, self.land(flow))}")

    def drop_staging(self) -> None:
        for table in self._staging:
            staging_tables.drop_staging(self.connections.aside, table)
        self._staging.clear()

    def _land_merged(self, flow: Merged) -> str:
        """What an earlier stage left is in the transaction already in which it is to land."""
        table = self.scratch.part(self._landings).table("land")
        with tracing.span("land"):
            staging_tables.create_landing(self.connections.writer, table, flow.columns)
            execute(self.connections.writer, f"INSERT INTO {table} ({columns_of(flow)}) {flow_sql(flow, {})}")
        failpoints.reach("landed")
        return f"SELECT {columns_of(flow)} FROM {table}"

    def _land_small(self, flow: Flow) -> str:
        rows = self._frames.rows(flow)
        failpoints.reach("spark-done")
        table = self.scratch.part(self._landings).table("land")
        with tracing.span("land"):
            staging_tables.land_arrow(self.connections.writer, table, flow.columns, rows)
        failpoints.reach("landed")
        return f"SELECT {columns_of(flow)} FROM {table}"

    def _land_staged(self, flow: Flow, *, consolidate: bool) -> str:
        table = self._new_staging(flow)
        failpoints.reach("staging-created")
        frame = self._frames.consolidated(flow) if consolidate else self._frames.frame(flow)
        with tracing.span("land"):  # Spark evaluates as it lands
            landed = to_staging(frame, self._frames.server, table, self.snapshot.settings)
        failpoints.reach("staged")
        counted = f"FROM {table} WHERE attempt = ANY ('{{{', '.join(map(str, landed.attempts))}}}'::bigint[])"
        if scalar(self.connections.writer, f"SELECT count(*) {counted}") != landed.rows:
            raise StateError(f"not all {landed.rows} rows landed in {table}", code="PT345", hint="refresh again")
        failpoints.reach("landed")
        return f"SELECT {columns_of(flow)} {counted}"

    def _new_staging(self, flow: Flow) -> str:
        table = staging_tables.create_staging(self.connections.aside, self.pgt_id, flow.columns)
        self._staging.append(table)
        return table

    def _late(self) -> Snapshot | None:
        """Where tasks read what came after the snapshot."""
        if not any(span.place is Place.LATE for span in self.window.spans.values()):
            return None
        return Snapshot.export(self.snapshot.server, self.connections.late, self.snapshot.settings)

    def _ranges(self, table: str) -> list[str]:
        return ctid_ranges(self.connections.reader, table, self._shares())

    def _shares(self) -> int:
        """Two for each task that runs at once: they are not all of one length."""
        return 2 * tasks_at_once(self.session)

    def _read_here(self, flow: Read | Merged) -> pa.Table:
        """A leaf's rows, read by the driver."""
        return _as_table(flow, self._leaves.connection(flow).execute(statement(read_sql(flow))).fetchall())

    def _handed_over(self, flow: Read | Merged) -> pa.Table | Sequence[str]:
        """The rows of a leaf that tasks cannot read where they are; of many, the shares of a table that has them."""
        connection = self._leaves.connection(flow)
        with connection.cursor(name="pgt_handed_over") as cursor:
            rows = cursor.execute(statement(read_sql(flow))).fetchmany(MOST_HANDED_OVER + 1)
        if len(rows) <= MOST_HANDED_OVER:
            return _as_table(flow, rows)
        table = self._put_aside(flow, connection)
        ranges = ctid_ranges(self.connections.aside, table, self._shares())  # the reader may not know of the table
        return [f"SELECT {columns_of(flow)} FROM {table} WHERE {within}" for within in ranges]

    def _put_aside(self, flow: Read | Merged, source: Connection) -> str:
        """They go through the driver, but as a stream, of which it keeps nothing."""
        table, aside = self._new_staging(flow), self.connections.aside
        rows = f"SELECT sent.*, 0 AS attempt FROM ({send_rows(flow.relation, flow.columns)}) AS sent"
        with tracing.span("land"), aside.transaction():
            use_settings(aside, self.snapshot.settings)
            pipe(source, rows, aside, table)
        return table


def _as_table(flow: Flow, rows: Sequence[tuple[object, ...]]) -> pa.Table:
    schema = arrow_schema(flow.columns)
    values = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    return pa.table([pa.array(list(v), field.type) for v, field in zip(values, schema, strict=True)], schema=schema)
