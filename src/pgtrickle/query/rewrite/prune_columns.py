"""Columns that nothing above reads are not carried: scans read used columns only, and idle projections go.

A grouping key is always read, and an aggregate without keys keeps one call, since it makes one row. What has several
uses keeps what any of them reads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

from pgtrickle.model import Expr
from pgtrickle.query.expression import referenced
from pgtrickle.query.operators import (
    Aggregate,
    Constant,
    InnerJoin,
    LeftJoin,
    MalformedTree,
    Match,
    Operator,
    Project,
    Recursive,
    RowWise,
    Scan,
    TopK,
    UnionAll,
    Use,
    Window,
    WorkingTable,
)


def prune_columns(tree: Operator) -> Operator:
    known: Needs = {}
    while True:
        pruning = _Pruning(known)
        pruned = pruning.prune(tree, tree.names)
        if pruning.found == known:
            return pruned
        known = pruning.found


Needs = dict[Operator, frozenset[str]]
"""For what has several uses, the columns that these read."""


@dataclass(slots=True)
class _Pruning:
    """One way down the tree: `known` is what uses need as far as earlier ones found."""

    known: Needs
    found: Needs = field(default_factory=dict)

    def prune(self, operator: Operator, needed: Collection[str]) -> Operator:
        """`operator` with at least the needed columns, in the same order, and few others."""
        match operator:
            case Scan():
                kept = [index for index, name in enumerate(operator.names) if name in needed]
                columns = tuple(operator.columns[index] for index in kept)
                return replace(
                    operator, columns=columns, attributes=tuple(operator.attributes[index] for index in kept)
                )
            case Project():
                pruned = self._prune_project(operator, needed)
                return pruned.input if _is_idle(pruned) else pruned
            case InnerJoin() | LeftJoin():
                return operator.with_inputs([self.prune(side, {*needed, *operator.reads}) for side in operator.inputs])
            case Match():
                return self._prune_match(operator, needed)
            case RowWise():
                return operator.with_inputs([self.prune(operator.input, {*needed, *operator.reads})])
            case Constant() | WorkingTable():
                return operator
            case Recursive():  # rows are told apart by all columns, and rounds may read any
                return operator.with_inputs([self.prune(term, term.names) for term in operator.inputs])
            case TopK():  # all columns take part in the order
                return operator.with_inputs([self.prune(operator.input, operator.names)])
            case Window():
                return self._prune_window(operator, needed)
            case Aggregate():
                return self._prune_aggregate(operator, needed)
            case UnionAll():
                return self._prune_union(operator, needed)
        raise MalformedTree(f"cannot prune {type(operator).__name__}")

    def _prune_project(self, project: Project, needed: Collection[str]) -> Project:
        kept = [index for index, name in enumerate(project.names) if name in needed]
        expressions = tuple(project.expressions[index] for index in kept)
        read = frozenset(_read(expressions))
        if isinstance(project, Use):
            read |= self._read_by_others(project.input, read)
        below = self.prune(project.input, read)
        return type(project)(tuple(project.columns[index] for index in kept), below, expressions)

    def _read_by_others(self, operator: Operator, read: frozenset[str]) -> frozenset[str]:
        self.found[operator] = self.found.get(operator, frozenset()) | read
        return self.known.get(operator, frozenset())

    def _prune_match(self, match: Match, needed: Collection[str]) -> Operator:
        """An answer that nobody reads is not looked for."""
        if match.mark is not None and match.mark.name not in needed:
            return self.prune(match.left, needed)
        left, right = self.prune(match.left, {*needed, *match.reads}), self.prune(match.right, match.reads)
        return match.with_inputs([left, right])

    def _prune_aggregate(self, aggregate: Aggregate, needed: Collection[str]) -> Aggregate:
        calls = tuple(call for call in aggregate.calls if call.output.name in needed)
        if not aggregate.keys and not calls:
            calls = aggregate.calls[:1]
        below = self.prune(aggregate.input, {*aggregate.keys, *_read(call.call for call in calls)})
        keys = {column.name: column for column in aggregate.columns}
        columns = tuple(keys[key] for key in aggregate.keys) + tuple(call.output for call in calls)
        return Aggregate(columns, below, aggregate.keys, calls)

    def _prune_window(self, window: Window, needed: Collection[str]) -> Operator:
        """Rows that tie are ordered by the columns that are left: those that tie in all of these are alike."""
        calls = tuple(call for call in window.calls if call.output.name in needed)
        if not calls:
            return self.prune(window.input, needed)
        read = {name for call in calls for name in call.reads}
        below = self.prune(window.input, {*needed, *window.keys, *read})
        return Window((*below.columns, *(call.output for call in calls)), below, window.keys, calls)

    def _prune_union(self, union: UnionAll, needed: Collection[str]) -> UnionAll:
        kept = [index for index, name in enumerate(union.names) if name in needed]
        branches = []
        for branch in union.branches:
            if not isinstance(branch, Project):
                raise MalformedTree("a branch of a union is a projection")
            branches.append(self._prune_project(branch, {branch.names[index] for index in kept}))
        return UnionAll(tuple(union.columns[index] for index in kept), tuple(branches))


def _is_idle(project: Project) -> bool:
    """Whether it gives columns as they are: some, for those of the input might be another's too."""
    if isinstance(project, Use) or not project.columns:
        return False
    return all(referenced(part) == name for part, name in zip(project.expressions, project.names, strict=True))


def _read(expressions: Iterable[Expr]) -> set[str]:
    return {name for expression in expressions for name in expression.columns}
