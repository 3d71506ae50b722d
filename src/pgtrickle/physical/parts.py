"""A window in parts: of stream tables as sources it may reach beyond the snapshot that tables are read at. Pure.

    START ──early──▶ SNAPSHOT ──late──▶ END          the whole window: from START to END

They were refreshed after the snapshot of a tick was taken. A delta plan of a part has its `Before` and `After` at that
part's ends; at hand are state, as of START, and tables, as of SNAPSHOT. From one point to another leads the side's own
delta of the part in between. Used by `lower.py`, and by `refresh/` to read the changes of a part.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum, StrEnum


class Part(StrEnum):
    """The window, or what of it came before or after the snapshot that tables are read at."""

    WHOLE = "whole"
    EARLY = "early"
    LATE = "late"


class Point(IntEnum):
    """Where a part begins or ends."""

    START = 0
    SNAPSHOT = 1
    END = 2


class Inseparable(Exception):
    """The plan would need an aggregate as it was at the snapshot, in the middle of the window: no state has that."""


@dataclass(frozen=True, slots=True)
class Gap:
    """What to add to the version at hand (sign 1), or to take from it (sign −1), so that it is the one wanted."""

    part: Part
    sign: int


@dataclass(frozen=True, slots=True)
class Changed:
    """The tables that have changes up to the snapshot, and those that have some after it."""

    early: frozenset[int]
    late: frozenset[int] = frozenset()

    def within(self, part: Part) -> frozenset[int]:
        return {Part.WHOLE: self.early | self.late, Part.EARLY: self.early, Part.LATE: self.late}[part]

    def divides(self, tables: Iterable[int], part: Part) -> bool:
        """Whether these tables have changes in the window that are not in that part."""
        outside = {Part.WHOLE: frozenset[int](), Part.EARLY: self.late, Part.LATE: self.early}[part]
        return not outside.isdisjoint(tables)


def end_of(part: Part, *, after: bool) -> Point:
    """The point that "after" a part of the window means, or "before" it."""
    if after:
        return Point.SNAPSHOT if part is Part.EARLY else Point.END
    return Point.SNAPSHOT if part is Part.LATE else Point.START


def gap(at_hand: Point, wanted: Point) -> Gap | None:
    """What lies between the version at hand and the one wanted."""
    if at_hand == wanted:
        return None
    between = {
        (Point.START, Point.SNAPSHOT): Part.EARLY,
        (Point.SNAPSHOT, Point.END): Part.LATE,
        (Point.START, Point.END): Part.WHOLE,
    }
    return Gap(between[min(at_hand, wanted), max(at_hand, wanted)], 1 if wanted > at_hand else -1)
