"""Which WITH query a name means. Pure; a part of `build.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlglot import exp

from pgtrickle.query import gaps
from pgtrickle.query.builder.context import BuildContext
from pgtrickle.query.operators import WorkingTable
from pgtrickle.query.syntax import inline_ctes


@dataclass(frozen=True, slots=True)
class With:
    """A WITH query, with the WITH queries it may use itself; `often` if it is used more than once, and not to be
    inlined all the same (NOT MATERIALIZED)."""

    query: exp.Expr
    columns: tuple[str, ...]
    names: Mapping[str, With]
    often: bool
    recursive: bool = False
    working: WorkingTable | None = None
    """What the name means within its own recursive term."""


Names = Mapping[str, With]


def names_in(context: BuildContext, node: exp.Expr, names: Names) -> Names:
    """The WITH queries that are known in a query: those around it, and its own."""
    clause = node.args.get("with_")
    if clause is None:
        return names
    if all(part.alias in names and names[part.alias].query is part.this for part in clause.expressions):
        return names  # known already: once more, an earlier one would find a later one by a name from outside
    known = dict(names)
    for part in clause.expressions:
        columns = tuple(column.name for column in part.args["alias"].columns)
        uses = [table for table in node.find_all(exp.Table) if not table.db and table.name == part.alias]
        often = len(uses) > 1 and part.args.get("materialized") is not False
        if clause.args.get("recursive"):  # they may read each other in any order
            known[part.alias] = With(part.this, columns, known, often, recursive=inline_ctes.reads_itself(part))
            if known[part.alias].recursive and inline_ctes.reads_around(part.this):
                raise context.refuse(gaps.RECURSIVE, "that reads the query around it", "with recursive")
        else:
            known[part.alias] = With(part.this, columns, dict(known), often)
    return known
