"""Which indexes on the sources a writer's statement would read by, if they were there: without one it reads all of a
table. Pure; told by `explain`.

    join, EXISTS                 the columns that it compares
    groups computed again        the columns by which it groups (min, string_agg, count(DISTINCT …), …)
    first rows                   the first column of the order

State and stream tables have the indexes that they need: we make these.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from pgtrickle.model import quote
from pgtrickle.physical.flow import Physical
from pgtrickle.physical.table_facts import TableFactsMap
from pgtrickle.postgres.aggregate import may_recompute
from pgtrickle.query.expression import referenced
from pgtrickle.query.operators import Aggregate, InnerJoin, LeftJoin, Operator, Project, RowWise, Scan, TopK, walk
from pgtrickle.refresh.prepared import Prepared

_FIRST_PART = re.compile(r'^("(?:[^"]|"")+")(.*)$', re.DOTALL)


def missing(prepared: Prepared, facts: TableFactsMap, plans: Iterable[Physical]) -> tuple[str, ...]:
    """The statements that make them."""
    of_joins = (choice.missing for plan in plans for choice in plan.choices if choice.missing is not None)
    return tuple(dict.fromkeys([*of_joins, *_of_states(prepared, facts)]))


def _of_states(prepared: Prepared, facts: TableFactsMap) -> Iterator[str]:
    for node in walk(prepared.tree):
        if isinstance(node, Aggregate) and may_recompute(node) and prepared.state_below(node) is None:
            yield from _of_groups(node, facts)
        elif isinstance(node, TopK) and prepared.state_below(node) is None:
            yield from _of_order(node, facts)


def _of_groups(node: Aggregate, facts: TableFactsMap) -> Iterator[str]:
    """One index on those of the keys that are columns of one table."""
    found = [origin for key in node.keys if (origin := _origin(node.input, key)) is not None]
    if found and not any(_is_indexed(facts, scan, attribute) for scan, attribute in found):
        table = found[0][0]
        columns = ", ".join(dict.fromkeys(quote(attribute) for scan, attribute in found if scan == table))
        yield f"CREATE INDEX ON {table.table.qualified} ({columns})"


def _of_order(node: TopK, facts: TableFactsMap) -> Iterator[str]:
    part = _FIRST_PART.match(node.order[0])
    if part is None:
        return
    name = next((name for name in node.input.names if quote(name) == part[1]), None)
    origin = _origin(node.input, name)
    if origin is not None and not _is_indexed(facts, *origin):
        scan, attribute = origin
        yield f"CREATE INDEX ON {scan.table.qualified} ({quote(attribute)}{part[2]})"


def _origin(operator: Operator, name: str | None) -> tuple[Scan, str] | None:
    """The column of a table that a column is, if nothing was made of it."""
    if name is None:
        return None
    match operator:
        case Scan():
            return operator, dict(zip(operator.names, operator.attributes, strict=True))[name]
        case Project():
            made = dict(zip(operator.names, operator.expressions, strict=True))[name]
            return _origin(operator.input, referenced(made))
        case InnerJoin() | LeftJoin():
            return _origin(operator.left if name in operator.left.names else operator.right, name)
        case RowWise() if name in operator.input.names:
            return _origin(operator.input, name)
    return None


def _is_indexed(facts: TableFactsMap, scan: Scan, attribute: str) -> bool:
    table = facts.tables.get(scan.table.oid)
    return table is not None and attribute in table.indexed
