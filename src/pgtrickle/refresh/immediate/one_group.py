"""A grouping of one table, where a statement has changed rows of one group: a few small statements instead of one that
could do with any number of groups. Pure; called by `install.py` and `functions.py`.

    the contribution  →  the turn of its group  →  the state's row is updated, old and new
                      →  the row of the result, old and new  →  it is updated, deleted or inserted

What is found by one is a record that the next reads from. A row that stays is updated in place: whatever refers to it
by a foreign key sees that it stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pgtrickle.model import Column, quote
from pgtrickle.physical.flow import LandAggregate, Physical, Read, ReadResult
from pgtrickle.physical.flow_sql import read_sql
from pgtrickle.postgres import aggregate as sql
from pgtrickle.postgres import routine
from pgtrickle.postgres.statements import result, state
from pgtrickle.postgres.statements.at_once import PartNames
from pgtrickle.postgres.statements.result import OneRow
from pgtrickle.postgres.statements.state import StateTable
from pgtrickle.postgres.weighted import run_steps
from pgtrickle.refresh.immediate.one_statement import shows_its_keys
from pgtrickle.refresh.plan import result_columns
from pgtrickle.refresh.prepared import Prepared

DECLARATIONS: Final = (
    "how_many integer; one_group record; merged_group record; old_row record; new_row record; "
    "was_there boolean; is_there boolean;"
)
"""The variables of `body`."""


@dataclass(frozen=True, slots=True)
class OneGroup:
    """The statements, over the records of `DECLARATIONS`: each row of `contributions` would be `one_group`."""

    contributions: str
    update_state: str
    old_row: str
    new_row: str
    differ: str
    rows: OneRow


def of_plan(prepared: Prepared, physical: Physical, names: PartNames) -> OneGroup | None:
    """None if the plan does more, if rows of the result are not each that of one group, or if groups are always
    computed again."""
    if len(physical.stages) != 2 or not shows_its_keys(prepared.tree):
        return None
    landed, read = physical.stages
    if not isinstance(landed, LandAggregate) or not isinstance(read, ReadResult) or not isinstance(landed.input, Read):
        return None
    kept, part = prepared.states[landed.number], names.part(landed.number)
    assert isinstance(kept, StateTable)
    aggregate, columns = kept.aggregate, result_columns(prepared)
    if sql.must_recompute(aggregate):
        return None
    contributed = sql.fields("one_group", sql.contribution_columns(aggregate))
    old, new = (f"(SELECT {sql.fields(each, columns)})" for each in ("old_row", "new_row"))

    def shown(*, was: bool) -> str:
        """MATERIALIZED: the group is of constants, and PostgreSQL would compute `sum(a) / sum(b)` while it plans, also
        where HAVING keeps the group out."""
        output = sql.output_of(aggregate, "merged_group", old=was)
        return f"WITH {state.output(part)} AS MATERIALIZED ({output}) SELECT * FROM ({read.sql}) AS result"

    return OneGroup(
        sql.alone(aggregate, run_steps(read_sql(landed.input), landed.steps), kept.hashable),
        state.update_group(kept, f"(SELECT one_group.h, one_group.n, {contributed})"),
        shown(was=True),
        shown(was=False),
        f"{_record('old_row', columns)} *<> {_record('new_row', columns)}",
        result.one_row(prepared.storage, columns, old, new),
    )


def _record(name: str, columns: Sequence[Column]) -> str:
    return f"ROW({', '.join(f'{name}.{quote(column.name)}' for column in columns)})::record"


def body(group: OneGroup, turn: Sequence[str], about: str) -> list[str]:
    """Lines that do it and return, if no group is concerned, or one that is there and stays. `turn` takes the turn
    `this`."""
    missing = [
        "GET DIAGNOSTICS how_many = ROW_COUNT;",
        *_if("how_many <> 1", [routine.fail(group.rows.unlike_one, about)]),
    ]
    maintain = [
        f"{group.old_row} INTO old_row;",
        "was_there := FOUND;",
        f"{group.new_row} INTO new_row;",
        "is_there := FOUND;",
        "IF was_there AND is_there THEN",
        *routine.indented(_if(group.differ, [f"{group.rows.update};", *missing])),
        "ELSIF was_there THEN",
        *routine.indented([f"{group.rows.delete};", *missing]),
        "ELSIF is_there THEN",
        f"  {group.rows.insert};",
        "END IF;",
        "RETURN NULL;",
    ]
    update = [
        "this := one_group.h & 255;",
        *turn,
        f"{group.update_state} INTO merged_group;",
        *_if("FOUND", maintain),
    ]
    return [
        "how_many := 0;",
        f"FOR one_group IN {group.contributions} LOOP",
        "  how_many := how_many + 1;",
        "  EXIT WHEN how_many > 1;",
        "END LOOP;",
        *_if("how_many = 0", ["RETURN NULL;"]),
        *_if("how_many = 1", update),
    ]


def _if(condition: str, lines: Sequence[str]) -> list[str]:
    return [f"IF {condition} THEN", *routine.indented(lines), "END IF;"]
