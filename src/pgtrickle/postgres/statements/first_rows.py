"""Statements that keep the first rows of an ORDER BY … LIMIT in a table: read anew, and compared. Pure.

The rows are read as they are after the window: from tables, or from the state below.
"""

from __future__ import annotations

from dataclasses import dataclass

from pgtrickle.model import quote
from pgtrickle.postgres.row_image import by_image, image
from pgtrickle.postgres.statements.at_once import AtOnce, Part
from pgtrickle.postgres.statements.script import FromTables, Run, Scratch, Script, empty_temporary, temporary
from pgtrickle.postgres.statements.state import StateMerge
from pgtrickle.postgres.weighted import from_state
from pgtrickle.postgres.wire import WEIGHT
from pgtrickle.query import render
from pgtrickle.query.operators import TopK


@dataclass(frozen=True, slots=True)
class FirstRows:
    """Where the first rows of a part of a query are kept."""

    name: str
    top: TopK


def keep(kept: FirstRows, scratch: Scratch, below: str | None, source: render.Leaf) -> StateMerge:
    """Replaces the rows kept by those that are first now; leaves the difference as `state.changes`.

    `below` is what to read FROM the state that the rows are made of, as it is after the window, if they are made of
    one. `source` gives the SQL of those tables that are not as whoever reads them sees them.
    """
    top = kept.top
    names = ", ".join(quote(name) for name in top.names)
    now, out = new_rows(scratch), scratch.table("out")
    if below is None:
        read: Script = (FromTables(now, top.columns, render.select(top, leaf=source)),)
    else:
        rows = f"SELECT {names} FROM ({from_state(top.input, below)}) AS rows"
        first = render.select(top, leaf=lambda node: rows if node is top.input else None)
        read = (empty_temporary(now, top.columns), Run(f"INSERT INTO {now} ({names}) {first}"))
    sides = ((1, now), (-1, kept.name))
    difference = " UNION ALL ".join(f"SELECT {names}, {sign}::bigint AS {WEIGHT} FROM {rows}" for sign, rows in sides)
    return StateMerge(
        compute=(*read, temporary(out, by_image(difference, top.columns))),
        write=(
            Run(f"DELETE FROM {kept.name}"),  # not TRUNCATE: tasks read it at the snapshot until the commit
            Run(f"INSERT INTO {kept.name} ({names}) SELECT {names} FROM {now}"),
        ),
    )


def keep_at_once(kept: FirstRows, scratch: Scratch, below: str | None, source: render.Leaf) -> AtOnce:
    """The same as parts of one statement."""
    top = kept.top
    names = ", ".join(quote(name) for name in top.names)
    now, out = new_rows(scratch), scratch.table("out")
    if below is None:
        first = render.select(top, leaf=source)
    else:
        rows = f"SELECT {names} FROM ({from_state(top.input, below)}) AS rows"
        first = render.select(top, leaf=lambda node: rows if node is top.input else None)
    typed = ", ".join(f"{quote(column.name)}::{column.type.name} AS {quote(column.name)}" for column in top.columns)
    sides = ((1, now), (-1, kept.name))
    difference = " UNION ALL ".join(f"SELECT {names}, {sign}::bigint AS {WEIGHT} FROM {rows}" for sign, rows in sides)
    put = f"INSERT INTO {kept.name} ({names}) SELECT {names} FROM {out} CROSS JOIN generate_series(1, {WEIGHT})"
    gone = f"SELECT *, row_number() OVER () AS pgt_row FROM {out} WHERE {WEIGHT} < 0"
    ours, theirs = (", ".join(image(column, alias) for column in top.columns) for alias in ("k.", "g."))
    hit = (
        f"SELECT k.ctid AS tid, -g.{WEIGHT} AS wanted, row_number() OVER (PARTITION BY g.pgt_row) AS found "
        f"FROM ({gone}) AS g JOIN {kept.name} AS k ON ROW({ours})::record *= ROW({theirs})::record"
    )
    take = f"DELETE FROM {kept.name} WHERE ctid = ANY (ARRAY(SELECT tid FROM ({hit}) AS hit WHERE found <= wanted))"
    return AtOnce(
        (
            Part(now, f"SELECT {typed} FROM ({first}) AS first_rows({names})"),
            Part(out, by_image(difference, top.columns)),
            Part(scratch.table("gone"), take, writes=True),
            Part(scratch.table("came"), f"{put} WHERE {WEIGHT} > 0", writes=True),
        )
    )


def new_rows(scratch: Scratch) -> str:
    """What to read FROM the new first rows after `compute` and before `write`."""
    return scratch.table("first")
