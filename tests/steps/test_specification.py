"""The interpreter is a specification because it agrees with PostgreSQL: random trees and rows, asked of both."""

from __future__ import annotations

from collections import Counter
from typing import Any

import psycopg
from hypothesis import HealthCheck, given, note, settings

from pgtrickle.answers import NOW
from pgtrickle.delta.tree_text import plan
from pgtrickle.query.operators import Operator, Scan
from pgtrickle.query.render import select
from tests.delta.interpreter import CLOCK, Moment, World, evaluate
from tests.delta.trees import operators, timed_worlds


@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
@given(tree=operators(timed=True), world=timed_worlds())
def test_random_trees(steps_connection: psycopg.Connection[Any], tree: Operator, world: World) -> None:
    query = select(tree, leaf=lambda op: _values(op, world) if isinstance(op, Scan) else None)
    note(f"{plan(tree)}\n{query}")
    ((now,),) = world[CLOCK].after
    steps_connection.execute("SELECT set_config(%s, %s, false)", (NOW, str(now)))
    assert evaluate(tree, world, Moment.AFTER) == Counter(steps_connection.execute(query).fetchall())


def _values(scan: Scan, world: World) -> str:
    """The rows after the window as SQL; a row of NULLs, then left out, gives an empty table its types."""
    window = world[scan.table.oid]
    columns = ", ".join(f"{attribute} AS {name}" for attribute, name in zip(scan.attributes, scan.names, strict=True))
    rows = ", ".join(_row(row) for row in window.after.elements())
    typed = ", ".join("NULL::integer" for _ in window.attributes)
    listed = f"(VALUES (false, {typed}){', ' if rows else ''}{rows}) v(present, {', '.join(window.attributes)})"
    return f"SELECT {columns} FROM {listed} WHERE present"


def _row(row: tuple[Any, ...]) -> str:
    return f"(true, {', '.join('NULL' if value is None else str(value) for value in row)})"
