"""The one loop of every refresh: of a table by itself, of an atomic group, of a circle.

    who belongs together ──▶ locks ──▶ attempt, at the tick or at a snapshot of now ──▶ committed
            ▲                             ▲        │ stopped, with an outcome
            └── others belong to it ──────┴────────┤ Again: at a snapshot of now
                                                   ├ Redefine: first the tables that must be
                                                   └ Skip: nothing is done, and the history says why

What is refreshed together, and how an attempt goes, are the unit's (`units.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from pgtrickle.catalog import writer as record
from pgtrickle.db import Connection
from pgtrickle.refresh.compared import Comparing
from pgtrickle.refresh.connections import Connections
from pgtrickle.refresh.group.members import sources_of
from pgtrickle.refresh.lock import refresh_locks
from pgtrickle.refresh.outcome import Again, Redefine, Skip, Stop
from pgtrickle.refresh.refresh_record import OTHER_GROUP, UNDER_WAY, skipped
from pgtrickle.refresh.refresher import Refresher
from pgtrickle.refresh.result import RefreshResult
from pgtrickle.refresh.tick import Tick

MOST_ATTEMPTS = 5
"""Those do not count after which a table was defined anew, once each. What is not done by then keeps being altered, or
refreshed by others."""

Results = Mapping[int, RefreshResult]


class Attempt(Protocol):
    """One attempt to refresh the tables of a unit, whose locks are held."""

    def run(self, at: Tick | None) -> Results:
        """What was done, committed; or Stop. Raises what went wrong, after recording it."""

    def define_anew(self, outdated: Mapping[int, str]) -> None:
        """Defines these of its tables anew, each for its reason. Its transactions are over by then."""

    def skip(self, reason: str) -> Results:
        """Says so of each table, in its history."""

    def clean(self) -> None:
        """Removes what is of no more use, once all is committed and no snapshot is held."""


@dataclass(frozen=True, slots=True)
class Members:
    """The tables that are refreshed together, each after those it reads; a circle has no such order."""

    pgt_ids: Sequence[int]
    circular: bool = False


class Unit(Protocol):
    """What is refreshed together."""

    @property
    def patience_s(self) -> float:
        """How long it waits for the locks."""

    @property
    def redefines_at_tick(self) -> bool:
        """Whether a table that must be defined anew as of the tick's snapshot is so at once: all others would be
        computed in vain before its next turn. Or else only if it must be as of now, too."""

    def members(self, conn: Connection) -> Members:
        """As they are by now."""

    def belongs_together(self, conn: Connection, members: Members) -> bool:
        """Whether these, whose locks are held, are all that must be of one version, in this order."""

    @property
    def in_full(self) -> bool:
        """Whether somebody asks for a full refresh, for which all is read as it is now."""

    def asked_by(self, pgt_id: int) -> str:
        """Who asks for the refresh of a member."""

    def moment(self, refresher: Refresher, tick: Tick | None) -> AbstractContextManager[Tick | None]:
        """The snapshot of an attempt; None: the attempt takes one."""

    def attempt(self, refresher: Refresher, connections: Connections, members: Members) -> Attempt:
        """Made ready, not begun."""

    def too_often(self, attempt: Attempt, reason: str) -> Results:
        """When there were too many attempts: skips it, or raises."""


def refresh(refresher: Refresher, unit: Unit, tick: Tick | None = None) -> Results:
    """Refreshes a unit, to the tick's snapshot if there is one and it can be; says what was done, by table."""
    loop = _Loop(refresher, refresher.connections(), unit, tick)
    while True:
        members = unit.members(loop.connections.aside)
        with refresh_locks(loop.connections.locks, members.pgt_ids, unit.patience_s) as locked:
            if not locked:
                return loop.skip(members, UNDER_WAY)
            results = loop.attempts(members)
        if results is not None:
            return results


@dataclass(slots=True)
class _Loop:
    refresher: Refresher
    connections: Connections
    unit: Unit
    tick: Tick | None
    left: int = MOST_ATTEMPTS
    anew: set[int] = field(default_factory=set)
    comparing: Comparing = field(init=False)

    def __post_init__(self) -> None:
        self.comparing = Comparing(self.refresher, self.connections, self.unit.asked_by, self.unit.in_full)

    def attempts(self, members: Members) -> Results | None:
        """What was done; None if it is others by now that belong together. The locks are held."""
        aside = self.connections.aside
        if self.unit.members(aside) != members:  # before we had the locks
            return self._count("other tables belong to it by now", members)
        for pgt_id in members.pgt_ids:
            record.close_abandoned(aside, pgt_id)
        if not self.unit.belongs_together(aside, members):
            return self.skip(members, OTHER_GROUP)
        while True:
            attempt = self.unit.attempt(self.refresher, self.connections, members)
            try:
                if not self.comparing.bring_up_to_date(members.pgt_ids, self.tick):
                    self.tick = None
                with self.unit.moment(self.refresher, self.tick) as at:
                    results = attempt.run(at)
            except Stop as stop:
                ended = self._stopped(attempt, members, stop)
                if ended is not None:
                    return ended
                if self.unit.members(aside) != members:
                    return None
            else:
                attempt.clean()
                return results

    def _stopped(self, attempt: Attempt, members: Members, stop: Stop) -> Results | None:
        """What comes of it if there is to be no other attempt."""
        match stop.outcome:
            case Skip(reason=reason):
                return attempt.skip(reason)
            case Again(reason=reason, at_tick=at_tick):
                self.tick = self.tick if at_tick else None
            case Redefine(outdated=outdated, reason=reason):
                first = self.tick is None or self.unit.redefines_at_tick
                self.tick = None
                if first and self._defined_anew(attempt, members, outdated):
                    return attempt.skip(OTHER_GROUP)  # by what it reads now it may be in an atomic group
                if first and not self.anew.issuperset(outdated):
                    self.anew.update(outdated)
                    return None
        return self._count(reason, members, attempt)

    def _defined_anew(self, attempt: Attempt, members: Members, outdated: Mapping[int, str]) -> bool:
        """Whether its tables read others than before: in a circle that is of no account, nor if it is one now."""
        aside = self.connections.aside
        reads = sources_of(aside, members.pgt_ids)
        attempt.define_anew(outdated)
        if members.circular or self.unit.members(aside) != members:
            return False
        return sources_of(aside, members.pgt_ids) != reads

    def _count(self, reason: str, members: Members, attempt: Attempt | None = None) -> Results | None:
        self.left -= 1
        if self.left:
            return None
        last = attempt or self.unit.attempt(self.refresher, self.connections, members)
        return self.unit.too_often(last, reason)

    def skip(self, members: Members, reason: str) -> Results:
        """Before an attempt was made."""
        aside = self.connections.aside
        return {each: skipped(aside, each, self.unit.asked_by(each), reason) for each in members.pgt_ids}
