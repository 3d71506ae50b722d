"""Statements that keep the rows of a window with what its calls made of them: built by a full refresh, and computed
again by partition in a differential one. Pure.

    state|p  →  the rows that p had  +  ΔR  →  the rows that p has, windowed  →  the difference

`p` are the partitions of ΔR's rows, or a part of each (`window_part.py`). The state has all columns of the input, so
nothing is read but the state. PostgreSQL evaluates the calls. A row has `h`, a hash of its partition's keys; the
keys are compared too.
"""

from __future__ import annotations

from dataclasses import dataclass

from pgtrickle.model import BIGINT, Column, quote
from pgtrickle.postgres.aggregate import hash_keys, same_keys
from pgtrickle.postgres.row_image import by_image, image
from pgtrickle.postgres.statements import window_part as part
from pgtrickle.postgres.statements.script import (
    Problem,
    Require,
    Run,
    Scratch,
    Script,
    When,
    added,
    emptied,
    empty_temporary,
    temporary,
    without,
)
from pgtrickle.postgres.statements.state import StateMerge
from pgtrickle.postgres.wire import WEIGHT
from pgtrickle.query import render
from pgtrickle.query.continued_windows import Extent, extent, reach
from pgtrickle.query.operators import Window


@dataclass(frozen=True, slots=True)
class WindowRows:
    """Where the rows of a window are kept; `hashable` are the keys that have a hash function."""

    name: str
    window: Window
    hashable: frozenset[str]


def rebuild(kept: WindowRows, landed: str) -> Script:
    """Replaces the state by what the landed rows, all of weight one, give."""
    return (
        Run(f"TRUNCATE {kept.name}"),
        _insert(kept, part.only_first(kept.window, render.windowed(kept.window, f"({landed})"))),
        Run(f"ANALYZE {kept.name}"),
    )


def merge(kept: WindowRows, scratch: Scratch, landed: str) -> StateMerge:
    """Computes the partitions that the landed rows touch, or a part of each; leaves the difference as `state.changes`.

    A row that stays is known by its place in the state, so of the many that stay only what the calls made is compared.
    """
    window = kept.window
    delta, new, left = (scratch.table(what) for what in ("delta", "new", "left"))
    names = ", ".join(map(quote, window.names))
    hashed = f"{hash_keys(window.keys, kept.hashable)} AS h"
    compute = (
        # with columns of just their types: of images, text would have another collation
        empty_temporary(delta, (Column("h", BIGINT), *window.input.columns, Column(WEIGHT, BIGINT))),
        added(delta, f"SELECT {hashed}, * FROM ({by_image(landed, window.input.columns)}) AS net"),
        Run(f"ANALYZE {delta} (h)"),  # else PostgreSQL takes it for large, and reads the whole state
        *_BY_EXTENT[extent(window)](kept, scratch),
        *_difference(window, scratch),
    )
    write = (
        Run(f"DELETE FROM {kept.name} AS s USING {left} AS l WHERE s.ctid = l.sid"),
        _insert(kept, f"SELECT {names} FROM {new} AS n WHERE {_comes(left)}"),
    )
    return StateMerge(compute, write)


def merged_rows(kept: WindowRows, scratch: Scratch) -> str:
    """What to read FROM the new state after `compute` and before `write`."""
    names, old, new = ", ".join(map(quote, kept.window.names)), scratch.table("old"), scratch.table("new")
    untouched = f"SELECT {names} FROM {kept.name} AS s WHERE NOT EXISTS (SELECT FROM {old} AS o WHERE o.sid = s.ctid)"
    return f"({untouched} UNION ALL SELECT {names} FROM {new} AS n) AS new_state"


def _whole(kept: WindowRows, scratch: Scratch) -> Script:
    """The touched partitions: their rows before, those of these that left, and their rows after."""
    delta, old, new, left = (scratch.table(what) for what in ("delta", "old", "new", "left"))
    return (
        temporary(old, _old_rows(kept, delta)),
        *_left(kept, scratch, _deleted(kept.window, _alike(kept.window, delta, old))),
        Run(f"ANALYZE {old} (sid)"),
        temporary(new, render.windowed(kept.window, f"({_now(kept.window, delta, old, left)})", ("sid",))),
    )


def _from_change(kept: WindowRows, scratch: Scratch) -> Script:
    """The same of the touched partitions from their first changed row on."""
    window = kept.window
    delta, old, new, left = (scratch.table(what) for what in ("delta", "old", "new", "left"))
    changed, start = (scratch.table(what) for what in ("changed", "start"))
    everything = (
        emptied(old),
        added(old, part.all_from_change(window, kept.name, start)),
    )
    windowed = render.windowed(window, f"({_now(window, delta, old, left)})", ("sid", "h"))
    # of the rows before, that are there only to be looked at, the calls do not see all that they look at
    unchanged = tuple(
        without(rows, "n", f"{changed} AS c", part.is_before_change(window, "n"))
        for rows in (old, new)
        if reach(window).back
    )
    return (
        temporary(changed, part.changed(window, kept.name, delta)),
        temporary(start, part.start(window, kept.name, changed)),
        Run(f"ANALYZE {start}"),
        temporary(old, part.few_from_change(window, kept.name, start)),
        When(f"EXISTS (SELECT FROM {old} GROUP BY p HAVING count(*) >= {part.FEW})", everything),
        *_left(kept, scratch, _deleted(window, _alike(window, delta, old))),
        Run(f"ANALYZE {old} (sid)"),
        temporary(new, part.continued(window, windowed, start)),
        *unchanged,
    )


def _first_places(kept: WindowRows, scratch: Scratch) -> Script:
    """The same of the first places of the touched partitions, and those that left or came beyond them."""
    window = kept.window
    delta, start, old, new, left = (scratch.table(what) for what in ("delta", "start", "old", "new", "left"))
    found = part.alike(window, kept.name, delta, _same(window, "s.", "d."))
    gone = f"SELECT {part.kept(window)} FROM {left} AS l JOIN {kept.name} AS s ON s.ctid = l.sid"
    windowed = render.windowed(window, f"({_now(window, delta, old, left)})", ("sid", "h"))
    return (
        *_left(kept, scratch, _deleted(window, found)),
        temporary(start, part.start(window, kept.name, f"({part.changed(window, kept.name, delta)}) AS c")),
        Run(f"ANALYZE {start}"),
        temporary(old, f"{gone} UNION ALL {part.first_kept(window, kept.name, start, left)}"),
        Run(f"ANALYZE {old} (sid)"),
        temporary(new, part.first_places(window, windowed, start)),
    )


_BY_EXTENT = {Extent.WHOLE: _whole, Extent.FROM_CHANGE: _from_change, Extent.FIRST_PLACES: _first_places}


def _left(kept: WindowRows, scratch: Scratch, deleted: str) -> Script:
    """Which of the kept rows left: as many as were deleted."""
    delta, left = scratch.table("delta"), scratch.table("left")
    return (
        temporary(left, deleted),
        Require(
            f"(SELECT count(*) FROM {left}) = (SELECT coalesce(-sum({WEIGHT}), 0) FROM {delta} WHERE {WEIGHT} < 0)",
            Problem(
                f"the state {kept.name} lacks rows that were deleted from it",
                "PT610",
                "refresh the stream table in full",
            ),
        ),
        Run(f"ANALYZE {left}"),
    )


def _difference(window: Window, scratch: Scratch) -> Script:
    """Rows that stay, but of which the calls made something else, leave their places too."""
    old, new, left, out = (scratch.table(what) for what in ("old", "new", "left", "out"))
    names = ", ".join(map(quote, window.names))
    shown = "" if window.first is None else f" AND {quote(window.first.place)} IS NOT NULL"
    return (
        Run(f"ANALYZE {new} (sid)"),
        added(left, f"SELECT o.sid FROM {old} AS o JOIN {new} AS n ON n.sid = o.sid WHERE {_differs(window)}"),
        Run(f"ANALYZE {left}"),
        temporary(
            out,
            f"SELECT {names}, -1::bigint AS {WEIGHT} FROM {old} AS o WHERE {_is_in(left, 'o')}{shown} UNION ALL "
            f"SELECT {names}, 1::bigint FROM {new} AS n WHERE ({_comes(left)}){shown}",
        ),
    )


def _old_rows(kept: WindowRows, delta: str) -> str:
    """The rows of the touched partitions, each with its place in the state."""
    window = kept.window
    rows = f"SELECT {part.kept(window)}"
    if not window.keys:
        return f"{rows} FROM {kept.name} AS s WHERE EXISTS (SELECT FROM {delta})"
    keys = ", ".join(["h", *map(quote, window.keys)])
    touched = f"SELECT {keys} FROM {delta} GROUP BY {keys}"
    same = same_keys(window.keys, "s", "p")
    return f"{rows} FROM ({touched}) AS p JOIN {kept.name} AS s ON s.h = p.h AND {same}"


def _alike(window: Window, delta: str, old: str) -> str:
    """A join with the old rows that are the same as a row of the delta. By a hash: PostgreSQL joins by rows in no other
    way than one by one."""
    return f"{delta} AS d JOIN {old} AS o ON o.h = d.h AND {_same(window, 'o.', 'd.')}"


def _deleted(window: Window, alike: str) -> str:
    """Those of the old rows that the delta deletes, as many of each as it says."""
    row = ", ".join(["d.h", *(image(column, "d.") for column in window.input.columns)])
    numbered = f"SELECT o.sid, d.{WEIGHT}, row_number() OVER (PARTITION BY {row}) AS number FROM {alike}"
    return f"SELECT sid FROM ({numbered} WHERE d.{WEIGHT} < 0) AS found WHERE number <= -{WEIGHT}"


def _same(window: Window, row: str, other: str) -> str:
    """Whether two rows are alike."""
    theirs, ours = (_image(window.input.columns, alias) for alias in (row, other))
    return f"hash_record_extended({theirs}, 0) = hash_record_extended({ours}, 0) AND {theirs} = {ours}"


def _now(window: Window, delta: str, old: str, left: str) -> str:
    """The rows after the window, of what was looked for; those that came have no place yet."""
    names = [quote(name) for name in window.input.names]
    stayed = f"SELECT {', '.join([*names, 'sid', 'h'])} FROM {old} AS o WHERE NOT {_is_in(left, 'o')}"
    came = f"SELECT {', '.join([*names, 'NULL::tid', 'h'])} FROM {delta} CROSS JOIN generate_series(1, {WEIGHT})"
    return f"{stayed} UNION ALL {came}"


def _comes(left: str) -> str:
    """Whether a row is to be written."""
    return f"n.sid IS NULL OR {_is_in(left, 'n')}"


def _is_in(left: str, alias: str) -> str:
    """Whether a row is one of those that left its place."""
    return f"EXISTS (SELECT FROM {left} AS l WHERE l.sid = {alias}.sid)"


def _differs(window: Window) -> str:
    """Whether the calls made something else of a row than before."""
    now, before = (", ".join(f"{side}.{quote(call.output.name)}" for call in window.calls) for side in ("n", "o"))
    return f"ROW({now})::record *<> ROW({before})::record"


def _insert(kept: WindowRows, rows: str) -> Run:
    names = ", ".join(map(quote, kept.window.names))
    values = f"{hash_keys(kept.window.keys, kept.hashable)}, {names}"
    return Run(f"INSERT INTO {kept.name} (h, {names}) SELECT {values} FROM ({rows}) AS new_rows")


def _image(columns: tuple[Column, ...], alias: str) -> str:
    return f"ROW({', '.join(image(column, alias) for column in columns)})::record"
