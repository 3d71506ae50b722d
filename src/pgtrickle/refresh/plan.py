"""Decide, then do: turns a decision into the physical plan that `evaluate/stages.py` runs and `explain` prints.
Pure."""

from __future__ import annotations

from pgtrickle.capture.buffer import SCHEMA, buffer_name
from pgtrickle.model import Column, quote
from pgtrickle.physical.flow import Landing, Physical
from pgtrickle.physical.lower_delta import Names, lower_delta
from pgtrickle.physical.lower_full import lower_full, whole_query
from pgtrickle.physical.table_facts import SMALL_CHANGES, TableFactsMap
from pgtrickle.physical.window_parts import Changed, WindowPart
from pgtrickle.postgres.row_image import by_image
from pgtrickle.postgres.statements import state
from pgtrickle.postgres.statements.script import Scratch
from pgtrickle.query.operators import Scan
from pgtrickle.query.syntax.clock_text import with_time
from pgtrickle.refresh.group.upstream import AS_THEY_ARE, Upstream
from pgtrickle.refresh.prepared import Prepared
from pgtrickle.refresh.window import Window

SMALL_ROWS = 200_000
"""Up to so many rows of all flows, and SMALL_CHANGES, the driver reads the window and one task does the work."""


def plan_full(
    prepared: Prepared,
    facts: TableFactsMap,
    upstream: Upstream = AS_THEY_ARE,
    *,
    in_one: bool = False,
    spare: bool = False,
) -> Physical:
    """The plan of a full refresh; a query without a tree is evaluated whole by PostgreSQL. `in_one`: each stage is one
    query. `spare`: PostgreSQL's CPU is what is scarce."""
    if prepared.compiled.tree is None:
        return whole_query(whole_sql(prepared, upstream.query), result_columns(prepared), upstream.place)
    states = prepared.states
    return lower_full(
        prepared.tree, facts, lambda number: states[number].name, upstream.copies, in_one=in_one, spare=spare
    )


def plan_delta(
    prepared: Prepared, facts: TableFactsMap, window: Window, changed: Changed, scratch: Scratch
) -> Physical:
    """The plan of a differential refresh of the window, in which the tables `changed` have changes. `scratch` names
    what its stages leave."""

    few = sum(facts.changes.values()) <= SMALL_CHANGES

    def changes(scan: Scan, part: WindowPart, within: str) -> str:
        found = window.changes_of(scan, part, within=within)
        return _net(found, scan.columns) if few else found

    names = Names(
        changes=changes,
        buffer=lambda scan: f"{quote(SCHEMA)}.{quote(buffer_name(scan.table.oid))}",
        place=lambda scan: window.spans[scan.table.oid].place,
        state=lambda number: prepared.states[number].name,
        merged=lambda number: state.changes(scratch.part(number)),
    )
    return lower_delta(prepared.tree, changed, facts, names)


def _net(changes: str, columns: tuple[Column, ...]) -> str:
    """What the changes come to: states that came and went within the window are gone, before anything is computed on
    them. Or one bad value, since corrected, would fail the refresh, and a row that changed often be joined as often.
    OFFSET keeps PostgreSQL from evaluating a filter above before it adds up. Left out for large windows: their
    tasks each see a part only, and adding up there costs more than it saves.
    """
    return f"SELECT * FROM ({by_image(changes, columns)}) AS net OFFSET 0"


def result_columns(prepared: Prepared) -> tuple[Column, ...]:
    """The result's columns under the names its rows have on the way: the tree's, or c1, c2, … without one."""
    if prepared.compiled.tree is not None:
        return prepared.tree.columns
    return tuple(
        Column(f"c{position}", column.type, column.name)
        for position, column in enumerate(prepared.storage.columns, start=1)
    )


def is_small(physical: Physical, facts: TableFactsMap, *, whole: bool) -> bool:
    """Whether the short path serves: little to read, and not much to land."""
    landed = max((s.input.rows for s in physical.stages if isinstance(s, Landing)), default=0.0)
    if whole:
        return sum(table.rows for table in facts.tables.values()) <= SMALL_CHANGES and landed <= SMALL_ROWS
    return sum(facts.changes.values()) <= SMALL_CHANGES and landed <= SMALL_ROWS


def whole_sql(prepared: Prepared, query: str | None = None) -> str:
    """The user's query as PostgreSQL normalised it, or what stands for it, under the names of `result_columns`."""
    names = ", ".join(quote(column.name) for column in result_columns(prepared))
    analysis = prepared.compiled.analysis
    text = query or analysis.normalised.rstrip("; ")
    if query is None and analysis.reads_clock:
        text = with_time(text, {function.oid for function in analysis.functions})
    return f"SELECT * FROM ({text}) AS query({names})"
