"""Where to read the state that a node's input is made of, as it will be: before it is written, of what was computed.
Pure. Called by whatever runs or composes the stages of a plan."""

from __future__ import annotations

from collections.abc import Container

from pgtrickle.postgres.statements import first_rows, recursion, state, window_rows
from pgtrickle.postgres.statements.recursion import RecursiveRows
from pgtrickle.postgres.statements.script import Scratch
from pgtrickle.postgres.statements.state import StateTable
from pgtrickle.postgres.statements.window_rows import WindowRows
from pgtrickle.query.operators import Stateful
from pgtrickle.refresh.prepared import Prepared


def below(prepared: Prepared, node: Stateful, unwritten: Container[int], scratch: Scratch) -> str | None:
    """What to read FROM; None if its input is made of no state. `unwritten`: the numbers of the states whose changes
    were computed into tables of `scratch`, and not written yet."""
    number = prepared.state_below(node)
    if number is None:
        return None
    kept, part = prepared.states[number], scratch.part(number)
    if number not in unwritten:
        return kept.name
    match kept:
        case StateTable():
            return state.merged_rows(kept, part)
        case WindowRows():
            return window_rows.merged_rows(kept, part)
        case RecursiveRows():
            return recursion.new_rows(kept, part)
    return first_rows.new_rows(part)
