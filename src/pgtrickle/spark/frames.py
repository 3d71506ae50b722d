"""A flow as a Spark DataFrame. The only place that builds DataFrames; called by `refresh/evaluate/on_spark.py`.

Small windows take the short path: the driver reads them, `small_window.py` has PostgreSQL answer all questions, and
equal rows are added up where they land. Large ones are read, and added up, by tasks. A flow that several others use is
computed once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgtrickle.physical.flow import (
    Concat,
    Flow,
    HashJoin,
    JointLookup,
    Lookup,
    Merged,
    Native,
    Place,
    Read,
    inputs,
    uses,
)
from pgtrickle.postgres.wire import WEIGHT, quote_spark, send_rows, spark_schema
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
    `ranges`: the ctid conditions that split a table. `late`: the snapshot of flows whose place that is."""

    session: SparkSession
    snapshot: worker.Snapshot
    late: worker.Snapshot | None
    small: bool
    read_here: Callable[[Read | Merged], pa.Table]
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
        summed = self.frame(flow).groupBy(*names).agg(F.sum(WEIGHT).alias(WEIGHT))
        return summed.where(f"{WEIGHT} <> 0")

    def _build(self, flow: Flow) -> DataFrame:
        match flow:
            case Read():
                return self._read(flow)
            case Merged():
                return self._local(flow)
            case Lookup(input=source, whole=whole, apart=apart):
                frame = _gathered(self.frame(source), apart) if whole else self.frame(source)
                return self._map(frame, worker.look_up(self._at(Place.SNAPSHOT), asked_sql(flow), whole=whole), flow)
            case JointLookup():
                return self._together(flow)
            case Native(asked=Lookup(input=source)):
                return _native(self.frame(source), flow)
            case HashJoin():
                return self._hash_join(flow)
            case Concat(flows=flows):
                return self._concat(flow, [self.frame(part) for part in flows])
        raise TypeError(f"no frame for {type(flow).__name__}")

    def _read(self, flow: Read) -> DataFrame:
        if self.small or flow.place.is_private:
            return self._local(flow)
        queries = [send_rows(share, flow.columns) for share in flow.shares(self.ranges)]
        asked = self.session.createDataFrame(pa.table({"query": queries})).repartition(len(queries))
        return self._map(asked, worker.read_queries(self._at(flow.place)), flow)

    def _local(self, flow: Read | Merged) -> DataFrame:
        rows = self.read_here(flow)
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
        gathered = _gathered(whole, (_TASK,) if flow.apart else ()).drop(_TASK)
        return self._map(
            gathered, worker.send_together(self._at(Place.SNAPSHOT), asked_sql(flow), columns, _SIDE), flow
        )

    def _hash_join(self, flow: HashJoin) -> DataFrame:
        left = _to_all(self.frame(flow.left), flow.left)
        right = _to_all(self.frame(flow.right).withColumnRenamed(WEIGHT, _OTHER_WEIGHT), flow.right)
        on = [left[one] == right[other] for one, other in flow.keys]
        on += [left[one].eqNullSafe(right[other]) for one, other in flow.null_safe]
        joined = left.join(right, on, "inner") if on else left.crossJoin(right)
        names = [F.col(quote_spark(column.name)) for column in flow.columns]
        return joined.select(*names, (F.col(WEIGHT) * F.col(_OTHER_WEIGHT) * flow.sign).alias(WEIGHT))

    def _concat(self, flow: Concat, frames: list[DataFrame]) -> DataFrame:
        names = [quote_spark(column.name) for column in flow.columns] + [WEIGHT]
        whole = frames[0].select(*names)
        for frame in frames[1:]:
            whole = whole.union(frame.select(*names))
        return whole


def _gathered(frame: DataFrame, columns: Sequence[str]) -> DataFrame:
    """The rows, with those in one task that are alike in the columns; all of them, if there are no columns."""
    return frame.repartition(*map(quote_spark, columns)) if columns else frame.coalesce(1)


def _to_all(frame: DataFrame, flow: Flow) -> DataFrame:
    """The rows, sent to all tasks if they are known to be few. (Spark itself cannot know it.)"""
    counted = isinstance(flow, Read) and flow.split_by is not None
    return F.broadcast(frame) if counted and flow.rows <= _FEW else frame


def _native(frame: DataFrame, flow: Native) -> DataFrame:
    """What Spark makes of the rows by itself."""
    for condition in flow.sql.where:
        frame = frame.where(condition)
    names = [*(column.name for column in flow.columns), WEIGHT]
    outputs = [F.expr(sql).alias(n) for sql, n in zip((*flow.sql.outputs, flow.sql.weight), names, strict=True)]
    keys = flow.sql.keys
    return frame.select(*outputs) if keys is None else frame.groupBy(*outputs[:keys]).agg(*outputs[keys:])


def _connections(flow: Flow) -> int:
    """The most that a task has open which computes a flow, were it all one task."""
    below = max(map(_connections, inputs(flow)), default=0)
    return below + isinstance(flow, Read | Lookup | JointLookup)
