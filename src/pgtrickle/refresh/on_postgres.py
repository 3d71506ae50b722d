"""Evaluates the flows of a refresh by plain SQL, without Spark: one query a flow, its inputs sent along.

For `explain`, which counts the rows of each flow for the changes now waiting; and for tests, which tell every story of
theirs this way too: one plan, two evaluators, the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import psycopg

from pgtrickle.apply import stage
from pgtrickle.db import Connection, statement
from pgtrickle.physical.flow import Flow, HashJoin, Lookup, Merged, Read, Together, inputs, parts
from pgtrickle.physical.sql import hash_join
from pgtrickle.postgres.wire import net, receive_arrays
from pgtrickle.refresh.connections import Connections
from pgtrickle.refresh.evaluator import Leaves, columns_of
from pgtrickle.refresh.window import Window
from pgtrickle.spark.transport import over_inputs, read_sql

Row = tuple[object, ...]


@dataclass(slots=True)
class OnPostgres:
    """Each flow is evaluated once; its rows are kept as they travel."""

    pgt_id: int
    connections: Connections
    window: Window
    _leaves: Leaves = field(init=False)
    _found: dict[Flow, list[Row]] = field(default_factory=dict)
    _landings: int = 0

    def __post_init__(self) -> None:
        self._leaves = Leaves(self.connections, self.window)

    def expect(self, flows: Sequence[Flow]) -> None:
        """What they share is found by itself."""

    def release(self) -> None:
        self._found.clear()

    def drop_staging(self) -> None:
        """All lands inside of the transaction."""

    def land(self, flow: Flow, *, consolidate: bool = False) -> str:
        self._landings += 1
        name = f"pgt_land_{self.pgt_id}_{self._landings}"
        table = stage.create_landing(self.connections.writer, name, flow.columns)
        insert = f"INSERT INTO {table} ({columns_of(flow)}) {receive_arrays(flow.columns)}"
        _execute(self.connections.writer, insert, [(flow, self.rows(flow))])
        return f"SELECT {columns_of(flow)} FROM {table}"

    def count(self, flow: Flow) -> int | None:
        """The number of its rows; None if that takes rows that only a refresh computes: of a state it has changed."""
        return None if _needs_stage(flow) else len(self.rows(flow))

    def rows(self, flow: Flow) -> list[Row]:
        """Its rows in wire forms, the weight last."""
        if flow not in self._found:
            self._found[flow] = self._evaluate(flow)
        return self._found[flow]

    def _evaluate(self, flow: Flow) -> list[Row]:
        match flow:
            case Read() | Merged():
                return self._leaves.connection(flow).execute(statement(read_sql(flow))).fetchall()
            case Lookup(relation=relation):
                return self._ask(flow, over_inputs(flow, relation))
            case Together(relation=relation, cancels=cancels):
                asked = over_inputs(flow, relation)
                return self._ask(flow, asked if not cancels else net(asked, flow.columns))
            case HashJoin():
                return self._ask(flow, over_inputs(flow, hash_join(flow)))
        names = [column.name for column in flow.columns]
        return [row for part in parts(flow) for row in _in_order(self.rows(part), part, names)]

    def _ask(self, flow: Flow, sql: str) -> list[Row]:
        """What a query makes of the rows of the flow's inputs; nothing, if the first has none."""
        sent = [(each, self.rows(each)) for each in inputs(flow)]
        return _execute(self.connections.reader, sql, sent) if sent[0][1] else []


def _execute(connection: Connection, sql: str, sent: Sequence[tuple[Flow, list[Row]]]) -> list[Row]:
    """Runs a query with the rows of some flows as parameters, an array a column."""
    arrays = [[row[place] for row in rows] for flow, rows in sent for place in range(len(flow.columns) + 1)]
    with psycopg.RawCursor(connection) as cursor:
        cursor.execute(statement(sql), arrays)
        return cursor.fetchall() if cursor.description else []


def _in_order(rows: list[Row], flow: Flow, names: Sequence[str]) -> list[Row]:
    """The rows with their columns in another order, that of the flow they are a part of."""
    own = [column.name for column in flow.columns]
    places = [own.index(name) for name in names]
    return [(*(row[place] for place in places), row[-1]) for row in rows]


def _needs_stage(flow: Flow) -> bool:
    return isinstance(flow, Merged) or any(map(_needs_stage, inputs(flow)))
