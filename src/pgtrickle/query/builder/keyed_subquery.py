"""Rows of a correlated subquery by what they are asked for: its *keys*. Pure; for `subquery_keys.py`.

    WHERE r.k = l.k AND r.x > 1     keys are r.k, asked for by =
    WHERE r.x > l.x                 r is joined with the distinct values of l.x, which are the keys

In the first, NULL asks for nothing, as it should. In the second a key is a value of the query around it, so NULL asks
for what NULL finds; and of values that are equal but look different (1.0 and 1.00) each look is a key of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from sqlglot import exp

from pgtrickle.model import Column, Expr
from pgtrickle.query.builder import set_operations
from pgtrickle.query.builder.column_factory import ColumnFactory
from pgtrickle.query.expression import column_node, conjunction, from_node, node_of, reference, tree_columns
from pgtrickle.query.operators import InnerJoin, Operator
from pgtrickle.query.syntax import dialect


@dataclass(frozen=True, slots=True)
class Key:
    """A column of the subquery's rows, and the expression of the query around it whose value it is asked for.

    `same`: the column has the very value, not one that is equal; `null_safe`: NULL asks for what NULL finds. Of a
    `simple` type, which has no NULLs within, that is said so that rows can be found by index (the OR) and by hash
    (arrays that have NULL are equal).
    """

    name: str
    outside: exp.Expr
    same: bool = False
    null_safe: bool = False
    simple: bool = False

    def asked(self, found: exp.Expr) -> exp.Expr:
        """That `found`, which shows the key, is what is asked for."""
        outside = exp.Paren(this=self.outside.copy())
        if not self.null_safe:
            return exp.EQ(this=found.copy(), expression=outside)
        if not self.simple:
            return exp.NullSafeEQ(this=found.copy(), expression=outside)
        one, other = dialect.text(found), dialect.text(outside)
        either = f"{one} = {other} OR ({one} IS NULL AND {other} IS NULL)"
        return dialect.parse_expression(f"(ARRAY[{one}] = ARRAY[{other}] AND ({either}))")


@dataclass(frozen=True, slots=True)
class Keyed:
    """The rows, their keys, and which of its columns stands for a column of the query around it (`stand_in`)."""

    operator: Operator
    keys: tuple[Key, ...]
    stand_in: dict[str, str] = field(default_factory=dict)

    def condition(self, found: Sequence[exp.Expr]) -> exp.Expr | None:
        """That the keys, as `found` shows them, are those asked for."""
        parts = [key.asked(one) for one, key in zip(found, self.keys, strict=True)]
        return exp.and_(*parts) if len(parts) > 1 else parts[0] if parts else None

    def conjuncts(self) -> list[exp.Expr]:
        """That the keys are those asked for, one by one."""
        return [key.asked(column_node(key.name)) for key in self.keys]

    def over(self, operator: Operator, names: Sequence[str]) -> Keyed:
        """The same keys of other rows, which call them `names`."""
        keys = tuple(replace(key, name=name) for key, name in zip(self.keys, names, strict=True))
        return replace(self, operator=operator, keys=keys)

    def inside(self, node: exp.Expr) -> exp.Expr:
        """`node` with what it reads of the query around it read from the keys instead."""
        return renamed(node, self.stand_in)

    def outside(self, node: exp.Expr, found: Sequence[exp.Expr]) -> exp.Expr:
        """`node`, over rows whose keys are `found`, with each key taken from the query around it instead."""
        pairs = zip(found, self.keys, strict=True)
        names = {one.name: key.outside for one, key in pairs if key.same and isinstance(one, exp.Column)}

        def replace(part: exp.Expr) -> exp.Expr:
            return names[part.name].copy() if isinstance(part, exp.Column) and part.name in names else part

        return node.copy().transform(replace) if names else node


def by_equalities(
    factory: ColumnFactory, operator: Operator, correlated: Sequence[exp.Expr], around: Iterable[Column]
) -> Keyed | None:
    """Keys that are the inner sides of equalities; None if a conjunct is anything else, or equal to several keys.

    That is what text of the query `around` may be, if its collation takes for one what the key's tells apart.
    """
    pairs = [equality(part.unnest(), set(operator.names)) for part in correlated]
    found = [pair for pair in pairs if pair is not None]
    if len(found) < len(pairs):
        return None
    extended, names = factory.extend(operator, [(from_node(inside), "") for inside, _ in found])
    loose = {column.name for column in around if not column.type.deterministic}
    strict = {column.name for column in extended.columns if column.type.deterministic}
    for name, (_, outside) in zip(names, found, strict=True):
        if name in strict and any(column.name in loose for column in outside.find_all(exp.Column)):
            return None
    return Keyed(extended, tuple(Key(name, outside) for name, (_, outside) in zip(names, found, strict=True)))


def by_domain(
    factory: ColumnFactory, around: Operator, operator: Operator, correlated: Sequence[exp.Expr], read: Iterable[str]
) -> Keyed:
    """Keys that are the distinct values of the columns `read` of `around`, each beside the rows it is correlated to."""
    asked = set(read)
    values = domain(factory, around, asked, asked & _sought(correlated))
    condition = conjunction(from_node(renamed(part, values.stand_in)) for part in correlated)
    joined = InnerJoin(values.operator.columns + operator.columns, values.operator, operator, condition)
    return Keyed(joined, values.keys, values.stand_in)


def _sought(correlated: Sequence[exp.Expr]) -> set[str]:
    """The columns that something must be equal to: NULL in them finds no rows."""
    equal = [part.unnest() for part in correlated]
    pairs = [part for part in equal if type(part) is exp.EQ and not isinstance(part.right, exp.Any | exp.All)]
    sides = [side.unnest() for part in pairs for side in (part.left, part.right)]
    return {side.name for side in sides if isinstance(side, exp.Column)}


def domain(factory: ColumnFactory, around: Operator, read: Set[str], never_null: Set[str] = frozenset()) -> Keyed:
    """The distinct values of the columns `read` of `around`, which are the keys and nothing else.

    No rows are asked for where a column in `never_null` is NULL, so that these may be asked for by =.
    """
    columns = [column for column in around.columns if column.name in read]
    looks = [column for column in columns if not column.type.has_one_look]
    asked = [*map(reference, columns), *map(_look, looks)]
    labels = [*(column.label for column in columns), *("" for _ in looks)]
    values: Operator = factory.exactly(around, list(zip(asked, labels, strict=True)))
    if looks or len(columns) < len(around.columns) or not set_operations.is_once(around):
        values = set_operations.distinct(values)
    keys = tuple(
        Key(name, node_of(what), True, column.name not in never_null, column.type.has_one_look)
        for name, what, column in zip(values.names, asked, [*columns, *looks], strict=True)
    )
    return Keyed(values, keys, {column.name: name for column, name in zip(columns, values.names, strict=False)})


def _look(column: Column) -> Expr:
    return Expr(f'({reference(column).sql})::text COLLATE "C"', (column.name,))


def equality(node: exp.Expr, own: set[str]) -> tuple[exp.Expr, exp.Expr] | None:
    """An equality's sides, if one reads columns of `own` only and the other none of them."""
    if type(node) is not exp.EQ or isinstance(node.right, exp.Any | exp.All) or node.find(exp.Collate):
        return None
    for inside, outside in ((node.left, node.right), (node.right, node.left)):
        reads, other = ({column.name for column in tree_columns(side)} for side in (inside, outside))
        if reads and reads <= own and other.isdisjoint(own):
            return inside, outside
    return None


def renamed(node: exp.Expr, names: Mapping[str, str]) -> exp.Expr:
    """`node` with columns called otherwise."""

    def replace(part: exp.Expr) -> exp.Expr:
        return column_node(names[part.name]) if isinstance(part, exp.Column) and part.name in names else part

    return node.copy().transform(replace)
