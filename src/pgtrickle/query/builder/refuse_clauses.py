"""Refuses what the clauses of a query hold that nobody looks at (`syntax/clauses.py`). Pure; called by `build.py`."""

from __future__ import annotations

from sqlglot import exp

from pgtrickle.query import gaps
from pgtrickle.query.builder.context import BuildContext
from pgtrickle.query.syntax import clauses


def refuse_clauses(context: BuildContext, query: exp.Expr) -> None:
    """Raises Unsupported for the first such part."""
    for clause, part in clauses.unknown(query):
        match part:
            case "limit" | "offset":
                phrases = ("limit", "offset", "fetch first", "fetch next")
                raise context.refuse(gaps.LIMIT, "LIMIT in this place", *phrases)
            case "locks":
                kind = "UPDATE" if clause.args["locks"][0].args.get("update") else "SHARE"
                raise context.refuse(gaps.ROW_LOCK, kind, f"for {kind.lower()}", "for no", "for key")
            case "sample":
                raise context.refuse(gaps.TABLESAMPLE, "", "tablesample")
        raise context.refuse(gaps.UNFAITHFUL, f"{type(clause).__name__} has {part}")
