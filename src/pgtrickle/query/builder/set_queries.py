"""UNION, INTERSECT and EXCEPT of queries that are built. Pure; a part of `build.py`."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from pgtrickle.model import Column, Expr
from pgtrickle.query import gaps
from pgtrickle.query.builder import set_operations
from pgtrickle.query.builder.context import BuildContext
from pgtrickle.query.builder.limits import Limits
from pgtrickle.query.builder.queries import BuiltQuery
from pgtrickle.query.builder.select_parts import First
from pgtrickle.query.builder.top_k import Bounds
from pgtrickle.query.expression import column_node, reference
from pgtrickle.query.operators import Operator, Project, UnionAll


class SetQueries:
    """Puts the sides of a set operation together."""

    def __init__(self, context: BuildContext, limits: Limits) -> None:
        self._context = context
        self._limits = limits

    def combined(self, node: exp.SetOperation, sides: Sequence[BuiltQuery], carried: int) -> BuiltQuery:
        branches: list[Project] = []
        labels: list[str] = []
        for rows in sides:
            labels = labels or [label for label, _ in rows.outputs]
            items = [(reference(name), label) for label, (_, name) in zip(labels, rows.outputs, strict=True)]
            branches.append(self._context.factory.exactly(rows.operator, items))
        draft = UnionAll(
            tuple(self._context.factory.column(column.type) for column in branches[0].columns), tuple(branches)
        )
        types = self._context.factory.types(draft, [reference(column) for column in draft.columns])
        columns = tuple(self._context.factory.column(type, label) for type, label in zip(types, labels, strict=True))
        self._context.note_order(node)
        bounds = self._limits.bounds(node)
        if not isinstance(node, exp.Union):
            left, right = (self._typed(branch, columns) for branch in branches)
            operator, outputs = set_operations.counted(self._context.factory, node, left, right)
            return self._limited_set(
                BuiltQuery(operator, tuple(zip(labels, outputs, strict=True))), node, bounds, carried
            )
        distinct = bool(node.args.get("distinct"))
        parts = [set_operations.without_distinct(branch) if distinct else branch for branch in branches]
        union = UnionAll(columns, tuple(part for branch in parts for part in self._branches(branch, columns)))
        rows = BuiltQuery(
            set_operations.distinct(union) if distinct else union, tuple(zip(labels, union.names, strict=True))
        )
        return self._limited_set(rows, node, bounds, carried)

    def _limited_set(self, rows: BuiltQuery, node: exp.SetOperation, bounds: Bounds | None, carried: int) -> BuiltQuery:
        """The first rows of a set operation, which is sorted by places or names of its output."""
        if bounds is None:
            return rows
        names = {str(place): name for place, (_, name) in enumerate(rows.outputs, start=1)}
        names.update(dict(rows.outputs))
        order: list[exp.Expr] = []
        for part in node.args["order"].expressions:
            name = names.get(part.this.unnest().name)
            if name is None:
                raise self._context.refuse(gaps.LIMIT, "this ORDER BY", "order by")
            ordered = part.copy()
            ordered.set("this", column_node(name))
            order.append(ordered)
        items = [(reference(name), label) for label, name in rows.outputs]
        return self._limits.limited(rows.operator, items, First([], order, bounds), carried, distinct=False)

    def _branches(self, branch: Project, columns: tuple[Column, ...]) -> tuple[Operator, ...]:
        """The branch with the union's types; a union of the very same columns gives its own branches instead."""
        if [column.type for column in branch.columns] == [column.type for column in columns]:
            passed_on = tuple(reference(name) for name in branch.input.names)
            if isinstance(branch.input, UnionAll) and branch.expressions == passed_on:
                return branch.input.branches
            return (branch,)
        return (self._typed(branch, columns),)

    def _typed(self, branch: Project, columns: tuple[Column, ...]) -> Project:
        """The branch cast to the types of `columns`."""
        if [column.type for column in branch.columns] == [column.type for column in columns]:
            return branch
        items = [
            (reference(given) if given.type == wanted.type else _cast(given, wanted), wanted.label)
            for given, wanted in zip(branch.columns, columns, strict=True)
        ]
        return self._context.factory.exactly(branch, items)


def _cast(given: Column, wanted: Column) -> Expr:
    collation = "" if wanted.type.collation is None else f" COLLATE {wanted.type.collation}"
    return Expr(f"{reference(given).sql}::{wanted.type.name}{collation}", (given.name,))
