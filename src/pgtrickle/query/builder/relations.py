"""Relations in FROM: tables, views, WITH queries, VALUES. Pure; a part of `build.py`."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from pgtrickle.model import Expr
from pgtrickle.query import gaps
from pgtrickle.query.analyse.analysis import InlinedView, SourceRelation
from pgtrickle.query.builder import recursion, table_functions
from pgtrickle.query.builder.context import BuildContext
from pgtrickle.query.builder.queries import BuiltQuery, Queries
from pgtrickle.query.builder.scope import Scope
from pgtrickle.query.builder.with_queries import Names, With
from pgtrickle.query.expression import reference
from pgtrickle.query.operators import Filter, Operator, RowWise, Scan, Stateful, is_joined


class Relations:
    """Builds what FROM names. Views and WITH queries are built where they are used, some of them once."""

    def __init__(self, context: BuildContext, queries: Queries) -> None:
        self._context = context
        self._queries = queries
        readable: list[SourceRelation | InlinedView] = [*context.analysis.sources, *context.analysis.views]
        self._sources = {(source.table.schema, source.table.name): source for source in readable}
        # By the id of a WITH query or view, held so that it stays one.
        self._built: dict[int, tuple[object, BuiltQuery]] = {}

    def relation(self, node: exp.Table, names: Names) -> BuiltQuery:
        """What a name in FROM means."""
        if _is_of(node, names):
            inner = names[node.name]
            if inner.working is not None:
                return recursion.working_rows(inner.working)
            rows = self._shared(inner, lambda: self._with(node.name, inner), often=inner.often)
            labels = [*inner.columns, *(label for label, _ in rows.outputs[len(inner.columns) :])]
            return BuiltQuery(rows.operator, tuple(zip(labels, (name for _, name in rows.outputs), strict=True)))
        source = self._sources.get((node.db, node.name))
        if source is None:
            raise self._context.refuse(gaps.UNFAITHFUL, f"relation {node.db}.{node.name} was not found")
        if isinstance(source, InlinedView):
            return self._shared(source, lambda: self._view(source))
        only = bool(node.args.get("only"))
        if only and source.children and source.is_compared:
            raise self._context.refuse(gaps.ONLY, source.table.name, "only")
        columns = tuple(
            (self._context.factory.column if attribute.number in source.used else self._context.factory.unused)(
                attribute.type, f"{node.alias_or_name}.{attribute.name}"
            )
            for attribute in source.attributes
        )
        attributes = tuple(attribute.name for attribute in source.attributes)
        scan = Scan(columns, source.followed, attributes, only, only and source.apart)
        no_rows = only and source.kind == "p"  # they are those of its partitions
        read = Filter(scan.columns, scan, Expr("false")) if no_rows else scan
        return BuiltQuery(read, tuple(zip(attributes, scan.names, strict=True)))

    def columns_of(self, schema: str, name: str) -> tuple[str, ...] | None:
        """The names of the columns of a table or view."""
        source = self._sources.get((schema, name))
        if isinstance(source, SourceRelation):
            return tuple(attribute.name for attribute in source.attributes)
        return None if source is None else source.columns

    def _with(self, name: str, inner: With) -> BuiltQuery:
        if inner.recursive:
            return recursion.build(self._context, self._queries, name, inner)
        return self._queries.query(inner.query, inner.names)

    def _view(self, view: InlinedView) -> BuiltQuery:
        with self._context.within_view(view.table):
            return self._queries.body(view.body)

    def _shared(self, owner: object, build: Callable[[], BuiltQuery], *, often: bool = False) -> BuiltQuery:
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
        used = self._context.factory.use(rows.operator, items)
        return BuiltQuery(used, tuple(zip((label for label, _ in rows.outputs), used.names, strict=True)))

    def nothing(self) -> Scope:
        """One row of which nothing is read: what a SELECT without FROM has."""
        return Scope(table_functions.constant(self._context.factory, "(VALUES (0))", ["nothing"]), (), {})

    def values(self, node: exp.Values) -> BuiltQuery:
        """VALUES of constants."""
        self._context.note_order(node)
        if node.find(exp.Column) is not None or node.find(exp.Query) is not None:
            raise self._context.refuse(gaps.VALUES, "", "values")
        labels = [f"column{place}" for place in range(1, len(node.expressions[0].expressions) + 1)]
        rows = table_functions.constant(self._context.factory, table_functions.values_text(node), labels)
        return BuiltQuery(rows, tuple(zip(labels, rows.names, strict=True)))


def _is_of(table: exp.Table, names: Names) -> bool:
    """Whether it is the name of a WITH query."""
    return not table.db and table.name in names


def _is_kept(operator: Operator) -> bool:
    """Whether the rows are those of a state, taken one by one."""
    while isinstance(operator, RowWise):
        operator = operator.input
    return isinstance(operator, Stateful)
