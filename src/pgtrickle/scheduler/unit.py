"""One unit of a tick: a stream table by itself, an atomic group, or a circle. Carried out by the threads of the
pool."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pgtrickle.db import Connection
from pgtrickle.refresh.decide import Action
from pgtrickle.refresh.group.group_refresh import GroupMember
from pgtrickle.refresh.refresher import Refresher
from pgtrickle.refresh.result import RefreshResult
from pgtrickle.refresh.tick import Tick
from pgtrickle.refresh.units import refresh_group as refresh_group_of
from pgtrickle.refresh.units import refresh_table
from pgtrickle.scheduler import diamonds, refresh_by_name
from pgtrickle.scheduler.diamonds import AtomicGroup, Unit

BY = "SCHEDULER"


@dataclass(frozen=True, slots=True)
class Refreshed:
    """What was done, by table."""

    results: Mapping[int, RefreshResult]

    @property
    def skipped(self) -> frozenset[int]:
        return frozenset(pgt_id for pgt_id, result in self.results.items() if result.action is Action.SKIP)


def refresh_alone(refresher: Refresher, unit: Unit, tick: Tick, still: Callable[[Connection], bool]) -> Refreshed:
    """A table that is in no group, committed by itself, or with the circle that it has come to be in."""
    results = refresh_table(refresher, unit[0], initiated_by=BY, tick=tick, still=still)
    return Refreshed({unit[0]: results[unit[0]]})


def fill(refresher: Refresher, unit: Unit) -> Refreshed:
    """A table that was made without rows, filled for the first time, with the atomic group that it comes into."""
    return Refreshed({unit[0]: refresh_by_name.refresh(refresher, unit[0], initiated_by="INITIAL")})


def refresh_circle(refresher: Refresher, unit: Unit, tick: Tick) -> Refreshed:
    """All tables of a circle, at once or not at all; what else belongs to it by now is brought along."""
    results = refresh_table(refresher, unit[0], initiated_by=BY, tick=tick)
    return Refreshed({pgt_id: result for pgt_id, result in results.items() if pgt_id in unit})


def refresh_group(
    refresher: Refresher, unit: Unit, tick: Tick, group: AtomicGroup, still: Callable[[Connection], bool]
) -> Refreshed:
    """All at once or not at all: at the tick's snapshot, or, if that cannot be, at a later one."""

    def count(writer: Connection) -> None:
        diamonds.advance(writer, group)

    members = dict.fromkeys(unit, GroupMember(BY))
    return Refreshed(refresh_group_of(refresher, members, tick, still=still, on_change=count))
