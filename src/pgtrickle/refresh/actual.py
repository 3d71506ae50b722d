"""How many rows each flow of a plan has for the changes now waiting: asked of PostgreSQL, without Spark.

Called by `explain`, in a transaction that sees the window's end. Rows that only a refresh computes, those of a state
it has changed, are not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import psycopg

from pgtrickle.db import Connection, statement
from pgtrickle.spark.flow import Concat, Flow, Lookup, Read, Together

Row = tuple[object, ...]


@dataclass(slots=True)
class Actual:
    """Counts flows; each is evaluated once."""

    connection: Connection
    _found: dict[Flow, list[Row] | None] = field(default_factory=dict)

    def count(self, flow: Flow) -> int | None:
        """The number of its rows, if it can be known."""
        rows = self._rows(flow)
        return None if rows is None else len(rows)

    def _rows(self, flow: Flow) -> list[Row] | None:
        if flow not in self._found:
            self._found[flow] = self._evaluate(flow)
        return self._found[flow]

    def _evaluate(self, flow: Flow) -> list[Row] | None:
        match flow:
            case Read():
                return self.connection.execute(statement(flow.sql)).fetchall()
            case Lookup(input=source, sql=sql):
                return self._send(sql, (source,))
            case Together(flows=flows, sql=sql):
                return self._send(sql, flows)
            case Concat(flows=flows):
                parts = [self._rows(part) for part in flows]
                known = [part for part in parts if part is not None]
                return [row for part in known for row in part] if len(known) == len(parts) else None
        return None

    def _send(self, sql: str, flows: Sequence[Flow]) -> list[Row] | None:
        """What a query makes of the rows of some flows, sent as an array a column."""
        arrays: list[list[object]] = []
        for position, flow in enumerate(flows):
            rows = self._rows(flow)
            if rows is None:
                return None
            if not rows and position == 0:
                return []
            arrays += [[row[place] for row in rows] for place in range(len(flow.columns) + 1)]
        with psycopg.RawCursor(self.connection) as cursor:
            return cursor.execute(statement(sql), arrays).fetchall()
