"""PostgreSQL's normalised text to an operator tree, or a refusal that says where. Pure; called by `compile.py`.

Views and WITH queries are inlined. Each computed column is typed by `describe`, which asks PostgreSQL. FROM is in
`fromclause.py`, expressions and subqueries in `resolve.py`; here are queries: SELECT, set operations, their order.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from sqlglot import exp

from pgtrickle.model import Column, Expr
from pgtrickle.query import (
    dialect,
    firsts,
    groupingsets,
    groups,
    marks,
    scalar,
    setreturning,
    sets,
    sublinks,
    support,
    topk,
)
from pgtrickle.query.analysis import Analysis, Body
from pgtrickle.query.bench import Describe
from pgtrickle.query.building import Around, Below, First, Names, Parts, Rows
from pgtrickle.query.expression import column_node, conjunct_nodes, conjunction, from_node, reference
from pgtrickle.query.fromclause import FromClause, is_joined
from pgtrickle.query.given import Given, sought
from pgtrickle.query.grouping import Grouping
from pgtrickle.query.keyed import Key, renamed
from pgtrickle.query.operators import Aggregate, LeftJoin, Operator, Project, UnionAll, Use
from pgtrickle.query.resolve import columns_of
from pgtrickle.query.rewrite import rewrite
from pgtrickle.query.scope import Scope
from pgtrickle.query.spread import spread
from pgtrickle.query.sublinks import Attachment
from pgtrickle.query.topk import Bounds
from pgtrickle.query.unfold import unfolded


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
            written = topk.without_all(dialect.parse(body.sql))
        except dialect.UnknownSyntaxError as error:
            raise self._refuse(support.UNFAITHFUL, str(error)) from error
        self._check_parts(written)
        try:
            marks.mark(written, body.grouped, self._calls)
        except groupingsets.UnknownKeyError as what:
            raise self._refuse(support.GROUPING_KEYS, str(what), "grouping sets", "rollup", "cube") from what
        parsed = spread(sublinks.spelled_out(written))
        rows = self._query(unfolded(parsed), {})
        # Checked last: a refusal of the query's shape says more than this.
        if not self._calls.are(body.aggregates, parsed):
            raise self._refuse(support.UNFAITHFUL, "an aggregate call was not understood")
        return rows

    def _query(self, node: exp.Expr, names: Names, given: Given | None = None) -> Rows:
        names = self._with(node, names)
        match node:
            case exp.Select():
                return self._select(node, names, given)
            case exp.SetOperation():
                return self._set_operation(node, names, given)
            case exp.Subquery() if isinstance(node.this, exp.Query):
                self._ordered |= node.args.get("order") is not None
                return self._query(node.this, names, given)
            case exp.Values():
                if given is None:
                    return self._values(node)
                start = given.use(self._bench)
                made, labels = self._made_of(start, node)
                fields = zip(labels, (column.name for column in made.made), strict=True)
                return Rows(made, (*fields, *(("", name) for name in start.operator.names)))
        raise self._refuse(support.UNFAITHFUL, f"{type(node).__name__} is not a query we know")

    def _set_operation(self, node: exp.SetOperation, names: Names, given: Given | None) -> Rows:
        sides = [self._query(side, names, given) for side in (node.this, node.expression)]
        return self._combined(node, sides, 0 if given is None else len(given.values.columns))

    def _combined(self, node: exp.SetOperation, sides: Sequence[Rows], carried: int) -> Rows:
        branches: list[Project] = []
        labels: list[str] = []
        for rows in sides:
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
            return self._limited_set(Rows(operator, tuple(zip(labels, outputs, strict=True))), node, bounds, carried)
        distinct = bool(node.args.get("distinct"))
        parts = [sets.without_distinct(branch) if distinct else branch for branch in branches]
        union = UnionAll(columns, tuple(part for branch in parts for part in self._branches(branch, columns)))
        rows = Rows(sets.distinct(union) if distinct else union, tuple(zip(labels, union.names, strict=True)))
        return self._limited_set(rows, node, bounds, carried)

    def _limited_set(self, rows: Rows, node: exp.SetOperation, bounds: Bounds | None, carried: int) -> Rows:
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
        return self._limited(rows.operator, items, First([], order, bounds), carried, distinct=False)

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

    def _select(self, node: exp.Select, names: Names, given: Given | None) -> Rows:
        if node.args.get("from_") is None and not self._analysis.sources:
            raise self._refuse(support.NO_FROM, "", "select")
        start = None if given is None else given.use(self._bench)
        scope = self._from(node, names, start)
        below = Below(scope, self._where(node, scope, names), names)
        if start is not None:
            carried, found = start.operator.names, frozenset(sought(node, start))
            below = replace(below, given=given, carried=carried, sought=found)
        node, below = self._keys_below(node, below)
        return self._apart(node, below) if self._reads_groups_within(node) else self._over(node, below)

    def _over(self, node: exp.Select, below: Below) -> Rows:
        """What a SELECT makes of the rows of its FROM and WHERE."""
        scope, operator, around = below.scope, below.operator, Around(below.names, sets=True)
        carried = [column_node(name) for name in below.carried]
        labels = [*(part.alias_or_name for part in node.expressions), *("" for _ in carried)]
        selected = [*(self._resolve(part.unalias(), scope, around) for part in node.expressions), *carried]
        having = node.args.get("having")
        conditions = [] if having is None else conjunct_nodes(self._resolve(having.this, scope, around))
        first = self._first_of(node, scope, replace(around, sets=False))
        self._ordered |= node.args.get("order") is not None
        group = node.args.get("group")
        parts = Parts(labels, selected, conditions, around, first, len(carried), below.sought)
        if group is not None and not groupingsets.is_simple(group):
            return self._grouping_sets(node, scope.over(operator), parts, below.given)
        if having is not None or group is not None or self._calls.groups(node):
            keys = [] if group is None else [self._resolve(key, scope) for key in group.expressions]
            operator, parts = self._joined_below(operator, parts)
            operator, parts = self._group(operator, keys, parts, below.given)
        return self._output(operator, parts, distinct=node.args.get("distinct") is not None)

    def _keys_below(self, node: exp.Select, below: Below) -> tuple[exp.Select, Below]:
        """GROUP BY of a subquery's answer: it is a column of the rows, called so wherever it stands."""
        group = node.args.get("group")
        asked = {groups.text(key): key for key in groupingsets.keys(group) if sublinks.asks(key)}
        if not asked:
            return node, below
        if not groupingsets.is_simple(node.args["group"]) and groups.stands_within(node, asked.keys(), self._calls):
            raise self._refuse(support.SUBQUERY, "a subquery that is a key of grouping sets, within an expression,")
        around = Around(below.names)
        keys = [self._resolve(sublinks.as_value(key), below.scope, around) for key in asked.values()]
        operator = below.operator
        for attachment in around.attachments:
            operator = self._attach(operator, attachment)
        operator, columns = self._bench.extend(operator, [(from_node(key), "") for key in keys])
        called: dict[tuple[str | None, str], str] = {(groups.ALIAS, column): column for column in columns}
        scope = replace(below.scope, operator=operator, names={**below.scope.names, **called})
        node = groups.called(node, dict(zip(asked, columns, strict=True)), self._calls)
        return node, replace(below, scope=scope, operator=operator)

    def _reads_groups_within(self, node: exp.Select) -> bool:
        """Whether a subquery, or the order of first rows, reads what only groups that are there can tell."""
        group, distinct = node.args.get("group"), node.args.get("distinct")
        if group is None or groupingsets.is_simple(group):
            return self._calls.groups(node, within=True)
        first = (node.args.get("limit"), node.args.get("offset"), None if distinct is None else distinct.args.get("on"))
        above = [*node.expressions, *filter(None, (node.args.get("having"),))]
        return any(map(sublinks.asks, above)) or any(part is not None for part in first)

    def _apart(self, node: exp.Select, below: Below) -> Rows:
        """The groups, and then what reads them, as if they were in its FROM."""
        names = below.scope.names
        own = {name for (alias, name), column in names.items() if alias == groups.ALIAS and column not in below.carried}
        try:
            above, made = groups.apart(node, self._calls, self._bench.name, below.scope, own)
        except groupingsets.UnknownKeyError as what:
            raise self._refuse(support.GROUPING_KEYS, str(what), "grouping") from what
        rows = self._over(made, below)
        shown = rows.outputs[: len(made.expressions)]
        carried = [name for _, name in rows.outputs[len(shown) :]]
        now = dict(zip(below.carried, carried, strict=True))
        called = {name: now[column] for name, column in names.items() if column in now}
        scope = Scope(rows.operator, (), {**called, **{(groups.ALIAS, label): name for label, name in shown}})
        return self._over(
            above, Below(scope, self._where(above, scope, below.names), below.names, None, tuple(carried))
        )

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
        first = parts.first
        if first is not None and first.bounds is None:
            return self._firsts(operator, items, first, parts.carried)
        if first is not None and first.keys:
            return self._first_firsts(operator, items, first, parts.carried)
        if first is not None:
            return self._limited(operator, items, first, parts.carried, distinct=distinct)
        if distinct:
            once = sets.distinct(self._bench.exactly(operator, items))
            return Rows(once, tuple(zip(parts.labels, once.names, strict=True)))
        operator, columns = self._bench.extend(operator, items)
        return Rows(operator, tuple(zip(parts.labels, columns, strict=True)))

    def _joined_below(self, operator: Operator, parts: Parts) -> tuple[Operator, Parts]:
        """Subqueries in the arguments of aggregates are joined to the rows that are grouped."""
        first = [] if parts.first is None else [*parts.first.keys, *parts.first.order]
        nodes = [part for node in (*parts.selected, *parts.conditions, *first) for part in node.walk()]
        read = columns_of(node for node in nodes if self._calls.aggregate(node) is not None)
        above: list[Attachment] = []
        below: list[Attachment] = []
        for attachment in reversed(parts.around.attachments):  # one may read those before it
            made = {*attachment.right.names, *((attachment.mark.name,) if attachment.mark else ())}
            (below if made & read else above).insert(0, attachment)
            if made & read and attachment.condition is not None:
                read |= columns_of([attachment.condition])
        for attachment in below:
            operator = self._attach(operator, attachment)
        return operator, replace(parts, around=replace(parts.around, attachments=above))

    def _group(
        self, operator: Operator, keys: list[exp.Expr], parts: Parts, given: Given | None
    ) -> tuple[Operator, Parts]:
        """The aggregate, and what stands above it rewritten over its columns; subqueries are joined above it too."""
        carried = parts.selected[len(parts.selected) - parts.carried :]
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
        aggregate, rewritten = grouping.build([*keys, *carried], above)
        self._check_order(grouping.functions())
        groups: Operator = aggregate
        if given is not None and not keys:
            groups, names = self._for_every(given, aggregate, parts.sought)
            rewritten = [renamed(node, names) for node in rewritten]
        take = iter(rewritten)
        selected = [next(take) for _ in parts.selected]
        conditions = [next(take) for _ in parts.conditions]
        found = [(attachment, next(take)) for attachment in attachments]
        joined = [replace(a, condition=None if a.condition is None else node) for a, node in found]
        first = parts.first and replace(parts.first, keys=[next(take) for _ in on], order=[next(take) for _ in order])
        around = Around(parts.around.names, joined)
        return groups, Parts(parts.labels, selected, conditions, around, first, parts.carried)

    def _for_every(self, given: Given, aggregate: Aggregate, sought: Set[str]) -> tuple[Operator, dict[str, str]]:
        """A group for each value that is given, also where it has no rows; and how the aggregate's columns are called.

        Without GROUP BY there is a group over no rows too. There is none in the aggregate where `sought` keys are NULL.
        """
        every, aggregate = given.use(self._bench).operator, scalar.counted(self._bench, aggregate)
        keys = [
            Key(key, column_node(column.name), True, key not in sought, column.type.has_one_look)
            for key, column in zip(aggregate.keys, every.columns, strict=True)
        ]
        same = conjunction(from_node(key.asked(column_node(key.name))) for key in keys)
        joined = LeftJoin(every.columns + aggregate.columns, every, aggregate, same)
        calls = [call.output.name for call in aggregate.calls]
        try:
            values = [scalar.over_nothing(aggregate, column_node(name)) for name in calls]
        except scalar.NotGroupedError as what:
            raise self._refuse(support.SUBQUERY, str(what)) from what
        operator, names = self._bench.extend(joined, [(from_node(value), "") for value in values])
        return operator, dict(zip([*aggregate.keys, *calls], [*every.names, *names], strict=True))

    def _grouping_sets(self, node: exp.Select, scope: Scope, parts: Parts, given: Given | None) -> Rows:
        """A branch for each set of keys; what asks for more than that of the groups is apart from them."""
        operator, parts = self._joined_below(scope.operator, parts)
        assert not parts.around.attachments
        assert parts.first is None
        if is_joined(operator):
            operator = Use(operator.columns, operator, tuple(map(reference, operator.columns)))
        scope = scope.over(operator)
        found = [tuple(self._resolve(k, scope) for k in keys) for keys in groupingsets.expand(node.args["group"])]
        every = {number: key for keys in found for key in keys if (number := groupingsets.key_of(key)) is not None}
        types = self._bench.types(scope.operator, [from_node(key) for key in every.values()])
        named = {number: type_.name for number, type_ in zip(every, types, strict=True)}
        branches: list[Project] = []
        for keys in found:
            present = {groupingsets.key_of(key) for key in keys}
            absent = {number: name for number, name in named.items() if number not in present}
            selected, conditions = (
                [groupingsets.within(part, keys, absent, self._calls.aggregate) for part in nodes]
                for nodes in (parts.selected, parts.conditions)
            )
            above = Parts(parts.labels, selected, conditions, parts.around, None, parts.carried)
            operator, above = self._group(scope.operator, list(keys), above, given)
            rows = self._output(operator, above, distinct=False)
            branches.append(
                self._bench.exactly(rows.operator, [(reference(name), label) for label, name in rows.outputs])
            )
        columns = tuple(self._bench.column(column.type, column.label) for column in branches[0].columns)
        union = UnionAll(columns, tuple(branches))
        together = sets.distinct(union) if node.args.get("distinct") is not None else union
        return Rows(together, tuple(zip(parts.labels, together.names, strict=True)))

    def _first_of(self, node: exp.Select, scope: Scope, around: Around) -> First | None:
        """What DISTINCT ON or LIMIT say, and the order that makes a row the first."""
        distinct = node.args.get("distinct")
        on = None if distinct is None else distinct.args.get("on")
        bounds = self._bounds(node)
        if on is None and bounds is None:
            return None
        order = node.args.get("order")
        keys = [] if on is None else [self._resolve(part, scope, around) for part in on.expressions]
        parts = [] if order is None else order.expressions
        return First(keys, [self._resolve(part, scope, around) for part in parts], bounds)

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
        first: First,
        carried: int,
        *,
        distinct: bool,
    ) -> Rows:
        """The first rows, of each key if there are some; DISTINCT may sort by its output only, which adds no column."""
        assert first.bounds is not None
        sorted_by = [(part, from_node(part.this)) for part in topk.ordered(first.order)]
        more = {by.sql: (by, "") for _, by in sorted_by if by.sql not in {item.sql for item, _ in items}}
        rows: Operator = self._bench.exactly(operator, [*items, *more.values()])
        places = {item.sql: name for (item, _), name in zip([*items, *more.values()], rows.names, strict=True)}
        rows = sets.distinct(rows) if distinct else rows
        order = [topk.sorted_by(part, places[by.sql]) for part, by in sorted_by]
        labels = [label for _, label in items]
        if carried == 0:
            top = topk.top(rows, order, first.bounds)
            return Rows(top, tuple(zip(labels, top.names, strict=False)))
        outputs, keys = rows.names[: len(items) - carried], rows.names[len(items) - carried : len(items)]
        few, made = firsts.first_few(self._bench, rows, keys, order, outputs, first.bounds)
        return Rows(few, tuple(zip(labels, [*made, *keys], strict=True)))

    def _first_firsts(self, operator: Operator, items: list[tuple[Expr, str]], first: First, carried: int) -> Rows:
        """DISTINCT ON with LIMIT: the first of the rows that are the first ones of their groups, in the same order."""
        parts = topk.ordered(first.order)
        own, kept = items[: len(items) - carried], items[len(items) - carried :]
        rows = self._firsts(operator, [*own, *((from_node(part.this), "") for part in parts), *kept], first, carried)
        shown = [(reference(name), label) for label, name in rows.outputs]
        by = [name for _, name in rows.outputs[len(own) : len(own) + len(parts)]]
        order: list[exp.Expr] = [topk.sorted_by(part, name) for part, name in zip(parts, by, strict=True)]
        outputs = [*shown[: len(own)], *shown[len(own) + len(parts) :]]
        return self._limited(rows.operator, outputs, First([], order, first.bounds), carried, distinct=False)

    def _firsts(self, operator: Operator, items: list[tuple[Expr, str]], first: First, carried: int) -> Rows:
        on = [(from_node(key), "") for key in first.keys]
        operator, columns = self._bench.extend(operator, [*items, *on])
        outputs, keys = columns[: len(items) - carried], columns[len(items) - carried :]
        aggregate = firsts.first_rows(self._bench, operator, keys, topk.ordered(first.order), outputs)
        names = [*aggregate.names[len(aggregate.keys) :], *keys[:carried]]
        return Rows(aggregate, tuple(zip((label for _, label in items), names, strict=True)))


def _cast(given: Column, wanted: Column) -> Expr:
    collation = "" if wanted.type.collation is None else f" COLLATE {wanted.type.collation}"
    return Expr(f"{reference(given).sql}::{wanted.type.name}{collation}", (given.name,))
