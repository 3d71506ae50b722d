"""What a delta meets: how its rows at hand are written and found, and what `explain` says of that. Pure; a part of
`lower_delta.py`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from pgtrickle.delta.algebra import keeps_state
from pgtrickle.model import Expr, Table
from pgtrickle.physical.flow import Choice
from pgtrickle.physical.lower_full import numbered
from pgtrickle.physical.table_facts import ReadCost, TableFactsMap, group_cost, index_cost, read_cost, scan_cost
from pgtrickle.physical.window_keys import is_found_by
from pgtrickle.physical.window_parts import WindowPoint
from pgtrickle.postgres.group_lookup import groups_by_key
from pgtrickle.postgres.weighted import kept_rows, weigh
from pgtrickle.query import render
from pgtrickle.query.clock import over_old_state
from pgtrickle.query.labels import timed
from pgtrickle.query.operators import Equality, Operator, Scan, Stateful, walk

Keys = tuple[Equality, ...]


@dataclass(slots=True)
class Operands:
    """The operands of a tree, some of which keep state in tables that `state` names; `choices` are made on the way.

    `rows` are always those of a delta, and `keys` what they are found by, the operand's side on the right.
    """

    tree: Operator
    facts: TableFactsMap
    state: Callable[[int], str]
    choices: list[Choice] = field(default_factory=list)

    def leaf(self, operand: Operator, rows: float, keys: Keys) -> render.Leaf:
        """How to render what of an operand is not rendered as usual: off its state, or group by group."""
        if keeps_state(operand):
            return self._kept
        cost = read_cost(self.facts, rows, scans(operand), keys)
        found = rows * cost.rows_per_key if cost.index else math.inf
        return groups_by_key(lambda scan, by: found * group_cost(self.facts, scan, by) < scan_cost(self.facts, scan))

    def finds_by_key(self, operand: Operator, rows: float, keys: Keys) -> bool:
        """Whether an operand's rows are had for less by an index on the keys than by reading all; state has one."""
        if keeps_state(operand):
            return any(is_found_by(operand, key) for key in keys)
        cost = read_cost(self.facts, rows, scans(operand), keys)
        by_keys = rows * index_cost(cost.rows_per_key)
        return cost.index is not None and by_keys < sum(scan_cost(self.facts, scan) for scan in scans(operand))

    def choose_lookup(self, operand: Operator, rows: float, keys: Keys, why: str | None = None) -> None:
        if keeps_state(operand):
            self.choices.append(Choice(tables(operand), "lookup", "in the aggregate's state"))
        else:
            self.choose(operand, "lookup", read_cost(self.facts, rows, scans(operand), keys), rows, why)

    def choose_turned(self, operand: Operator, among: Expr | None) -> None:
        """What the clock changes: between the bounds that moved, or anywhere."""
        if among is None:
            self.choices.append(Choice(tables(operand), "scan", "the clock may change any row"))
        else:
            self.choices.append(Choice(tables(operand), "range", f"what the clock passed: {timed(among.sql)}"))

    def choose(self, operand: Operator, method: str, cost: ReadCost, rows: float, why: str | None = None) -> None:
        """`why`: for what reason Spark, for which it would be less, is not to join it."""
        index = f"index on {cost.index}" if cost.index else "no index on the key"
        index += f" ({cost.missing} would help)" if cost.missing else ""
        index += f"; not by Spark: {why}" if why else ""
        estimate = f"about {rows:.0f} rows to match; lookup {cost.by_lookup:.3f} s, scan {cost.by_scan:.3f} s"
        self.choices.append(Choice(tables(operand), method, index, cost.missing, estimate))

    def _kept(self, node: Operator) -> str | None:
        """The rows of what keeps state, off its table; a leaf of `render.select`."""
        if not isinstance(node, Stateful):
            return None
        return kept_rows(node, self.state(numbered(self.tree)[node]))


def held(operand: Operator) -> WindowPoint:
    """Of when the rows at hand are: state is of the start, tables are of the snapshot."""
    return WindowPoint.START if keeps_state(operand) else WindowPoint.SNAPSHOT


def at_hand(operand: Operator) -> Operator:
    """An operand with the clock as of when its rows at hand are."""
    return over_old_state(operand) if keeps_state(operand) else operand


def weighed(operand: Operator, leaf: render.Leaf) -> str:
    """An operand's rows, weighted."""
    return weigh(render.select(at_hand(operand), leaf=leaf), operand.names)


def scans(operand: Operator) -> tuple[Scan, ...]:
    return tuple(node for node in walk(operand) if isinstance(node, Scan))


def tables(operand: Operator) -> tuple[Table, ...]:
    return tuple(scan.table for scan in scans(operand))


def table_names(operand: Operator) -> str:
    """The tables, for people."""
    return ", ".join(str(table) for table in tables(operand))
