"""Keeps the first rows of an ORDER BY … LIMIT in a table: reads them anew and compares. Called by `refresh/stages.py`.

All in the refresh's writing transaction. The rows are read as they are after the window, by `reader`, or from the state
below, which is already new when this one's turn comes.
"""

from __future__ import annotations

from dataclasses import dataclass

from pgtrickle.apply.merge import by_image
from pgtrickle.apply.stage import STATE_SCHEMA
from pgtrickle.db import Connection, execute
from pgtrickle.model import quote
from pgtrickle.postgres.copy import pipe
from pgtrickle.postgres.weighted import chain, kept_rows, run_steps, weigh
from pgtrickle.postgres.wire import WEIGHT, definition
from pgtrickle.query import render
from pgtrickle.query.operators import Stateful, TopK


@dataclass(frozen=True, slots=True)
class FirstRows:
    """Where a stream table keeps the first rows of a part of its query."""

    pgt_id: int
    number: int
    top: TopK

    @property
    def name(self) -> str:
        return f"{STATE_SCHEMA}.{quote(f's_{self.pgt_id}_{self.number}')}"

    @property
    def changes(self) -> str:
        """The weighted relation of what this refresh changed, once kept."""
        return f"SELECT * FROM pg_temp.{self.temporary('out')}"

    def temporary(self, what: str) -> str:
        return quote(f"pgt_{what}_{self.pgt_id}_{self.number}")


def create(connection: Connection, kept: FirstRows) -> None:
    """Creates the empty table."""
    execute(connection, f"CREATE TABLE {kept.name} ({_definitions(kept)})")


def keep(writer: Connection, reader: Connection, kept: FirstRows, below: str | None, source: render.Leaf) -> None:
    """Replaces the rows kept by those that are first now; leaves the difference in `kept.changes`.

    `below` is the table of the state that the rows are read from, if they are. `source` gives the SQL of those tables
    that are not as the snapshot has them.
    """
    top = kept.top
    names = ", ".join(quote(name) for name in top.names)
    now, out = (kept.temporary(what) for what in ("first", "out"))
    execute(writer, f"CREATE TEMPORARY TABLE {now} ({_definitions(kept)}) ON COMMIT DROP")
    if below is None:
        pipe(reader, render.select(top, leaf=source), writer, f"pg_temp.{now}")
    else:
        rows = render.select(top, leaf=lambda node: _from_state(top, below) if node is top.input else None)
        execute(writer, f"INSERT INTO pg_temp.{now} ({names}) {rows}")
    sides = ((1, f"pg_temp.{now}"), (-1, kept.name))
    difference = " UNION ALL ".join(f"SELECT {names}, {sign}::bigint AS {WEIGHT} FROM {rows}" for sign, rows in sides)
    execute(writer, f"CREATE TEMPORARY TABLE {out} ON COMMIT DROP AS {by_image(difference, top.columns)}")
    execute(writer, f"DELETE FROM {kept.name}")  # not TRUNCATE: tasks read it at the snapshot until the commit
    execute(writer, f"INSERT INTO {kept.name} ({names}) SELECT {names} FROM pg_temp.{now}")


def _from_state(top: TopK, below: str) -> str:
    core, steps = chain(top.input)
    assert isinstance(core, Stateful)
    rows = run_steps(weigh(kept_rows(core, below), core.names), steps)
    names = ", ".join(quote(name) for name in top.names)
    return f"SELECT {names} FROM ({rows}) AS rows"


def _definitions(kept: FirstRows) -> str:
    return ", ".join(definition(column) for column in kept.top.columns)
