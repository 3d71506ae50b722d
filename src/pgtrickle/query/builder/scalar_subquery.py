"""A scalar subquery as groups to join: one for each value it is correlated on. Pure; a part of `build.py`.

    (SELECT sum(r.x) FROM r WHERE r.k = l.k)    =    L LEFT JOIN (r grouped by k) ON k = l.k

Where there is no group the padding gives NULL, and a count is made zero again. A subquery without an aggregate is the
array of its values; to take the only one out of it lets PostgreSQL complain of several as it always does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from pgtrickle.model import BIGINT, Expr, PgType
from pgtrickle.query.builder.column_factory import ColumnFactory
from pgtrickle.query.builder.grouping import Grouping
from pgtrickle.query.builder.join_items import null_of
from pgtrickle.query.builder.keyed_subquery import Keyed
from pgtrickle.query.builder.sublink_joins import Attachment, Join
from pgtrickle.query.expression import column_node, node_of, reference, tree_columns
from pgtrickle.query.operators import Aggregate, AggregateCall
from pgtrickle.query.syntax import dialect
from pgtrickle.query.syntax.calls import Calls

#: PostgreSQL's aggregates that are not NULL over no rows, and what they are; they never are over some.
_OVER_NOTHING = {"count": 0, "regr_count": 0, "rank": 1, "dense_rank": 1, "percent_rank": 0, "cume_dist": 1}


class NotGroupedError(ValueError):
    """The subquery cannot be grouped; says what it is."""


@dataclass(frozen=True, slots=True)
class Values:
    """A scalar or row subquery: what to join, its values over the joined columns, and the aggregates it calls."""

    attachment: Attachment
    values: list[exp.Expr]
    functions: tuple[str, ...] = ()


def values(factory: ColumnFactory, calls: Calls, keyed: Keyed, selected: Sequence[exp.Expr]) -> Values:
    """The values of `selected`, which call aggregates over the rows of `keyed`; raises NotGroupedError."""
    outside = {c.name for node in (*selected, *(key.outside for key in keyed.keys)) for c in tree_columns(node)}
    external = frozenset(outside - set(keyed.operator.names))
    grouping = Grouping(factory, keyed.operator, calls.aggregate_or_gather, external)
    keys = [column_node(key.name) for key in keyed.keys]
    aggregate, rewritten = grouping.build(keys, [*selected, *keys])
    found, groups = rewritten[: len(selected)], rewritten[len(selected) :]
    attachment = Attachment(aggregate, None, Join.CROSS)
    if keys:
        aggregate = counted(factory, aggregate)
        found = [over_nothing(aggregate, keyed.outside(node, groups)) for node in found]
        attachment = Attachment(aggregate, keyed.condition(groups), Join.LEFT)
    return Values(attachment, [exp.Paren(this=node) for node in found], tuple(grouping.functions()))


def only_values(factory: ColumnFactory, calls: Calls, keyed: Keyed, names: Sequence[str]) -> Values:
    """The values, in the columns `names`, of a subquery that has one row, or none; raises NotGroupedError."""
    columns = {column.name: column.type for column in keyed.operator.columns}
    types = [columns[name] for name in names]
    elements = [_element(name, type_) for name, type_ in zip(names, types, strict=True)]
    gathered = values(factory, calls, keyed, [dialect.parse_expression(f"array_agg({each})") for each in elements])
    only = [
        f"((SELECT unnest({dialect.text(value)}))::{type_.name})"  # arrays forget the 10 of varchar(10)
        for value, type_ in zip(gathered.values, types, strict=True)
    ]
    return Values(gathered.attachment, [dialect.parse_expression(value) for value in only])


def _element(name: str, type_: PgType) -> str:
    """A value that an array may hold: arrays do not nest."""
    return f"{reference(name).sql}::text" if type_.is_array else reference(name).sql


def values_of_each(keyed: Keyed, names: Sequence[str]) -> Values:
    """The values, in the columns `names`, of a subquery that has just one row for each key there may be."""
    condition = keyed.condition([column_node(key.name) for key in keyed.keys])
    return Values(Attachment(keyed.operator, condition, Join.CROSS), [column_node(name) for name in names])


def with_its_order(query: exp.Expr) -> exp.Expr:
    """A query that selects what it is sorted by, too."""
    query = query.copy()
    if isinstance(query, exp.Select):
        parts = query.args["order"].expressions
        more = [exp.alias_(part.this.copy(), f"o{place}") for place, part in enumerate(parts)]
        query.set("expressions", [*query.expressions, *more])
    return query


def places(query: exp.Expr) -> list[tuple[exp.Ordered, int]]:
    """Each part of ORDER BY, with the column of `with_its_order(query)` it sorts by; a set operation sorts by its only
    one."""
    select = isinstance(query, exp.Select)
    return [(part, place if select else 0) for place, part in enumerate(query.args["order"].expressions, start=1)]


def array(factory: ColumnFactory, calls: Calls, keyed: Keyed, name: str, order: Sequence[exp.Expr]) -> Values:
    """ARRAY(…): the values of the column `name` in this order, ties by themselves; empty over no rows."""
    listed = ", ".join([*(dialect.text(part) for part in order), reference(name).sql])
    gathered = values(
        factory, calls, keyed, [dialect.parse_expression(f"array_agg({reference(name).sql} ORDER BY {listed})")]
    )
    type_ = next(column.type for column in keyed.operator.columns if column.name == name)
    filled = f"COALESCE({dialect.text(gathered.values[0])}, '{{}}')"
    typed = filled if type_.is_array else f"{filled}::{type_.name}[]"  # arrays forget the 10 of varchar(10)
    return Values(gathered.attachment, [exp.Paren(this=dialect.parse_expression(typed))])


def counted(factory: ColumnFactory, aggregate: Aggregate) -> Aggregate:
    """An aggregate that counts its rows if it has a call whose answer over no rows is not known: where there is no
    group, there is no count."""
    if not any(_is_asked(call) for call in aggregate.calls):
        return aggregate
    count = AggregateCall("count", Expr("count(*)"), factory.column(BIGINT))
    return Aggregate((*aggregate.columns, count.output), aggregate.input, aggregate.keys, (*aggregate.calls, count))


def over_nothing(aggregate: Aggregate, node: exp.Expr) -> exp.Expr:
    """An expression over the columns of an aggregate that is `counted`, made right where these are NULL for want of a
    group; raises NotGroupedError."""
    called = {call.output.name: _over_nothing(aggregate, call) for call in aggregate.calls}

    def replace(part: exp.Expr) -> exp.Expr:
        return called[part.name].copy() if isinstance(part, exp.Column) and part.name in called else part

    return node.transform(replace)


def _is_asked(call: AggregateCall) -> bool:
    """Whether it takes PostgreSQL to know its answer over no rows: users defined it."""
    return "." in call.function


def _over_nothing(aggregate: Aggregate, call: AggregateCall) -> exp.Expr:
    """A call's column, NULL where the group is not there, as the call's answer over no rows."""
    column = column_node(call.output.name)
    if _is_asked(call):
        here = reference(aggregate.calls[-1].output).sql
        text = f"(CASE WHEN {here} IS NULL THEN {_asked(aggregate, call)} ELSE {reference(call.output).sql} END)"
        return dialect.parse_expression(text)
    if call.function in _OVER_NOTHING:
        return exp.Coalesce(this=column, expressions=[exp.Literal.number(_OVER_NOTHING[call.function])])
    return column


def _asked(aggregate: Aggregate, call: AggregateCall) -> str:
    """What PostgreSQL says the call is over no rows."""
    core = node_of(call.call)
    if core.find(exp.WithinGroup) is not None:  # it may depend on what is given beside the rows
        raise NotGroupedError(f"{call.function}() in a correlated subquery")
    read = [column for column in aggregate.input.columns if column.name in call.call.columns]
    columns = ", ".join(f"{null_of(column).sql} AS {reference(column).sql}" for column in read)
    for column in list(tree_columns(core)):
        column.set("table", exp.to_identifier("nothing"))
    return f"(SELECT {dialect.text(core)} FROM (SELECT {columns} WHERE false) AS nothing)"
