"""Which stream tables that were made without rows (`initialize => false`) the service fills now. Pure.

One is filled when it is first due after it was made. One without a schedule of its own is filled when a table that
reads it is due. What reads a table that was never filled waits until it is. Called by `refresh_loop.py`.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Set as AbstractSet

from pgtrickle.scheduler.dag import Dag


def to_fill(
    dag: Dag, unfilled: AbstractSet[int], filled: Collection[int], due: Collection[int], halted: Collection[int] = ()
) -> frozenset[int]:
    """Of the `unfilled` tables that we are to fill, those whose turn it is, and that read nothing but `filled` ones.

    `dag` has all stream tables there are; `due` are filled and unfilled ones.
    """
    wanted = dag.needed(frozenset(due) & dag.tables.keys(), halted) & unfilled
    return frozenset(
        pgt_id for pgt_id in wanted.difference(halted) if (dag.upstream(pgt_id) - _beside(dag, pgt_id)).issubset(filled)
    )


def _beside(dag: Dag, pgt_id: int) -> frozenset[int]:
    """The tables of the circle that it is in, which are filled with it."""
    return frozenset(next((part for part in dag.circles if pgt_id in part), ()))
