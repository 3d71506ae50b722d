"""Runs the stages of a physical plan: Spark computes, rows land, state is merged. Called by `underway.py`, inside its
writing transaction; returns the SQL of the result's rows there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
from pyspark.sql import SparkSession

from pgtrickle import failpoints
from pgtrickle.apply import first, stage, state
from pgtrickle.db import Connection, scalar, statement
from pgtrickle.errors import StateError
from pgtrickle.model import quote
from pgtrickle.postgres.weighted import Step, run_steps
from pgtrickle.postgres.wire import WEIGHT
from pgtrickle.query.operators import Operator, Scan, TopK
from pgtrickle.refresh.connections import Connections
from pgtrickle.refresh.facts import ctid_ranges
from pgtrickle.refresh.prepared import Prepared
from pgtrickle.refresh.window import Window, copied, moved
from pgtrickle.spark.evaluate import Evaluator
from pgtrickle.spark.flow import Flow, KeepFirst, LandAggregate, LandResult, Merged, Physical, Place, Read, ReadResult
from pgtrickle.spark.full import copy_of
from pgtrickle.spark.land import to_staging
from pgtrickle.spark.parts import Part
from pgtrickle.spark.worker import Snapshot, arrow_schema


@dataclass(slots=True)
class StageRunner:
    """Runs one plan. `whole`: a full refresh, whose rows all have weight one and replace what is there.

    `late`: sources that have changes after the snapshot; `copies`: what stands for those that a full refresh reads
    as they are after it.
    """

    prepared: Prepared
    connections: Connections
    session: SparkSession
    snapshot: Snapshot
    window: Window
    whole: bool
    small: bool
    late: frozenset[int] = frozenset()
    copies: Mapping[int, str] = field(default_factory=dict)
    _staging: list[str] = field(default_factory=list)
    _landings: int = 0
    _moved: dict[Scan, str] = field(default_factory=dict)

    def run(self, physical: Physical) -> str:
        """Runs all stages; returns SQL of the result's weighted rows on the writer."""
        ranges = partial(self._ranges, parts=self._parallelism())
        evaluator = Evaluator(self.session, self.snapshot, self._late(), self.small, self._read_here, ranges)
        evaluator.expect([s.input for s in physical.stages if isinstance(s, LandAggregate | LandResult)])
        try:
            for step in physical.stages:
                match step:
                    case LandAggregate(number=number, input=flow, steps=steps):
                        self._merge(number, self._land(evaluator, flow, steps))
                    case KeepFirst(number=number, top=top):
                        self._keep_first(number, top)
                    case LandResult(input=flow, steps=steps):
                        return self._land(evaluator, flow, steps, consolidate=not self.whole)
                    case ReadResult(sql=sql):
                        return sql
        finally:
            evaluator.release()
        raise AssertionError("a physical plan ends with its result")

    def drop_staging(self) -> None:
        for table in self._staging:
            stage.drop_staging(self.connections.aside, table)
        self._staging.clear()

    def _late(self) -> Snapshot | None:
        """Where tasks read what came after the snapshot."""
        if not any(span.place is Place.LATE for span in self.window.spans.values()):
            return None
        return Snapshot.export(self.snapshot.dsn, self.connections.late, self.prepared.settings)

    def _parallelism(self) -> int:
        return 2 * int(self.session.conf.get("spark.sql.shuffle.partitions") or 1)

    def _ranges(self, table: str, parts: int) -> list[str]:
        return ctid_ranges(self.connections.reader, table, parts)

    def _land(self, evaluator: Evaluator, flow: Flow, steps: tuple[Step, ...], *, consolidate: bool = False) -> str:
        """Brings a flow's rows into PostgreSQL; returns SQL of them after the steps. Equal rows are added up where they
        land, or, of many, before if `consolidate` asks for it."""
        self._landings += 1
        if self.small:
            rows = evaluator.rows(flow)
            failpoints.reach("spark-done")
            table = stage.land_arrow(
                self.connections.writer, f"pgt_land_{self.prepared.pgt_id}_{self._landings}", flow.columns, rows
            )
            failpoints.reach("landed")
            return run_steps(f"SELECT {_names(flow)} FROM {table}", steps)
        table = stage.create_staging(self.connections.aside, self.prepared.pgt_id, flow.columns)
        self._staging.append(table)
        failpoints.reach("staging-created")
        frame = evaluator.consolidated(flow) if consolidate else evaluator.frame(flow)
        landed = to_staging(frame, self.snapshot.dsn, table)
        failpoints.reach("staged")
        counted = f"FROM {table} WHERE attempt = ANY ('{{{', '.join(map(str, landed.attempts))}}}'::bigint[])"
        if scalar(self.connections.writer, f"SELECT count(*) {counted}") != landed.rows:
            raise StateError(f"not all {landed.rows} rows landed in {table}", code="PT345", hint="refresh again")
        failpoints.reach("landed")
        return run_steps(f"SELECT {_names(flow)} {counted}", steps)

    def _merge(self, number: int, landed: str) -> None:
        kept = self.prepared.states[number]
        assert isinstance(kept, state.StateTable)
        writer, reader = self.connections.writer, self.connections.reader
        if self.whole:
            state.rebuild(writer, kept, landed)
        else:
            state.merge(writer, reader, kept, self.prepared.state_below(kept.aggregate), landed, self._after_window)

    def _after_window(self, operator: Operator) -> str | None:
        """A source as it is after the window, where the reader's snapshot is in the middle of it."""
        copy = copy_of(operator, self.copies)
        if copy is not None:
            return copy
        if not isinstance(operator, Scan) or operator.table.oid not in self.late:
            return None
        if operator not in self._moved:
            attributes = list(zip(operator.attributes, operator.names, strict=True))
            changes = self.window.changes_sql(operator.table.oid, attributes, Part.LATE)
            place = self.window.spans[operator.table.oid].place
            late = copied(self.window.connection(place), changes, self.connections.reader)
            self._moved[operator] = moved(operator, f"SELECT * FROM {late}", 1)
        return self._moved[operator]

    def _keep_first(self, number: int, top: TopK) -> None:
        kept = self.prepared.states[number]
        assert isinstance(kept, first.FirstRows)
        writer, reader = self.connections.writer, self.connections.reader
        first.keep(writer, reader, kept, self.prepared.table_below(top), self._after_window)

    def _read_here(self, flow: Read | Merged) -> pa.Table:
        """A leaf's rows: at the snapshot, or, of an aggregate below, from the transaction where alone they exist."""
        rows = self._source(flow).execute(statement(flow.sql)).fetchall()
        schema = arrow_schema(flow.columns)
        values = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
        return pa.table([pa.array(list(v), field.type) for v, field in zip(values, schema, strict=True)], schema=schema)

    def _source(self, flow: Read | Merged) -> Connection:
        return self.connections.writer if isinstance(flow, Merged) else self.window.connection(flow.place)


def _names(flow: Flow) -> str:
    return ", ".join([*(quote(column.name) for column in flow.columns), WEIGHT])
