"""What lets a window call be computed from some row of its partition on: an order by columns, and a frame that ends
with the row or its peers. Pure; a part of `window_calls.py`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from sqlglot import exp

from pgtrickle.model import PgType
from pgtrickle.query.expression import from_node, referenced
from pgtrickle.query.operators import GoesOn, Reach, SortPart
from pgtrickle.query.syntax import dialect

EXACT_SUMS: Final = frozenset({20, 1700})
"""Results of sums and averages that do not depend on the order: of integers, of numerics."""

_RANKS = {"row_number": GoesOn.PLACE, "rank": GoesOn.RANK, "dense_rank": GoesOn.ADDED}
_RUNNING = {
    "count": GoesOn.ADDED,
    "sum": GoesOn.ADDED,
    "avg": GoesOn.MEAN,
    "min": GoesOn.LEAST,
    "max": GoesOn.GREATEST,
    "first_value": GoesOn.FIRST,
    "last_value": GoesOn.ANEW,
}
_OF_LATER = frozenset({"ntile", "percent_rank", "cume_dist"})
"""What looks at all rows of the partition."""
_MOST_ROWS = 1000
"""That a call may look at before its own, or after it."""
_DIRECTION = re.compile(r"(?: (ASC|DESC))?(?: NULLS (FIRST|LAST))?")


def sort_parts(order: Sequence[exp.Expr]) -> tuple[SortPart, ...]:
    """The parts of an order, if each is a column in its type's own order; else none."""
    found = []
    for part in order:
        column = referenced(from_node(part.this))
        direction = _DIRECTION.fullmatch(dialect.text(part).removeprefix(dialect.text(part.this)))
        if column is None or direction is None:
            return ()
        descending = direction[1] == "DESC"
        found.append(SortPart(column, descending, direction[2] == "FIRST" if direction[2] else descending))
    return tuple(found)


def goes_on(name: str, window: exp.Window, type_: PgType) -> tuple[GoesOn | None, Reach]:
    """How a built-in function of that name goes on from the row before, and what else it looks at. None if it looks at
    later rows, however many, as any other function may."""
    spec = window.args.get("spec")
    if name in _RANKS:
        return _RANKS[name], Reach()
    if name in ("lag", "lead"):
        by = _offset(window.this)
        return (None, Reach()) if by is None else (GoesOn.ANEW, Reach(by, 0) if name == "lag" else Reach(0, by))
    if not name or name in _OF_LATER:
        return None, Reach()
    if spec is not None and not _is_running(spec):
        reach = _rows_around(spec)
        return (None, Reach()) if reach is None else (GoesOn.ANEW, reach)
    of_sum, of_value = type_.oid in EXACT_SUMS, type_.has_one_look
    exact = {"sum": of_sum, "avg": of_sum, "min": of_value, "max": of_value}
    return _RUNNING.get(name, GoesOn.NOT) if exact.get(name, True) else GoesOn.NOT, Reach()


def _offset(call: exp.Expr) -> int | None:
    """By how many rows lag or lead look, if they say so by a number."""
    if not isinstance(call, exp.Anonymous):
        return None
    return 1 if len(call.expressions) == 1 else _number(call.expressions[1])


def _rows_around(spec: exp.WindowSpec) -> Reach | None:
    """The reach of a frame from some row before to some row after."""
    if spec.args.get("kind") != "ROWS" or spec.args.get("exclude") is not None:
        return None
    start, end = _bound(spec, "start"), _bound(spec, "end")
    return None if start is None or end is None else Reach(max(-start, 0), max(end, 0))


def _bound(spec: exp.WindowSpec, which: str) -> int | None:
    """How many rows a bound of a frame is behind its row; negative before it."""
    bound = spec.args.get(which)
    if bound in (None, "CURRENT ROW"):
        return 0
    number = _number(bound) if isinstance(bound, exp.Expr) else None
    return number if number is None or spec.args.get(f"{which}_side") == "FOLLOWING" else -number


def _number(node: exp.Expr) -> int | None:
    """A number of rows, if not too many to be looked for one by one."""
    if isinstance(node, exp.Cast):
        node = node.this
    if not isinstance(node, exp.Literal) or not node.name.isdigit():
        return None
    return int(node.name) if int(node.name) <= _MOST_ROWS else None


def _is_running(spec: exp.WindowSpec | None) -> bool:
    """Whether the frame is all up to the row, or up to its peers."""
    if spec is None:
        return True
    starts = spec.args.get("start") == "UNBOUNDED" and spec.args.get("start_side") == "PRECEDING"
    return starts and spec.args.get("end") in (None, "CURRENT ROW") and spec.args.get("exclude") is None
