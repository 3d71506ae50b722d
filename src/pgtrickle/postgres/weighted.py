"""SQL for the linear operators over weighted relations: filters and projections pass the weight on.

A *chain* is the row-wise operators (filters, projections, expansions, repetitions) on top of one that is not;
PostgreSQL evaluates a chain wherever the rows below it are read, so Spark never evaluates a user's expression.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pgtrickle.model import Column, Expr, quote
from pgtrickle.postgres import recursion
from pgtrickle.postgres.aggregate import contribution_columns, contributions, outputs
from pgtrickle.postgres.wire import WEIGHT
from pgtrickle.query import render
from pgtrickle.query.operators import (
    Aggregate,
    Expand,
    Filter,
    Operator,
    Project,
    Recursive,
    Repeat,
    RowWise,
    Stateful,
    UnionAll,
)


@dataclass(frozen=True, slots=True)
class GroupStep:
    """A last step: what the rows contribute to each group of an aggregate; `plain` as of `contributions`."""

    columns: tuple[Column, ...]
    aggregate: Aggregate
    plain: bool = False

    @classmethod
    def of(cls, aggregate: Aggregate, *, plain: bool = False) -> GroupStep:
        return cls(contribution_columns(aggregate), aggregate, plain)


Step = RowWise | GroupStep


def chain(operator: Operator, whole: Collection[Operator] = ()) -> tuple[Operator, tuple[Step, ...]]:
    """The operator under the row-wise ones on top, and these, bottom first; or the first that is in `whole`."""
    steps: list[Step] = []
    while isinstance(operator, RowWise) and operator not in whole:
        steps.append(operator)
        operator = operator.input
    return operator, tuple(reversed(steps))


def rename(branch: Operator, union: UnionAll) -> Project:
    """The projection that gives a branch's columns the union's names."""
    return Project(
        columns=union.columns,
        input=branch,
        expressions=tuple(Expr(quote(name), (name,)) for name in branch.names),
    )


def run_steps(relation: str, steps: Sequence[Step]) -> str:
    """SQL of a weighted relation after the steps, bottom first."""
    for step in steps:
        relation = _run(step, relation)
    return relation


def _run(step: Step, relation: str) -> str:
    match step:
        case GroupStep():
            return contributions(step.aggregate, relation, plain=step.plain)
        case Filter():
            return f"SELECT * FROM ({relation}) AS filtered WHERE {step.condition.sql}"
        case Project():
            pairs = zip(step.columns, step.expressions, strict=True)
            selected = [f"{expression.sql} AS {quote(column.name)}" for column, expression in pairs]
            return f"SELECT {', '.join([*selected, WEIGHT])} FROM ({relation}) AS projected"
        case Expand():
            return f"SELECT {_weighted(step)} FROM ({relation}) AS expanded {render.expansion(step)}"
        case Repeat():
            # Copies rather than a larger weight: rows that are there have weight one wherever they are read.
            copies = f"generate_series(1, {quote(step.times)})"
            return f"SELECT {_weighted(step)} FROM ({relation}) AS repeated CROSS JOIN {copies}"
    raise TypeError(f"no SQL of {type(step).__name__} over weighted rows")


def _weighted(step: RowWise) -> str:
    return ", ".join(map(quote, [*step.names, WEIGHT]))


def weigh(relation: str, columns: Sequence[str], weight: int = 1) -> str:
    """An ordinary relation as a weighted one."""
    return f"SELECT {', '.join([*map(quote, columns), f'{weight}::bigint AS {WEIGHT}'])} FROM ({relation}) AS weighed"


def negated(relation: str, columns: Sequence[str]) -> str:
    """A weighted relation with the opposite weights."""
    selected = ", ".join([*map(quote, columns), f"-{WEIGHT} AS {WEIGHT}"])
    return f"SELECT {selected} FROM ({relation}) AS negated"


def kept_rows(node: Stateful, table: str) -> str:
    """The rows of what keeps state, off its table."""
    if isinstance(node, Recursive):
        return recursion.kept_rows(node, table)
    if isinstance(node, Aggregate):
        return outputs(node, f"SELECT * FROM {table}")
    return " ".join(["SELECT", ", ".join(map(quote, node.names)), "FROM", table])


def from_state(operator: Operator, table: str) -> str:
    """The rows of an operator that is made of what keeps state, off that one's table."""
    core, steps = chain(operator)
    assert isinstance(core, Stateful)
    return run_steps(weigh(kept_rows(core, table), core.names), steps)


def join(
    delta: str,
    delta_columns: Sequence[str],
    other: str,
    other_columns: Sequence[str],
    condition: Expr | None,
    sign: int = 1,
) -> str:
    """A weighted relation joined with a weighted one; weights multiply, `sign` is −1 to subtract."""
    selected = [f"d.{quote(name)}" for name in delta_columns] + [f"r.{quote(name)}" for name in other_columns]
    weight = f"{'-' if sign < 0 else ''}(d.{WEIGHT} * r.{WEIGHT}) AS {WEIGHT}"
    on = condition.sql if condition is not None else "true"
    return f"SELECT {', '.join([*selected, weight])} FROM ({delta}) AS d JOIN ({other}) AS r ON {on}"


def join_each(
    delta: str,
    delta_columns: Sequence[str],
    others: Sequence[str],
    other_columns: Sequence[str],
    condition: Expr | None,
) -> str:
    """As `join` with the sum of several relations, each asked for its matches row by row: by index, if it has one.

    (Of the union of filtered tables PostgreSQL reads the whole, unless the key comes from outside.)
    """
    outputs = [f"d.{quote(name)}" for name in delta_columns] + [f"r.{quote(name)}" for name in other_columns]
    columns = ", ".join([*map(quote, other_columns), WEIGHT])
    where = "" if condition is None else f" WHERE {condition.sql}"
    matches = " UNION ALL ".join(f"SELECT {columns} FROM ({other}) AS o{where}" for other in others)
    selected = ", ".join([*outputs, f"(d.{WEIGHT} * r.{WEIGHT}) AS {WEIGHT}"])
    return f"SELECT {selected} FROM ({delta}) AS d CROSS JOIN LATERAL ({matches}) AS r"


def both(left: Expr | None, right: Expr | None) -> Expr | None:
    """The conjunction of two conditions, either of which may be absent."""
    if left is None or right is None:
        return left or right
    columns = tuple(dict.fromkeys(left.columns + right.columns))
    return Expr(f"({left.sql}) AND ({right.sql})", columns)
