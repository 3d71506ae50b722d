"""A window in parts: of stream tables as sources it may reach beyond the snapshot that tables are read at. Pure.

    START ──early──▶ SNAPSHOT ──late──▶ END          the whole window: from START to END

They were refreshed after the snapshot of a tick was taken. A delta plan of a part has its `Before` and `After` at that
part's ends; at hand are state, as of START, and tables, as of SNAPSHOT. From one point to another leads the side's own
delta of the part in between. Used by `lower_delta.py`, and by `refresh/` to read the changes of a part.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum, StrEnum


class WindowPart(StrEnum):
    """The window, or what of it came before or after the snapshot that tables are read at."""

    WHOLE = "whole"
    EARLY = "early"
    LATE = "late"


class WindowPoint(IntEnum):
    """Where a part begins or ends."""

    START = 0
    SNAPSHOT = 1
    END = 2


class Inseparable(Exception):
    """The plan would need an aggregate as it was at the snapshot, in the middle of the window: no state has that."""


@dataclass(frozen=True, slots=True)
class VersionGap:
    """What to add to the version at hand (sign 1), or to take from it (sign −1), so that it is the one wanted."""

    part: WindowPart
    sign: int


@dataclass(frozen=True, slots=True)
class Changed:
    """The tables that have changes up to the snapshot, and those that have some after it. Values of the clock are among
    the first, by their numbers, if they moved; `unknown` are those that are NULL at either end."""

    early: frozenset[int]
    late: frozenset[int] = frozenset()
    unknown: frozenset[int] = frozenset()

    def within(self, part: WindowPart) -> frozenset[int]:
        return {WindowPart.WHOLE: self.early | self.late, WindowPart.EARLY: self.early, WindowPart.LATE: self.late}[
            part
        ]

    def divides(self, tables: Iterable[int], part: WindowPart) -> bool:
        """Whether these tables have changes in the window that are not in that part."""
        outside = {WindowPart.WHOLE: frozenset[int](), WindowPart.EARLY: self.late, WindowPart.LATE: self.early}[part]
        return not outside.isdisjoint(tables)


def end_of(part: WindowPart, *, after: bool) -> WindowPoint:
    """The point that "after" a part of the window means, or "before" it."""
    if after:
        return WindowPoint.SNAPSHOT if part is WindowPart.EARLY else WindowPoint.END
    return WindowPoint.SNAPSHOT if part is WindowPart.LATE else WindowPoint.START


def version_gap(at_hand: WindowPoint, wanted: WindowPoint) -> VersionGap | None:
    """What lies between the version at hand and the one wanted."""
    if at_hand == wanted:
        return None
    between = {
        (WindowPoint.START, WindowPoint.SNAPSHOT): WindowPart.EARLY,
        (WindowPoint.SNAPSHOT, WindowPoint.END): WindowPart.LATE,
        (WindowPoint.START, WindowPoint.END): WindowPart.WHOLE,
    }
    return VersionGap(between[min(at_hand, wanted), max(at_hand, wanted)], 1 if wanted > at_hand else -1)
