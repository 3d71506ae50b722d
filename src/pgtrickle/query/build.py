"""PostgreSQL's normalised text to an operator tree, or a refusal that says where. Pure; called by `compile.py`.

Views and WITH queries are inlined. Each computed column is typed by `describe`, which asks PostgreSQL. FROM is in
`fromclause.py`, expressions and subqueries in `resolve.py`; here are queries: SELECT, set operations, their order.
"""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from pgtrickle.model import Column, Expr
from pgtrickle.query import dialect, firsts, groupingsets, setreturning, sets, support, topk
from pgtrickle.query.analysis import Analysis, Body
from pgtrickle.query.bench import Describe
from pgtrickle.query.building import Around, First, Names, Parts, Rows
from pgtrickle.query.expression import column_node, conjunct_nodes, from_node, reference
from pgtrickle.query.fromclause import SUBQUERY_PARTS, FromClause
from pgtrickle.query.grouping import Grouping
from pgtrickle.query.operators import Operator, Project, UnionAll
from pgtrickle.query.rewrite import rewrite
from pgtrickle.query.scope import Scope
from pgtrickle.query.topk import Bounds

_UNION_PARTS = frozenset({"this", "expression", "distinct", "order", "with_", "limit", "offset"})


def build(analysis: Analysis, describe: Describe) -> Operator:
    """The tree of an analysed query, topped by a projection to the query's own columns; raises Unsupported."""
    return _Builder(analysis, describe).build()


class _Builder(FromClause):
    """Builds queries."""

    def build(self) -> Operator:
        rows = self._body(self._analysis.body)
        labels = [column.name for column in self._analysis.columns]
        if [label for label, _ in rows.outputs] != labels:
            raise self._refuse(support.UNFAITHFUL, "its output columns were not understood")
        tree = self._bench.exactly(rows.operator, [(reference(name), label) for label, name in rows.outputs])
        return rewrite(tree)

    def _body(self, body: Body) -> Rows:
        try:
            node = dialect.parse(body.sql)
        except dialect.UnknownSyntaxError as error:
            raise self._refuse(support.UNFAITHFUL, str(error)) from error
        rows = self._query(node, {})
        # Checked last: a refusal of the query's shape says more than this.
        if self._calls.count(node) != body.aggregates:
            raise self._refuse(support.UNFAITHFUL, "an aggregate call was not understood")
        return rows

    def _query(self, node: exp.Expr, names: Names) -> Rows:
        names = self._with(node, names)
        match node:
            case exp.Select():
                return self._select(node, names)
            case exp.SetOperation():
                return self._set_operation(node, names)
            case exp.Subquery() if isinstance(node.this, exp.Query):
                self._check_parts(node, SUBQUERY_PARTS)
                return self._query(node.this, names)
            case exp.Values():
                return self._values(node)
        raise self._refuse(support.UNFAITHFUL, f"{type(node).__name__} is not a query we know")

    def _set_operation(self, node: exp.SetOperation, names: Names) -> Rows:
        self._check_parts(node, _UNION_PARTS)
        branches: list[Project] = []
        labels: list[str] = []
        for side in (node.this, node.expression):
            rows = self._query(side, names)
            labels = labels or [label for label, _ in rows.outputs]
            items = [(reference(name), label) for label, (_, name) in zip(labels, rows.outputs, strict=True)]
            branches.append(self._bench.exactly(rows.operator, items))
        draft = UnionAll(tuple(self._bench.column(column.type) for column in branches[0].columns), tuple(branches))
        types = self._bench.types(draft, [reference(column) for column in draft.columns])
        columns = tuple(self._bench.column(type, label) for type, label in zip(types, labels, strict=True))
        self._ordered |= node.args.get("order") is not None
        bounds = self._bounds(node)
        if not isinstance(node, exp.Union):
            left, right = (self._typed(branch, columns) for branch in branches)
            operator, outputs = sets.counted(self._bench, node, left, right)
            return self._limited_set(Rows(operator, tuple(zip(labels, outputs, strict=True))), node, bounds)
        distinct = bool(node.args.get("distinct"))
        parts = [sets.without_distinct(branch) if distinct else branch for branch in branches]
        union = UnionAll(columns, tuple(part for branch in parts for part in self._branches(branch, columns)))
        rows = Rows(sets.distinct(union) if distinct else union, tuple(zip(labels, union.names, strict=True)))
        return self._limited_set(rows, node, bounds)

    def _limited_set(self, rows: Rows, node: exp.SetOperation, bounds: Bounds | None) -> Rows:
        """The first rows of a set operation, which is sorted by places or names of its output."""
        if bounds is None:
            return rows
        names = {str(place): name for place, (_, name) in enumerate(rows.outputs, start=1)}
        names.update(dict(rows.outputs))
        order: list[exp.Expr] = []
        for part in node.args["order"].expressions:
            name = names.get(part.this.unnest().name)
            if name is None:
                raise self._refuse(support.LIMIT, "this ORDER BY", "order by")
            ordered = part.copy()
            ordered.set("this", column_node(name))
            order.append(ordered)
        items = [(reference(name), label) for label, name in rows.outputs]
        return self._limited(rows.operator, items, order, bounds, distinct=False)

    def _branches(self, branch: Project, columns: tuple[Column, ...]) -> tuple[Operator, ...]:
        """The branch with the union's types; a union of the very same columns gives its own branches instead."""
        if [column.type for column in branch.columns] == [column.type for column in columns]:
            passed_on = tuple(reference(name) for name in branch.input.names)
            if isinstance(branch.input, UnionAll) and branch.expressions == passed_on:
                return branch.input.branches
            return (branch,)
        return (self._typed(branch, columns),)

    def _typed(self, branch: Project, columns: tuple[Column, ...]) -> Project:
        """The branch cast to the types of `columns`."""
        if [column.type for column in branch.columns] == [column.type for column in columns]:
            return branch
        items = [
            (reference(given) if given.type == wanted.type else _cast(given, wanted), wanted.label)
            for given, wanted in zip(branch.columns, columns, strict=True)
        ]
        return self._bench.exactly(branch, items)

    def _select(self, node: exp.Select, names: Names) -> Rows:
        self._check_select(node)
        scope = self._from(node, names)
        operator = self._where(node, scope, names)
        around = Around(names, sets=True)
        labels = [part.alias_or_name for part in node.expressions]
        selected = [self._resolve(part.unalias(), scope, around) for part in node.expressions]
        having = node.args.get("having")
        conditions = [] if having is None else conjunct_nodes(self._resolve(having.this, scope, around))
        first = self._first_of(node, scope)
        self._ordered |= node.args.get("order") is not None
        group = node.args.get("group")
        if group is not None and not groupingsets.is_simple(group):
            return self._grouping_sets(node, scope.over(operator), Parts(labels, selected, conditions, around, first))
        parts = Parts(labels, selected, conditions, around, first)
        if having is not None or group is not None or self._calls.any_aggregate(node.expressions):
            keys = [] if group is None else [self._resolve(key, scope) for key in group.expressions]
            operator, parts = self._group(operator, keys, parts)
        return self._output(operator, parts, distinct=node.args.get("distinct") is not None)

    def _output(self, operator: Operator, parts: Parts, *, distinct: bool) -> Rows:
        """What is above FROM, WHERE and GROUP BY: subqueries joined, HAVING, the select list, DISTINCT."""
        for attachment in parts.around.attachments:
            operator = self._attach(operator, attachment)
        for condition in parts.conditions:
            operator = self._bench.filter(operator, from_node(condition))
        try:
            operator, selected = setreturning.expand(self._bench, self._calls, operator, parts.selected)
        except setreturning.NotExpandedError as error:
            raise self._refuse(support.SET_RETURNING, "in this place", "select") from error
        items = [(from_node(part), label) for label, part in zip(parts.labels, selected, strict=True)]
        if parts.first is not None and parts.first.bounds is not None:
            return self._limited(operator, items, parts.first.order, parts.first.bounds, distinct=distinct)
        if parts.first is not None:
            return self._firsts(operator, items, parts.first)
        if distinct:
            once = sets.distinct(self._bench.exactly(operator, items))
            return Rows(once, tuple(zip(parts.labels, once.names, strict=True)))
        operator, columns = self._bench.extend(operator, items)
        return Rows(operator, tuple(zip(parts.labels, columns, strict=True)))

    def _group(self, operator: Operator, keys: list[exp.Expr], parts: Parts) -> tuple[Operator, Parts]:
        """The aggregate, and what stands above it rewritten over its columns; subqueries are joined above it too."""
        attachments = parts.around.attachments
        on, order = ([], []) if parts.first is None else (parts.first.keys, parts.first.order)
        above = [
            *parts.selected,
            *parts.conditions,
            *(exp.Null() if a.condition is None else a.condition for a in attachments),
            *on,
            *order,
        ]
        own = {name for a in attachments for name in (*a.right.names, *((a.mark.name,) if a.mark else ()))}
        grouping = Grouping(self._bench, operator, self._calls.aggregate, frozenset(own))
        aggregate, rewritten = grouping.build(keys, above)
        self._check_order(grouping.functions())
        take = iter(rewritten)
        selected = [next(take) for _ in parts.selected]
        conditions = [next(take) for _ in parts.conditions]
        found = [(attachment, next(take)) for attachment in attachments]
        joined = [replace(a, condition=None if a.condition is None else node) for a, node in found]
        first = parts.first and replace(parts.first, keys=[next(take) for _ in on], order=[next(take) for _ in order])
        around = Around(parts.around.names, joined)
        return aggregate, Parts(parts.labels, selected, conditions, around, first)

    def _grouping_sets(self, node: exp.Select, scope: Scope, parts: Parts) -> Rows:
        """A branch for each set of keys."""
        if parts.around.attachments or parts.first is not None:
            raise self._refuse(support.GROUPING_SETS, "", "grouping sets", "cube", "rollup")
        found = [tuple(self._resolve(k, scope) for k in keys) for keys in groupingsets.expand(node.args["group"])]
        every = {dialect.text(key): key for keys in found for key in keys}
        types = self._bench.types(scope.operator, [from_node(key) for key in every.values()])
        named = {text: type_.name for text, type_ in zip(every, types, strict=True)}
        branches: list[Project] = []
        for keys in found:
            present = {dialect.text(key) for key in keys}
            absent = {text: name for text, name in named.items() if text not in present}
            selected, conditions = (
                [groupingsets.within(part, keys, absent, self._calls.aggregate) for part in nodes]
                for nodes in (parts.selected, parts.conditions)
            )
            above = Parts(parts.labels, selected, conditions, parts.around, None)
            operator, above = self._group(scope.operator, list(keys), above)
            rows = self._output(operator, above, distinct=False)
            branches.append(
                self._bench.exactly(rows.operator, [(reference(name), label) for label, name in rows.outputs])
            )
        columns = tuple(self._bench.column(column.type, column.label) for column in branches[0].columns)
        union = UnionAll(columns, tuple(branches))
        together = sets.distinct(union) if node.args.get("distinct") is not None else union
        return Rows(together, tuple(zip(parts.labels, together.names, strict=True)))

    def _first_of(self, node: exp.Select, scope: Scope) -> First | None:
        """What DISTINCT ON or LIMIT say, and the order that makes a row the first."""
        distinct = node.args.get("distinct")
        on = None if distinct is None else distinct.args.get("on")
        bounds = self._bounds(node)
        if on is None and bounds is None:
            return None
        if on is not None and bounds is not None:
            raise self._refuse(support.DISTINCT_ON, "", "distinct on")
        order = node.args.get("order")
        keys = [] if on is None else [self._resolve(part, scope) for part in on.expressions]
        return First(keys, [] if order is None else [self._resolve(part, scope) for part in order.expressions], bounds)

    def _bounds(self, node: exp.Expr) -> Bounds | None:
        """LIMIT and OFFSET; the first rows are known only in an order."""
        try:
            bounds = topk.bounds(node)
        except topk.UnknownBoundError as what:
            raise self._refuse(support.LIMIT, str(what), "limit", "offset", "fetch first", "fetch next") from what
        if bounds is not None and node.args.get("order") is None:
            raise self._refuse(support.LIMIT, "LIMIT without ORDER BY", "limit", "offset", "fetch first", "fetch next")
        return bounds

    def _limited(
        self,
        operator: Operator,
        items: list[tuple[Expr, str]],
        order: list[exp.Expr],
        bounds: Bounds,
        *,
        distinct: bool,
    ) -> Rows:
        """The first rows; DISTINCT may sort by its output only, so that what it sorts by adds no column."""
        sorted_by = [(part, from_node(part.this)) for part in order if isinstance(part, exp.Ordered)]
        more = {by.sql: (by, "") for _, by in sorted_by if by.sql not in {item.sql for item, _ in items}}
        rows: Operator = self._bench.exactly(operator, [*items, *more.values()])
        places = {item.sql: name for (item, _), name in zip([*items, *more.values()], rows.names, strict=True)}
        rows = sets.distinct(rows) if distinct else rows
        top = topk.top(rows, [(part, places[by.sql]) for part, by in sorted_by], bounds)
        return Rows(top, tuple(zip((label for _, label in items), top.names, strict=False)))

    def _firsts(self, operator: Operator, items: list[tuple[Expr, str]], first: First) -> Rows:
        keys = [(from_node(key), "") for key in first.keys]
        operator, columns = self._bench.extend(operator, [*items, *keys])
        outputs, on = columns[: len(items)], columns[len(items) :]
        types = {column.name: column.type.name for column in operator.columns}
        if any(types[name].endswith(("[]", "vector")) for name in outputs):
            raise self._refuse(support.DISTINCT_ON, "", "distinct on")
        order = [part for part in first.order if isinstance(part, exp.Ordered)]
        aggregate = firsts.first_rows(self._bench, operator, on, order, outputs)
        names = aggregate.names[len(aggregate.keys) :]
        return Rows(aggregate, tuple(zip((label for _, label in items), names, strict=True)))


def _cast(given: Column, wanted: Column) -> Expr:
    collation = "" if wanted.type.collation is None else f" COLLATE {wanted.type.collation}"
    return Expr(f"{reference(given).sql}::{wanted.type.name}{collation}", (given.name,))
