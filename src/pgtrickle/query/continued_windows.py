"""How much of a partition has to be computed again when some of its rows change. Pure; called by
`rewrite/first_places.py`, `postgres/statements/` and `explain`.

    all of it            a call looks at all rows, or the calls have several orders, or one that we cannot index
    from a row on        each call goes on from the row before (`GoesOn`) or looks at some rows around its own, in an
                         order of columns that an index can hold
    the first places     no call looks at later rows, in such an order, and a filter above keeps no others
"""

from __future__ import annotations

from enum import Enum

from pgtrickle.query.operators import GoesOn, Reach, SortPart, Ties, Window, WindowCall

_MOST_BYTES, _MOST_PARTS = 2000, 10
"""Of an entry of an index; it may have some 2700 bytes, and 32 columns."""


_CARRIED = frozenset({GoesOn.ADDED, GoesOn.MEAN, GoesOn.LEAST, GoesOn.GREATEST})
"""What differs from row to row, and is not known from the row itself."""


class Extent(Enum):
    """What of a partition is computed again."""

    WHOLE = "whole"
    FROM_CHANGE = "from the first changed row on"
    FIRST_PLACES = "the first places"


def extent(window: Window) -> Extent:
    if not shared_order(window):
        return Extent.WHOLE
    if window.first is not None:
        return Extent.FIRST_PLACES
    return Extent.FROM_CHANGE if goes_on(window) and not lacks_columns(window) else Extent.WHOLE


def shared_order(window: Window) -> tuple[SortPart, ...]:
    """The order of all calls, if they look at few later rows in it and an index can hold it; else nothing."""
    orders = {call.sorts for call in window.calls}
    if len(orders) > 1 or any(call.goes_on is None for call in window.calls):
        return ()
    (order,) = orders
    types = {column.name: column.type for column in window.input.columns}
    sizes = [types[part.column].most_bytes for part in order]
    fits = len(order) <= _MOST_PARTS and None not in sizes and sum(size or 0 for size in sizes) <= _MOST_BYTES
    return order if fits else ()


def goes_on(window: Window) -> bool:
    """Whether each call goes on from the row before, given what it is made of."""
    return all(call.goes_on not in (None, GoesOn.NOT) for call in window.calls)


def total(mean: WindowCall) -> str:
    """The name of the column that has the sum of which a mean is made."""
    return f"pgt_sum_{mean.output.name}"


def number(mean: WindowCall) -> str:
    """The name of the column that has the number of values of which a mean is made."""
    return f"pgt_count_{mean.output.name}"


def lacks_columns(window: Window) -> bool:
    """Whether a call goes on only beside others that are not there."""
    made = {call.output.name for call in window.calls}
    means = any(call.goes_on is GoesOn.MEAN and total(call) not in made for call in window.calls)
    return means or (needs_place(window) and not is_placed(window))


def is_placed(window: Window) -> bool:
    """Whether a call numbers the rows one by one."""
    return any(call.goes_on is GoesOn.PLACE for call in window.calls)


def needs_place(window: Window) -> bool:
    """Whether one of several rows that tie must be known to be the last of them: what a frame of rows made of it
    differs from what it made of its peers."""
    return any(call.ties is Ties.ORDERED and call.goes_on in _CARRIED for call in window.calls)


def reach(window: Window) -> Reach:
    """The rows around its own that any of the calls looks at."""
    return Reach(max(call.reach.back for call in window.calls), max(call.reach.ahead for call in window.calls))
