"""What a query must be to be kept in its writers' own transactions, besides incremental. Called by `define.py`."""

from __future__ import annotations

from pgtrickle.capture.source import Source, read_source
from pgtrickle.db import Connection
from pgtrickle.errors import Unsupported
from pgtrickle.model import Table
from pgtrickle.query.compile import Compiled


def refusal(connection: Connection, compiled: Compiled) -> Unsupported | None:
    """Why it cannot be in IMMEDIATE mode, if it cannot."""
    if compiled.analysis.reads_clock:
        return Unsupported(
            "now() and its kin cannot be kept in IMMEDIATE mode: rows come and go with the time, when no one writes",
            code="PT700",
            hint="leave the time out of the query, or use refresh_mode => 'DIFFERENTIAL'",
        )
    for source in compiled.analysis.sources:
        if source.is_compared:
            return _unseen(source.table, "changes by no statement that a trigger sees")
        if source.apart:
            return _unseen(
                source.table, "has heirs, whose rows a statement's trigger does not tell from its own (ONLY)"
            )
        found = read_source(connection, source.table)
        if found.row_level:
            return _not_by_statement(found)
        if found.unlogged:
            return _unseen(source.table, "is unlogged, and emptied by a crash unseen")
    return None


def _unseen(table: Table, why: str) -> Unsupported:
    return Unsupported(
        f"{table} cannot be read in IMMEDIATE mode: it {why}",
        code="PT702",
        hint="use refresh_mode => 'DIFFERENTIAL'",
    )


def _not_by_statement(source: Source) -> Unsupported:
    """Only statements end; what row triggers alone see has no end at which to maintain anything."""
    return Unsupported(
        f"{source.table} cannot be read in IMMEDIATE mode: it is a partition or heir of another table, or the target of"
        " a subscription, so that what writes to it need not name it",
        code="PT701",
        hint="read the partitioned table, or use refresh_mode => 'DIFFERENTIAL'",
    )
