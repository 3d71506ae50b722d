"""Rows of a correlated subquery by what they are asked for: its *keys*. Pure; for `scalar.py`, `lateral.py`.

    WHERE r.k = l.k AND r.x > 1     keys are r.k, asked for by =
    WHERE r.x > l.x                 r is joined with the distinct values of l.x, which are the keys

In the first, NULL asks for nothing, as it should. In the second a key is a value of the query around it, so NULL asks
for what NULL finds; and of values that are equal but look different (1.0 and 1.00) each look is a key of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from pgtrickle.model import Column, Expr
from pgtrickle.query import sets
from pgtrickle.query.bench import Bench
from pgtrickle.query.expression import column_node, conjunction, from_node, node_of, reference
from pgtrickle.query.operators import InnerJoin, Operator


@dataclass(frozen=True, slots=True)
class Key:
    """A column of the subquery's rows, and the expression of the query around it whose value it is asked for."""

    name: str
    outside: exp.Expr


@dataclass(frozen=True, slots=True)
class Keyed:
    """The rows, their keys, and which of its columns stands for a column of the query around it (`stand_in`)."""

    operator: Operator
    keys: tuple[Key, ...]
    null_safe: bool = False
    stand_in: dict[str, str] = field(default_factory=dict)

    def condition(self, found: Sequence[exp.Expr]) -> exp.Expr | None:
        """That the keys, as `found` shows them, are those asked for."""
        equal = exp.NullSafeEQ if self.null_safe else exp.EQ
        pairs = zip(found, self.keys, strict=True)
        parts = [equal(this=one.copy(), expression=exp.Paren(this=key.outside.copy())) for one, key in pairs]
        return exp.and_(*parts) if len(parts) > 1 else parts[0] if parts else None

    def inside(self, node: exp.Expr) -> exp.Expr:
        """`node` with what it reads of the query around it read from the keys instead."""
        return _renamed(node, self.stand_in)

    def outside(self, node: exp.Expr, found: Sequence[exp.Expr]) -> exp.Expr:
        """`node`, over rows whose keys are `found`, with each key taken from the query around it instead."""
        names = {
            one.name: key.outside for one, key in zip(found, self.keys, strict=True) if isinstance(one, exp.Column)
        }

        def replace(part: exp.Expr) -> exp.Expr:
            return names[part.name].copy() if isinstance(part, exp.Column) and part.name in names else part

        return node.copy().transform(replace) if self.null_safe else node


def by_equalities(bench: Bench, operator: Operator, correlated: Sequence[exp.Expr]) -> Keyed | None:
    """Keys that are the inner sides of equalities; None if a conjunct is anything else."""
    pairs = [equality(part.unnest(), set(operator.names)) for part in correlated]
    found = [pair for pair in pairs if pair is not None]
    if len(found) < len(pairs):
        return None
    extended, names = bench.extend(operator, [(from_node(inside), "") for inside, _ in found])
    return Keyed(extended, tuple(Key(name, outside) for name, (_, outside) in zip(names, found, strict=True)))


def by_domain(
    bench: Bench, around: Operator, operator: Operator, correlated: Sequence[exp.Expr], read: Iterable[str]
) -> Keyed:
    """Keys that are the distinct values of the columns `read` of `around`, each beside the rows it is correlated to."""
    columns = [column for column in around.columns if column.name in set(read)]
    looks = [_look(column) for column in columns if not column.type.has_one_look]
    values = sets.distinct(bench.exactly(around, [(reference(c), c.label) for c in columns] + [(e, "") for e in looks]))
    stand_in = {column.name: name for column, name in zip(columns, values.names, strict=False)}
    condition = conjunction(from_node(_renamed(part, stand_in)) for part in correlated)
    joined = InnerJoin(values.columns + operator.columns, values, operator, condition)
    asked = [column_node(column.name) for column in columns] + [node_of(look) for look in looks]
    keys = tuple(Key(name, node) for name, node in zip(values.names, asked, strict=True))
    return Keyed(joined, keys, True, stand_in)


def _look(column: Column) -> Expr:
    return Expr(f'({reference(column).sql})::text COLLATE "C"', (column.name,))


def equality(node: exp.Expr, own: set[str]) -> tuple[exp.Expr, exp.Expr] | None:
    """An equality's sides, if one reads columns of `own` only and the other none of them."""
    if type(node) is not exp.EQ or isinstance(node.right, exp.Any | exp.All) or node.find(exp.Collate):
        return None
    for inside, outside in ((node.left, node.right), (node.right, node.left)):
        reads, other = ({column.name for column in side.find_all(exp.Column)} for side in (inside, outside))
        if reads and reads <= own and other.isdisjoint(own):
            return inside, outside
    return None


def _renamed(node: exp.Expr, names: dict[str, str]) -> exp.Expr:
    def replace(part: exp.Expr) -> exp.Expr:
        return column_node(names[part.name]) if isinstance(part, exp.Column) and part.name in names else part

    return node.copy().transform(replace)
