"""PostgreSQL's normalised text to an operator tree, or a refusal that says where. Pure; called by `compile.py`.

Views and WITH queries are inlined. Each computed column is typed by `describe`, which asks PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from sqlglot import exp

from pgtrickle.errors import Unsupported
from pgtrickle.model import Column, Expr, Table
from pgtrickle.query import dialect, firsts, groupingsets, outer, scalar, sets, sublinks, support, tablefunctions, topk
from pgtrickle.query.analysis import Analysis, Body, InlinedView, SourceRelation
from pgtrickle.query.bench import Bench, Describe
from pgtrickle.query.calls import Calls, function_name
from pgtrickle.query.expression import column_node, conjunct_nodes, from_node, reference
from pgtrickle.query.grouping import Grouping
from pgtrickle.query.locate import locate, locate_name, locate_scalar_subquery
from pgtrickle.query.operators import Operator, Project, Scan, UnionAll
from pgtrickle.query.rewrite import rewrite
from pgtrickle.query.scope import Scope
from pgtrickle.query.sublinks import Attachment, Inner
from pgtrickle.query.support import Gap
from pgtrickle.query.topk import Bounds

_SYSTEM_COLUMNS = frozenset({"ctid", "xmin", "xmax", "cmin", "cmax", "tableoid"})

# What a node may hold; anything else is syntax we would lose.
_SELECT_PARTS = frozenset(
    {"expressions", "from_", "joins", "where", "group", "having", "order", "with_", "distinct", "limit", "offset"}
)
_UNION_PARTS = frozenset({"this", "expression", "distinct", "order", "with_", "limit", "offset"})
_SUBQUERY_PARTS = frozenset({"this", "alias", "joins", "order", "with_"})
_TABLE_PARTS = frozenset({"this", "db", "alias", "joins"})
_JOIN_PARTS = frozenset({"this", "on", "using", "kind", "side"})
_PLAIN_SELECT = frozenset({"expressions", "from_", "joins", "where", "order"})


@dataclass(frozen=True, slots=True)
class _Rows:
    """A query built: its rows, and its output as (label, column)."""

    operator: Operator
    outputs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _With:
    """A WITH query, built anew wherever it is used, with the WITH queries it may use itself."""

    query: exp.Expr
    columns: tuple[str, ...]
    names: Mapping[str, _With]


_Names = Mapping[str, _With]


@dataclass(frozen=True, slots=True)
class _Around:
    """What a subquery in an expression may use: WITH queries; and where it leaves what is to be joined."""

    names: _Names
    attachments: list[Attachment] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _First:
    """The first row in `order` of each group of `keys` (DISTINCT ON), or the first rows of all (`bounds`: LIMIT)."""

    keys: list[exp.Expr]
    order: list[exp.Expr]
    bounds: Bounds | None = None


@dataclass(frozen=True, slots=True)
class _Parts:
    """What stands above the rows of a SELECT: labels and expressions of its list, HAVING, subqueries, the order that
    DISTINCT ON or LIMIT go by."""

    labels: list[str]
    selected: list[exp.Expr]
    conditions: list[exp.Expr]
    around: _Around
    first: _First | None


def build(analysis: Analysis, describe: Describe) -> Operator:
    """The tree of an analysed query, topped by a projection to the query's own columns; raises Unsupported."""
    return _Builder(analysis, describe).build()


class _Builder:
    def __init__(self, analysis: Analysis, describe: Describe) -> None:
        self._analysis = analysis
        self._bench = Bench(describe)
        readable: list[SourceRelation | InlinedView] = [*analysis.sources, *analysis.views]
        self._sources = {(source.table.schema, source.table.name): source for source in readable}
        self._calls = Calls(analysis)
        self._views: list[Table] = []
        self._ordered = False

    def build(self) -> Operator:
        rows = self._body(self._analysis.body)
        labels = [column.name for column in self._analysis.columns]
        if [label for label, _ in rows.outputs] != labels:
            raise self._refuse(support.UNFAITHFUL, "its output columns were not understood")
        tree = self._bench.exactly(rows.operator, [(reference(name), label) for label, name in rows.outputs])
        return rewrite(tree)

    # Queries

    def _body(self, body: Body) -> _Rows:
        try:
            node = dialect.parse(body.sql)
        except dialect.UnknownSyntaxError as error:
            raise self._refuse(support.UNFAITHFUL, str(error)) from error
        rows = self._query(node, {})
        # Checked last: a refusal of the query's shape says more than this.
        if self._calls.count(node) != body.aggregates:
            raise self._refuse(support.UNFAITHFUL, "an aggregate call was not understood")
        return rows

    def _query(self, node: exp.Expr, names: _Names) -> _Rows:
        names = self._with(node, names)
        match node:
            case exp.Select():
                return self._select(node, names)
            case exp.SetOperation():
                return self._set_operation(node, names)
            case exp.Subquery() if isinstance(node.this, exp.Query):
                self._check_parts(node, _SUBQUERY_PARTS)
                return self._query(node.this, names)
            case exp.Values():
                return self._values(node)
        raise self._refuse(support.UNFAITHFUL, f"{type(node).__name__} is not a query we know")

    def _values(self, node: exp.Values) -> _Rows:
        if node.find(exp.Column) is not None or node.find(exp.Query) is not None:
            raise self._refuse(support.VALUES, "", "values")
        labels = [f"column{place}" for place in range(1, len(node.expressions[0].expressions) + 1)]
        rows = tablefunctions.constant(self._bench, tablefunctions.values_text(node), labels)
        return _Rows(rows, tuple(zip(labels, rows.names, strict=True)))

    def _function(self, item: exp.Expr, function: exp.Expr) -> Scope:
        """A function of constants."""
        call = tablefunctions.call_text(item, function, lambda node: node)
        if call.columns or function.find(exp.Query) is not None:
            raise self._refuse(support.LATERAL, "", function_name(function))
        labels = tablefunctions.labels(item, function)
        rows = tablefunctions.constant(self._bench, call.sql, labels)
        return Scope.of(rows, list(zip(labels, rows.names, strict=True)), item.alias, [])

    def _with(self, node: exp.Expr, names: _Names) -> _Names:
        clause = node.args.get("with_")
        if clause is None:
            return names
        if clause.args.get("recursive"):
            raise self._refuse(support.RECURSIVE, "", "with recursive")
        known = dict(names)
        for part in clause.expressions:
            columns = tuple(column.name for column in part.args["alias"].columns)
            known[part.alias] = _With(part.this, columns, dict(known))
        return known

    def _set_operation(self, node: exp.SetOperation, names: _Names) -> _Rows:
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
            return self._limited_set(_Rows(operator, tuple(zip(labels, outputs, strict=True))), node, bounds)
        distinct = bool(node.args.get("distinct"))
        parts = [sets.without_distinct(branch) if distinct else branch for branch in branches]
        union = UnionAll(columns, tuple(part for branch in parts for part in self._branches(branch, columns)))
        rows = _Rows(sets.distinct(union) if distinct else union, tuple(zip(labels, union.names, strict=True)))
        return self._limited_set(rows, node, bounds)

    def _limited_set(self, rows: _Rows, node: exp.SetOperation, bounds: Bounds | None) -> _Rows:
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

    def _select(self, node: exp.Select, names: _Names) -> _Rows:
        self._check_select(node)
        scope = self._from(node, names)
        operator = self._where(node, scope, names)
        around = _Around(names)
        labels = [part.alias_or_name for part in node.expressions]
        selected = [self._resolve(part.unalias(), scope, around) for part in node.expressions]
        having = node.args.get("having")
        conditions = [] if having is None else conjunct_nodes(self._resolve(having.this, scope, around))
        first = self._first_of(node, scope)
        self._ordered |= node.args.get("order") is not None
        group = node.args.get("group")
        if group is not None and not groupingsets.is_simple(group):
            return self._grouping_sets(node, scope.over(operator), _Parts(labels, selected, conditions, around, first))
        parts = _Parts(labels, selected, conditions, around, first)
        if having is not None or group is not None or self._calls.any_aggregate(node.expressions):
            keys = [] if group is None else [self._resolve(key, scope) for key in group.expressions]
            operator, parts = self._group(operator, keys, parts)
        return self._output(operator, parts, distinct=node.args.get("distinct") is not None)

    def _output(self, operator: Operator, parts: _Parts, *, distinct: bool) -> _Rows:
        """What is above FROM, WHERE and GROUP BY: subqueries joined, HAVING, the select list, DISTINCT."""
        for attachment in parts.around.attachments:
            operator = self._attach(operator, attachment)
        for condition in parts.conditions:
            operator = self._bench.filter(operator, from_node(condition))
        items = [(from_node(part), label) for label, part in zip(parts.labels, parts.selected, strict=True)]
        if parts.first is not None and parts.first.bounds is not None:
            return self._limited(operator, items, parts.first.order, parts.first.bounds, distinct=distinct)
        if parts.first is not None:
            return self._firsts(operator, items, parts.first)
        if distinct:
            once = sets.distinct(self._bench.exactly(operator, items))
            return _Rows(once, tuple(zip(parts.labels, once.names, strict=True)))
        operator, columns = self._bench.extend(operator, items)
        return _Rows(operator, tuple(zip(parts.labels, columns, strict=True)))

    def _group(self, operator: Operator, keys: list[exp.Expr], parts: _Parts) -> tuple[Operator, _Parts]:
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
        around = _Around(parts.around.names, joined)
        return aggregate, _Parts(parts.labels, selected, conditions, around, first)

    def _grouping_sets(self, node: exp.Select, scope: Scope, parts: _Parts) -> _Rows:
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
            above = _Parts(parts.labels, selected, conditions, parts.around, None)
            operator, above = self._group(scope.operator, list(keys), above)
            rows = self._output(operator, above, distinct=False)
            branches.append(
                self._bench.exactly(rows.operator, [(reference(name), label) for label, name in rows.outputs])
            )
        columns = tuple(self._bench.column(column.type, column.label) for column in branches[0].columns)
        union = UnionAll(columns, tuple(branches))
        together = sets.distinct(union) if node.args.get("distinct") is not None else union
        return _Rows(together, tuple(zip(parts.labels, together.names, strict=True)))

    def _first_of(self, node: exp.Select, scope: Scope) -> _First | None:
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
        return _First(keys, [] if order is None else [self._resolve(part, scope) for part in order.expressions], bounds)

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
    ) -> _Rows:
        """The first rows; DISTINCT may sort by its output only, so that what it sorts by adds no column."""
        sorted_by = [(part, from_node(part.this)) for part in order if isinstance(part, exp.Ordered)]
        more = {by.sql: (by, "") for _, by in sorted_by if by.sql not in {item.sql for item, _ in items}}
        rows: Operator = self._bench.exactly(operator, [*items, *more.values()])
        places = {item.sql: name for (item, _), name in zip([*items, *more.values()], rows.names, strict=True)}
        rows = sets.distinct(rows) if distinct else rows
        top = topk.top(rows, [(part, places[by.sql]) for part, by in sorted_by], bounds)
        return _Rows(top, tuple(zip((label for _, label in items), top.names, strict=False)))

    def _firsts(self, operator: Operator, items: list[tuple[Expr, str]], first: _First) -> _Rows:
        keys = [(from_node(key), "") for key in first.keys]
        operator, columns = self._bench.extend(operator, [*items, *keys])
        outputs, on = columns[: len(items)], columns[len(items) :]
        types = {column.name: column.type.name for column in operator.columns}
        if any(types[name].endswith(("[]", "vector")) for name in outputs):
            raise self._refuse(support.DISTINCT_ON, "", "distinct on")
        order = [part for part in first.order if isinstance(part, exp.Ordered)]
        aggregate = firsts.first_rows(self._bench, operator, on, order, outputs)
        names = aggregate.names[len(aggregate.keys) :]
        return _Rows(aggregate, tuple(zip((label for _, label in items), names, strict=True)))

    def _where(self, node: exp.Select, scope: Scope, names: _Names) -> Operator:
        """The rows of FROM that WHERE keeps: plain conditions first, then those that ask a subquery."""
        operator = scope.operator
        where = node.args.get("where")
        parts = [] if where is None else sublinks.conjuncts(where.this)
        for part in [part for part in parts if not sublinks.asks(part)]:
            operator = self._bench.filter(operator, from_node(self._resolve(part, scope)))
        for part in [part for part in parts if sublinks.asks(part)]:
            around = _Around(names)
            conditions = self._asked(part, scope, around)
            for attachment in around.attachments:
                operator = self._attach(operator, attachment)
            for condition in conditions:
                operator = self._bench.filter(operator, from_node(condition))
        return operator

    def _attach(self, operator: Operator, attachment: Attachment) -> Operator:
        if sublinks.reads_around(attachment, set(operator.names)):
            raise self._refuse(support.SUBQUERY, "a subquery that reads a query further out than the one around it")
        return sublinks.attach(operator, attachment)

    def _check_select(self, node: exp.Select) -> None:
        """Refuses the clauses that have no operator yet."""
        if node.args.get("windows"):
            raise self._refuse(support.WINDOW_FUNCTION, "", "over", "window")
        group = node.args.get("group")
        if group is not None and any(value for part, value in group.args.items() if part != "expressions"):
            raise self._refuse(support.GROUPING_SETS, "", "group by")
        if node.args.get("from_") is None and not node.args.get("limit"):
            raise self._refuse(support.NO_FROM, "", "select")
        self._check_parts(node, _SELECT_PARTS)

    def _check_parts(self, node: exp.Expr, known: frozenset[str]) -> None:
        """Refuses what `node` holds besides `known`; LIMIT and FOR UPDATE may stand on any query."""
        if any(node.args.get(part) for part in {"limit", "offset", "fetch"} - known):
            raise self._refuse(support.LIMIT, "", "limit", "offset", "fetch first", "fetch next")
        locks = node.args.get("locks")
        if locks:
            kind = "UPDATE" if locks[0].args.get("update") else "SHARE"
            raise self._refuse(support.ROW_LOCK, kind, f"for {kind.lower()}", "for no", "for key")
        unknown = [part for part, value in node.args.items() if value and part not in known]
        if unknown:
            raise self._refuse(support.UNFAITHFUL, f"{type(node).__name__} has {', '.join(unknown)}")

    def _check_order(self, functions: Iterable[str]) -> None:
        """Refuses an aggregate that shows the order of its input when a subquery put that in order."""
        for function in functions:
            if self._ordered and function not in ("count", "sum", "avg", "min", "max"):
                raise self._refuse(support.SUBQUERY_ORDER, f"{function}()", "order by")

    # FROM

    def _from(self, node: exp.Select, names: _Names) -> Scope:
        scope = self._item(node.args["from_"].this, names)
        return self._joins(scope, node.args.get("joins") or [], names)

    def _joins(self, scope: Scope, joins: list[exp.Join], names: _Names) -> Scope:
        for join in joins:
            self._check_parts(join, _JOIN_PARTS)
            if isinstance(join.this, exp.Lateral):
                scope = self._lateral(scope, join.this, join)
                continue
            scope = self._join(scope, self._item(join.this, names), join)
        return scope

    def _join(self, left: Scope, right: Scope, join: exp.Join) -> Scope:
        crossed = self._bench.join(left.operator, right.operator)
        both = Scope(crossed, left.fields + right.fields, {**left.names, **right.names})
        side = str(join.args.get("side") or "").upper()
        using = [name.name for name in join.args.get("using") or []]
        if using:
            pairs = [(left.field(name), right.field(name)) for name in using]
            known = [(one, other) for one, other in pairs if one is not None and other is not None]
            if len(known) != len(using):
                raise self._refuse(support.UNFAITHFUL, "USING was not understood", "using", "natural")
            return outer.join_using(self._bench, side, both, dict(zip(using, known, strict=True)))
        condition = join.args.get("on")
        resolved = None if condition is None else from_node(self._resolve(condition, both))
        return outer.join(self._bench, side, both, resolved)

    def _lateral(self, scope: Scope, item: exp.Lateral, join: exp.Join) -> Scope:
        """A function of the rows before it."""
        side, on = str(join.args.get("side") or "").upper(), join.args.get("on")
        always = on is None or on.unnest() == exp.true()
        if not tablefunctions.is_function(item.this) or side not in ("", "LEFT") or (side and not always):
            raise self._refuse(support.LATERAL, "", "lateral", "apply")
        call = tablefunctions.call_text(item, item.this, lambda node: self._resolve(node, scope))
        labels = tablefunctions.labels(item, item.this)
        made = tablefunctions.expand(self._bench, scope.operator, call, labels, outer=side == "LEFT")
        own = Scope.of(made, list(zip(labels, (column.name for column in made.made), strict=True)), item.alias, [])
        both = Scope(made, scope.fields + own.fields, {**scope.names, **own.names})
        if on is None or always:
            return both
        return both.over(self._bench.filter(made, from_node(self._resolve(on, both))))

    def _item(self, node: exp.Expr, names: _Names) -> Scope:
        alias = node.args.get("alias")
        renamed = [column.name for column in alias.columns] if alias is not None else []
        match node:
            case exp.Table():
                return self._table(node, names, renamed)
            case exp.Subquery() if isinstance(node.this, exp.Query) and not isinstance(node.this, exp.Subquery):
                return self._joins(self._derived(node, names, renamed), node.args.get("joins") or [], names)
            case exp.Subquery():
                self._check_parts(node, _SUBQUERY_PARTS)
                scope = self._joins(self._item(node.this, names), node.args.get("joins") or [], names)
                return Scope.of(scope.operator, scope.fields, node.alias, renamed) if node.alias else scope
            case exp.Lateral():
                raise self._refuse(support.LATERAL, "", "lateral", "apply")
            case exp.Values():
                rows = self._values(node)
                return Scope.of(rows.operator, rows.outputs, node.alias, renamed)
            case exp.Unnest():
                return self._function(node, node)
        raise self._refuse(support.TABLE_FUNCTION, type(node).__name__.upper(), type(node).__name__.lower())

    def _derived(self, node: exp.Subquery, names: _Names, renamed: list[str]) -> Scope:
        self._check_parts(node, _SUBQUERY_PARTS)
        rows = self._query(node.this, names)
        return Scope.of(rows.operator, rows.outputs, node.alias, renamed)

    def _table(self, node: exp.Table, names: _Names, renamed: list[str]) -> Scope:
        if isinstance(node.this, exp.Values):
            rows = self._values(node.this)
            scope = Scope.of(rows.operator, rows.outputs, node.alias, renamed)
            return self._joins(scope, node.args.get("joins") or [], names)
        if tablefunctions.is_function(node.this):
            return self._joins(self._function(node, node.this), node.args.get("joins") or [], names)
        if not isinstance(node.this, exp.Identifier):
            name = function_name(node.this) if node.this is not None else "ROWS FROM"
            raise self._refuse(support.TABLE_FUNCTION, name, name.lower())
        if node.args.get("only"):
            raise self._refuse(support.ONLY, node.name, "only")
        if node.args.get("sample"):
            raise self._refuse(support.TABLESAMPLE, "", "tablesample")
        self._check_parts(node, _TABLE_PARTS)
        rows = self._relation(node, names)
        scope = Scope.of(rows.operator, rows.outputs, node.alias_or_name, renamed)
        return self._joins(scope, node.args.get("joins") or [], names)

    def _relation(self, node: exp.Table, names: _Names) -> _Rows:
        if not node.db and node.name in names:
            inner = names[node.name]
            rows = self._query(inner.query, inner.names)
            labels = [*inner.columns, *(label for label, _ in rows.outputs[len(inner.columns) :])]
            return _Rows(rows.operator, tuple(zip(labels, (name for _, name in rows.outputs), strict=True)))
        source = self._sources.get((node.db, node.name))
        if source is None:
            raise self._refuse(support.UNFAITHFUL, f"relation {node.db}.{node.name} was not found")
        if isinstance(source, InlinedView):
            self._views.append(source.table)
            rows = self._body(source.body)
            self._views.pop()
            return rows
        columns = tuple(
            self._bench.column(attribute.type, f"{node.alias_or_name}.{attribute.name}")
            for attribute in source.attributes
        )
        attributes = tuple(attribute.name for attribute in source.attributes)
        scan = Scan(columns, source.table, attributes)
        return _Rows(scan, tuple(zip(attributes, scan.names, strict=True)))

    # Expressions

    def _resolve(self, node: exp.Expr, scope: Scope, around: _Around | None = None) -> exp.Expr:
        """`node` with its column names replaced by tree columns; refuses what no expression may hold.

        Subqueries are built and replaced by their answer if there is a place, `around`, to leave them for joining.
        """

        def replace(part: exp.Expr) -> exp.Expr:
            if around is not None:
                answer = self._answer(part, scope, around)
                if answer is not None:
                    return answer
            self._check_expression(part)
            if not isinstance(part, exp.Column):
                return part
            found = scope.find(part.table or None, part.name)
            if found is not None:
                return column_node(found)
            if part.name in _SYSTEM_COLUMNS:
                raise self._refuse(support.SYSTEM_COLUMN, part.name, part.name)
            raise self._refuse(support.UNFAITHFUL, f"column {part.sql()} was not understood")

        return node.copy().transform(replace)

    # Subqueries in expressions

    def _asked(self, part: exp.Expr, scope: Scope, around: _Around) -> list[exp.Expr]:
        """A conjunct of WHERE that holds a subquery: what is left to filter by once the attachments are joined."""
        node, isnt = sublinks.negated(part)
        test = sublinks.recognise(node)
        if test is None:
            return conjunct_nodes(self._resolve(part, scope, around))
        operands = [self._resolve(operand, scope, around) for operand in test.operands]
        inner = self._inner(test.query, scope, around.names)
        around.attachments.extend(sublinks.filters(test, inner, operands, wanted=not isnt))
        return []

    def _answer(self, node: exp.Expr, scope: Scope, around: _Around) -> exp.Expr | None:
        """The value of a sublink over columns still to be joined; None for any other node."""
        test = sublinks.recognise(node)
        if test is not None:
            operands = [self._resolve(operand, scope, around) for operand in test.operands]
            found, answer = sublinks.marks(test, self._inner(test.query, scope, around.names), operands, self._bench)
            around.attachments.extend(found)
            return answer
        if isinstance(node, exp.Subquery) and isinstance(sublinks.bare(node), exp.Query):
            return self._scalar(sublinks.bare(node), scope, around)
        return None

    def _inner(self, query: exp.Expr, scope: Scope, names: _Names) -> Inner:
        """A subquery of EXISTS, IN, ANY or ALL; one that reads the query around it must do so in its WHERE."""
        names = self._with(query, names)
        if not isinstance(query, exp.Select) or not self._is_plain(query):
            rows = self._query(query, names)
            return Inner(rows.operator, tuple(name for _, name in rows.outputs), ())
        inside, correlated = self._correlated(query, scope, names)
        items = [(from_node(self._resolve(part.unalias(), inside)), "") for part in query.expressions]
        operator, outputs = self._bench.extend(inside.operator, items)
        return Inner(operator, tuple(outputs), tuple(correlated))

    def _is_plain(self, query: exp.Select) -> bool:
        """Whether the query selects rows as FROM and WHERE give them."""
        if any(value for part, value in query.args.items() if part not in _PLAIN_SELECT):
            return False
        return query.args.get("from_") is not None and not self._calls.any_aggregate(query.expressions)

    def _correlated(self, query: exp.Select, scope: Scope, names: _Names) -> tuple[Scope, list[exp.Expr]]:
        """FROM and WHERE of a subquery: its own rows, and the conjuncts that read the query around it."""
        inside = replace(self._from(query, names), outer=scope)
        where = query.args.get("where")
        own: list[exp.Expr] = []
        correlated: list[exp.Expr] = []
        for part in [] if where is None else sublinks.conjuncts(where.this):
            if not sublinks.asks(part):
                resolved = self._resolve(part, inside)
                read = {column.name for column in resolved.find_all(exp.Column)}
                if not read <= set(inside.operator.names):
                    correlated.append(resolved)
                    continue
            own.append(part)
        kept = exp.Select(where=exp.Where(this=exp.and_(*own))) if own else exp.Select()
        return inside.over(self._where(kept, inside, names)), correlated

    def _scalar(self, query: exp.Expr, scope: Scope, around: _Around) -> exp.Expr:
        """A subquery that is one value."""
        names = self._with(query, around.names)
        try:
            if isinstance(query, exp.Select) and self._is_one_group(query):
                self._check_select(query)
                inside, correlated = self._correlated(query, scope, names)
                selected = self._resolve(query.expressions[0].unalias(), inside)
                inner = Inner(inside.operator, (), tuple(correlated))
                found = scalar.value(self._bench, self._calls, inner, selected)
            else:
                found = scalar.only_value(self._bench, self._calls, self._inner(query, scope, names))
        except scalar.NotGroupedError as what:
            raise self._refuse(support.SUBQUERY, str(what)) from what
        self._check_order(found.functions)
        around.attachments.append(found.attachment)
        return found.value

    def _is_one_group(self, query: exp.Select) -> bool:
        """Whether the query is sure to have one row: aggregates of all its rows."""
        rest = ("group", "having", "distinct", "limit", "offset", "fetch")
        return self._calls.any_aggregate(query.expressions) and not any(query.args.get(part) for part in rest)

    def _check_expression(self, node: exp.Expr) -> None:
        if isinstance(node, exp.Window):
            raise self._refuse(support.WINDOW_FUNCTION, "", "over")
        test = sublinks.recognise(node)
        if test is not None or isinstance(node, exp.Query):
            raise self._refuse(support.SUBQUERY, "a subquery in this place")
        if isinstance(node, exp.Column) and isinstance(node.this, exp.Star):
            raise self._refuse(support.WHOLE_ROW, node.table or "a table", node.table)
        if self._calls.returns_set(node):
            name = function_name(node)
            raise self._refuse(support.SET_RETURNING, f"{name}()", name)

    def _refuse(self, gap: Gap, name: str = "", *phrases: str) -> Unsupported:
        """The refusal, located in the user's text; what is inside a view is located by the view's name."""
        sql = self._analysis.sql
        if self._views:
            return gap.refuse(name, at=locate_name(sql, self._views[0].name), view=str(self._views[-1]))
        if gap is support.SUBQUERY and not phrases:
            return gap.refuse(name, at=locate_scalar_subquery(sql))
        return gap.refuse(name, at=locate(sql, *phrases))


def _cast(given: Column, wanted: Column) -> Expr:
    collation = "" if wanted.type.collation is None else f" COLLATE {wanted.type.collation}"
    return Expr(f"{reference(given).sql}::{wanted.type.name}{collation}", (given.name,))
