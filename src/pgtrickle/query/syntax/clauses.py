"""What each clause of a query may hold. Pure; called by `builder/build.py`, for all of a query at once.

sqlglot knows the clauses of many dialects, and of PostgreSQL more than the builder looks at. What stands here is looked
at, or says nothing of the rows (the order of a subquery); the rest would be lost without a word, and the query would
mean something else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sqlglot import exp

from pgtrickle.query.syntax import dialect

_ORDERED = frozenset({"order", "limit", "offset"})

_KNOWN: Mapping[type[exp.Expr], frozenset[str]] = {
    exp.CTE: frozenset({"this", "alias", "materialized", "search", "cycle"}),
    exp.Cube: frozenset({"expressions"}),
    exp.Distinct: frozenset({"on", "expressions"}),
    exp.Fetch: frozenset({"direction", "count", "limit_options"}),
    exp.From: frozenset({"this"}),
    exp.Group: frozenset({"expressions"}),
    exp.GroupingSets: frozenset({"expressions"}),
    exp.Having: frozenset({"this"}),
    exp.Join: frozenset({"this", "on", "using", "kind", "side", dialect.USING_ALIAS}),
    exp.Lateral: frozenset({"this", "alias", "ordinality", "joins"}),
    exp.Limit: frozenset({"expression"}),
    exp.LimitOptions: frozenset({"rows", "with_ties"}),
    exp.Offset: frozenset({"expression"}),
    exp.Order: frozenset({"this", "expressions"}),
    exp.Ordered: frozenset({"this", "desc", "nulls_first"}),
    exp.Rollup: frozenset({"expressions"}),
    exp.Select: frozenset({"expressions", "from_", "joins", "where", "group", "having", "with_", "distinct"})
    | _ORDERED,
    exp.SetOperation: frozenset({"this", "expression", "distinct", "with_"}) | _ORDERED,
    exp.Subquery: frozenset({"this", "alias", "joins", "order", "with_"}),
    exp.Table: frozenset({"this", "db", "alias", "joins", "ordinality", "only"}),
    exp.TableAlias: frozenset({"this", "columns"}),
    exp.Unnest: frozenset({"expressions", "alias", "offset", "joins"}),
    exp.Values: frozenset({"expressions", "alias", "joins"}) | _ORDERED,
    exp.Where: frozenset({"this"}),
    exp.Window: frozenset({"this", "partition_by", "order", "spec", "over"}),
    exp.WindowSpec: frozenset({"kind", "start", "start_side", "end", "end_side", "exclude"}),
    exp.With: frozenset({"expressions", "recursive"}),
}


def unknown(query: exp.Expr) -> Iterator[tuple[exp.Expr, str]]:
    """The parts of clauses that nobody looks at, each with its clause."""
    for node in query.walk():
        known = next((parts for kind, parts in _KNOWN.items() if isinstance(node, kind)), None)
        if known is not None:
            yield from ((node, part) for part, value in node.args.items() if value and part not in known)
