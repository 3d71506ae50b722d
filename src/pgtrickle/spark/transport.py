"""How rows get from here to PostgreSQL and back: an array a column as parameters there, wire forms here. Pure.

The one place that writes this into SQL: the planner's relations know their inputs by name only. Used for what tasks
run, and by whoever reads a leaf for them.
"""

from __future__ import annotations

from pgtrickle.physical.flow import Flow, JointLookup, Lookup, Merged, Read, input_name, inputs
from pgtrickle.postgres.wire import net, receive_arrays, send_rows


def read_sql(flow: Read | Merged) -> str:
    """The query whose rows are a leaf's."""
    return send_rows(flow.relation, flow.columns)


def asked_sql(flow: Lookup | JointLookup) -> str:
    """The query that makes a flow's rows of those of its inputs, which are its parameters."""
    asked = over_inputs(flow, flow.relation)
    return net(asked, flow.columns) if isinstance(flow, JointLookup) and flow.cancels else asked


def over_inputs(flow: Flow, relation: str) -> str:
    """The query that sends a relation over the flow's inputs."""
    received, first = list[str](), 1
    for position, source in enumerate(inputs(flow), start=1):
        received.append(f"{input_name(position)} AS ({receive_arrays(source.columns, first=first)})")
        first += len(source.columns) + 1
    return f"WITH {', '.join(received)} {send_rows(relation, flow.columns)}"
