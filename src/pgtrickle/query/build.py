"""PostgreSQL's normalised text to an operator tree, or a refusal that says where. Pure; called by `compile.py`.

Views and WITH queries are inlined. Each computed column is typed by `describe`, which asks PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlglot import exp

from pgtrickle.errors import Unsupported
from pgtrickle.model import Column, Expr, Table
from pgtrickle.query import dialect, support
from pgtrickle.query.analysis import Analysis, Body, InlinedView, SourceRelation
from pgtrickle.query.bench import Bench, Describe
from pgtrickle.query.expression import column_node, conjunct_nodes, from_node, reference
from pgtrickle.query.grouping import Grouping
from pgtrickle.query.locate import locate, locate_name, locate_scalar_subquery
from pgtrickle.query.operators import Operator, Project, Scan, UnionAll
from pgtrickle.query.rewrite import rewrite
from pgtrickle.query.scope import Scope
from pgtrickle.query.support import Gap

_SYSTEM_COLUMNS = frozenset({"ctid", "xmin", "xmax", "cmin", "cmax", "tableoid"})

# What a node may hold; anything else is syntax we would lose.
_SELECT_PARTS = frozenset({"expressions", "from_", "joins", "where", "group", "having", "order", "with_"})
_UNION_PARTS = frozenset({"this", "expression", "distinct", "order", "with_"})
_SUBQUERY_PARTS = frozenset({"this", "alias", "joins", "order", "with_"})
_TABLE_PARTS = frozenset({"this", "db", "alias", "joins"})
_JOIN_PARTS = frozenset({"this", "on", "using", "kind"})


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


def build(analysis: Analysis, describe: Describe) -> Operator:
    """The tree of an analysed query, topped by a projection to the query's own columns; raises Unsupported."""
    return _Builder(analysis, describe).build()


class _Builder:
    def __init__(self, analysis: Analysis, describe: Describe) -> None:
        self._analysis = analysis
        self._bench = Bench(describe)
        readable: list[SourceRelation | InlinedView] = [*analysis.sources, *analysis.views]
        self._sources = {(source.table.schema, source.table.name): source for source in readable}
        self._aggregates = {(f.schema, f.name) for f in analysis.functions if f.kind == "a"}
        self._set_returning = {(f.schema, f.name) for f in analysis.functions if f.returns_set}
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
        if sum(1 for part in node.walk() if self._is_call(part)) != body.aggregates:
            raise self._refuse(support.UNFAITHFUL, "an aggregate call was not understood")
        return rows

    def _query(self, node: exp.Expr, names: _Names) -> _Rows:
        names = self._with(node, names)
        match node:
            case exp.Select():
                return self._select(node, names)
            case exp.Union() if not node.args.get("distinct"):
                return self._union_all(node, names)
            case exp.SetOperation():
                kind = type(node).__name__.upper()
                kind += "" if node.args.get("distinct") else " ALL"
                raise self._refuse(support.SET_OPERATION, kind, kind.lower())
            case exp.Subquery() if isinstance(node.this, exp.Query):
                self._check_parts(node, _SUBQUERY_PARTS)
                return self._query(node.this, names)
            case exp.Values():
                raise self._refuse(support.VALUES, "", "values")
        raise self._refuse(support.UNFAITHFUL, f"{type(node).__name__} is not a query we know")

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

    def _union_all(self, node: exp.Union, names: _Names) -> _Rows:
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
        union = UnionAll(columns, tuple(part for branch in branches for part in self._branches(branch, columns)))
        return _Rows(union, tuple(zip(labels, union.names, strict=True)))

    def _branches(self, branch: Project, columns: tuple[Column, ...]) -> tuple[Operator, ...]:
        """The branch with the union's types; a union of the very same columns gives its own branches instead."""
        if [column.type for column in branch.columns] == [column.type for column in columns]:
            passed_on = tuple(reference(name) for name in branch.input.names)
            if isinstance(branch.input, UnionAll) and branch.expressions == passed_on:
                return branch.input.branches
            return (branch,)
        items = [
            (reference(given) if given.type == wanted.type else _cast(given, wanted), wanted.label)
            for given, wanted in zip(branch.columns, columns, strict=True)
        ]
        return (self._bench.exactly(branch, items),)

    def _select(self, node: exp.Select, names: _Names) -> _Rows:
        self._check_select(node)
        scope = self._from(node, names)
        operator = scope.operator
        where = node.args.get("where")
        if where is not None:
            for condition in conjunct_nodes(self._resolve(where.this, scope)):
                operator = self._bench.filter(operator, from_node(condition))
        outputs = [(part.alias_or_name, self._resolve(part.unalias(), scope)) for part in node.expressions]
        labels, expressions = [label for label, _ in outputs], [expression for _, expression in outputs]
        having = node.args.get("having")
        group = node.args.get("group")
        called = any(self._is_call(part) for expression in expressions for part in expression.walk())
        if having is not None or group is not None or called:
            conditions = [] if having is None else conjunct_nodes(self._resolve(having.this, scope))
            keys = [] if group is None else [self._resolve(key, scope) for key in group.expressions]
            grouping = Grouping(self._bench, operator, self._call_name)
            operator, rewritten = grouping.build(keys, [*expressions, *conditions])
            self._check_order(grouping.functions())
            expressions, conditions = rewritten[: len(expressions)], rewritten[len(expressions) :]
            for condition in conditions:
                operator = self._bench.filter(operator, from_node(condition))
        items = [(from_node(part), label) for label, part in zip(labels, expressions, strict=True)]
        operator, columns = self._bench.extend(operator, items)
        self._ordered |= node.args.get("order") is not None
        return _Rows(operator, tuple(zip(labels, columns, strict=True)))

    def _check_select(self, node: exp.Select) -> None:
        """Refuses the clauses that have no operator yet."""
        distinct = node.args.get("distinct")
        if distinct is not None and distinct.args.get("on") is not None:
            raise self._refuse(support.DISTINCT_ON, "", "distinct on")
        if distinct is not None:
            raise self._refuse(support.DISTINCT, "", "select distinct")
        if node.args.get("windows"):
            raise self._refuse(support.WINDOW_FUNCTION, "", "over", "window")
        group = node.args.get("group")
        if group is not None and (
            any(value for part, value in group.args.items() if part != "expressions")
            or any(isinstance(key, exp.GroupingSets | exp.Cube | exp.Rollup | exp.Tuple) for key in group.expressions)
        ):
            raise self._refuse(support.GROUPING_SETS, "", "grouping sets", "cube", "rollup", "group by")
        if node.args.get("from_") is None and not node.args.get("limit"):
            raise self._refuse(support.NO_FROM, "", "select")
        self._check_parts(node, _SELECT_PARTS)

    def _check_parts(self, node: exp.Expr, known: frozenset[str]) -> None:
        """Refuses what `node` holds besides `known`; LIMIT and FOR UPDATE may stand on any query."""
        if node.args.get("limit") or node.args.get("offset") or node.args.get("fetch"):
            raise self._refuse(support.LIMIT, "", "limit", "offset", "fetch first", "fetch next")
        locks = node.args.get("locks")
        if locks:
            kind = "UPDATE" if locks[0].args.get("update") else "SHARE"
            raise self._refuse(support.ROW_LOCK, kind, f"for {kind.lower()}", "for no", "for key")
        unknown = [part for part, value in node.args.items() if value and part not in known]
        if unknown:
            raise self._refuse(support.UNFAITHFUL, f"{type(node).__name__} has {', '.join(unknown)}")

    def _check_order(self, functions: list[str]) -> None:
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
            side = join.args.get("side")
            if side:
                words = str(side).lower()
                raise self._refuse(
                    support.OUTER_JOIN, str(side).upper(), f"{words} join", f"{words} outer join", "natural"
                )
            self._check_parts(join, _JOIN_PARTS)
            scope = self._join(scope, self._item(join.this, names), join)
        return scope

    def _join(self, left: Scope, right: Scope, join: exp.Join) -> Scope:
        operator = self._bench.join(left.operator, right.operator)
        scope = Scope(operator, left.fields + right.fields, {**left.names, **right.names})
        using = [name.name for name in join.args.get("using") or []]
        if using:
            return self._using(left, right, scope, using)
        condition = join.args.get("on")
        if condition is None:
            return scope
        resolved = from_node(self._resolve(condition, scope))
        return Scope(self._bench.join(left.operator, right.operator, resolved), scope.fields, scope.names)

    def _using(self, left: Scope, right: Scope, scope: Scope, using: list[str]) -> Scope:
        """`JOIN … USING`: the merged column is the side that already has the common type, the left if both do."""
        operator: Operator = scope.operator
        merged: list[tuple[str, str]] = []
        columns = {column.name: column for column in operator.columns}
        for name in using:
            pair = left.field(name), right.field(name)
            if pair[0] is None or pair[1] is None:
                raise self._refuse(support.UNFAITHFUL, f"USING ({name}) was not understood", "using", "natural")
            sides = (columns[pair[0]], columns[pair[1]])
            equal = Expr(" = ".join(reference(side).sql for side in sides), tuple(side.name for side in sides))
            operator = self._bench.filter(operator, equal)
            operator, column = self._merge(operator, sides, name)
            merged.append((name, column))
        rest = [field for field in scope.fields if field[0] not in using]
        names: dict[tuple[str | None, str], str] = {**scope.names}
        names.update({(None, name): column for name, column in merged})
        return Scope(operator, (*merged, *rest), names)

    def _merge(self, operator: Operator, sides: tuple[Column, Column], label: str) -> tuple[Operator, str]:
        if sides[0].type == sides[1].type:
            return operator, sides[0].name
        both = Expr(f"COALESCE({', '.join(reference(side).sql for side in sides)})", tuple(s.name for s in sides))
        (common,) = self._bench.types(operator, [both])
        for side in sides:
            if (side.type.oid, side.type.name) == (common.oid, common.name):
                return operator, side.name
        operator, (name,) = self._bench.extend(operator, [(both, label)])  # neither is NULL here, so it is the left
        return operator, name

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
                raise self._refuse(support.VALUES, "", "values")
        raise self._refuse(support.TABLE_FUNCTION, type(node).__name__.upper(), type(node).__name__.lower())

    def _derived(self, node: exp.Subquery, names: _Names, renamed: list[str]) -> Scope:
        self._check_parts(node, _SUBQUERY_PARTS)
        rows = self._query(node.this, names)
        return Scope.of(rows.operator, rows.outputs, node.alias, renamed)

    def _table(self, node: exp.Table, names: _Names, renamed: list[str]) -> Scope:
        if not isinstance(node.this, exp.Identifier):
            name = self._function_name(node.this) if node.this is not None else "ROWS FROM"
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

    def _resolve(self, node: exp.Expr, scope: Scope) -> exp.Expr:
        """`node` with its column names replaced by tree columns; refuses what no expression may hold."""

        def replace(part: exp.Expr) -> exp.Expr:
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

    def _check_expression(self, node: exp.Expr) -> None:
        if isinstance(node, exp.Window):
            raise self._refuse(support.WINDOW_FUNCTION, "", "over")
        if isinstance(node, exp.Exists):
            raise self._refuse(support.SUBQUERY, "EXISTS (SELECT …)", "exists")
        if isinstance(node, exp.In) and node.args.get("query"):
            raise self._refuse(support.SUBQUERY, "IN (SELECT …)", "in ( select", "in ( with", "in ( values")
        if isinstance(node, exp.Any | exp.All) and node.find(exp.Query):
            words = type(node).__name__.upper()
            raise self._refuse(
                support.SUBQUERY, f"{words} (SELECT …)", f"{words.lower()} ( select", "some ( select", "in ( select"
            )
        if isinstance(node, exp.Query):
            raise self._refuse(support.SUBQUERY, "a subquery in an expression")
        if isinstance(node, exp.Column) and isinstance(node.this, exp.Star):
            raise self._refuse(support.WHOLE_ROW, node.table or "a table", node.table)
        if isinstance(node, exp.Anonymous) and node.name == "GROUPING":
            raise self._refuse(support.GROUPING_SETS, "", "grouping")
        if self._name(node) in self._set_returning:
            name = self._function_name(node)
            raise self._refuse(support.SET_RETURNING, f"{name}()", name)

    def _name(self, node: exp.Expr) -> tuple[str, str] | None:
        """(schema, name) of a function call."""
        if isinstance(node, exp.Anonymous):
            return None if isinstance(node.parent, exp.Dot) else ("pg_catalog", node.name)
        if isinstance(node, exp.Unnest):
            return "pg_catalog", "unnest"
        if isinstance(node, exp.Dot) and isinstance(node.expression, exp.Anonymous):
            return node.this.name, node.expression.name
        return None

    @staticmethod
    def _function_name(node: exp.Expr) -> str:
        call = node.expression if isinstance(node, exp.Dot) else node
        return call.name if isinstance(call, exp.Anonymous) else type(call).__name__.lower()

    def _is_call(self, node: exp.Expr) -> bool:
        return self._name(node) in self._aggregates

    def _call_name(self, node: exp.Expr) -> tuple[str, str] | None:
        """(schema, name) if `node` is a whole aggregate call, its FILTER and WITHIN GROUP included."""
        core = node
        while isinstance(core, exp.Filter | exp.WithinGroup):
            core = core.this
        name = self._name(core)
        return name if name in self._aggregates else None

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
