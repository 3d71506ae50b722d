"""LATERAL subqueries to joins. Pure; a part of `build.py`.

plain rows               joined on what they are correlated by, whatever that is
one group (aggregates)   joined for each key, with the answer over no rows where there is no group
GROUP BY, DISTINCT,
LIMIT                    the rows of each key, joined by it (`perkey.py`)
no table in it           a function of the row before it (`ofrow.py`)
"""

from __future__ import annotations

from sqlglot import exp

from pgtrickle.model import Expr
from pgtrickle.query import dialect, given, ofrow, scalar, sublinks, support, tablefunctions
from pgtrickle.query.building import Around, Names
from pgtrickle.query.expression import column_node, conjunction, from_node
from pgtrickle.query.grouping import Grouping
from pgtrickle.query.operators import Aggregate, Expand, InnerJoin, LeftJoin, Operator
from pgtrickle.query.perkey import PerKey
from pgtrickle.query.resolve import columns_of
from pgtrickle.query.scope import Scope


class Laterals(PerKey):
    """Builds `… LATERAL (SELECT …)` of the rows before it."""

    def _lateral_query(self, scope: Scope, item: exp.Lateral, join: exp.Join, names: Names) -> Scope | None:
        """The rows before it beside the subquery's; None if it does not read them."""
        side = str(join.args.get("side") or "").upper()
        query = sublinks.bare(item.this)
        if side not in ("", "LEFT"):
            return None
        on = join.args.get("on")
        always = on is None or _always(on)
        if (always or not side) and self._is_made(query, scope):
            made = self._made(scope, item, query, join)
            if on is None or always:
                return made
            return made.over(self._bench.filter(made.operator, from_node(self._resolve(on, made))))
        names = self._with(query, names)
        if isinstance(query, exp.Select) and not given.read_below(query, scope):
            if self._groups_rows(query) and (always or not side) and self._is_flat(query, scope):
                return self._one_group(scope, item, query, join, names)
            if self._is_plain(query) and (always or not side or not self._reads_in_list(query, scope)):
                return self._rows(scope, item, query, join, names)
        found = self._by_key(query, scope, names)
        if found is None:
            return None
        keyed, outputs = found
        return self._beside(scope, self._own(keyed.operator, item, query, outputs), keyed.conjuncts(), join)

    def _beside(self, scope: Scope, own: Scope, correlated: list[exp.Expr], join: exp.Join) -> Scope:
        """The two joined on what correlates them and on ON."""
        left, right = scope.operator, own.operator
        columns = left.columns + right.columns
        both = Scope(InnerJoin(columns, left, right, None), scope.fields + own.fields, {**scope.names, **own.names})
        on = join.args.get("on")
        parts = [*correlated, *([] if on is None or _always(on) else [self._resolve(on, both)])]
        condition = conjunction(from_node(part) for part in parts)
        kind = LeftJoin if join.args.get("side") else InnerJoin
        return both.over(kind(columns, left, right, condition))

    def _own(self, operator: Operator, item: exp.Lateral, query: exp.Expr, outputs: list[str]) -> Scope:
        alias = item.args.get("alias")
        renamed = [] if alias is None else [column.name for column in alias.columns]
        return Scope.of(operator, list(zip(_labels(query), outputs, strict=True)), item.alias, renamed)

    def _rows(self, scope: Scope, item: exp.Lateral, query: exp.Select, join: exp.Join, names: Names) -> Scope:
        """Rows as FROM and WHERE give them; what the select list reads of the row before is computed beside it."""
        inside, correlated = self._correlated(query, scope, names)
        around = Around(names)
        selected = [self._resolve(part.unalias(), inside, around) for part in query.expressions]
        operator = inside.operator
        for attachment in around.attachments:
            operator = self._attach(operator, attachment)
        known = set(operator.names)
        mixed = [not columns_of([node]) <= known for node in selected]
        there = Expr("true")
        below = [there if reads else from_node(node) for node, reads in zip(selected, mixed, strict=True)]
        operator, columns = self._bench.extend(operator, [(part, "") for part in below])
        if not any(mixed):
            return self._beside(scope, self._own(operator, item, query, columns), correlated, join)
        padded, on = bool(join.args.get("side")), join.args.get("on")
        bare = exp.Join(side=join.args.get("side"))  # ON may read what is not computed yet
        beside = self._beside(scope, self._own(operator, item, query, columns), correlated, bare)
        shown = [
            (_if(column, node) if padded else from_node(node)) if reads else from_node(column_node(column))
            for node, column, reads in zip(selected, columns, mixed, strict=True)
        ]
        extended, outputs = self._bench.extend(beside.operator, [(part, "") for part in shown])
        own = self._own(extended, item, query, outputs)
        both = Scope(extended, scope.fields + own.fields, {**scope.names, **own.names})
        if on is None or _always(on):
            return both
        return both.over(self._bench.filter(extended, from_node(self._resolve(on, both))))

    def _one_group(self, scope: Scope, item: exp.Lateral, query: exp.Select, join: exp.Join, names: Names) -> Scope:
        """Aggregates over the rows of each key; there is always one row."""
        inside, correlated = self._correlated(query, scope, names)
        selected = [self._resolve(part.unalias(), inside) for part in query.expressions]
        outside = columns_of(selected) - set(inside.operator.names)
        keyed = self._keyed(inside.operator, correlated, scope, outside)
        keys: list[exp.Expr] = [column_node(key.name) for key in keyed.keys]
        grouping = Grouping(self._bench, keyed.operator, self._calls.aggregate)
        aggregate, rewritten = grouping.build(keys, [*(keyed.inside(node) for node in selected), *keys])
        self._check_order(grouping.functions())
        values, groups = rewritten[: len(selected)], rewritten[len(selected) :]
        condition = keyed.condition(groups)
        aggregate = aggregate if condition is None else scalar.counted(self._bench, aggregate)
        joined = self._bench.join(scope.operator, aggregate)
        rows: Operator = (
            joined if condition is None else LeftJoin(joined.columns, scope.operator, aggregate, from_node(condition))
        )
        if condition is not None:
            values = [self._over_nothing(aggregate, keyed.outside(value, groups)) for value in values]
        rows, outputs = self._bench.extend(rows, [(from_node(value), "") for value in values])
        own = self._own(rows, item, query, outputs)
        both = Scope(rows, scope.fields + own.fields, {**scope.names, **own.names})
        on = join.args.get("on")
        if on is None or _always(on):
            return both
        return both.over(self._bench.filter(rows, from_node(self._resolve(on, both))))

    def _made(self, scope: Scope, item: exp.Lateral, query: exp.Expr, join: exp.Join) -> Scope:
        """A query that reads nothing but the row before it."""
        made, labels = self._made_of(scope, query, outer=bool(join.args.get("side")))
        alias = item.args.get("alias")
        renamed = [] if alias is None else [column.name for column in alias.columns]
        fields = list(zip(labels, (column.name for column in made.made), strict=True))
        own = Scope.of(made, fields, item.alias, renamed)
        return Scope(made, scope.fields + own.fields, {**scope.names, **own.names})

    def _is_made(self, query: exp.Expr, scope: Scope) -> bool:
        """Whether a query is a function of the row before it, and of nothing else."""
        return ofrow.is_of_row(query, scope, self._calls)

    def _made_of(self, scope: Scope, query: exp.Expr, *, outer: bool = False) -> tuple[Expand, list[str]]:
        """Each row of `scope` beside those of a query that reads nothing but it, and their labels."""
        if not self._is_made(query, scope):
            raise self._refuse(support.LATERAL, "", "lateral")
        core = ofrow.resolved(query, scope)
        core.set("alias", None)
        call = from_node(core)
        text = Expr(f"({call.sql})", call.columns)
        labels = _labels(query)
        return tablefunctions.expand(self._bench, scope.operator, text, labels, outer=outer), labels

    def _over_nothing(self, aggregate: Aggregate, value: exp.Expr) -> exp.Expr:
        try:
            return scalar.over_nothing(aggregate, value)
        except scalar.NotGroupedError as what:
            raise self._refuse(support.SUBQUERY, str(what)) from what


def _labels(query: exp.Expr) -> list[str]:
    """The names of a query's columns."""
    while isinstance(query, exp.SetOperation):
        query = sublinks.bare(query.this)
    if isinstance(query, exp.Values):
        return [f"column{place}" for place in range(1, len(query.expressions[0].expressions) + 1)]
    return [part.alias_or_name for part in query.expressions]


def kept_where(item: exp.Lateral, on: exp.Expr) -> exp.Lateral:
    """LATERAL with those of its rows that fulfil a condition, under the same names."""
    alias = item.args.get("alias")
    renamed = [] if alias is None else [column.name for column in alias.columns]
    is_function = tablefunctions.is_function(item.this)
    labels = tablefunctions.labels(item, item.this) if is_function else _labels(sublinks.bare(item.this))
    names = [*renamed, *labels[len(renamed) :]]
    columns = [exp.column(*(exp.to_identifier(part, quoted=True) for part in (name, item.alias))) for name in names]
    query = exp.Select(
        expressions=[exp.Alias(this=column, alias=column.this.copy()) for column in columns],
        from_=exp.From(this=item.copy()),
        where=exp.Where(this=on.copy()),
    )
    called = exp.TableAlias(this=exp.to_identifier(item.alias, quoted=True))
    return exp.Lateral(this=exp.Subquery(this=query), alias=called)


def _always(on: exp.Expr) -> bool:
    return on.unnest() == exp.true()


def _if(column: str, node: exp.Expr) -> Expr:
    """The value where there is a row, else NULL."""
    case = exp.Case(ifs=[exp.If(this=column_node(column), true=exp.Paren(this=node.copy()))])
    return from_node(dialect.parse_expression(dialect.text(case)))
