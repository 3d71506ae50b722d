"""A scalar subquery as groups to join: one for each value it is correlated on. Pure; a part of `build.py`.

    (SELECT sum(r.x) FROM r WHERE r.k = l.k)    =    L LEFT JOIN (r grouped by k) ON k = l.k

Where there is no group the padding gives NULL, and a count is made zero again. A subquery without an aggregate is the
array of its values; to take the only one out of it lets PostgreSQL complain of several as it always does.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from pgtrickle.query import dialect
from pgtrickle.query.bench import Bench
from pgtrickle.query.calls import Calls
from pgtrickle.query.expression import reference
from pgtrickle.query.grouping import Grouping
from pgtrickle.query.sublinks import Attachment, Inner, Join

#: Aggregates whose answer over no rows is neither NULL nor, as count's, zero.
_ANSWER_OVER_NOTHING = frozenset({"regr_count", "rank", "dense_rank", "percent_rank", "cume_dist"})


class NotGroupedError(ValueError):
    """The subquery cannot be grouped; says what it is."""


@dataclass(frozen=True, slots=True)
class Value:
    """A scalar subquery: what to join, its value over the joined columns, and the aggregates it calls."""

    attachment: Attachment
    value: exp.Expr
    functions: tuple[str, ...]


def value(bench: Bench, calls: Calls, inner: Inner, selected: exp.Expr) -> Value:
    """The value of `selected`, which calls aggregates over the rows of `inner`; raises NotGroupedError."""
    keys = _keys(inner)
    outside = {c.name for node in (selected, *(o for _, o in keys)) for c in node.find_all(exp.Column)}
    external = frozenset(outside - set(inner.operator.names))
    grouping = Grouping(bench, inner.operator, calls.aggregate_or_gather, external)
    aggregate, (found, *groups) = grouping.build([key for key, _ in keys], [selected, *(key for key, _ in keys)])
    functions = tuple(grouping.functions())
    if not keys:
        return Value(Attachment(aggregate, None, Join.CROSS), exp.Paren(this=found), functions)
    pairs = zip(groups, (other for _, other in keys), strict=True)
    equal = [exp.EQ(this=key, expression=exp.Paren(this=other.copy())) for key, other in pairs]
    called = {call.output.name: call.function for call in aggregate.calls}
    padded = found.transform(
        lambda node: (
            _over_nothing(called[node.name], node) if isinstance(node, exp.Column) and node.name in called else node
        )
    )
    return Value(Attachment(aggregate, exp.and_(*equal), Join.LEFT), exp.Paren(this=padded), functions)


def only_value(bench: Bench, calls: Calls, inner: Inner) -> Value:
    """The value of a subquery that has one row, or none; raises NotGroupedError."""
    (name,) = inner.outputs
    type_ = next(column.type for column in inner.operator.columns if column.name == name)
    if type_.name.endswith(("[]", "vector")):
        raise NotGroupedError("a subquery whose value is an array")
    gathered = value(bench, calls, inner, dialect.parse_expression(f"array_agg({reference(name).sql})"))
    only = dialect.parse_expression(f"(SELECT unnest({dialect.text(gathered.value)}))")
    return Value(gathered.attachment, only, ())


def _keys(inner: Inner) -> list[tuple[exp.Expr, exp.Expr]]:
    """Each correlated conjunct as (inside, outside) of an equality."""
    keys = [_key(part.unnest(), set(inner.operator.names)) for part in inner.correlated]
    found = [key for key in keys if key is not None]
    if len(found) < len(keys):
        raise NotGroupedError("a scalar subquery correlated by more than equalities")
    return found


def _key(node: exp.Expr, own: set[str]) -> tuple[exp.Expr, exp.Expr] | None:
    if type(node) is not exp.EQ or isinstance(node.right, exp.Any | exp.All) or node.find(exp.Collate):
        return None
    for inside, outside in ((node.left, node.right), (node.right, node.left)):
        reads, other = ({column.name for column in side.find_all(exp.Column)} for side in (inside, outside))
        if reads and reads <= own and other.isdisjoint(own):
            return inside, outside
    return None


def _over_nothing(function: str, column: exp.Column) -> exp.Expr:
    """A call's column, NULL where the group is not there, as the call's answer over no rows."""
    if "." in function or function in _ANSWER_OVER_NOTHING:
        raise NotGroupedError(f"{function}() in a correlated subquery")
    if function == "count":
        return exp.Coalesce(this=column, expressions=[exp.Literal.number(0)])
    return column
