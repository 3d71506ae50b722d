"""How finely writers take turns: by group, by join key, by row, or one after the other. Pure; called by `install.py`.

Two writers must take turns if what one changes is part of what the other's changes come to:

    rows of one table              rows of the result that are alike: by the hash of the row
    groups of one table            the same group, or partition of a window: by the hash of its keys
    two tables, joined by a key    the same key: by its hash
    all else                       always

So that no two delete the same row of the stream table, rows that are alike must be of one turn: the keys must be among
the columns that the query shows. A turn is one of a few slots, by the hash: keys that share one wait for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from pgtrickle.model import Column, Expr, quote
from pgtrickle.physical.flow import LandAggregate, LandResult, LandWindow, Physical
from pgtrickle.physical.flow_sql import flow_sql
from pgtrickle.postgres.aggregate import hash_keys
from pgtrickle.postgres.statements.state import StateTable
from pgtrickle.postgres.statements.window_rows import WindowRows
from pgtrickle.postgres.weighted import chain, run_steps
from pgtrickle.query.operators import (
    Aggregate,
    Equality,
    Expand,
    InnerJoin,
    LeftJoin,
    Match,
    Operator,
    Project,
    Scan,
    Window,
)
from pgtrickle.refresh.prepared import Prepared

SLOTS: Final = 256

Hashable = Callable[[tuple[Column, ...]], bool]
"""Whether all the types of these columns have a hash function."""


@dataclass(frozen=True, slots=True)
class JoinTurns:
    """The columns of the sources, by scan, whose hash is the turn."""

    attributes: Mapping[Scan, tuple[str, ...]]


def by_row_or_group(prepared: Prepared, physical: Physical) -> str | None:
    """The query of the slots of a change of the one table; None: there are more, or they would not be told apart."""
    core, _ = chain(prepared.tree)
    stage = physical.stages[0]
    if isinstance(core, Scan) and isinstance(stage, LandResult):
        rows = run_steps(flow_sql(stage.input, {}), stage.steps)
        names = tuple(column.name for column in prepared.tree.columns)
        return _slots(prepared.storage.row_hash(names), rows)
    if is_grouping_of_table(core) and isinstance(core, Aggregate) and isinstance(stage, LandAggregate):
        kept = prepared.states[stage.number]
        assert isinstance(kept, StateTable)
        if core.keys and set(core.keys) <= shown(prepared.tree, core):
            return _slots(hash_keys(core.keys, kept.hashable), flow_sql(stage.input, {}))
    if isinstance(core, Window) and isinstance(stage, LandWindow) and isinstance(chain(core.input)[0], Scan):
        rows_kept = prepared.states[stage.number]
        assert isinstance(rows_kept, WindowRows)
        if core.keys and set(core.keys) <= shown(prepared.tree, core):
            rows = run_steps(flow_sql(stage.input, {}), stage.steps)
            return _slots(hash_keys(core.keys, rows_kept.hashable), rows)
    return None


def is_grouping_of_table(core: Operator) -> bool:
    """Whether it groups the rows of one table."""
    return isinstance(core, Aggregate) and isinstance(chain(core.input)[0], Scan)


def by_join_key(tree: Operator, hashable: Hashable) -> JoinTurns | None:
    """By which columns of the two tables of a join writers take turns, if they can."""
    core, _ = chain(tree)
    if not isinstance(core, InnerJoin | LeftJoin | Match):
        return None
    left, right = chain(core.left)[0], chain(core.right)[0]
    if not isinstance(left, Scan) or not isinstance(right, Scan):
        return None
    visible = shown(tree, core)
    found = [pair for each in core.equalities if (pair := _pair(core, each, left, right, visible, hashable))]
    if not found:
        return None
    attributes = {left: tuple(pair[0] for pair in found), right: tuple(pair[1] for pair in found)}
    return JoinTurns(attributes) if left != right else None


def slots_of(rows: str, columns: tuple[str, ...]) -> str:
    """The query of the slots of rows, by the hash of these columns."""
    return _slots(f"hash_record_extended(ROW({', '.join(map(quote, columns))}), 0)", rows)


def shown(tree: Operator, core: Operator) -> frozenset[str]:
    """The columns of what is under the row-wise operators on top that the query shows as they are."""
    names = {name: name for name in tree.names}
    operator = tree
    while operator != core:
        if isinstance(operator, Project):
            passed = {
                shown_as: _column(each) for each, shown_as in zip(operator.expressions, operator.names, strict=True)
            }
            names = {top: below for top, name in names.items() if (below := passed.get(name)) is not None}
        (operator,) = operator.inputs
    return frozenset(names.values())


def _slots(hashed: str, rows: str) -> str:
    return f"SELECT DISTINCT ({hashed} & {SLOTS - 1})::integer AS slot FROM ({rows}) AS changed ORDER BY 1"


def _pair(
    join: InnerJoin | LeftJoin | Match,
    equality: Equality,
    left: Scan,
    right: Scan,
    visible: frozenset[str],
    hashable: Hashable,
) -> tuple[str, str] | None:
    """The attributes of the two tables that an equality compares, if it compares these and hashes them alike."""
    names = _column(equality.left), _column(equality.right)
    if names[0] is None or names[1] is None or not visible & ({names[0]} | _equal_to(join, names[1])):
        return None
    types = [
        column.type
        for name, side in zip(names, (join.left, join.right), strict=True)
        for column in side.columns
        if column.name == name
    ]
    if len(types) != 2 or types[0] != types[1] or not types[0].deterministic:
        return None
    found = _attribute(join.left, names[0], left), _attribute(join.right, names[1], right)
    if found[0] is None or found[1] is None or not hashable((Column("key", types[0]),)):
        return None
    return found[0], found[1]


def _equal_to(join: InnerJoin | LeftJoin | Match, right: str) -> set[str]:
    """What shows the key as well: the other side of an inner join."""
    return {right} if isinstance(join, InnerJoin) else set()


def _attribute(operator: Operator, name: str, scan: Scan) -> str | None:
    """The attribute of a scan that a column above it is, if nothing was made of it."""
    while operator != scan:
        if isinstance(operator, Project):
            made = dict(zip(operator.names, operator.expressions, strict=True))[name]
            below = _column(made)
            if below is None:
                return None
            name = below
        elif isinstance(operator, Expand) and name not in operator.input.names:
            return None
        (operator,) = operator.inputs
    return dict(zip(scan.names, scan.attributes, strict=True))[name]


def _column(expression: Expr) -> str | None:
    """The column that an expression is, if it is nothing but that."""
    only = expression.columns[0] if len(expression.columns) == 1 else None
    return only if only is not None and expression.sql == quote(only) else None
