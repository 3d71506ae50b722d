"""The flows of a small window as one Spark job: a task a term, which has the rows it starts from and asks PostgreSQL.
Flows of several stages are asked for in one job.

A frame for each flow, as `frames.py` builds them for large windows, costs Spark's analysis and planning of each: more
than a small window's work. So the driver writes down what is to be asked, with its rows, and each task runs one such
plan. Called by `small_window.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import adbc_driver_postgresql.dbapi as adbc
import pyarrow as pa
from pyspark.sql import SparkSession

from pgtrickle.errors import EnvironmentProblem
from pgtrickle.physical.flow import Concat, Flow, HashJoin, HashMatch, JointLookup, Lookup, Merged, Read, inputs, parts
from pgtrickle.spark.executors import is_connect
from pgtrickle.spark.transport import asked_sql
from pgtrickle.spark.worker import Batches, Snapshot, arrays, arrow_schema

MOST_BYTES = 8_000_000
"""All tasks are sent all plans: up to this size of their rows."""
_BATCH = 50_000
"""Rows that are told as one value."""
_TOLD = "flow int, rows binary"
Told: TypeAlias = tuple[int, bytes]
"""What a task tells: the number of a flow, and rows of it as an Arrow stream."""
_END: Final[Told] = (-1, b"")


@dataclass(frozen=True, slots=True)
class RowsAtHand:
    """Rows that the driver has read."""

    table: pa.Table


@dataclass(frozen=True, slots=True)
class QueryOverRows:
    """What a query answers to the rows of the inputs, sent as arrays; nothing, if the first has none."""

    sql: str
    inputs: tuple[TaskPlan, ...]
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class ConcatOf:
    """All rows of several."""

    parts: tuple[TaskPlan, ...]
    schema: pa.Schema


TaskPlan = RowsAtHand | QueryOverRows | ConcatOf


@dataclass(slots=True)
class TaskPlanner:
    """Writes plans; `read` has the driver read the rows of a leaf, each once."""

    read: Callable[[Read | Merged], pa.Table]
    _known: dict[Flow, TaskPlan] = field(default_factory=dict)

    def plan(self, flow: Flow) -> TaskPlan:
        """What to ask for a flow's rows, which must not be joined by Spark."""
        if flow not in self._known:
            self._known[flow] = self._write(flow)
        return self._known[flow]

    def learn(self, flow: Flow, rows: pa.Table) -> None:
        """From now on these rows are at hand."""
        self._known[flow] = RowsAtHand(rows)

    def _write(self, flow: Flow) -> TaskPlan:
        schema = arrow_schema(flow.columns)
        match flow:
            case Read() | Merged():
                return RowsAtHand(self.read(flow))
            case Lookup() | JointLookup():
                return QueryOverRows(asked_sql(flow), tuple(self.plan(part) for part in inputs(flow)), schema)
            case Concat():
                terms = (self.plan(part) for part in parts(flow))
                return ConcatOf(tuple(term for term in terms if not _is_empty(term)), schema)
        raise TypeError(f"no plan for {type(flow).__name__}")


def joins_on_spark(flow: Flow) -> bool:
    """Whether it takes Spark's own join, for which there is no plan."""
    return isinstance(flow, HashJoin | HashMatch) or any(map(joins_on_spark, inputs(flow)))


def _is_empty(plan: TaskPlan) -> bool:
    """Whether it is known that nothing comes of it."""
    match plan:
        case RowsAtHand(table=table):
            return bool(table.num_rows == 0)
        case QueryOverRows(inputs=asked):
            return _is_empty(asked[0])
        case ConcatOf(parts=every):
            return not every


def size(plans: Iterable[TaskPlan]) -> int:
    """The bytes of all rows that the plans carry, each part counted once."""
    total, left, seen = 0, list(plans), set[int]()
    while left:
        plan = left.pop()
        if id(plan) in seen:
            continue
        seen.add(id(plan))
        match plan:
            case RowsAtHand(table=table):
                total += table.nbytes
            case QueryOverRows(inputs=below) | ConcatOf(parts=below):
                left.extend(below)
    return total


@dataclass(frozen=True, slots=True)
class FlowTask:
    """What is asked for the flow of that number."""

    flow: int
    plan: TaskPlan


def run_job(session: SparkSession, snapshot: Snapshot, asked: Mapping[Flow, TaskPlan]) -> dict[Flow, pa.Table]:
    """The rows of each flow: one job, a task for the plans that ask the same."""
    schemas = [arrow_schema(flow.columns) for flow in asked]
    answers: list[list[pa.Table]] = [[schema.empty_table()] for schema in schemas]
    terms = tuple(FlowTask(flow, plan) for flow, plan in enumerate(asked.values()) if not _is_empty(plan))
    if terms:
        tasks = by_shared_queries(terms)
        for flow, rows in tell(session, _run_tasks(snapshot, tasks, schemas), len(tasks)):
            answers[flow].append(pa.ipc.open_stream(rows).read_all())
    return {flow: pa.concat_tables(tables) for flow, tables in zip(asked, answers, strict=True)}


def tell(session: SparkSession, run: Callable[[Iterable[int]], Iterator[Told]], tasks: int) -> list[Told]:
    """What `run` tells of each task's number, all tasks at once.

    As an RDD: there is no query in it for Spark to analyse and plan, which takes longer than the work of most. Spark
    Connect has frames alone.
    """
    return tell_by_frame(session, run, tasks) if is_connect(session) else tell_by_rdd(session, run, tasks)


def tell_by_rdd(session: SparkSession, run: Callable[[Iterable[int]], Iterator[Told]], tasks: int) -> list[Told]:
    def to_the_end(numbers: Iterable[int]) -> Iterator[Told]:
        yield from run(numbers)
        yield _END

    return whole(session.sparkContext.parallelize(range(tasks), tasks).mapPartitions(to_the_end).collect(), tasks)


def whole(told: list[Told], tasks: int) -> list[Told]:
    """What the tasks told before they said that this is all. pyspark takes a stream that breaks off for one that ends,
    as where Java dies while it hands over."""
    if told.count(_END) != tasks:
        raise EnvironmentProblem(
            "Spark ended before all of its tasks had told their rows", code="PT530", hint="refresh again"
        )
    return [each for each in told if each != _END]


def tell_by_frame(session: SparkSession, run: Callable[[Iterable[int]], Iterator[Told]], tasks: int) -> list[Told]:
    def in_batches(batches: Batches) -> Batches:
        for batch in batches:
            for flow, rows in run(batch.column(0).to_pylist()):
                values = [pa.array([flow], pa.int32()), pa.array([rows], pa.binary())]
                yield pa.RecordBatch.from_arrays(values, names=["flow", "rows"])

    told = session.range(0, tasks, 1, tasks).mapInArrow(in_batches, _TOLD).toArrow()
    return list(zip(told["flow"].to_pylist(), told["rows"].to_pylist(), strict=True))


def by_shared_queries(terms: tuple[FlowTask, ...]) -> tuple[tuple[FlowTask, ...], ...]:
    """The terms, those in one group that have a question in common."""
    groups: list[tuple[set[int], list[FlowTask]]] = []
    for term in terms:
        questions = _questions(term.plan)
        akin = [group for group in groups if group[0] & questions]
        groups = [group for group in groups if group not in akin]
        groups.append((questions.union(*(asked for asked, _ in akin)), [*(t for _, ts in akin for t in ts), term]))
    return tuple(tuple(members) for _, members in groups)


def _questions(plan: TaskPlan) -> set[int]:
    match plan:
        case RowsAtHand():
            return set()
        case QueryOverRows(inputs=below):
            return {id(plan)}.union(*map(_questions, below))
        case ConcatOf(parts=below):
            return set().union(*map(_questions, below))


def _run_tasks(
    snapshot: Snapshot, tasks: tuple[tuple[FlowTask, ...], ...], schemas: list[pa.Schema]
) -> Callable[[Iterable[int]], Iterator[Told]]:
    def run(numbers: Iterable[int]) -> Iterator[Told]:
        with snapshot.cursor() as cursor:
            for number in numbers:
                runner = _TaskRunner(cursor)
                for term in tasks[number]:
                    schema = schemas[term.flow]
                    rows = runner.rows(term.plan).select(schema.names).cast(schema)
                    yield from _told(term.flow, rows)

    return run


def _told(flow: int, rows: pa.Table) -> Iterator[Told]:
    """Rows of a flow as one value each batch: flows of one job differ in their columns."""
    for batch in rows.to_batches(_BATCH):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        yield flow, sink.getvalue().to_pybytes()


@dataclass(slots=True)
class _TaskRunner:
    """Runs the plans of a task; parts that they have twice are asked once."""

    cursor: adbc.Cursor
    _known: dict[int, pa.Table] = field(default_factory=dict)

    def rows(self, plan: TaskPlan) -> pa.Table:
        if id(plan) not in self._known:
            self._known[id(plan)] = self._make(plan)
        return self._known[id(plan)]

    def _make(self, plan: TaskPlan) -> pa.Table:
        match plan:
            case RowsAtHand(table=table):
                return table
            case ConcatOf(parts=every, schema=schema):
                tables = [self.rows(part).select(schema.names).cast(schema) for part in every]
                return pa.concat_tables(tables) if tables else schema.empty_table()
            case QueryOverRows():
                return self._ask(plan)

    def _ask(self, plan: QueryOverRows) -> pa.Table:
        first = self.rows(plan.inputs[0])
        if not first.num_rows:
            return plan.schema.empty_table()
        sent = [first, *(self.rows(part) for part in plan.inputs[1:])]
        self.cursor.execute(plan.sql, parameters=arrays([c.combine_chunks() for part in sent for c in part.columns]))
        return self.cursor.fetch_arrow_table().cast(plan.schema)
