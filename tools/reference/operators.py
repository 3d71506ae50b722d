"""The page of operators: each rule file of `delta/` by its docstring, with a query and the delta plan made of it."""

from __future__ import annotations

import ast
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pgtrickle import delta
from pgtrickle.config import Settings
from pgtrickle.db import Connection
from pgtrickle.refresh.explain import explain_query
from tools.reference import markdown

_TABLES: Final = """
CREATE TABLE public.customers (id integer PRIMARY KEY, region text NOT NULL, parent integer);
CREATE TABLE public.orders (id integer PRIMARY KEY, customer integer NOT NULL, amount numeric(10,2) NOT NULL);
"""


@dataclass(frozen=True, slots=True)
class Example:
    """What of SQL becomes the operator, and a query that does."""

    sql: str
    query: str


EXAMPLES: Final = {
    "scan": Example(
        "a table, partitioned table, materialized view, foreign table or stream table in `FROM`, also within a view",
        "SELECT id, amount FROM orders",
    ),
    "constant": Example(
        "`VALUES`, and functions of constants in `FROM`",
        "SELECT o.id, v.name FROM orders o JOIN (VALUES (1, 'one'), (2, 'two')) AS v(id, name) ON v.id = o.customer",
    ),
    "row_wise": Example(
        "`WHERE`, `HAVING`, expressions of `SELECT`, set-returning functions, `now()`",
        "SELECT id, amount * 2 AS twice FROM orders WHERE amount > 10",
    ),
    "inner_join": Example(
        "`JOIN`, `FROM a, b`, `LATERAL`, scalar subqueries that always have a row",
        "SELECT o.id, c.region FROM orders o JOIN customers c ON c.id = o.customer",
    ),
    "left_join": Example(
        "`LEFT JOIN`, `RIGHT JOIN`, scalar subqueries; `FULL JOIN` with an anti-join",
        "SELECT c.region, o.id FROM customers c LEFT JOIN orders o ON o.customer = c.id",
    ),
    "match": Example(
        "`EXISTS`, `IN`, `NOT IN`, `ANY`, `ALL`, and these within other conditions",
        "SELECT id FROM customers c WHERE NOT EXISTS (SELECT FROM orders o WHERE o.customer = c.id)",
    ),
    "union_all": Example(
        "`UNION ALL`; with an aggregate above it `UNION`, `INTERSECT` and `EXCEPT`, and grouping sets",
        "SELECT id FROM customers UNION ALL SELECT customer FROM orders",
    ),
    "aggregate": Example(
        "`GROUP BY`, aggregates, `DISTINCT`, `DISTINCT ON`, `UNION`, `INTERSECT`, `EXCEPT`",
        "SELECT customer, count(*) AS orders, sum(amount) AS total FROM orders GROUP BY customer",
    ),
    "window": Example(
        "window functions and aggregates with `OVER`",
        "SELECT id, rank() OVER (PARTITION BY customer ORDER BY amount DESC) AS place FROM orders",
    ),
    "top_k": Example(
        "`ORDER BY … LIMIT`, with or without `OFFSET` or `WITH TIES`",
        "SELECT id, amount FROM orders ORDER BY amount DESC, id LIMIT 3",
    ),
    "recursive": Example(
        "`WITH RECURSIVE`",
        "WITH RECURSIVE below AS (SELECT id FROM customers WHERE parent IS NULL"
        " UNION SELECT c.id FROM customers c JOIN below b ON c.parent = b.id) SELECT id FROM below",
    ),
}


def page(conn: Connection) -> str:
    return markdown.page(
        "Operators and their delta rules",
        "A query becomes a tree of these operators. A rule says what changes in an operator's result when its inputs"
        " change. Δ is what changes in a window, ′ the state at its end, ∅ nothing; a row that goes has the weight −1,"
        " one that comes +1. Each rule is a file of `delta/` in the source, and this is what stands at its top."
        " [The delta algebra](../design/delta.md) says how rules are put together,"
        " [Limits](../LIMITS.md) what has no rule. `pgtrickle explain --query` shows both trees of any query, as"
        " below.",
        *(_section(conn, rule) for rule in _rules()),
    )


def _rules() -> list[str]:
    """The rule files, in the order of the examples; one without an example is an error."""
    files = Path(delta.__file__).parent.glob("*.py")
    rules = {path.stem for path in files if "@differentiate.register" in path.read_text(encoding="utf-8")}
    if rules != EXAMPLES.keys():
        raise KeyError(f"examples and rule files differ: {sorted(rules ^ EXAMPLES.keys())}")
    return list(EXAMPLES)


def _section(conn: Connection, rule: str) -> str:
    source = (Path(delta.__file__).parent / f"{rule}.py").read_text(encoding="utf-8")
    title, _, told = (ast.get_docstring(ast.parse(source)) or "").partition("\n\n")
    example = EXAMPLES[rule]
    query = textwrap.fill(example.query, 110, subsequent_indent="  ", break_on_hyphens=False)
    parts = [
        f"## {' '.join(title.split()).rstrip('.')}",
        f"In SQL: {example.sql}. Rule file: `delta/{rule}.py`.",
        *_paragraphs(told),
        f"```sql\n{query}\n```",
        f"```text\n{_trees(conn, example.query)}```",
    ]
    return "\n\n".join(parts)


def _paragraphs(told: str) -> list[str]:
    """Indented ones as they stand, the others as prose."""
    found = []
    for each in told.split("\n\n"):
        if each.startswith("    "):
            found.append(f"```text\n{textwrap.dedent(each).rstrip()}\n```")
        else:
            found.append(markdown.prose(each))
    return found


def _trees(conn: Connection, query: str) -> str:
    """The operators and the delta plan that `explain` shows."""
    with conn.transaction(force_rollback=True):
        conn.execute(_TABLES)
        told = explain_query(conn, query, Settings())
    kept, wanted = [], False
    for line in told.splitlines():
        wanted = line.startswith(("operators", "delta plan")) if not line.startswith(" ") else wanted
        if wanted:
            kept.append(line)
    return "".join(f"{line}\n" for line in kept)
