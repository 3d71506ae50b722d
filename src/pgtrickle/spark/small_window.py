"""The rows of the flows of a small window, stage by stage, in few Spark jobs. Called by `frames.py`.

The first stage that wants rows has everything asked that no stage has to be done for: the flows of others, the parts of
these, or what they have in common. So what several stages need is asked once, and most refreshes take one job or two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

import pyarrow as pa
from pyspark.sql import SparkSession

from pgtrickle.physical.flow import Flow, Merged, Read, inputs, needs_stage, parts
from pgtrickle.spark.batch_job import MOST_BYTES, TaskPlan, TaskPlanner, joins_on_spark, run_job, size
from pgtrickle.spark.worker import Snapshot, arrow_schema


@dataclass(slots=True)
class SmallWindow:
    """Answers flows. `read`: the driver reads a leaf's rows. `expected`: all that will be asked for. `uses`: how many
    flows, or stages, have use for each."""

    session: SparkSession
    snapshot: Snapshot
    read: Callable[[Read | Merged], pa.Table]
    expected: Sequence[Flow]
    uses: Counter[Flow]
    _planner: TaskPlanner = field(init=False)
    _answers: dict[Flow, pa.Table] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._planner = TaskPlanner(self.read)

    def rows(self, flow: Flow) -> pa.Table | None:
        """The rows of a flow; None if it takes Spark's own join, or too many rows to send to all tasks."""
        self.expected = [other for other in self.expected if other != flow]
        if joins_on_spark(flow):
            return None
        missing = {part: self._planner.plan(part) for part in parts(flow) if part not in self._answers}
        if size(missing.values()) > MOST_BYTES:
            return None
        if missing:
            self._ask({**missing, **self._ready(missing)})
        schema = arrow_schema(flow.columns)
        found = (self._answers[part].select(schema.names) for part in parts(flow))
        return pa.concat_tables([schema.empty_table(), *found])

    def _ask(self, wanted: dict[Flow, TaskPlan]) -> None:
        for flow, rows in run_job(self.session, self.snapshot, wanted).items():
            self._answers[flow] = rows
            self._planner.learn(flow, rows)

    def _ready(self, wanted: dict[Flow, TaskPlan]) -> dict[Flow, TaskPlan]:
        """What else can be asked now, as far as it is not too much."""
        along = dict[Flow, TaskPlan]()
        every = (part for flow in self.expected for part in parts(flow))
        for flow in chain.from_iterable(map(self._before_stages, every)):
            if flow not in self._answers:
                plan = self._planner.plan(flow)
                if size([*wanted.values(), *along.values(), plan]) <= MOST_BYTES:
                    along[flow] = plan
        return along

    def _before_stages(self, flow: Flow, *, below: bool = False) -> Iterator[Flow]:
        """What can be asked before a stage is done: the flow, or those below it that others use too."""
        shared = self.uses[flow] > 1 and not isinstance(flow, Read)
        if not needs_stage(flow) and not joins_on_spark(flow) and (shared or not below):
            yield flow
            return
        for source in inputs(flow):
            yield from self._before_stages(source, below=True)
