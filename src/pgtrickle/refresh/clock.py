"""The clock of a refresh: the time that its query reads, and which values made of it moved since the last refresh.

    before  =  the data_timestamp of the table, as the catalog has it          now  =  that of this refresh

Both are settings of every session that evaluates a part of the query (`query/syntax/clock.py`). Nothing here asks that
the clock goes forward. Called by `table_refresh.py`, `dry_run.py`, `idle.py`, `explain.py`, `verification/verify.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pgtrickle.answers import BEFORE, NOW
from pgtrickle.db import Connection, statement
from pgtrickle.model import Expr
from pgtrickle.postgres.turned import rows_that_turn
from pgtrickle.query import render
from pgtrickle.query.clock import values_in, values_of
from pgtrickle.query.operators import Operator, RowWise, Stateful, walk

_HOURS = 25
"""No clock was ever set on by more."""


@dataclass(frozen=True, slots=True)
class ClockMoves:
    """The values of the clock that moved, by number, with an estimate of how many rows each may change. `unknown` are
    those of all that are NULL then or now. `anywhere`: one of them may change any row, as no bound moves with it."""

    rows: Mapping[int, int] = field(default_factory=dict)
    unknown: frozenset[int] = frozenset()
    anywhere: bool = False

    @property
    def moved(self) -> frozenset[int]:
        return frozenset(self.rows)

    @property
    def reason(self) -> str | None:
        """What the history says of it."""
        if not self.rows:
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
    unbound = (" OR ".join(_binds_nothing(end.sql) for end in (each.now, each.before)) for each in values)
    found = connection.execute(statement(f"SELECT {', '.join([*compared, *unbound])}")).fetchone()
    assert found is not None
    moved = frozenset(each.number for each, is_other in zip(values, found, strict=False) if is_other)
    unknown = frozenset(each.number for each, is_so in zip(values, found[len(values) :], strict=True) if is_so)
    rows, anywhere = dict.fromkeys(moved, 1), False
    for node in (node for node in walk(tree) if isinstance(node, RowWise)):
        numbers = moved.intersection(value.number for value in values_of(node))
        if numbers:
            among = rows_that_turn(node, unknown)
            anywhere |= among is None
            expected = _expected(connection, node.input, among)
            rows |= {number: rows[number] + expected for number in numbers}
    return ClockMoves(rows, unknown, anywhere)


def _binds_nothing(value: str) -> str:
    """Whether a value is NULL, or a time in the hour by which clocks were just set on. What has no time zone and is
    compared with that has another order than in an index: 02:30, which does not exist, is taken for 03:30."""
    time = f"SELECT x AS at FROM (SELECT ({value})::text::timestamptz AS x) AS time WHERE isfinite(x)"
    shift = f"extract(epoch FROM at::timestamp - (at - interval '{_HOURS} hours')::timestamp) - {_HOURS * 3600}"
    since = "extract(epoch FROM at::timestamp - (at - make_interval(secs => shift::float8))::timestamp)"
    set_on = (
        f"SELECT shift > 0 AND {since} > shift FROM (SELECT at, {shift} AS shift FROM ({time}) AS found) AS shifted"
    )
    is_time = f"pg_typeof({value}) = 'timestamptz'::regtype"
    return f"({value}) IS NULL OR coalesce(CASE WHEN {is_time} THEN ({set_on}) END, false)"


def _expected(connection: Connection, rows: Operator, among: Expr | None) -> int:
    """How many of an operator's rows PostgreSQL expects to meet a condition. (Of state there is none: it is not known
    here where that is.)"""
    if any(isinstance(node, Stateful) for node in walk(rows)):
        return 0
    where = "" if among is None else f" WHERE {among.sql}"
    query = f"EXPLAIN (FORMAT JSON) SELECT FROM ({render.select(rows)}) AS near{where}"
    ((plan,),) = connection.execute(statement(query)).fetchall()
    assert isinstance(plan, list)
    return int(plan[0]["Plan"]["Plan Rows"])


def _text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds")
