"""What evaluates the flows of a plan: the protocol, and what all who do have in common.

`on_spark.py` has tasks of Spark do it, `on_postgres.py` plain SQL. `stages.py` asks for one flow after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pgtrickle.db import Connection
from pgtrickle.model import quote
from pgtrickle.physical.flow import Flow, Merged, Read
from pgtrickle.postgres.statements.state import StateTable
from pgtrickle.postgres.wire import WEIGHT
from pgtrickle.refresh.connections import Connections
from pgtrickle.refresh.window import Window


class Evaluator(Protocol):
    """Brings the rows of flows into the refresh's transaction."""

    def expect(self, flows: Sequence[Flow]) -> None:
        """Told beforehand which flows will be asked for, so that what they share is computed once."""

    def land(self, flow: Flow, *, consolidate: bool = False) -> str:
        """SQL of the flow's rows, once they have landed. Equal rows are added up by whoever reads it, or, of many,
        before if `consolidate` asks for it."""

    def fill(self, flow: Flow, kept: StateTable) -> None:
        """Puts the groups of a flow, each of which it has once, into an empty state table of the refresh's
        transaction."""

    def release(self) -> None:
        """No more flows will be asked for."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What the history should say of how it was done."""

    @property
    def server_ms(self) -> float | None:
        """Of the server's CPU, what others than the refresh's own sessions have had for it; None if it is not known."""

    def drop_staging(self) -> None:
        """Removes what has landed outside of the transaction."""


@dataclass(slots=True)
class Leaves:
    """Where the rows that flows begin with are read."""

    connections: Connections
    window: Window

    def connection(self, flow: Read | Merged) -> Connection:
        """At the flow's place, or, of an aggregate below, in the transaction where alone its rows exist."""
        return self.connections.writer if isinstance(flow, Merged) else self.window.connection(flow.place)


def columns_of(flow: Flow) -> str:
    """The columns of a landed flow, as a list of names."""
    return ", ".join([*(quote(column.name) for column in flow.columns), WEIGHT])
