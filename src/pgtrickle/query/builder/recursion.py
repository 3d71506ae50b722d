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
from pgtrickle.query.syntax import search_cycle


def build(context: BuildContext, queries: Queries, name: str, inner: With) -> BuiltQuery:
    """The rows of a WITH query that reads itself."""
    union = inner.query
    while isinstance(union, exp.Subquery):
        union = union.this
    if not isinstance(union, exp.Union):
        raise context.refuse(gaps.RECURSIVE, "of this form", "with recursive")
    names = names_in(context, union, inner.names)
    part = inner.query.parent
    assert isinstance(part, exp.CTE)
    try:
        terms = search_cycle.spelled_out(part, union, inner.columns)
    except search_cycle.UnknownFormError:
        raise context.refuse(gaps.RECURSIVE, "with SEARCH or CYCLE of this form", "search", "cycle") from None
    base = queries.query(terms.base, names)
    labels = [*inner.columns, *(label for label, _ in base.outputs[len(inner.columns) :])]
    first = _exactly(context, base, labels)
    if not all(first.columns[place].type.has_one_look for place in terms.keys):
        raise context.refuse(gaps.RECURSIVE, "with a path of values that may look different", "search", "cycle")
    columns = tuple(context.factory.column(column.type, column.label) for column in first.columns)
    working = WorkingTable(columns, distinct=bool(union.args.get("distinct")))
    within = {**names, name: replace(inner, working=working)}
    step = _exactly(context, queries.query(terms.step, within), labels)
    if [column.type for column in first.columns] != [column.type for column in step.columns]:
        raise context.refuse(gaps.RECURSIVE, "whose terms have different types", "with recursive")
    made = tuple(context.factory.column(column.type, column.label) for column in first.columns)
    rows = Recursive(made, first, step, working)
    known = ((label, name) for label, name in zip(labels, rows.names, strict=True) if label not in terms.hidden)
    return BuiltQuery(rows, tuple(known))


def working_rows(working: WorkingTable) -> BuiltQuery:
    """The name within its own recursive term."""
    return BuiltQuery(working, tuple((column.label, column.name) for column in working.columns))


def _exactly(context: BuildContext, rows: BuiltQuery, labels: Sequence[str]) -> Project:
    items = [(reference(name), label) for label, (_, name) in zip(labels, rows.outputs, strict=True)]
    return context.factory.exactly(rows.operator, items)
