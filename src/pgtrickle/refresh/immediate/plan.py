"""The plan of a statement's changes, and of computing all again, for the functions of IMMEDIATE mode. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection

from pgtrickle.physical.flow import Physical, Place
from pgtrickle.physical.lower_delta import Names, lower_delta
from pgtrickle.physical.lower_full import lower_full
from pgtrickle.physical.table_facts import TableFacts, TableFactsMap
from pgtrickle.physical.window_parts import Changed, WindowPart
from pgtrickle.postgres.row_image import by_image
from pgtrickle.postgres.statements import state
from pgtrickle.postgres.statements.script import Scratch
from pgtrickle.query.operators import Scan
from pgtrickle.refresh.prepared import Prepared

_TABLE_ROWS = 1e7
_CHANGES = 1


def as_if_large(facts: TableFactsMap, changed: Collection[int]) -> TableFactsMap:
    """Few changes, and tables that are large: a function is made once, for whatever becomes of them, and asks by key
    where there is an index."""
    tables = {
        oid: TableFacts(
            max(table.rows, _TABLE_ROWS),
            {column: min(rows, 100.0) for column, rows in table.indexed.items()},
            table.splittable,
        )
        for oid, table in facts.tables.items()
    }
    return TableFactsMap(tables, dict.fromkeys(changed, _CHANGES))


def plan_statement(
    prepared: Prepared,
    facts: TableFactsMap,
    changed: Collection[int],
    scratch: Scratch,
    rows: Callable[[Scan], str],
    *,
    net: bool = True,
) -> Physical:
    """What changes of these sources come to; `rows` is the query of those of one. `net`: some may cancel out."""

    def changes(scan: Scan, part: WindowPart, within: str) -> str:
        return f"SELECT * FROM ({by_image(rows(scan), scan.columns)}) AS net OFFSET 0" if net else rows(scan)

    names = Names(
        changes=changes,
        buffer=lambda scan: scan.table.qualified,
        place=lambda scan: Place.SNAPSHOT,
        state=lambda number: prepared.states[number].name,
        merged=lambda number: state.changes(scratch.part(number)),
    )
    return lower_delta(prepared.tree, Changed(frozenset(changed)), as_if_large(facts, changed), names)


def plan_all(prepared: Prepared, facts: TableFactsMap) -> Physical:
    """All of the query."""
    return lower_full(prepared.tree, facts, lambda number: prepared.states[number].name)
