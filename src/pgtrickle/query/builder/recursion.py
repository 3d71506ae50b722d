"""WITH RECURSIVE: its two terms, and what its name means in the second. Pure; a part of `build.py`.

    WITH RECURSIVE r AS (base UNION [ALL] step)

In `step` the name is the working table: the rows of the round before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from pgtrickle.query import gaps
from pgtrickle.query.builder.context import BuildContext
from pgtrickle.query.builder.queries import BuiltQuery, Queries
from pgtrickle.query.builder.with_queries import With, names_in
from pgtrickle.query.expression import reference
from pgtrickle.query.operators import Project, Recursive, WorkingTable


def build(context: BuildContext, queries: Queries, name: str, inner: With) -> BuiltQuery:
    """The rows of a WITH query that reads itself."""
    union = inner.query
    while isinstance(union, exp.Subquery):
        union = union.this
    if not isinstance(union, exp.Union):
        raise context.refuse(gaps.RECURSIVE, "of this form", "with recursive")
    names = names_in(context, union, inner.names)
    base = queries.query(union.this, names)
    labels = [*inner.columns, *(label for label, _ in base.outputs[len(inner.columns) :])]
    first = _exactly(context, base, labels)
    columns = tuple(context.factory.column(column.type, column.label) for column in first.columns)
    working = WorkingTable(columns, distinct=bool(union.args.get("distinct")))
    within = {**names, name: replace(inner, working=working)}
    step = _exactly(context, queries.query(union.expression, within), labels)
    if [column.type for column in first.columns] != [column.type for column in step.columns]:
        raise context.refuse(gaps.RECURSIVE, "whose terms have different types", "with recursive")
    made = tuple(context.factory.column(column.type, column.label) for column in first.columns)
    rows = Recursive(made, first, step, working)
    return BuiltQuery(rows, tuple(zip(labels, rows.names, strict=True)))


def working_rows(working: WorkingTable) -> BuiltQuery:
    """The name within its own recursive term."""
    return BuiltQuery(working, tuple((column.label, column.name) for column in working.columns))


def _exactly(context: BuildContext, rows: BuiltQuery, labels: Sequence[str]) -> Project:
    items = [(reference(name), label) for label, (_, name) in zip(labels, rows.outputs, strict=True)]
    return context.factory.exactly(rows.operator, items)
