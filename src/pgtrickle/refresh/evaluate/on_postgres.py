"""Evaluates the flows of a refresh by plain SQL, without Spark: one statement for all that lands in a stage.

Rows go from statement to statement inside of PostgreSQL, by temporary tables: those of flows that several stages need,
and those that another session has to read (a later snapshot, the refresh's own transaction), which come by COPY. For
`explain --analyze`, and for tests, which tell every story of theirs this way too: one plan, two evaluators, the same
rows.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from pgtrickle import tracing
from pgtrickle.apply import staging_tables
from pgtrickle.db import Connection, execute, scalar
from pgtrickle.physical.flow import Flow, Merged, Read, uses
from pgtrickle.physical.flow_sql import flow_sql, in_order
from pgtrickle.physical.flow_text import Measured
from pgtrickle.postgres.copy import pipe
from pgtrickle.postgres.statements import state
from pgtrickle.postgres.statements.script import Scratch
from pgtrickle.postgres.statements.state import StateTable
from pgtrickle.postgres.wire import send_plain, send_rows
from pgtrickle.refresh.connections import Connections
from pgtrickle.refresh.evaluate.evaluator import Leaves, columns_of
from pgtrickle.refresh.window import Window


@dataclass(slots=True)
class OnPostgres:
    """`scratch` names its tables. With `measured`, each flow is evaluated by itself, and what that took goes there."""

    scratch: Scratch
    connections: Connections
    window: Window
    measured: dict[Flow, Measured] | None = None
    _leaves: Leaves = field(init=False)
    _uses: Counter[Flow] = field(default_factory=Counter)
    _kept: dict[Flow, str] = field(default_factory=dict)
    """Flows whose rows the reader has in a table."""
    _landings: int = 0

    def __post_init__(self) -> None:
        self._leaves = Leaves(self.connections, self.window)

    def expect(self, flows: Sequence[Flow]) -> None:
        self._uses = uses(flows)

    def release(self) -> None:
        self._kept.clear()

    @property
    def notes(self) -> tuple[str, ...]:
        return ()

    @property
    def server_ms(self) -> float | None:
        return 0.0

    def drop_staging(self) -> None:
        """All lands inside of the transaction."""

    def fill(self, flow: Flow, kept: StateTable) -> None:
        source, target = self._source(flow), self.connections.writer
        rows = state.of_groups(kept, flow_sql(flow, self._kept))
        with tracing.span("land"):
            if source is target:
                execute(target, f"INSERT INTO {kept.name} {rows}")
            else:
                pipe(source, send_plain(rows, state.stored_columns(kept)), target, kept.name)

    def land(self, flow: Flow, *, consolidate: bool = False) -> str:
        source = self._source(flow)
        self._landings += 1
        table = self.scratch.part(self._landings).table("land")
        staging_tables.create_landing(self.connections.writer, table, flow.columns)
        with tracing.span("land"):
            self._fill(self.connections.writer, table, flow, source)
        return f"SELECT {columns_of(flow)} FROM {table}"

    def _source(self, flow: Flow) -> Connection:
        """Where a flow is evaluated that lands, after what it is made of."""
        if isinstance(flow, Merged) and self._uses[flow] <= 1 and self.measured is None:
            return self.connections.writer  # its rows are where they are to land
        self._keep_apart(flow)
        return self.connections.reader

    def _keep_apart(self, flow: Flow) -> None:
        """Puts what a flow is made of in tables, as far as it is needed there."""
        for each in in_order([flow], self._kept):
            if self._stands_apart(each):
                self._keep(each)

    def _stands_apart(self, flow: Flow) -> bool:
        """Whether its rows go to a table of their own."""
        elsewhere = self._place(flow) is not self.connections.reader
        return self._uses[flow] > 1 or elsewhere or self.measured is not None

    def _keep(self, flow: Flow) -> None:
        """Puts a flow's rows in a table of the reader's."""
        table, reader = self.scratch.part(len(self._kept)).table("flow"), self.connections.reader
        staging_tables.create_landing(reader, table, flow.columns)
        begun = time.perf_counter()
        self._fill(reader, table, flow, self._place(flow))
        if self.measured is not None:
            took = (time.perf_counter() - begun) * 1000
            self.measured[flow] = Measured(int(str(scalar(reader, f"SELECT count(*) FROM {table}"))), took)
        execute(reader, f"ANALYZE {table}")  # few, mostly: what they meet is to be found by index
        self._kept[flow] = table

    def _place(self, flow: Flow) -> Connection:
        """Where a flow is evaluated."""
        return self._leaves.connection(flow) if isinstance(flow, Read | Merged) else self.connections.reader

    def _fill(self, target: Connection, table: str, flow: Flow, source: Connection) -> None:
        rows = flow_sql(flow, self._kept)
        if source is target:
            execute(target, f"INSERT INTO {table} ({columns_of(flow)}) {rows}")
        else:
            pipe(source, send_rows(rows, flow.columns), target, table)
