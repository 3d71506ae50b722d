"""Works on `Expr`, a scalar expression over the tree's column names. Pure; used by `builder/build.py` and
`rewrite/`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from sqlglot import exp

from pgtrickle.model import Column, Expr, quote
from pgtrickle.query.syntax import dialect


def reference(column: Column | str) -> Expr:
    """The expression that is just a column."""
    name = column if isinstance(column, str) else column.name
    return Expr(quote(name), (name,))


def referenced(expression: Expr) -> str | None:
    """The column that `expression` is, if it is just one."""
    if len(expression.columns) == 1 and expression.sql == quote(expression.columns[0]):
        return expression.columns[0]
    return None


def column_node(name: str) -> exp.Column:
    """A reference to a tree column, as a syntax node."""
    return exp.Column(this=exp.to_identifier(name, quoted=True))


def from_node(node: exp.Expr) -> Expr:
    """The expression of a syntax node whose columns are tree columns."""
    columns = dict.fromkeys(column.name for column in tree_columns(node))
    return Expr(dialect.text(_bare(node)), tuple(columns))


def tree_columns(node: exp.Expr) -> Iterator[exp.Column]:
    """The columns of the tree that an expression reads; those of a query within it have its alias before them."""
    return (column for column in node.find_all(exp.Column, bfs=False) if not column.table)


def columns_of(nodes: Iterable[exp.Expr]) -> set[str]:
    """The tree's columns that syntax nodes read."""
    return {column.name for node in nodes for column in tree_columns(node)}


def conjuncts(condition: Expr) -> tuple[Expr, ...]:
    """`a AND b AND c` as (a, b, c), in this order."""
    return tuple(from_node(part) for part in conjunct_nodes(node_of(condition)))


def conjunct_nodes(node: exp.Expr) -> list[exp.Expr]:
    """The parts of a conjunction, as syntax nodes."""
    node = _bare(node)
    if isinstance(node, exp.And):
        return conjunct_nodes(node.left) + conjunct_nodes(node.right)
    return [node]


def conjunction(parts: Iterable[Expr]) -> Expr | None:
    """(a, b, c) as `a AND b AND c`; None for none."""
    found = tuple(parts)
    if len(found) <= 1:
        return found[0] if found else None
    columns = dict.fromkeys(name for part in found for name in part.columns)
    return Expr(" AND ".join(f"({part.sql})" for part in found), tuple(columns))


def substitute(expression: Expr, replacements: Mapping[str, Expr]) -> Expr:
    """`expression` with columns replaced by expressions."""

    def replace(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Column) and node.name in replacements:
            replacement = node_of(replacements[node.name])
            return replacement if isinstance(replacement, exp.Column) else exp.Paren(this=replacement)
        return node

    return from_node(node_of(expression).transform(replace))


def equality_sides(condition: Expr) -> tuple[Expr, Expr] | None:
    """The sides of `left = right`; None for any other condition."""
    node = _bare(node_of(condition))
    if type(node) is exp.EQ and not isinstance(node.right, exp.Any | exp.All):
        return from_node(node.left), from_node(node.right)
    return None


def element(expression: Expr) -> Expr:
    """x of ARRAY[x], by which NULLs are compared too (see `keyed.Key`); any other expression as it is."""
    node = parsed(expression.sql)
    is_one = isinstance(node, exp.Array) and len(node.expressions) == 1
    return from_node(node.expressions[0]) if is_one else expression


def node_of(expression: Expr) -> exp.Expr:
    """A fresh syntax node of the expression."""
    return parsed(expression.sql).copy()


@lru_cache(maxsize=1024)
def parsed(sql: str) -> exp.Expr:
    """The syntax node of an expression that others have too: to look at, not to change."""
    return dialect.parse_expression(sql)


def _bare(node: exp.Expr) -> exp.Expr:
    while isinstance(node, exp.Paren):
        node = node.this
    return node
