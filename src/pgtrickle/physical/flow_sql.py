"""The flows of a physical plan as SQL over relations with names, so that one statement is all of a stage. Pure.

    WITH pgt_flow_1 AS MATERIALIZED (changes of t),
         pgt_flow_2 AS MATERIALIZED (WITH pgt_input_1 AS (SELECT * FROM pgt_flow_1) SELECT … FROM pgt_input_1 …)
    SELECT … FROM pgt_flow_2

What stands in a relation already (a table, a transition table) is read by its name. Each other flow is computed once,
and by itself: no expression of the user's is evaluated on rows that it would not see elsewhere. Used by whoever
evaluates a plan inside of PostgreSQL: `refresh/evaluate/on_postgres.py`, and `explain`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pgtrickle.model import quote
from pgtrickle.physical.flow import (
    Concat,
    Flow,
    HashJoin,
    JointLookup,
    Lookup,
    Merged,
    Native,
    Read,
    input_name,
    inputs,
)
from pgtrickle.postgres.row_image import by_image
from pgtrickle.postgres.wire import WEIGHT, receive

Relations = Mapping[Flow, str]
"""Flows that stand in relations, and what to read FROM."""


def flow_sql(flow: Flow, at: Relations) -> str:
    """The query of a flow's rows, typed, with the weight last."""
    names, parts = _named([flow], at)
    columns = ", ".join(_columns(flow))
    return f"{_with(parts)}SELECT {columns} FROM {names[flow]}"


def read_sql(read: Read) -> str:
    """The same of what is read by itself and of which nothing is thrown away."""
    return _own(read, {})


def count_sql(flows: Sequence[Flow], at: Relations) -> str:
    """The query that answers how many rows each of the flows has, a column a flow."""
    names, parts = _named(flows, at)
    return f"{_with(parts)}SELECT {', '.join(f'(SELECT count(*) FROM {names[flow]})' for flow in flows)}"


def in_order(flows: Iterable[Flow], at: Relations) -> list[Flow]:
    """All that must be computed for the flows, each once and after what it is made of."""
    found: dict[Flow, None] = {}

    def visit(flow: Flow) -> None:
        if flow not in at and flow not in found:
            for source in _sources(flow):
                visit(source)
            found[flow] = None

    for flow in flows:
        visit(flow)
    return list(found)


def _named(flows: Iterable[Flow], at: Relations) -> tuple[dict[Flow, str], list[str]]:
    """The flows with their names in one statement, and the parts of it that make them."""
    names, parts = dict(at), list[str]()
    for number, flow in enumerate(in_order(flows, at), start=1):
        names[flow] = f"pgt_flow_{number}"
        parts.append(f"{names[flow]} AS MATERIALIZED ({_own(flow, names)})")
    return names, parts


def _sources(flow: Flow) -> tuple[Flow, ...]:
    """What PostgreSQL makes it of."""
    return (flow.asked,) if isinstance(flow, Native) else inputs(flow)


def _own(flow: Flow, names: Relations) -> str:
    """A flow's rows, over what it is made of."""
    match flow:
        case Read(relation=relation) | Merged(relation=relation):
            return _typed(flow, relation)
        case Lookup(relation=relation):
            return _over_inputs(flow, names, _if_any(flow, relation))
        case Native(asked=asked):
            return f"SELECT {', '.join(_columns(flow))} FROM {names[asked]}"
        case JointLookup(relation=relation, cancels=cancels):
            net = by_image(_typed(flow, relation), flow.columns) if cancels else relation
            return _over_inputs(flow, names, _if_any(flow, net))
        case HashJoin():
            return _over_inputs(flow, names, _typed(flow, hash_join(flow)))
        case Concat(flows=flows):
            columns = ", ".join(_columns(flow))
            return " UNION ALL ".join(f"SELECT {columns} FROM {names[part]}" for part in flows)
    raise TypeError(f"no SQL for {type(flow).__name__}")


def _over_inputs(flow: Flow, names: Relations, query: str) -> str:
    sources = (
        f"{input_name(position)} AS (SELECT {', '.join(_columns(source))} FROM {names[source]})"
        for position, source in enumerate(inputs(flow), start=1)
    )
    return f"WITH {', '.join(sources)} {query}"


def _if_any(flow: Flow, relation: str) -> str:
    """Nothing comes of a lookup if its first input has no rows."""
    return f"{_typed(flow, relation)} WHERE EXISTS (SELECT FROM {input_name(1)})"


def _typed(flow: Flow, relation: str) -> str:
    """The relation's columns as those of the flow: their types, collations and order."""
    outputs = [f"{receive(quote(column.name), column.type)} AS {quote(column.name)}" for column in flow.columns]
    return f"SELECT {', '.join([*outputs, WEIGHT])} FROM ({relation}) AS untyped"


def _columns(flow: Flow) -> list[str]:
    return [*(quote(column.name) for column in flow.columns), WEIGHT]


def _with(parts: Sequence[str]) -> str:
    return f"WITH {', '.join(parts)} " if parts else ""


def hash_join(flow: HashJoin) -> str:
    """What Spark does with its own join, over its inputs."""
    sides = {column.name: side for side, below in (("l", flow.left), ("r", flow.right)) for column in below.columns}
    outputs = [f"{sides[column.name]}.{quote(column.name)}" for column in flow.columns]
    on = [f"l.{quote(left)} = r.{quote(right)}" for left, right in flow.keys]
    on += [f"l.{quote(left)} IS NOT DISTINCT FROM r.{quote(right)}" for left, right in flow.null_safe]
    selected = ", ".join([*outputs, f"{flow.sign} * l.{WEIGHT} * r.{WEIGHT} AS {WEIGHT}"])
    return f"SELECT {selected} FROM {input_name(1)} AS l JOIN {input_name(2)} AS r ON {' AND '.join(on) or 'true'}"
