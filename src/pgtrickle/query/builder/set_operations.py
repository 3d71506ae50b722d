"""DISTINCT, UNION, INTERSECT and EXCEPT as groups of equal rows. Pure; a part of `build.py`.

    DISTINCT R          =  R grouped by all columns
    A INTERSECT B       =  A and B tagged, together, grouped by all columns with a count a side; both counts above 0
    A EXCEPT ALL B      =  the same, each row as often as one count exceeds the other

Groups take NULLs for equal, as set operations do. The counts are the state of an aggregate like any other.
"""

from __future__ import annotations

from sqlglot import exp

from pgtrickle.model import BIGINT, Expr
from pgtrickle.query.builder.column_factory import ColumnFactory
from pgtrickle.query.expression import reference
from pgtrickle.query.operators import Aggregate, AggregateCall, Operator, Project, Repeat, UnionAll


def distinct(operator: Operator) -> Aggregate:
    """The rows of an operator, each once."""
    return Aggregate(operator.columns, operator, operator.names, ())


def is_distinct(operator: Operator) -> bool:
    return isinstance(operator, Aggregate) and not operator.calls and operator.keys == operator.input.names


def is_once(operator: Operator) -> bool:
    """Whether the operator is distinct rows, each with all its columns, under other names."""
    if not isinstance(operator, Project) or not is_distinct(operator.input):
        return False
    return set(operator.expressions) == {reference(name) for name in operator.input.names}


def without_distinct(branch: Project) -> Project:
    """A branch of a UNION: to make its rows distinct before the union's are is idle."""
    if is_distinct(branch.input) and branch.expressions == tuple(reference(name) for name in branch.input.names):
        (below,) = branch.input.inputs
        return Project(branch.columns, below, branch.expressions)
    return branch


def counted(
    factory: ColumnFactory, node: exp.SetOperation, left: Project, right: Project
) -> tuple[Operator, tuple[str, ...]]:
    """INTERSECT or EXCEPT of two branches of the same types, and the columns of its output."""
    tagged = (_tagged(factory, left, ("1", "NULL::integer")), _tagged(factory, right, ("NULL::integer", "1")))
    columns = tuple(factory.column(column.type, column.label) for column in tagged[0].columns)
    together = UnionAll(columns, tagged)
    keys, tags = columns[:-2], columns[-2:]
    calls = tuple(
        AggregateCall("count", Expr(f"count({reference(tag).sql})", (tag.name,)), factory.column(BIGINT), tag)
        for tag in tags
    )
    outputs = keys + tuple(call.output for call in calls)
    groups = Aggregate(outputs, together, tuple(key.name for key in keys), calls)
    return _chosen(factory, node, groups, calls), groups.keys


def _tagged(factory: ColumnFactory, branch: Project, tags: tuple[str, str]) -> Project:
    items = [(reference(column), column.label) for column in branch.columns] + [(Expr(tag), "") for tag in tags]
    return factory.exactly(branch, items)


def _chosen(
    factory: ColumnFactory, node: exp.SetOperation, groups: Aggregate, calls: tuple[AggregateCall, ...]
) -> Operator:
    one, other = (reference(call.output).sql for call in calls)
    read = tuple(call.output.name for call in calls)
    intersect = isinstance(node, exp.Intersect)
    if node.args.get("distinct"):
        wanted = f"{one} > 0 AND {other} > 0" if intersect else f"{one} > 0 AND {other} = 0"
        return factory.filter(groups, Expr(wanted, read))
    times = (
        f"CASE WHEN {one} < {other} THEN {one} ELSE {other} END"
        if intersect
        else f"CASE WHEN {one} > {other} THEN {one} - {other} ELSE 0 END"
    )
    extended, (name,) = factory.extend(groups, [(Expr(times, read), "")])
    return Repeat(extended.columns, extended, name)
