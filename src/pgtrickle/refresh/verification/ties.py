"""A second comparison, for a query that leaves open which of several rows that tie comes first (`query/left_open.py`).

The user's text is asked first. If it has as many rows as the table, but other ones, the query is asked again with ties
in the order that a refresh takes them in: by our tree, over the sources as they are or were. What is wrong with the
rows shows in that too; what is wrong with the tree shows only where nothing ties. Called by `verify.py`.
"""

from __future__ import annotations

from collections.abc import Collection

from pgtrickle import db
from pgtrickle.catalog.reader import StreamTable
from pgtrickle.model import quote
from pgtrickle.physical.flow import Place
from pgtrickle.query import render
from pgtrickle.query.left_open import left_open
from pgtrickle.query.operators import Operator, Scan
from pgtrickle.refresh.connections import Connections
from pgtrickle.refresh.definition.binding import compile_bound
from pgtrickle.refresh.verification.comparison import Differences, compare
from pgtrickle.refresh.window import Window, moved


def compared_again(
    connections: Connections, stream: StreamTable, window: Window, changed: Collection[int], found: Differences
) -> tuple[Differences, str | None]:
    """The differences that are left, and in whose order rows tie, if that is why there were some."""
    if found.missing != found.extra or not found.missing:
        return found, None
    if any(window.spans[oid].place is not Place.SNAPSHOT for oid in changed):
        return found, None  # the changes are not where the tables are read
    with connections.aside.transaction():
        tree = compile_bound(connections.aside, stream).compiled.tree
    why = None if tree is None else left_open(tree)
    if tree is None or why is None:
        return found, None
    rest = compare(connections.reader, stream, db.statement(_as_refreshed(tree, window, changed)))
    return (rest, why) if rest.missing == rest.extra == 0 else (found, None)


def _as_refreshed(tree: Operator, window: Window, changed: Collection[int]) -> str:
    """An item of FROM: the rows of the tree as of the table's snapshot, under the user's names."""

    def then(node: Operator) -> str | None:
        if not isinstance(node, Scan) or node.table.oid not in changed:
            return None
        return moved(node, window.changes_of(node), -1)

    labelled = ", ".join(f"{quote(column.name)} AS {quote(column.label)}" for column in tree.columns)
    return f"(SELECT {labelled} FROM ({render.select(tree, leaf=then)}) AS of_tree) AS as_refreshed"
