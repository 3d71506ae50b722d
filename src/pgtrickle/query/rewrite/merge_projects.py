"""A projection of a projection is one projection, unless that would compute an expression twice.

π_f(π_g(R))  =  π_f∘g(R)

A use is not merged with what it is a use of: that would be another one for each.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from sqlglot import exp

from pgtrickle.query.expression import node_of, referenced, substitute
from pgtrickle.query.operators import (
    Aggregate,
    Expand,
    Filter,
    InnerJoin,
    LeftJoin,
    Match,
    Operator,
    Project,
    Repeat,
    TopK,
    UnionAll,
    Use,
)


def merge_projects(tree: Operator) -> Operator:
    return _merge(tree)


def _merge(operator: Operator) -> Operator:
    match operator:
        case Project():
            below = _merge(operator.input)
            if isinstance(below, Project) and not isinstance(operator, Use) and _computes_once(operator, below):
                meaning = dict(zip(below.names, below.expressions, strict=True))
                expressions = tuple(substitute(part, meaning) for part in operator.expressions)
                return type(below)(operator.columns, below.input, expressions)
            return replace(operator, input=below)
        case Filter() | Aggregate() | Repeat() | TopK() | Expand():
            return replace(operator, input=_merge(operator.input))
        case InnerJoin() | LeftJoin() | Match():
            return replace(operator, left=_merge(operator.left), right=_merge(operator.right))
        case UnionAll():
            return replace(operator, branches=tuple(_merge(branch) for branch in operator.branches))
    return operator


def _computes_once(upper: Project, lower: Project) -> bool:
    uses = Counter(column.name for part in upper.expressions for column in node_of(part).find_all(exp.Column))
    computed = [
        name
        for part, name in zip(lower.expressions, lower.names, strict=True)
        if part.columns and referenced(part) is None
    ]
    return all(uses[name] <= 1 for name in computed)
