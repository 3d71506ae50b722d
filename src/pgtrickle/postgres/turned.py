"""SQL for what the clock changes of rows: f(X) − f₀(X), f an operator that reads the clock. Pure; see `query/clock.py`.

    σ: the rows for which the condition turned, +1 if it is true now            π: −f₀ +f of rows that differ

Of X only rows are read for which a comparison with the clock turns, where that is known: an index can find them.
"""

from __future__ import annotations

from collections.abc import Collection

from pgtrickle.model import Expr, quote
from pgtrickle.postgres.row_image import by_image
from pgtrickle.postgres.weighted import negated, run_steps
from pgtrickle.postgres.wire import WEIGHT
from pgtrickle.query.clock import before_window, turns
from pgtrickle.query.operators import Filter, RowWise


def rows_that_turn(operator: RowWise, unknown: Collection[int]) -> Expr | None:
    """A condition on the rows of the input that is true of all that may turn; None if that may be any. A value that is
    `unknown` (its number), NULL now or then, bounds nothing."""
    found = turns(operator)
    if found is None or any(turn.value.number in unknown for turn in found):
        return None
    columns = dict.fromkeys(name for turn in found for name in turn.condition.columns)
    return Expr(" OR ".join(f"({turn.condition.sql})" for turn in found), tuple(columns))


def turned(operator: RowWise, rows: str, among: Expr | None) -> str:
    """What the clock changes of weighted rows of the operator's input, `among` them those of a condition."""
    if among is not None:
        rows = f"SELECT * FROM ({rows}) AS near WHERE {among.sql}"
    then = before_window(operator)
    columns = [quote(name) for name in operator.names]
    if isinstance(operator, Filter) and isinstance(then, Filter):
        now, before = (f"(({each.condition.sql}) IS TRUE)" for each in (operator, then))
        weight = f"CASE WHEN {now} THEN {WEIGHT} ELSE -{WEIGHT} END AS {WEIGHT}"
        return f"SELECT {', '.join([*columns, weight])} FROM ({rows}) AS turned WHERE {now} <> {before}"
    old = negated(run_steps(rows, (then,)), operator.names)
    return by_image(f"{run_steps(rows, (operator,))} UNION ALL {old}", operator.columns)
