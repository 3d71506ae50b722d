"""A flow as a Spark DataFrame. The only place that builds DataFrames; called by `refresh/evaluate/on_spark.py`.

Small windows take the short path: the driver reads them, `small_window.py` has PostgreSQL answer all questions, and
equal rows are added up where they land. Large ones are read, and added up, by tasks. A flow that several others use is
computed once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pgtrickle.physical.flow import (
    Computed,
    Concat,
    Flow,
    HashJoin,
    HashMatch,
    JointLookup,
    Lookup,
    Merged,
    Native,
    Net,
    Place,
    Read,
    SparkSql,
    inputs,
    uses,
)
from pgtrickle.postgres.wire import WEIGHT, quote_spark, send_rows, spark_schema
from pgtrickle.query.operators import MatchKind
from pgtrickle.spark import worker
from pgtrickle.spark.landing import to_driver
from pgtrickle.spark.small_window import SmallWindow
from pgtrickle.spark.transport import asked_sql

_FEW = 100_000
"""Rows of a table up to which each task has all of them, so that those of the other side stay where they are."""
_SIDE = "side"
_TASK = "task"
_OTHER_WEIGHT = "other_w"


@dataclass(slots=True)
class Frames:
    """Builds the frames of one refresh. `small`: the short path. `read_here`: the driver reads a leaf's rows itself.
    `handed_over`: the rows of a leaf that tasks cannot read where they are; if they are many, relations by which tasks
    can, each a share.
    `ranges`: the ctid conditions that split a table. `late`: the snapshot of flows whose place that is."""

    session: SparkSession
    snapshot: worker.Snapshot
    late: worker.Snapshot | None
    small: bool
    read_here: Callable[[Read | Merged], pa.Table]
    handed_over: Callable[[Read | Merged], pa.Table | Sequence[str]]
    ranges: Callable[[str], list[str]]
    _small: SmallWindow = field(init=False)
    _frames: dict[Flow, DataFrame] = field(default_factory=dict)
    _uses: Counter[Flow] = field(default_factory=Counter)
    _kept: list[DataFrame] = field(default_factory=list)
    _permits: int = 1
    """What a task takes that computes a frame, if connections are bounded."""

    def __post_init__(self) -> None:
        self.expect(())

    def expect(self, flows: Sequence[Flow]) -> None:
        """Tells beforehand which flows will be asked for, so that what they share is computed once."""
        self._uses = uses(flows)
        self._permits = 1 + max(map(_connections, flows), default=0)  # what lands has one as well
        self._small = SmallWindow(self.session, self.snapshot, self.read_here, flows, self._uses)

    @property
    def server(self) -> worker.Server:
        """For tasks that land what they compute of a frame."""
        return self.snapshot.server.asking_for(self._permits)

    def rows(self, flow: Flow) -> pa.Table:
        """The rows of a small flow: by task plans if there are any for it, or else of its frame."""
        rows = self._small.rows(flow)
        return to_driver(self.frame(flow)) if rows is None else rows

    def frame(self, flow: Flow) -> DataFrame:
        if flow not in self._frames:
            frame = self._build(flow)
            if self._uses[flow] > 1 and not isinstance(flow, Read | Merged):
                self._kept.append(frame.persist())
            self._frames[flow] = frame
        return self._frames[flow]

    def release(self) -> None:
        for frame in self._kept:
            frame.unpersist()
        self._kept.clear()

    def consolidated(self, flow: Flow) -> DataFrame:
        """The flow with equal rows added up and those of weight zero gone."""
        names = [quote_spark(column.name) for column in flow.columns]
        return _consolidated(self.frame(flow), names)

    def _build(self, flow: Flow) -> DataFrame:
        match flow:
            case Read() | Merged():
                return self._read(flow)
            case Lookup(input=source, whole=whole, apart=apart):
                frame = self._gathered(self.frame(source), apart) if whole else self.frame(source)
                return self._map(frame, worker.look_up(self._at(Place.SNAPSHOT), asked_sql(flow), whole=whole), flow)
            case JointLookup():
                return self._together(flow)
            case Native(by_spark=made):
                return self.frame(made)
            case Computed(input=source, columns=columns, sql=sql):
                return _computed(self.frame(source), [column.name for column in columns], sql)
            case HashJoin():
                return self._hash_join(flow)
            case HashMatch():
                return self._hash_match(flow)
            case Net(terms=terms):
                return self._net(flow, [(sign, self.frame(part)) for sign, part in terms])
            case Concat(flows=flows):
                return self._concat(flow, [self.frame(part) for part in flows])
        raise TypeError(f"no frame for {type(flow).__name__}")

    def _read(self, flow: Read | Merged) -> DataFrame:
        if self.small:
            return self._local(self.read_here(flow), flow)
        if isinstance(flow, Read) and not flow.place.is_private:
            return self._by_tasks(flow.shares(self.ranges), self._at(flow.place), flow)
        found = self.handed_over(flow)
        if isinstance(found, pa.Table):
            return self._local(found, flow)
        return self._by_tasks(found, replace(self._at(Place.SNAPSHOT), name=None), flow)

    def _by_tasks(self, shares: Sequence[str], snapshot: worker.Snapshot, flow: Read | Merged) -> DataFrame:
        queries = [send_rows(share, flow.columns) for share in shares]
        asked = self.session.createDataFrame(pa.table({"query": queries})).repartition(len(queries))
        return self._map(asked, worker.read_queries(snapshot), flow)

    def _local(self, rows: pa.Table, flow: Read | Merged) -> DataFrame:
        if rows.num_rows:
            return self.session.createDataFrame(rows)
        return self.session.createDataFrame(rows, spark_schema(flow.columns))  # Spark Connect wants it said

    def _at(self, place: Place) -> worker.Snapshot:
        found = self.snapshot if place is Place.SNAPSHOT else self.late
        assert found is not None, "a late flow has a snapshot"
        return replace(found, server=found.server.asking_for(self._permits))

    def _map(self, frame: DataFrame, function: Callable[[worker.Batches], worker.Batches], flow: Flow) -> DataFrame:
        return frame.mapInArrow(function, spark_schema(flow.columns))

    def _together(self, flow: JointLookup) -> DataFrame:
        apart = [F.xxhash64(*map(quote_spark, names)) for names in flow.apart] or [F.lit(0)] * len(flow.flows)
        sides = [
            self.frame(part).withColumns({_SIDE: F.lit(number), _TASK: task})
            for number, (part, task) in enumerate(zip(flow.flows, apart, strict=True))
        ]
        whole = sides[0]
        for side in sides[1:]:
            whole = whole.unionByName(side, allowMissingColumns=True)
        columns = [[column.name for column in part.columns] for part in flow.flows]
        gathered = self._gathered(whole, (_TASK,) if flow.apart else ()).drop(_TASK)
        return self._map(
            gathered, worker.send_together(self._at(Place.SNAPSHOT), asked_sql(flow), columns, _SIDE), flow
        )

    def _gathered(self, frame: DataFrame, columns: Sequence[str]) -> DataFrame:
        """The rows, with those in one task that are alike in the columns; all of them, if there are no columns. Many
        are moved there: what is below them stays work for several tasks."""
        if columns:
            return frame.repartition(*map(quote_spark, columns))
        return frame.coalesce(1) if self.small else frame.repartition(1)

    def _hash_join(self, flow: HashJoin) -> DataFrame:
        left, right = _to_all(self.frame(flow.left), flow.left), self._right(flow)
        on = _alike(flow, left, right)
        joined = left.join(right, on, "inner") if on else left.crossJoin(right)
        names = [F.col(quote_spark(column.name)) for column in flow.columns]
        return joined.select(*names, (F.col(WEIGHT) * F.col(_OTHER_WEIGHT) * flow.sign).alias(WEIGHT))

    def _hash_match(self, flow: HashMatch) -> DataFrame:
        left, right = self.frame(flow.left), self._right(flow)
        on = [*_alike(flow, left, right), *map(F.expr, flow.where)]
        names = [F.col(quote_spark(column.name)) for column in flow.columns]
        match flow.kind:
            case None:
                joined = left.join(right, on, "left")
                return joined.select(*names, (F.col(WEIGHT) * F.coalesce(_OTHER_WEIGHT, F.lit(1))).alias(WEIGHT))
            case MatchKind.SEMI:
                return left.join(right, on, "leftsemi")
            case MatchKind.ANTI:
                return left.join(right, on, "leftanti")
        mark = flow.columns[-1].name
        found, others = (left.join(right, on, how) for how in ("leftsemi", "leftanti"))
        marked = found.withColumn(mark, F.lit(True)).union(others.withColumn(mark, F.lit(False)))
        return marked.select(*names, WEIGHT)

    def _right(self, flow: HashJoin | HashMatch) -> DataFrame:
        return _to_all(self.frame(flow.right).withColumnRenamed(WEIGHT, _OTHER_WEIGHT), flow.right)

    def _net(self, flow: Net, terms: list[tuple[int, DataFrame]]) -> DataFrame:
        names = [quote_spark(column.name) for column in flow.columns]
        frames = [frame.select(*names, (F.col(WEIGHT) * sign).alias(WEIGHT)) for sign, frame in terms]
        return _consolidated(reduce(DataFrame.union, frames), names)

    def _concat(self, flow: Concat, frames: list[DataFrame]) -> DataFrame:
        names = [quote_spark(column.name) for column in flow.columns] + [WEIGHT]
        whole = frames[0].select(*names)
        for frame in frames[1:]:
            whole = whole.union(frame.select(*names))
        return whole


def _to_all(frame: DataFrame, flow: Flow) -> DataFrame:
    """The rows, sent to all tasks if they are known to be few. (Spark itself cannot know it.)"""
    counted = isinstance(flow, Read) and flow.split_by is not None
    return F.broadcast(frame) if counted and flow.rows <= _FEW else frame


def _alike(flow: HashJoin | HashMatch, left: DataFrame, right: DataFrame) -> list[Column]:
    """That rows are equal in the keys."""
    on = [left[one] == right[other] for one, other in flow.keys]
    return on + [left[one].eqNullSafe(right[other]) for one, other in flow.null_safe]


def _consolidated(frame: DataFrame, names: Sequence[str]) -> DataFrame:
    """Rows that look alike are one, of the sum of their weights, or none."""
    return frame.groupBy(*names).agg(F.sum(WEIGHT).alias(WEIGHT)).where(f"{WEIGHT} <> 0")


def _computed(frame: DataFrame, names: Sequence[str], sql: SparkSql) -> DataFrame:
    for condition in sql.where:
        frame = frame.where(condition)
    outputs = [F.expr(made).alias(n) for made, n in zip((*sql.outputs, sql.weight), (*names, WEIGHT), strict=True)]
    return frame.select(*outputs) if sql.keys is None else frame.groupBy(*outputs[: sql.keys]).agg(*outputs[sql.keys :])


def _connections(flow: Flow) -> int:
    """The most that a task has open which computes a flow, were it all one task."""
    below = max(map(_connections, inputs(flow)), default=0)
    if isinstance(flow, Native):
        return max(below, _connections(flow.asked))
    return below + isinstance(flow, Read | Merged | Lookup | JointLookup)
