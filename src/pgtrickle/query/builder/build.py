"""PostgreSQL's normalised text to an operator tree, or a refusal that says where. Pure; called by `compile.py`.

Views and WITH queries are inlined. Each computed column is typed by `describe`, which asks PostgreSQL. Here the parts
of the builder are put together, each with the parts that it needs: FROM (`from_clause.py`), expressions and their
subqueries (`expressions.py`), SELECT (`select.py`), set operations (`set_queries.py`).
"""

from __future__ import annotations

from sqlglot import exp

from pgtrickle.query import gaps
from pgtrickle.query.analyse.analysis import Analysis, Body
from pgtrickle.query.builder import row_function, top_k
from pgtrickle.query.builder.column_factory import Describe
from pgtrickle.query.builder.context import BuildContext
from pgtrickle.query.builder.correlation import DomainValues
from pgtrickle.query.builder.domain_joins import DomainJoins
from pgtrickle.query.builder.expressions import Expressions
from pgtrickle.query.builder.from_clause import FromClause
from pgtrickle.query.builder.from_items import FromItems
from pgtrickle.query.builder.grouped_subquery import GroupedSubqueries
from pgtrickle.query.builder.keyed_subquery import Keyed
from pgtrickle.query.builder.lateral_query import LateralQueries
from pgtrickle.query.builder.limits import Limits
from pgtrickle.query.builder.queries import BuiltQuery
from pgtrickle.query.builder.refuse_clauses import refuse_clauses
from pgtrickle.query.builder.relations import Relations
from pgtrickle.query.builder.scope import Scope
from pgtrickle.query.builder.select import Selects
from pgtrickle.query.builder.select_groups import SelectGroups
from pgtrickle.query.builder.select_output import SelectOutput
from pgtrickle.query.builder.set_queries import SetQueries
from pgtrickle.query.builder.with_queries import Names, names_in
from pgtrickle.query.expression import reference
from pgtrickle.query.operators import Operator
from pgtrickle.query.rewrite import rewrite
from pgtrickle.query.syntax import (
    clock,
    dialect,
    grouping_sets,
    inherited_order,
    mark_grouping_keys,
    named_windows,
    sublinks,
    whole_rows,
)
from pgtrickle.query.syntax.inline_ctes import inlined
from pgtrickle.query.syntax.values_as_union import as_union


def build(analysis: Analysis, describe: Describe) -> Operator:
    """The tree of an analysed query, topped by a projection to the query's own columns; raises Unsupported."""
    context = BuildContext(analysis, describe)
    rows = _Builder(context).body(analysis.body)
    labels = [column.name for column in analysis.columns]
    if [label for label, _ in rows.outputs] != labels:
        raise context.refuse(gaps.UNFAITHFUL, "its output columns were not understood")
    tree = context.factory.exactly(rows.operator, [(reference(name), label) for label, name in rows.outputs])
    return rewrite(tree)


class _Builder:
    """Builds queries: the `Queries` of its parts."""

    def __init__(self, context: BuildContext) -> None:
        self._context = context
        expressions = Expressions(context, self)
        limits = Limits(context, expressions)
        output = SelectOutput(context, expressions, limits)
        groups = SelectGroups(context, expressions, output)
        lateral_queries = LateralQueries(context, self, expressions)
        self._relations = Relations(context, self)
        items = FromItems(context, self, expressions, self._relations, lateral_queries)
        self._from_clause = FromClause(self._relations, items, DomainJoins(context, items))
        self._selects = Selects(context, self, expressions, limits, groups, output)
        self._set_queries = SetQueries(context, limits)
        self._grouped_subqueries = GroupedSubqueries(context, self, expressions, limits, self._set_queries)

    def body(self, body: Body) -> BuiltQuery:
        """The query of the user, or of a view."""
        try:
            parsed = top_k.without_needless(top_k.without_all(dialect.parse(body.sql)), self._context.calls)
            written = named_windows.inlined(parsed)
        except dialect.UnknownSyntaxError as error:
            raise self._context.refuse(gaps.UNFAITHFUL, str(error)) from error
        written = clock.with_values(written)
        refuse_clauses(self._context, written)
        try:
            mark_grouping_keys.mark(written, body.grouped, self._context.calls)
        except grouping_sets.UnknownKeyError as what:
            raise self._context.refuse(gaps.GROUPING_KEYS, str(what), "grouping sets", "rollup", "cube") from what
        parsed = as_union(sublinks.spelled_out(whole_rows.spelled_out(written, self._relations.columns_of)))
        understood = self._context.calls.are(body.aggregates, parsed)
        parsed = inherited_order.spelled_out(parsed, self._context.calls)
        rows = self.query(inlined(parsed), {})
        # Said last: a refusal of the query's shape says more than this.
        if not understood:
            raise self._context.refuse(gaps.UNFAITHFUL, "an aggregate call was not understood")
        return rows

    def query(self, node: exp.Expr, names: Names, domain: DomainValues | None = None) -> BuiltQuery:
        """Any query; the output of one that is built for the values `domain` ends with these."""
        names = names_in(self._context, node, names)
        match node:
            case exp.Select():
                return self._selects.select(node, names, domain)
            case exp.SetOperation():
                sides = [self.query(side, names, domain) for side in (node.this, node.expression)]
                return self._set_queries.combined(node, sides, 0 if domain is None else len(domain.values.columns))
            case exp.Subquery() if isinstance(node.this, exp.Query):
                self._context.note_order(node)
                return self.query(node.this, names, domain)
            case exp.Values():
                return self._relations.values(node) if domain is None else self._values_by_key(node, domain)
        raise self._context.refuse(gaps.UNFAITHFUL, f"{type(node).__name__} is not a query we know")

    def by_key(self, query: exp.Expr, scope: Scope, names: Names) -> tuple[Keyed, list[str]] | None:
        """A query that reads the one around it, for all that may be asked of it."""
        return self._grouped_subqueries.by_key(query, scope, names)

    def rows(self, node: exp.Select, names: Names, start: Scope | None = None) -> Scope:
        """The rows of a FROM clause, beside those of `start`."""
        return self._from_clause.rows(node, names, start)

    def _values_by_key(self, node: exp.Values, domain: DomainValues) -> BuiltQuery:
        start = domain.use(self._context.factory)
        made, labels = row_function.expanded(self._context, start, node)
        fields = zip(labels, (column.name for column in made.made), strict=True)
        return BuiltQuery(made, (*fields, *(("", name) for name in start.operator.names)))
