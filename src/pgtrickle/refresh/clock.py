"""The clock of a refresh: the time that its query reads, and which values made of it moved since the last refresh.

    before  =  the data_timestamp of the table, as the catalog has it          now  =  that of this refresh

Both are settings of every session that evaluates a part of the query (`query/syntax/clock.py`). Nothing here asks that
the clock goes forward. Called by `table_refresh.py`, `dry_run.py`, `explain.py` and `verification/verify.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from pgtrickle.answers import BEFORE, NOW
from pgtrickle.db import Connection, statement
from pgtrickle.query.clock import turns, values_in, values_of
from pgtrickle.query.operators import Operator, walk


@dataclass(frozen=True, slots=True)
class ClockMoves:
    """The values of the clock that moved, by number; `unknown` are those of all that are NULL then or now. `anywhere`:
    one of them may change any row, as no bound moves with it."""

    moved: frozenset[int] = frozenset()
    unknown: frozenset[int] = frozenset()
    anywhere: bool = False

    @property
    def reason(self) -> str | None:
        """What the history says of it."""
        if not self.moved:
            return None
        return "the clock moved, and may change any row" if self.anywhere else "the clock moved"


def settings_at(settings: Mapping[str, str], now: datetime, before: datetime | None = None) -> dict[str, str]:
    """The settings of a table, with the time."""
    return {**settings, NOW: _text(now), BEFORE: _text(before or now)}


def moves(connection: Connection, tree: Operator) -> ClockMoves:
    """What moved; asked of PostgreSQL in a transaction that has the settings."""
    values = values_in(tree)
    if not values:
        return ClockMoves()
    compared = (f"ROW({each.now.sql})::text <> ROW({each.before.sql})::text" for each in values)
    missing = (f"num_nulls(({each.now.sql}), ({each.before.sql})) > 0" for each in values)
    found = connection.execute(statement(f"SELECT {', '.join([*compared, *missing])}")).fetchone()
    assert found is not None
    moved = frozenset(each.number for each, is_other in zip(values, found, strict=False) if is_other)
    unknown = frozenset(each.number for each, is_null in zip(values, found[len(values) :], strict=True) if is_null)
    return ClockMoves(moved, unknown, _anywhere(tree, moved, unknown))


def _anywhere(tree: Operator, moved: frozenset[int], unknown: frozenset[int]) -> bool:
    timed = (node for node in walk(tree) if any(value.number in moved for value in values_of(node)))
    bounds = (turns(node) for node in timed)
    return any(found is None or any(turn.value.number in unknown for turn in found) for found in bounds)


def _text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds")
