"""Statements that keep the rows of a window with what its calls made of them: built by a full refresh, and computed
again by partition in a differential one. Pure.

    state|p  →  the rows that p had  +  ΔR  →  the rows that p has, windowed  →  the difference

`p` are the partitions of ΔR's rows. The state has all columns of the input, so nothing is read but the state.
PostgreSQL evaluates the calls, over whole partitions. A row has `h`, a hash of its partition's keys; the keys are
compared too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pgtrickle.model import BIGINT, Column, quote
from pgtrickle.postgres.aggregate import hash_keys, same_keys
from pgtrickle.postgres.row_image import by_image, image
from pgtrickle.postgres.statements.script import Problem, Require, Run, Scratch, Script, empty_temporary, temporary
from pgtrickle.postgres.statements.state import StateMerge
from pgtrickle.postgres.wire import WEIGHT
from pgtrickle.query import render
from pgtrickle.query.operators import Window

_HASH, _WEIGHT = Column("h", BIGINT), Column(WEIGHT, BIGINT)


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
        _insert(kept, _windowed(kept.window, landed)),
        Run(f"ANALYZE {kept.name}"),
    )


def merge(kept: WindowRows, scratch: Scratch, landed: str) -> StateMerge:
    """Computes the partitions that the landed rows touch; leaves the difference as `state.changes`."""
    window = kept.window
    delta, old, rows, new, out = (scratch.table(what) for what in ("delta", "old", "rows", "new", "out"))
    names = _list(window.names)
    net = (
        f"SELECT {hash_keys(window.keys, kept.hashable)} AS h, * FROM ({by_image(landed, window.input.columns)}) AS net"
    )
    sides = (f"SELECT {_list((*window.input.names, WEIGHT))} FROM {delta}", _weighted(window.input.names, old, 1))
    changes = (_weighted(window.names, new, 1), _weighted(window.names, old, -1))
    compute = (
        *_filled(delta, (_HASH, *window.input.columns, _WEIGHT), net),
        Run(f"ANALYZE {delta} (h)"),  # else PostgreSQL takes it for large, and reads the whole state
        temporary(old, _old_rows(kept, delta)),
        *_filled(rows, (*window.input.columns, _WEIGHT), by_image(" UNION ALL ".join(sides), window.input.columns)),
        Require(
            f"NOT EXISTS (SELECT FROM {rows} WHERE {WEIGHT} < 0)",
            Problem(
                f"the state {kept.name} lacks rows that were deleted from it",
                "PT610",
                "refresh the stream table in full",
            ),
        ),
        Run(f"ANALYZE {rows}"),
        temporary(new, f"SELECT {names} FROM ({_windowed(window, _copies(window.input.names, rows))}) AS windowed"),
        *_filled(out, (*window.columns, _WEIGHT), by_image(" UNION ALL ".join(changes), window.columns)),
        Run(f"ANALYZE {out}"),
    )
    came = f"SELECT {names} FROM ({_copies(window.names, out)}) AS came"
    return StateMerge(compute, (_delete(kept, old, out), _insert(kept, came)))


def merged_rows(kept: WindowRows, scratch: Scratch) -> str:
    """What to read FROM the new state after `compute` and before `write`."""
    names, old, new = _list(kept.window.names), scratch.table("old"), scratch.table("new")
    untouched = f"SELECT {names} FROM {kept.name} AS s WHERE NOT EXISTS (SELECT FROM {old} AS o WHERE o.sid = s.ctid)"
    return f"({untouched} UNION ALL SELECT {names} FROM {new} AS n) AS new_state"


def _filled(table: str, columns: tuple[Column, ...], rows: str) -> Script:
    """A temporary table with columns of just these types: of images, text would have another collation."""
    return (empty_temporary(table, columns), Run(f"INSERT INTO {table} {rows}"))


def _old_rows(kept: WindowRows, delta: str) -> str:
    """The rows of the touched partitions, each with its place in the state."""
    window = kept.window
    rows = f"SELECT {_list((*(f's.{quote(name)}' for name in window.names), 's.ctid AS sid'), quoted=True)}"
    if not window.keys:
        return f"{rows} FROM {kept.name} AS s WHERE EXISTS (SELECT FROM {delta})"
    keys = ", ".join(["h", *map(quote, window.keys)])
    touched = f"SELECT {keys} FROM {delta} GROUP BY {keys}"
    same = same_keys(window.keys, "s", "p")
    return f"{rows} FROM ({touched}) AS p JOIN {kept.name} AS s ON s.h = p.h AND {same}"


def _windowed(window: Window, rows: str) -> str:
    """What the calls make of rows, all of weight one."""
    given = f"SELECT {_list(window.input.names)} FROM ({rows}) AS given"
    return render.select(window, leaf=lambda node: given if node is window.input else None)


def _insert(kept: WindowRows, rows: str) -> Run:
    columns = _list(("h", *kept.window.names))
    values = _list((f"{hash_keys(kept.window.keys, kept.hashable)} AS h", *map(quote, kept.window.names)), quoted=True)
    return Run(f"INSERT INTO {kept.name} ({columns}) SELECT {values} FROM ({rows}) AS new_rows")


def _delete(kept: WindowRows, old: str, out: str) -> Run:
    """Deletes those of the old rows that went, as many of each as went."""
    gone, had = _image(kept.window.columns, "g."), _image(kept.window.columns, "o.")
    numbered = f"SELECT o.sid, {had} AS row, row_number() OVER (PARTITION BY {had}) AS number FROM {old} AS o"
    return Run(
        f"DELETE FROM {kept.name} AS s USING ({numbered}) AS o JOIN {out} AS g ON g.{WEIGHT} < 0 "
        f"AND o.row = {gone} AND o.number <= -g.{WEIGHT} WHERE s.ctid = o.sid"
    )


def _image(columns: tuple[Column, ...], alias: str) -> str:
    return f"ROW({', '.join(image(column, alias) for column in columns)})::record"


def _weighted(names: Iterable[str], table: str, weight: int) -> str:
    return f"SELECT {_list((*map(quote, names), f'{weight}::{BIGINT.name} AS {WEIGHT}'), quoted=True)} FROM {table}"


def _copies(names: Iterable[str], table: str) -> str:
    """The rows of a weighted table, each as often as its weight says; not at all if that is negative."""
    return f"SELECT {_list(names)} FROM {table} CROSS JOIN generate_series(1, {WEIGHT})"


def _list(names: Iterable[str], *, quoted: bool = False) -> str:
    return ", ".join(names if quoted else map(quote, names))
