"""Columns that nothing above reads are not carried: scans read used columns only, and idle projections go.

A grouping key is always read, and an aggregate without keys keeps one call, since it makes one row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from pgtrickle.model import Expr
from pgtrickle.query.expression import referenced
from pgtrickle.query.operators import (
    Aggregate,
    Constant,
    Expand,
    Filter,
    InnerJoin,
    LeftJoin,
    MalformedTree,
    Match,
    Operator,
    Project,
    Repeat,
    Scan,
    TopK,
    UnionAll,
)


def prune_columns(tree: Operator) -> Operator:
    return _prune(tree, tree.names)


def _prune(operator: Operator, needed: Collection[str]) -> Operator:
    """`operator` with at least the needed columns, in the same order, and few others."""
    match operator:
        case Scan():
            kept = [index for index, name in enumerate(operator.names) if name in needed]
            columns = tuple(operator.columns[index] for index in kept)
            return Scan(columns, operator.table, tuple(operator.attributes[index] for index in kept))
        case Filter():
            below = _prune(operator.input, {*needed, *operator.condition.columns})
            return Filter(below.columns, below, operator.condition)
        case Project():
            pruned = _prune_project(operator, needed)
            idle = all(referenced(part) == name for part, name in zip(pruned.expressions, pruned.names, strict=True))
            return pruned.input if idle else pruned
        case InnerJoin() | LeftJoin():
            read = {*needed, *_read_by(operator)}
            left, right = _prune(operator.left, read), _prune(operator.right, read)
            columns = left.columns + right.columns
            return type(operator)(columns, left, right, operator.condition, operator.equalities)
        case Match():
            return _prune_match(operator, needed)
        case Repeat():
            below = _prune(operator.input, {*needed, operator.times})
            return Repeat(below.columns, below, operator.times)
        case Constant():
            return operator
        case Expand():
            below = _prune(operator.input, {*needed, *operator.call.columns})
            return Expand(below.columns + operator.made, below, operator.call, operator.outer)
        case TopK():  # all columns take part in the order
            return replace(operator, input=_prune(operator.input, operator.names))
        case Aggregate():
            return _prune_aggregate(operator, needed)
        case UnionAll():
            return _prune_union(operator, needed)
    raise MalformedTree(f"cannot prune {type(operator).__name__}")


def _prune_project(project: Project, needed: Collection[str]) -> Project:
    kept = [index for index, name in enumerate(project.names) if name in needed]
    expressions = tuple(project.expressions[index] for index in kept)
    below = _prune(project.input, _read(expressions))
    return Project(tuple(project.columns[index] for index in kept), below, expressions)


def _prune_match(match: Match, needed: Collection[str]) -> Operator:
    """An answer that nobody reads is not looked for."""
    if match.mark is not None and match.mark.name not in needed:
        return _prune(match.left, needed)
    left = _prune(match.left, {*needed, *_read_by(match)})
    right = _prune(match.right, _read_by(match))
    mark = () if match.mark is None else (match.mark,)
    return Match(left.columns + mark, left, right, match.condition, match.kind, match.equalities)


def _read_by(join: InnerJoin | LeftJoin | Match) -> tuple[str, ...]:
    return () if join.condition is None else join.condition.columns


def _prune_aggregate(aggregate: Aggregate, needed: Collection[str]) -> Aggregate:
    calls = tuple(call for call in aggregate.calls if call.output.name in needed)
    if not aggregate.keys and not calls:
        calls = aggregate.calls[:1]
    below = _prune(aggregate.input, {*aggregate.keys, *_read(call.call for call in calls)})
    keys = {column.name: column for column in aggregate.columns}
    columns = tuple(keys[key] for key in aggregate.keys) + tuple(call.output for call in calls)
    return Aggregate(columns, below, aggregate.keys, calls)


def _prune_union(union: UnionAll, needed: Collection[str]) -> UnionAll:
    kept = [index for index, name in enumerate(union.names) if name in needed]
    branches = []
    for branch in union.branches:
        if not isinstance(branch, Project):
            raise MalformedTree("a branch of a union is a projection")
        branches.append(_prune_project(branch, {branch.names[index] for index in kept}))
    return UnionAll(tuple(union.columns[index] for index in kept), tuple(branches))


def _read(expressions: Iterable[Expr]) -> set[str]:
    return {name for expression in expressions for name in expression.columns}
