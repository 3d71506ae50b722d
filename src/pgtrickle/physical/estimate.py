"""How many rows a delta may have, by what the database says of its tables. Pure; called by `lower_delta.py`."""

from __future__ import annotations

import math

from pgtrickle.delta.algebra import After, Before, Changes, Plus, Rematch, StatefulDelta, Turned, keeps_state
from pgtrickle.physical.join_path import flipped, join_step
from pgtrickle.physical.table_facts import ROWS_PER_UNKNOWN_VALUE, TableFactsMap, read_cost
from pgtrickle.postgres.weighted import chain
from pgtrickle.query.clock import turns, values_of
from pgtrickle.query.operators import (
    Aggregate,
    Equality,
    InnerJoin,
    LeftJoin,
    Match,
    Operator,
    Recursive,
    Scan,
    UnionAll,
    walk,
)


def delta_rows(plan: Operator, facts: TableFactsMap) -> float:
    """The rows of a delta plan, −old and +new; filters are not looked at."""
    core, _ = chain(plan)
    match core:
        case Changes(scan=scan):
            return 2.0 * facts.changes.get(scan.table.oid, 0)
        case Plus(terms=parts) | UnionAll(branches=parts):
            return sum(delta_rows(part, facts) for part in parts)
        case StatefulDelta(kept=Aggregate(keys=())):
            return 2.0
        case StatefulDelta(kept=Recursive() as kept):
            changed = {node.table.oid for node in walk(kept) if isinstance(node, Scan)}
            return 2.0 * sum(facts.changes.get(oid, 0) for oid in changed)
        case StatefulDelta(delta=below):
            return 2.0 * delta_rows(below, facts)
        case InnerJoin():
            below, met = join_step(core)
            return delta_rows(below, facts) * _found(met.side, met.on.equalities, facts)
        case LeftJoin(left=left, right=After() | Before() as right, equalities=keys):
            return delta_rows(left, facts) * max(_found(right, keys, facts), 1.0)
        case Match(left=left):
            return delta_rows(left, facts)
        case Turned(operator=operator, rows=rows):
            found = [facts.changes[value.number] for value in values_of(operator) if value.number in facts.changes]
            if found:
                return float(max(found))
            scans = [node for node in walk(rows.operator) if isinstance(node, Scan)]
            most = max((facts.rows(scan.table.oid) for scan in scans), default=1.0)
            return most if turns(operator) is None else math.sqrt(most)
        case Rematch(delta=below, left=left, join=join):
            return 2.0 * delta_rows(below, facts) * _found(left, flipped(join.equalities), facts)
    raise TypeError(f"not a delta plan: {type(core).__name__}")


def _found(side: After | Before, keys: tuple[Equality, ...], facts: TableFactsMap) -> float:
    """The rows that one row of a delta finds on the other side."""
    scans = tuple(node for node in walk(side.operator) if isinstance(node, Scan))
    if not keys:
        return 1.0 if _is_one_row(side.operator) else max((facts.rows(scan.table.oid) for scan in scans), default=1.0)
    if keeps_state(side.operator):
        return 1.0
    cost = read_cost(facts, 1.0, scans, keys)
    return cost.rows_per_key if cost.index else ROWS_PER_UNKNOWN_VALUE


def _is_one_row(operator: Operator) -> bool:
    core, _ = chain(operator)
    return isinstance(core, Aggregate) and not core.keys
