"""A projection of a projection is one projection, unless that would compute an expression twice.

π_f(π_g(R))  =  π_f∘g(R)

A use is not merged with what it is a use of: that would be another one for each.
"""

from __future__ import annotations

from collections import Counter

from sqlglot import exp

from pgtrickle.query.expression import node_of, referenced, substitute
from pgtrickle.query.operators import Operator, Project, Use


def merge_projects(tree: Operator) -> Operator:
    return _merge(tree)


def _merge(operator: Operator) -> Operator:
    operator = operator.with_inputs([_merge(below) for below in operator.inputs])
    if not isinstance(operator, Project) or isinstance(operator, Use):
        return operator
    below = operator.input
    if not isinstance(below, Project) or not _computes_once(operator, below):
        return operator
    meaning = dict(zip(below.names, below.expressions, strict=True))
    expressions = tuple(substitute(part, meaning) for part in operator.expressions)
    return type(below)(operator.columns, below.input, expressions)


def _computes_once(upper: Project, lower: Project) -> bool:
    uses = Counter(column.name for part in upper.expressions for column in node_of(part).find_all(exp.Column))
    computed = [
        name
        for part, name in zip(lower.expressions, lower.names, strict=True)
        if part.columns and referenced(part) is None
    ]
    return all(uses[name] <= 1 for name in computed)
