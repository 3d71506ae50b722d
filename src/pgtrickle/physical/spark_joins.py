"""What Spark makes of rows that it has, or is better to have: joins, matches, and steps over them. Pure; called by
`lower_full.py` and `lower_delta.py`.

Spark pairs rows by columns that it compares as PostgreSQL does. What else a condition says, and what steps do, must be
on the list of `spark_sql.py`; the rest is asked of PostgreSQL.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pgtrickle.model import Column, Expr, PgType
from pgtrickle.physical import spark_sql
from pgtrickle.physical.flow import Computed, Flow, HashJoin, HashMatch, Lookup, Native, Net, from_input
from pgtrickle.physical.native import Split
from pgtrickle.physical.spark_sql import NotListedError
from pgtrickle.postgres.weighted import Step, run_steps
from pgtrickle.postgres.wire import travels_as_itself, wire
from pgtrickle.query.expression import conjunction, conjuncts, element, equality_sides
from pgtrickle.query.operators import Equality, Filter, LeftJoin, Match, MatchKind, Operator

Keys = tuple[tuple[str, str], ...]
"""Pairs of columns, one of each side."""


@dataclass(frozen=True, slots=True)
class Pairing:
    """How Spark finds the pairs of a condition: by keys, by such of which NULL finds NULL, and by what else is said."""

    keys: Keys
    null_safe: Keys
    where: tuple[str, ...]

    def match(self, node: LeftJoin | Match, left: Flow, right: Flow) -> HashMatch:
        kind = node.kind if isinstance(node, Match) else None
        return HashMatch(node.columns, left.rows, left, right, kind, self.keys, self.null_safe, self.where)

    def matched(self, left: Flow, right: Flow) -> HashMatch:
        """The rows of the left side that have a pair."""
        return HashMatch(left.columns, left.rows, left, right, MatchKind.SEMI, self.keys, self.null_safe, self.where)

    def keyed(self, left: Flow, right: Flow) -> HashMatch:
        """The rows of the left side that have the keys of a pair."""
        return replace(self, where=()).matched(left, right)

    @property
    def flipped(self) -> Pairing:
        keys, by_null = (tuple((other, one) for one, other in pairs) for pairs in (self.keys, self.null_safe))
        return Pairing(keys, by_null, self.where)


def pairing(condition: Expr | None, equalities: tuple[Equality, ...], columns: tuple[Column, ...]) -> Pairing:
    """`NotListedError` if Spark cannot."""
    keys, by_null = all_keys(equalities, columns)
    if not keys and not by_null:
        raise NotListedError("no key that Spark compares as PostgreSQL does")
    values = {column.name: spark_sql.of_column(column) for column in columns}
    rest = beside_keys(condition, keys, by_null)
    return Pairing(keys, by_null, tuple(spark_sql.condition(part, values) for part in rest))


Correction = tuple[int, Flow] | None
"""What makes the rows of a side those of another version: rows to add (1) or to take away (−1)."""


def probe(node: LeftJoin | Match, pairs: Pairing, delta: Flow, right: Flow, correction: Correction) -> Flow:
    """The rows of ΔL, each with what the right side has for it."""
    if correction is not None:
        right = _version(pairs.flipped.keyed(right, delta), correction)
    return pairs.match(node, delta, right)


def rematch(
    join: LeftJoin | Match,
    pairs: Pairing,
    left: tuple[Flow, Correction],
    delta: Flow,
    right: Flow,
    versions: tuple[Correction, Correction],
) -> Flow:
    """What ΔR changes for the rows of the left side that it matches:  T ⟕ R′ − T ⟕ R, where T = L ⋉ ΔR. `versions`
    make R′ and R of the right side at hand, of which only rows count that have keys of T."""
    changed = Net(delta.columns, delta.rows, ((1, delta),))
    at_hand, correction = left
    if correction is not None:
        at_hand = _version(pairs.keyed(at_hand, changed), correction)
    touched = pairs.matched(at_hand, changed)
    found = pairs.flipped.keyed(right, touched)
    after, before = (pairs.match(join, touched, _version(found, each)) for each in versions)
    return Net(join.columns, touched.rows, ((1, after), (-1, before)))


def _version(rows: Flow, correction: Correction) -> Flow:
    return rows if correction is None else Net(rows.columns, rows.rows, ((1, rows), correction))


def all_keys(equalities: tuple[Equality, ...], columns: tuple[Column, ...]) -> tuple[Keys, Keys]:
    """Those by which Spark may join, and those of them by which NULL finds NULL."""
    return spark_keys(equalities, columns), spark_keys(null_safe(equalities), columns)


def spark_keys(equalities: tuple[Equality, ...], columns: tuple[Column, ...]) -> Keys:
    """The pairs of plain columns among the equalities on which Spark and PostgreSQL agree."""
    types = {column.name: column.type for column in columns}
    keys = []
    for equality in equalities:
        one, other = _column(equality.left), _column(equality.right)
        if one is not None and other is not None and _travel_alike(types[one], types[other]):
            keys.append((one, other))
    return tuple(keys)


def _column(expression: Expr) -> str | None:
    """The column that an expression is, if it is just one."""
    is_one = len(expression.columns) == 1 and expression.sql.strip('"') == expression.columns[0]
    return expression.columns[0] if is_one else None


def _travel_alike(one: PgType, other: PgType) -> bool:
    """Whether values of two types travel in the same form if, and only if, they are equal."""
    if travels_as_itself(one) and travels_as_itself(other):
        return wire(one) is wire(other)
    return (one.oid, one.name) == (other.oid, other.name) and one.has_one_look and other.has_one_look


def null_safe(equalities: tuple[Equality, ...]) -> tuple[Equality, ...]:
    """Those of the form ARRAY[x] = ARRAY[y], by which NULL finds NULL, as x and y."""
    found = ((each, element(each.left), element(each.right)) for each in equalities)
    return tuple(Equality(x, y) for each, x, y in found if x != each.left and y != each.right)


def beside_keys(condition: Expr | None, keys: Keys, by_null: Keys = ()) -> tuple[Expr, ...]:
    """The parts of a condition that the keys do not see to."""
    parts = () if condition is None else conjuncts(condition)
    return tuple(part for part in parts if not _is_key(part, keys, by_null))


def _is_key(part: Expr, keys: Keys, by_null: Keys) -> bool:
    sides = equality_sides(part)
    if sides is None:
        return False
    one, other = sides
    bare = element(one), element(other)
    known = keys if bare == (one, other) else by_null
    names = _column(bare[0]), _column(bare[1])
    return names in known or names[::-1] in known


def residual(condition: Expr | None, columns: tuple[Column, ...], keys: Keys, by_null: Keys = ()) -> tuple[Step, ...]:
    """The filter that a hash join on some of the condition's equalities still needs."""
    rest = conjunction(beside_keys(condition, keys, by_null))
    return () if rest is None else (Filter(columns, Operator(columns), rest),)


def is_on_spark(flow: Flow) -> bool:
    """Whether Spark has joined the rows, so that what is done with them next is best done there."""
    return isinstance(flow, HashJoin | Native)


def evaluate_steps(flow: Flow, steps: tuple[Step, ...]) -> Flow:
    """The flow after the steps, over its rows: evaluated by Spark if it has joined them, as far as it can, or else by
    PostgreSQL."""
    if not steps:
        return flow
    if not is_on_spark(flow):
        return _asked(flow, steps, "expressions")
    by_spark, left, why = natively(flow, steps)
    return by_spark if not left else _asked(by_spark, left, f"expressions ({why})")


def natively(flow: Flow, steps: tuple[Step, ...]) -> tuple[Flow, tuple[Step, ...], str | None]:
    """The flow after the first of the steps, those that are left to PostgreSQL, and why."""
    split = Split(flow.columns, list(steps))
    if not split.done:
        return flow, steps, split.why
    asked = _asked(flow, tuple(split.done), "expressions")
    made = Computed(split.columns, flow.rows, flow, split.sql)
    return Native(split.columns, flow.rows, made, asked), tuple(split.left), split.why


def _asked(flow: Flow, steps: tuple[Step, ...], what: str) -> Lookup:
    return Lookup(steps[-1].columns, flow.rows, flow, run_steps(from_input(1), steps), what)
