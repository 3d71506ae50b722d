"""RIGHT and FULL JOIN in a subquery that is built for the values D of what it reads around it. Pure; of `build.py`.

    A RIGHT JOIN B ON p    for each value of D    =    A(D) RIGHT JOIN B(D) ON p and their values are the same

A LEFT JOIN may have D on its left, where rows are kept; in these D would be padded, or rows of it would be lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from sqlglot import exp

from pgtrickle.model import Column, Expr
from pgtrickle.query.builder.context import BuildContext
from pgtrickle.query.builder.from_items import FromItems
from pgtrickle.query.builder.item_syntax import keeps_left
from pgtrickle.query.builder.keyed_subquery import Key
from pgtrickle.query.builder.scope import Scope
from pgtrickle.query.builder.with_queries import Names
from pgtrickle.query.expression import column_node, conjunction, from_node, reference
from pgtrickle.query.operators import InnerJoin

_LEFT, _RIGHT = "pgt_left", "pgt_right"  # aliases of the values on either side


class DomainJoins:
    """Builds joins that pad their left side, for each value."""

    def __init__(self, context: BuildContext, items: FromItems) -> None:
        self._context = context
        self._items = items

    def for_each(self, start: Scope, first: exp.Expr, joins: list[exp.Join], names: Names) -> Scope:
        """The rows of FROM beside the values of `start`."""
        places = [place for place, join in enumerate(joins) if not keeps_left(join)]
        if not places:
            return self._items.joins(start, [exp.Join(this=first.copy()), *joins], names)
        join = joins[places[-1]]
        is_right = str(join.args["side"]).upper() == "RIGHT"
        one, other = self._once_more(start), start if is_right else self._once_more(start)
        left = self.for_each(one, first, joins[: places[-1]], names)
        right = self._items.joins(other, [exp.Join(this=join.this.copy())], names)
        marked = (_marked(left, one, _LEFT), _marked(right, other, _RIGHT))
        same = _same(one.operator.columns, map(reference, other.operator.columns))
        both = self._items.join(*marked, join, names, same)
        both = both if is_right else self._of_either(start, both)
        return self._items.joins(_unmarked(both), joins[places[-1] + 1 :], names)

    def _once_more(self, start: Scope) -> Scope:
        """The same values under other names."""
        columns = start.operator.columns
        used = self._context.factory.exactly(start.operator, [(reference(column), column.label) for column in columns])
        return start.over(used, dict(zip(start.operator.names, used.names, strict=True)))

    def _of_either(self, start: Scope, both: Scope) -> Scope:
        """Rows of a FULL JOIN beside their values, which are those of the side that is there."""
        columns = start.operator.columns
        sides = [[both.names[alias, str(place)] for alias in (_LEFT, _RIGHT)] for place in range(len(columns))]
        either = [Expr(f"COALESCE({', '.join(reference(name).sql for name in pair)})", tuple(pair)) for pair in sides]
        operator, found = self._context.factory.extend(both.operator, [(value, "") for value in either])
        condition = conjunction(_same(columns, map(reference, found)))
        joined = InnerJoin(columns + operator.columns, start.operator, operator, condition)
        return replace(both, operator=joined, names={**both.names, **start.names})


def _same(columns: Sequence[Column], others: Iterable[Expr]) -> tuple[Expr, ...]:
    """That the values are the same, NULL being one of them."""
    pairs = zip(columns, others, strict=True)
    keys = [Key(one.name, column_node(other.columns[0]), True, True, one.type.has_one_look) for one, other in pairs]
    return tuple(from_node(key.asked(column_node(key.name))) for key in keys)


def _marked(scope: Scope, values: Scope, alias: str) -> Scope:
    """The scope, in which the values have names that a join does not lose."""
    names = dict(scope.names)
    names.update({(alias, str(place)): name for place, name in enumerate(values.operator.names)})
    return replace(scope, names=names)


def _unmarked(scope: Scope) -> Scope:
    return replace(
        scope, names={name: column for name, column in scope.names.items() if name[0] not in (_LEFT, _RIGHT)}
    )
