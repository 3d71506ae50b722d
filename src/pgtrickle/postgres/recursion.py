"""The rows of a recursion in its state table, and its recursive term over rows that carry something along. Pure SQL.

A UNION keeps its rows. A UNION ALL keeps, for each row and each round that made it, how often that was so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pgtrickle.delta.algebra import Changes
from pgtrickle.model import BIGINT, Column, PgType, quote
from pgtrickle.postgres.wire import WEIGHT
from pgtrickle.query.expression import reference
from pgtrickle.query.operators import Operator, Project, Recursive, UnionAll, WorkingTable

INTEGER = PgType(23, "integer")
ROUND = Column("pgt_round", INTEGER)
COPIES = Column("pgt_copies", BIGINT)


def told_apart(node: Recursive) -> tuple[Column, ...]:
    """The columns by which the state tells rows apart."""
    return node.columns if node.distinct else (*node.columns, ROUND)


def state_columns(node: Recursive) -> tuple[Column, ...]:
    """The columns of the state table, besides the hash."""
    return node.columns if node.distinct else (*node.columns, ROUND, COPIES)


def kept_rows(node: Recursive, table: str) -> str:
    """The recursion's rows, off its state table or what has the same columns."""
    rows = f"SELECT {names(node.columns)} FROM {table}"
    return rows if node.distinct else f"{rows} CROSS JOIN generate_series(1, {quote(COPIES.name)})"


def names(columns: Sequence[Column], alias: str = "") -> str:
    return ", ".join(alias + quote(column.name) for column in columns)


def carrying(tree: Operator, extra: tuple[Column, ...] = ()) -> tuple[Operator, tuple[Column, ...]]:
    """The tree with `extra` columns of its working table, and a weight of each delta in it, passed up to the top; and
    all these columns. For what makes its rows one by one of these."""
    match tree:
        case WorkingTable():
            return replace(tree, columns=tree.columns + extra), extra
        case Changes():
            weight = Column(weight_of(tree), BIGINT)
            return replace(tree, columns=(*tree.columns, weight)), (weight,)
    below = [carrying(each, extra) for each in tree.inputs]
    carried = tuple(column for _, columns in below for column in columns)
    if not carried:
        return tree, ()
    inputs = [each for each, _ in below]
    match tree:
        case Project():
            passed = tuple(reference(column) for column in carried)
            return Project(tree.columns + carried, inputs[0], tree.expressions + passed), carried
        case UnionAll():
            return UnionAll(tree.columns + carried, tuple(inputs)), carried
    return tree.with_inputs(inputs), carried


def weight_of(changes: Changes) -> str:
    """What the weight of a delta is called where it is one of several."""
    scan = changes.scan
    return f"{WEIGHT}_{scan.names[0] if scan.names else scan.table.oid}"  # of rows that are only counted, no column
