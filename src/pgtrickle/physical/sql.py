"""What Spark does with its own joins, as SQL over the inputs: for whoever evaluates a plan without it. Pure."""

from __future__ import annotations

from pgtrickle.model import quote
from pgtrickle.physical.flow import HashJoin, input_name
from pgtrickle.postgres.wire import WEIGHT


def hash_join(flow: HashJoin) -> str:
    """The relation of an equi-join, over its inputs."""
    sides = {column.name: side for side, below in (("l", flow.left), ("r", flow.right)) for column in below.columns}
    outputs = [f"{sides[column.name]}.{quote(column.name)}" for column in flow.columns]
    on = [f"l.{quote(left)} = r.{quote(right)}" for left, right in flow.keys]
    on += [f"l.{quote(left)} IS NOT DISTINCT FROM r.{quote(right)}" for left, right in flow.null_safe]
    selected = ", ".join([*outputs, f"l.{WEIGHT} * r.{WEIGHT} AS {WEIGHT}"])
    return f"SELECT {selected} FROM {input_name(1)} AS l JOIN {input_name(2)} AS r ON {' AND '.join(on) or 'true'}"
