"""Queries for a window of which only a part of a partition is computed again. Pure; a part of `window_rows.py`.

    changed  of each partition touched, its first changed row, or one before it that looks at that one
    start    where to begin: so many rows before as the calls look at, and what the calls made of the row before that
    from the first changed row on     w of the kept rows from there, each call going on from the row before (`GoesOn`)
    the first places                  w of the first rows, found by the index; a row beyond them has NULL in each call

A partition whose row before the first changed one is beyond the first places has the same first places as before.
"""

from __future__ import annotations

from collections.abc import Callable

from pgtrickle.model import quote
from pgtrickle.postgres.aggregate import same_keys
from pgtrickle.postgres.statements.window_order import before, not_before, peers, sorted_by
from pgtrickle.query.continued_windows import number, reach, shared_order, total
from pgtrickle.query.operators import FirstPlaces, GoesOn, Window, WindowCall

FEW = 1000
"""Rows of each partition that are looked for by the index. Where there are more, PostgreSQL chooses how to read."""


def changed(window: Window, table: str, delta: str) -> str:
    """The first row of each partition of which the calls may make something else: the first changed one, or one before
    it that looks at it."""
    keys = ", ".join(["h", *map(quote, window.keys)])
    columns = ", ".join(map(quote, _found_by(window)))
    order = sorted_by(shared_order(window), "d")
    rows = f"SELECT DISTINCT ON ({keys}) h, {columns} FROM {delta} AS d ORDER BY {keys}, {order}"
    return rows if window.first is not None else _back(window, table, rows, reach(window).ahead)


def start(window: Window, table: str, changed: str) -> str:
    """One row for each partition: where to begin, so that the calls see all rows that they look at, and what the calls
    made of the row before."""
    rows = f"SELECT * FROM {changed}"
    rows = rows if window.first is not None else _back(window, table, rows, reach(window).back)
    carried = ", ".join(f"{_carried(window, table, call)} AS {quote(call.output.name)}" for call in window.calls)
    return (
        f"SELECT row_number() OVER () AS p, f.*, b.h IS NOT NULL AS preceded, {carried} "
        f"FROM ({rows}) AS f LEFT JOIN LATERAL ({_before(window, table, 1)}) AS b ON true"
    )


def is_before_change(window: Window, row: str) -> str:
    """Whether a row comes before the first of which the calls may make something else, a row `c`."""
    cases = " OR ".join(f"({case})" for case in before(shared_order(window), row, "c"))
    return f"{_of_partition(window, row, 'c')} AND ({cases})"


def _back(window: Window, table: str, rows: str, count: int) -> str:
    """So many rows before these; the first of their partitions, where there are fewer."""
    if not count:
        return rows
    farthest = f"SELECT * FROM ({_before(window, table, count)}) AS s ORDER BY {sorted_by(shared_order(window), 's')}"
    columns = (f"CASE WHEN b.h IS NULL THEN f.{name} ELSE b.{name} END AS {name}" for name in _quoted_order(window))
    keys = ["f.h", *(f"f.{quote(name)}" for name in window.keys)]
    selected = ", ".join([*keys, *columns])
    return f"SELECT {selected} FROM ({rows}) AS f LEFT JOIN LATERAL ({farthest} LIMIT 1) AS b ON true"


def _before(window: Window, table: str, count: int) -> str:
    """So many kept rows before a row `f`, the nearest first."""
    order = shared_order(window)
    backwards = sorted_by(order, "s", backwards=True)
    placed = [f"s.{quote(call.output.name)} DESC" for call in window.calls if call.goes_on is GoesOn.PLACE]
    last = ", ".join([backwards, *placed[:1]])
    cases = (
        f"(SELECT * FROM {table} AS s WHERE {_of_partition(window, 's', 'f')} AND {case} ORDER BY {last} LIMIT {count})"
        for case in before(order, "s", "f")
    )
    return f"SELECT * FROM ({' UNION ALL '.join(cases)}) AS s ORDER BY {backwards} LIMIT {count}"


def _found_by(window: Window) -> list[str]:
    """The columns that tell where a row is: the keys, and the order."""
    return list(dict.fromkeys([*window.keys, *(part.column for part in shared_order(window))]))


def _quoted_order(window: Window) -> list[str]:
    return [quote(name) for name in _found_by(window) if name not in window.keys]


def _carried(window: Window, table: str, call: WindowCall) -> str:
    """What a call made of the row before; for a rank, how many rows there are up to it."""
    made = f"b.{quote(call.output.name)}"
    if call.goes_on is not GoesOn.RANK or window.first is not None:
        return made
    tie = f"{_of_partition(window, 's', 'b')} AND {peers(shared_order(window), 's', 'b')}"
    return f"{made} - 1 + (SELECT count(*) FROM {table} AS s WHERE {tie})"


def few_from_change(window: Window, table: str, start: str) -> str:
    """The kept rows from the first changed one on, no more than a few of each partition; `p` tells these apart."""
    order = shared_order(window)
    cases = (
        f"(SELECT {kept(window)} FROM {table} AS s WHERE {_of_partition(window, 's', 'p')} AND {case} "
        f"ORDER BY {sorted_by(order, 's')} LIMIT {FEW})"
        for case in not_before(order, "s", "p")
    )
    return f"SELECT p.p, o.* FROM {start} AS p CROSS JOIN LATERAL ({' UNION ALL '.join(cases)}) AS o"


def all_from_change(window: Window, table: str, start: str) -> str:
    """All of these rows."""
    rows = f"SELECT p.p, {kept(window)} FROM {start} AS p JOIN {table} AS s ON {_of_partition(window, 's', 'p')}"
    return " UNION ALL ".join(f"{rows} AND {case}" for case in not_before(shared_order(window), "s", "p"))


def continued(window: Window, windowed: str, start: str) -> str:
    """The rows from the first changed one on with what the calls make of them, given what they make of these alone."""
    return _each(window, windowed, start, _continued)


def _continued(call: WindowCall) -> str:
    w, c = f"w.{quote(call.output.name)}", f"p.{quote(call.output.name)}"
    match call.goes_on:
        case GoesOn.PLACE | GoesOn.RANK | GoesOn.ADDED:
            return _added(call.output.name)
        case GoesOn.MEAN:
            return f"{_added(total(call))} / NULLIF({_added(number(call))}, 0)"
        case GoesOn.LEAST:
            return f"LEAST({w}, {c})"
        case GoesOn.GREATEST:
            return f"GREATEST({w}, {c})"
        case GoesOn.FIRST:
            return f"CASE WHEN p.preceded THEN {c} ELSE {w} END"
    return w


def _added(name: str) -> str:
    w, c = f"w.{quote(name)}", f"p.{quote(name)}"
    return f"COALESCE({w} + {c}, {w}, {c})"


def first_kept(window: Window, table: str, start: str, left: str) -> str:
    """The kept rows on the first places, but for those that left: of partitions whose first places may change."""
    assert window.first is not None
    first = (
        f"SELECT {kept(window)} FROM {table} AS s WHERE {_of_partition(window, 's', 'p')} "
        f"AND NOT EXISTS (SELECT FROM {left} AS l WHERE l.sid = s.ctid) "
        f"ORDER BY {sorted_by(shared_order(window), 's')} FETCH FIRST {window.first.last} ROWS WITH TIES"
    )
    return f"SELECT o.* FROM {start} AS p CROSS JOIN LATERAL ({first}) AS o WHERE NOT {_beyond(window.first)}"


def first_places(window: Window, windowed: str, start: str) -> str:
    """Rows with what the calls make of them, if they are on the first places: given what the calls make of a
    partition's first rows and of those that came."""
    first = window.first
    assert first is not None
    shown = f"w.{quote(first.place)} <= {first.last} AND NOT {_beyond(first)}"
    return _each(window, windowed, start, lambda call: f"CASE WHEN {shown} THEN w.{quote(call.output.name)} END")


def only_first(window: Window, windowed: str) -> str:
    """Rows of whole partitions with what the calls make of them, if they are on the first places."""
    if window.first is None:
        return windowed
    shown = f"w.{quote(window.first.place)} <= {window.first.last}"
    made = (f"CASE WHEN {shown} THEN w.{quote(c.output.name)} END AS {quote(c.output.name)}" for c in window.calls)
    return f"SELECT {', '.join([*(f'w.{quote(name)}' for name in window.input.names), *made])} FROM ({windowed}) AS w"


def alike(window: Window, table: str, delta: str, same: str) -> str:
    """A join with the rows `o` of the state that are the `same` as a row `d` of the delta, found by the index."""
    tie = peers(shared_order(window), "s", "d")
    found = f"SELECT s.ctid AS sid FROM {table} AS s WHERE s.h = d.h AND {tie} AND {same}"
    return f"{delta} AS d CROSS JOIN LATERAL ({found} OFFSET 0) AS o"


def _each(window: Window, windowed: str, start: str, made: Callable[[WindowCall], str]) -> str:
    calls = (f"{made(call)} AS {quote(call.output.name)}" for call in window.calls)
    columns = ", ".join(["w.sid", "w.h", *(f"w.{quote(name)}" for name in window.input.names), *calls])
    return f"SELECT {columns} FROM ({windowed}) AS w JOIN {start} AS p ON {_of_partition(window, 'w', 'p')}"


def _beyond(first: FirstPlaces) -> str:
    """Whether the row before the first changed one is beyond the first places already."""
    return f"(p.preceded AND p.{quote(first.place)} IS NULL)"


def _of_partition(window: Window, row: str, other: str) -> str:
    """Whether two rows are of one partition. By CASE, as PostgreSQL takes a comparison of records to hold for few rows,
    and would rather sort these than read an index in its order."""
    same_hash = f"{row}.h = {other}.h"
    return f"{same_hash} AND CASE WHEN {same_keys(window.keys, row, other)} THEN true END" if window.keys else same_hash


def kept(window: Window) -> str:
    """A kept row, with its place in the state."""
    return ", ".join(["s.ctid AS sid", "s.h", *(f"s.{quote(name)}" for name in window.names)])
