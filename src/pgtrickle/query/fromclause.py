"""FROM: tables, views, subqueries, functions and their joins. Pure; a part of `build.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sqlglot import exp

from pgtrickle.model import Expr
from pgtrickle.query import given, outer, sublinks, support, tablefunctions
from pgtrickle.query.analysis import InlinedView
from pgtrickle.query.building import Around, Names, Rows
from pgtrickle.query.calls import function_name
from pgtrickle.query.expression import conjunction, from_node, reference
from pgtrickle.query.foreach import ForEach, keeps_left
from pgtrickle.query.lateral import kept_where
from pgtrickle.query.operators import (
    Aggregate,
    Expand,
    Filter,
    Joined,
    Operator,
    Project,
    Repeat,
    Scan,
    TopK,
    walk,
)
from pgtrickle.query.scope import Scope

_QUERY = exp.Select | exp.SetOperation | exp.Values


class FromClause(ForEach):
    """Builds the rows that a SELECT reads, and the names it may call them by."""

    def _from(self, node: exp.Select, names: Names, start: Scope | None = None) -> Scope:
        first, joins = node.args.get("from_"), node.args.get("joins") or []
        if first is None:
            return start or self._nothing()
        if start is None:
            return self._joins(self._item(first.this, names), joins, names)
        item, inner = _opened(first.this)
        if all(map(keeps_left, (*inner, *joins))) or any(given.read(part, start) for part in (first, *joins)):
            return self._joins_for_each(start, item, [*inner, *joins], names)
        return self._crossed(start, self._joins(self._item(first.this, names), joins, names))

    def _joins(self, scope: Scope, joins: list[exp.Join], names: Names) -> Scope:
        for join in joins:
            lateral, inner = _as_lateral(join.this, scope), _taken_apart(join, scope)
            if lateral is not None:
                scope = self._lateral(scope, lateral, join, names)
            elif inner:
                scope = self._joins(scope, inner, names)
                scope = scope if join.args.get("on") is None else self._filtered(scope, join.args["on"], names)
            else:
                scope = self._join(scope, self._item(join.this, names), join, names)
        return scope

    def _filtered(self, scope: Scope, condition: exp.Expr, names: Names) -> Scope:
        return scope.over(self._where(exp.Select(where=exp.Where(this=condition.copy())), scope, names))

    def _join(self, left: Scope, right: Scope, join: exp.Join, names: Names, same: tuple[Expr, ...] = ()) -> Scope:
        condition = join.args.get("on")
        if condition is not None and sublinks.asks(condition):
            if same:
                raise self._refuse(support.SUBQUERY, "a subquery in this ON, within a subquery,")
            return self._join_asking(left, right, join, names)
        both = self._crossed(left, right)
        side = str(join.args.get("side") or "").upper()
        using = [name.name for name in join.args.get("using") or []]
        if using:
            pairs = [(left.field(name), right.field(name)) for name in using]
            known = [(one, other) for one, other in pairs if one is not None and other is not None]
            if len(known) != len(using):
                raise self._refuse(support.UNFAITHFUL, "USING was not understood", "using", "natural")
            return outer.join_using(self._bench, side, both, dict(zip(using, known, strict=True)), same)
        own = [] if condition is None else [from_node(self._resolve(condition, both))]
        return outer.join(self._bench, side, both, conjunction([*same, *own]))

    def _join_asking(self, left: Scope, right: Scope, join: exp.Join, names: Names) -> Scope:
        """A join whose ON asks subqueries: each is joined first, to the side that it reads."""
        side = str(join.args.get("side") or "").upper()
        both = self._crossed(left, right)
        if not side:
            return self._filtered(both, join.args["on"], names)
        around = Around(names)
        condition = self._resolve(join.args["on"], both, around)
        for attachment in around.attachments:
            if not sublinks.reads_around(attachment, set(right.operator.names)):
                right = right.over(self._attach(right.operator, attachment))
            elif not sublinks.reads_around(attachment, set(left.operator.names)):
                left = left.over(self._attach(left.operator, attachment))
            else:
                assert side in ("LEFT", "RIGHT"), "PostgreSQL has no such FULL JOIN"
                sides = (right, left) if side == "RIGHT" else (left, right)
                return self._join_by_value(*sides, join.args["on"], names)
        return outer.join(self._bench, side, self._crossed(left, right), from_node(condition))

    def _join_by_value(self, left: Scope, right: Scope, on: exp.Expr, names: Names) -> Scope:
        """A left join on anything: for the values that ON reads of the left side, the rows of the right one."""
        domain, values = self._given(on, left)
        start = values.use(self._bench)
        found = self._filtered(self._crossed(start, right), on, names).operator
        by = domain.over(found, start.operator.names)
        return self._beside(left, right.over(found), by.conjuncts(), exp.Join(side="LEFT"))

    def _crossed(self, left: Scope, right: Scope) -> Scope:
        crossed = self._bench.join(left.operator, right.operator)
        return Scope(crossed, left.fields + right.fields, {**left.names, **right.names})

    def _lateral(self, scope: Scope, item: exp.Lateral, join: exp.Join, names: Names) -> Scope:
        """A function or a subquery of the rows before it."""
        if join.args.get("using"):
            return self._lateral_using(scope, item, join, names)
        if join.args.get("on") is not None and sublinks.asks(join.args["on"]):
            return self._lateral_asking(scope, item, join, names)
        if isinstance(item.this, exp.Subquery):
            found = self._lateral_query(scope, item, join, names)
            return found or self._join(scope, self._item(item, names), join, names)
        side, on = str(join.args.get("side") or "").upper(), join.args.get("on")
        always = on is None or on.unnest() == exp.true()
        if not tablefunctions.is_function(item.this) or side not in ("", "LEFT"):
            raise self._refuse(support.LATERAL, "", "lateral", "apply")
        if side and not always:
            return self._lateral_if(scope, item, join, names)
        around = Around(names)
        call = tablefunctions.call_text(item, item.this, lambda node: self._resolve(node, scope, around))
        operator = scope.operator
        for attachment in around.attachments:
            operator = self._attach(operator, attachment)
        labels = tablefunctions.labels(item, item.this)
        made = tablefunctions.expand(self._bench, operator, call, labels, outer=side == "LEFT")
        own = Scope.of(made, list(zip(labels, (column.name for column in made.made), strict=True)), item.alias, [])
        both = Scope(made, scope.fields + own.fields, {**scope.names, **own.names})
        if on is None or always:
            return both
        return both.over(self._bench.filter(made, from_node(self._resolve(on, both))))

    def _lateral_asking(self, scope: Scope, item: exp.Lateral, join: exp.Join, names: Names) -> Scope:
        """LATERAL … ON that asks a subquery: it is a condition on the rows, or within LATERAL if others are padded."""
        side = str(join.args.get("side") or "").upper()
        if not side:
            return self._filtered(self._lateral(scope, item, exp.Join(), names), join.args["on"], names)
        if side != "LEFT":
            return self._join(scope, self._item(item, names), join, names)
        return self._lateral(scope, kept_where(item, join.args["on"]), exp.Join(side=side), names)

    def _lateral_using(self, scope: Scope, item: exp.Lateral, join: exp.Join, names: Names) -> Scope:
        """USING is ON of equal columns, which are then one."""
        using = [name.name for name in join.args["using"]]
        called = {column: name for name, column in scope.names.items()}
        known = [called.get(scope.field(name) or "") for name in using]
        sides = [(one, (item.alias, name)) for one, name in zip(known, using, strict=True) if one is not None]
        if len(sides) != len(using):
            raise self._refuse(support.UNFAITHFUL, "USING was not understood", "using", "natural")
        equal = [exp.EQ(this=_column(one), expression=_column(other)) for one, other in sides]
        side = str(join.args.get("side") or "").upper()
        both = self._lateral(scope, item, exp.Join(side=side, on=exp.and_(*equal)), names)
        pairs = [(both.names[one], both.names.get(other)) for one, other in sides]
        found = [(one, other) for one, other in pairs if other is not None]
        if len(found) != len(using):
            raise self._refuse(support.UNFAITHFUL, "USING was not understood", "using", "natural")
        return outer.merged(self._bench, side, both, dict(zip(using, found, strict=True)))

    def _lateral_if(self, scope: Scope, item: exp.Lateral, join: exp.Join, names: Names) -> Scope:
        """LEFT JOIN LATERAL f(…) ON …: the function's rows for each value it is given, joined by these and ON."""
        domain, values = self._given(item, scope)
        start = values.use(self._bench)
        made = self._lateral(start, item, exp.Join(), names)
        own = {name: column for name, column in made.names.items() if name not in start.names}
        by = domain.over(made.operator, start.operator.names)
        return self._beside(scope, replace(made, names=own), by.conjuncts(), join)

    def _item(self, node: exp.Expr, names: Names) -> Scope:
        alias = node.args.get("alias")
        renamed = [column.name for column in alias.columns] if alias is not None else []
        match node:
            case exp.Table():
                return self._table(node, names, renamed)
            case exp.Subquery() if isinstance(node.this, exp.Query) and not isinstance(node.this, exp.Subquery):
                return self._joins(self._derived(node, names, renamed), node.args.get("joins") or [], names)
            case exp.Subquery():
                scope = self._joins(self._item(node.this, names), node.args.get("joins") or [], names)
                return Scope.of(scope.operator, scope.fields, node.alias, renamed) if node.alias else scope
            case exp.Lateral() | exp.Unnest() if node.args.get("joins"):
                item, joins = _opened(node)
                return self._joins(self._item(item, names), joins, names)
            case exp.Lateral() if isinstance(node.this, exp.Subquery):
                rows = self._query(node.this, names)
                return Scope.of(rows.operator, rows.outputs, node.alias, renamed)
            case exp.Lateral() if tablefunctions.is_function(node.this):
                return self._function(node, node.this, names)
            case exp.Lateral():
                raise self._refuse(support.LATERAL, "", "lateral", "apply")
            case exp.Values():
                rows = self._values(node)
                return Scope.of(rows.operator, rows.outputs, node.alias, renamed)
            case exp.Unnest():
                return self._function(node, node, names)
        raise self._refuse(support.TABLE_FUNCTION, type(node).__name__.upper(), type(node).__name__.lower())

    def _derived(self, node: exp.Subquery, names: Names, renamed: list[str]) -> Scope:
        rows = self._query(node.this, names)
        return Scope.of(rows.operator, rows.outputs, node.alias, renamed)

    def _table(self, node: exp.Table, names: Names, renamed: list[str]) -> Scope:
        if isinstance(node.this, exp.Values):
            rows = self._values(node.this)
            scope = Scope.of(rows.operator, rows.outputs, node.alias, renamed)
            return self._joins(scope, node.args.get("joins") or [], names)
        if tablefunctions.is_function(node.this):
            return self._joins(self._function(node, node.this, names), node.args.get("joins") or [], names)
        if not isinstance(node.this, exp.Identifier):
            name = function_name(node.this) if node.this is not None else "ROWS FROM"
            raise self._refuse(support.TABLE_FUNCTION, name, name.lower())
        rows = self._relation(node, names)
        scope = Scope.of(rows.operator, rows.outputs, node.alias_or_name, renamed)
        return self._joins(scope, node.args.get("joins") or [], names)

    def _relation(self, node: exp.Table, names: Names) -> Rows:
        if _is_of(node, names):
            inner = names[node.name]
            rows = self._shared(inner, lambda: self._query(inner.query, inner.names), often=inner.often)
            labels = [*inner.columns, *(label for label, _ in rows.outputs[len(inner.columns) :])]
            return Rows(rows.operator, tuple(zip(labels, (name for _, name in rows.outputs), strict=True)))
        source = self._sources.get((node.db, node.name))
        if source is None:
            raise self._refuse(support.UNFAITHFUL, f"relation {node.db}.{node.name} was not found")
        if isinstance(source, InlinedView):
            return self._shared(source, lambda: self._view(source))
        columns = tuple(
            (self._bench.column if attribute.number in source.used else self._bench.unused)(
                attribute.type, f"{node.alias_or_name}.{attribute.name}"
            )
            for attribute in source.attributes
        )
        attributes = tuple(attribute.name for attribute in source.attributes)
        scan = Scan(columns, source.table, attributes)
        return Rows(scan, tuple(zip(attributes, scan.names, strict=True)))

    def _view(self, view: InlinedView) -> Rows:
        self._views.append(view.table)
        with self._bench.of_view():
            rows = self._body(view.body)
        self._views.pop()
        return rows

    def _shared(self, owner: object, build: Callable[[], Rows], *, often: bool = False) -> Rows:
        """A WITH query or a view: groups and first rows are built once, and each use calls them by names of its own.

        So the uses have one state and one delta. So have the joins of a WITH query that is used `often`, as PostgreSQL
        evaluates it once; others are built anew, since they are best put in order with those around.
        """
        if id(owner) in self._built:
            _, rows = self._built[id(owner)]
        else:
            rows = build()
            if not (_is_kept(rows.operator) or (often and is_joined(rows.operator))):
                return rows
            self._built[id(owner)] = owner, rows
        columns = {column.name: column for column in rows.operator.columns}
        items = [(reference(name), columns[name].label) for _, name in rows.outputs]
        used = self._bench.use(rows.operator, items)
        return Rows(used, tuple(zip((label for label, _ in rows.outputs), used.names, strict=True)))

    def _nothing(self) -> Scope:
        """One row of which nothing is read: what a SELECT without FROM has."""
        return Scope(tablefunctions.constant(self._bench, "(VALUES (0))", ["nothing"]), (), {})

    def _function(self, item: exp.Expr, function: exp.Expr, names: Names) -> Scope:
        """A function of constants, or of what subqueries answer."""
        if sublinks.asks(function):
            return self._lateral(self._nothing(), _as_function(item), exp.Join(), names)
        call = tablefunctions.call_text(item, function, lambda node: node)
        if call.columns:
            raise self._refuse(support.LATERAL, "", function_name(function))
        labels = tablefunctions.labels(item, function)
        rows = tablefunctions.constant(self._bench, call.sql, labels)
        return Scope.of(rows, list(zip(labels, rows.names, strict=True)), item.alias, [])

    def _values(self, node: exp.Values) -> Rows:
        self._ordered |= node.args.get("order") is not None
        if node.find(exp.Column) is not None or node.find(exp.Query) is not None:
            raise self._refuse(support.VALUES, "", "values")
        labels = [f"column{place}" for place in range(1, len(node.expressions[0].expressions) + 1)]
        rows = tablefunctions.constant(self._bench, tablefunctions.values_text(node), labels)
        return Rows(rows, tuple(zip(labels, rows.names, strict=True)))


def _column(name: tuple[str | None, str]) -> exp.Column:
    alias, column = name
    return exp.column(exp.to_identifier(column, quoted=True), alias and exp.to_identifier(alias, quoted=True))


def _as_lateral(node: exp.Expr, scope: Scope) -> exp.Lateral | None:
    """The item as LATERAL, if it is or if it reads `scope`: in a subquery no word is needed for what is around it."""
    if isinstance(node, exp.Lateral):
        return node
    values = node if isinstance(node, exp.Values) else node.this if isinstance(node.this, exp.Values) else None
    if values is not None and not isinstance(node, exp.Subquery):
        node = exp.Subquery(this=values.copy(), alias=node.args.get("alias"), joins=node.args.get("joins"))
        node.this.set("alias", None)
    if isinstance(node, exp.Subquery) and (node.args.get("joins") or not isinstance(node.this, _QUERY)):
        return None
    if not isinstance(node, exp.Subquery) and not tablefunctions.is_function(_called(node)):
        return None
    if not given.read(node, scope):
        return None
    if not isinstance(node, exp.Subquery):
        return _as_function(node)
    alias = node.args.get("alias")
    return exp.Lateral(this=exp.Subquery(this=node.this.copy()), alias=alias and alias.copy())


def _as_function(item: exp.Expr) -> exp.Lateral:
    """A function in FROM as LATERAL."""
    alias = item.args.get("alias")
    ordinality = item.args.get("ordinality")
    return exp.Lateral(this=_called(item).copy(), alias=alias and alias.copy(), ordinality=ordinality)


def _called(item: exp.Expr) -> exp.Expr:
    called: exp.Expr = item if isinstance(item, exp.Unnest) else item.this
    return called


def _taken_apart(join: exp.Join, scope: Scope) -> list[exp.Join]:
    """The joins in parentheses of an inner join, if they read `scope`: a, (b JOIN c ON p) is a, b JOIN c ON p."""
    if join.args.get("side") or join.args.get("using") or not given.read(join.this, scope):
        return []
    first, joins = _opened(join.this)
    return [exp.Join(this=first), *joins] if joins and all(map(keeps_left, joins)) else []


def _opened(item: exp.Expr) -> tuple[exp.Expr, list[exp.Join]]:
    """The first of the joins in parentheses, and the joins."""
    joins = list[exp.Join]()
    while isinstance(item, exp.Subquery) and not item.alias and not isinstance(item.this, _QUERY):
        joins = [*(item.args.get("joins") or []), *joins]
        item = item.this
    item, joins = item.copy(), [*(item.args.get("joins") or []), *joins]
    item.set("joins", None)
    return item, joins


def _is_of(table: exp.Table, names: Names) -> bool:
    """Whether it is the name of a WITH query."""
    return not table.db and table.name in names


def is_joined(operator: Operator) -> bool:
    """Whether the rows are put together from several."""
    return any(isinstance(node, Joined) for node in walk(operator))


def _is_kept(operator: Operator) -> bool:
    """Whether the rows are those of a state, taken one by one."""
    while isinstance(operator, Filter | Project | Repeat | Expand):
        operator = operator.input
    return isinstance(operator, Aggregate | TopK)
