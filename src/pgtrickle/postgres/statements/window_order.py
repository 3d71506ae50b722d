"""The order of a window as SQL that an index serves: where rows stand to a row of their partition. Pure; called by
`window_rows.py` and by `apply/state.py`, which makes the index.

A column is compared as ARRAY[column]: so NULLs are comparable, and greater than all else. Where the query has them
elsewhere, whether it is NULL is compared first. Parts of one direction are compared as a row. Where directions change,
a comparison has several cases, each of which is a range of the index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pgtrickle.model import quote
from pgtrickle.query.operators import SortPart


@dataclass(frozen=True, slots=True)
class _Compared:
    """What is compared of a row: a column, or whether it has a value; never NULL."""

    column: str
    descending: bool
    is_presence: bool = False

    def of(self, alias: str) -> str:
        name = alias + quote(self.column)
        return f"({name} IS NOT NULL)" if self.is_presence else f"ARRAY[{name}]"


def index_columns(order: Sequence[SortPart]) -> str:
    """What an index is made on, after the hash of the partition."""
    return ", ".join(f"({part.of('')}){_direction(part.descending)}" for part in _parts(order))


def sorted_by(order: Sequence[SortPart], alias: str, *, backwards: bool = False) -> str:
    """An ORDER BY that the index serves, either way."""
    return ", ".join(part.of(f"{alias}.") + _direction(part.descending != backwards) for part in _parts(order))


def peers(order: Sequence[SortPart], row: str, other: str) -> str:
    """Whether two rows tie."""
    return _equal(_parts(order), row, other)


def before(order: Sequence[SortPart], row: str, other: str) -> tuple[str, ...]:
    """The cases in which a row comes before another one."""
    return _cases(order, row, other, ("<", ">"), ("<", ">"))


def not_before(order: Sequence[SortPart], row: str, other: str) -> tuple[str, ...]:
    """The cases in which a row comes after another one, or ties with it."""
    return _cases(order, row, other, (">", "<"), (">=", "<="))


def _cases(
    order: Sequence[SortPart], row: str, other: str, strict: tuple[str, str], last: tuple[str, str]
) -> tuple[str, ...]:
    """For each run of parts of one direction: all before it are equal, and it is on the wanted side. The operators are
    those of an ascending run, and of a descending one."""
    runs = _runs(_parts(order))
    found, equal = [], list[_Compared]()
    for place, run in enumerate(runs, start=1):
        operators = last if place == len(runs) else strict
        compared = f"{_row(run, row)} {operators[run[0].descending]} {_row(run, other)}"
        found.append(" AND ".join([*([_equal(equal, row, other)] if equal else []), compared]))
        equal += run
    return tuple(found)


def _parts(order: Sequence[SortPart]) -> list[_Compared]:
    found = []
    for part in order:
        if part.nulls_first != part.descending:
            found.append(_Compared(part.column, part.descending, is_presence=True))
        found.append(_Compared(part.column, part.descending))
    return found


def _runs(parts: Sequence[_Compared]) -> list[list[_Compared]]:
    runs = list[list[_Compared]]()
    for part in parts:
        if runs and runs[-1][0].descending == part.descending:
            runs[-1].append(part)
        else:
            runs.append([part])
    return runs


def _equal(parts: Sequence[_Compared], row: str, other: str) -> str:
    return " AND ".join(f"{part.of(f'{row}.')} = {part.of(f'{other}.')}" for part in parts)


def _row(parts: Sequence[_Compared], alias: str) -> str:
    values = ", ".join(part.of(f"{alias}.") for part in parts)
    return values if len(parts) == 1 else f"({values})"


def _direction(descending: bool) -> str:
    return " DESC" if descending else ""
