"""Statements that keep the rows of a window with what its calls made of them: built by a full refresh, and computed
again by partition in a differential one. Pure.

    state|p  →  the rows that p had  +  ΔR  →  the rows that p has, windowed  →  the difference

`p` are the partitions of ΔR's rows. The state has all columns of the input, so nothing is read but the state.
PostgreSQL evaluates the calls, over whole partitions. A row has `h`, a hash of its partition's keys; the keys are
compared too.
"""

from __future__ import annotations

from dataclasses import dataclass

from pgtrickle.model import BIGINT, Column, quote
from pgtrickle.postgres.aggregate import hash_keys, same_keys
from pgtrickle.postgres.row_image import by_image, image
from pgtrickle.postgres.statements.script import Problem, Require, Run, Scratch, Script, empty_temporary, temporary
from pgtrickle.postgres.statements.state import StateMerge
from pgtrickle.postgres.wire import WEIGHT
from pgtrickle.query import render
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
        _insert(kept, render.windowed(kept.window, f"({landed})")),
        Run(f"ANALYZE {kept.name}"),
    )


def merge(kept: WindowRows, scratch: Scratch, landed: str) -> StateMerge:
    """Computes the partitions that the landed rows touch; leaves the difference as `state.changes`.

    A row that stays is known by its place in the state, so of the many that stay only what the calls made is compared.
    """
    window = kept.window
    delta, old, new, left, out = (scratch.table(what) for what in ("delta", "old", "new", "left", "out"))
    names = ", ".join(map(quote, window.names))
    hashed = f"{hash_keys(window.keys, kept.hashable)} AS h"
    compute = (
        # with columns of just their types: of images, text would have another collation
        empty_temporary(delta, (Column("h", BIGINT), *window.input.columns, Column(WEIGHT, BIGINT))),
        Run(f"INSERT INTO {delta} SELECT {hashed}, * FROM ({by_image(landed, window.input.columns)}) AS net"),
        Run(f"ANALYZE {delta} (h)"),  # else PostgreSQL takes it for large, and reads the whole state
        temporary(old, _old_rows(kept, delta)),
        temporary(left, _deleted(window, delta, old)),
        Require(
            f"(SELECT count(*) FROM {left}) = (SELECT coalesce(-sum({WEIGHT}), 0) FROM {delta} WHERE {WEIGHT} < 0)",
            Problem(
                f"the state {kept.name} lacks rows that were deleted from it",
                "PT610",
                "refresh the stream table in full",
            ),
        ),
        Run(f"ANALYZE {old} (sid)"),
        Run(f"ANALYZE {left}"),
        temporary(new, render.windowed(window, f"({_now(window, delta, old, left)})", ("sid",))),
        Run(f"ANALYZE {new} (sid)"),
        Run(
            f"INSERT INTO {left} SELECT o.sid FROM {old} AS o JOIN {new} AS n ON n.sid = o.sid WHERE {_differs(window)}"
        ),
        Run(f"ANALYZE {left}"),
        temporary(
            out,
            f"SELECT {names}, -1::bigint AS {WEIGHT} FROM {old} AS o WHERE {_is_in(left, 'o')} UNION ALL "
            f"SELECT {names}, 1::bigint FROM {new} AS n WHERE n.sid IS NULL OR {_is_in(left, 'n')}",
        ),
    )
    write = (
        Run(f"DELETE FROM {kept.name} AS s USING {left} AS l WHERE s.ctid = l.sid"),
        _insert(kept, f"SELECT {names} FROM {out} WHERE {WEIGHT} > 0"),
    )
    return StateMerge(compute, write)


def merged_rows(kept: WindowRows, scratch: Scratch) -> str:
    """What to read FROM the new state after `compute` and before `write`."""
    names, old, new = ", ".join(map(quote, kept.window.names)), scratch.table("old"), scratch.table("new")
    untouched = f"SELECT {names} FROM {kept.name} AS s WHERE NOT EXISTS (SELECT FROM {old} AS o WHERE o.sid = s.ctid)"
    return f"({untouched} UNION ALL SELECT {names} FROM {new} AS n) AS new_state"


def _old_rows(kept: WindowRows, delta: str) -> str:
    """The rows of the touched partitions, each with its place in the state."""
    window = kept.window
    rows = f"SELECT {', '.join(['s.ctid AS sid', 's.h', *(f's.{quote(name)}' for name in window.names)])}"
    if not window.keys:
        return f"{rows} FROM {kept.name} AS s WHERE EXISTS (SELECT FROM {delta})"
    keys = ", ".join(["h", *map(quote, window.keys)])
    touched = f"SELECT {keys} FROM {delta} GROUP BY {keys}"
    same = same_keys(window.keys, "s", "p")
    return f"{rows} FROM ({touched}) AS p JOIN {kept.name} AS s ON s.h = p.h AND {same}"


def _deleted(window: Window, delta: str, old: str) -> str:
    """Those of the old rows that the delta deletes, as many of each as it says. By a hash: PostgreSQL joins no other
    way by rows than one by one."""
    theirs, ours = (_image(window.input.columns, alias) for alias in ("o.", "d."))
    same = f"hash_record_extended({theirs}, 0) = hash_record_extended({ours}, 0) AND {theirs} = {ours}"
    numbered = (
        f"SELECT o.sid, d.{WEIGHT}, row_number() OVER (PARTITION BY d.ctid) AS number "
        f"FROM {delta} AS d JOIN {old} AS o ON o.h = d.h AND {same} WHERE d.{WEIGHT} < 0"
    )
    return f"SELECT sid FROM ({numbered}) AS alike WHERE number <= -{WEIGHT}"


def _now(window: Window, delta: str, old: str, left: str) -> str:
    """The rows of the touched partitions after the window; those that came have no place yet."""
    names = [quote(name) for name in window.input.names]
    stayed = f"SELECT {', '.join([*names, 'sid'])} FROM {old} AS o WHERE NOT {_is_in(left, 'o')}"
    came = f"SELECT {', '.join([*names, 'NULL::tid'])} FROM {delta} CROSS JOIN generate_series(1, {WEIGHT})"
    return f"{stayed} UNION ALL {came}"


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
