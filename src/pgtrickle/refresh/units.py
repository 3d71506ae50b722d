"""What is refreshed together, and how: a table by itself, or with its circle; an atomic group. The entry for all who
refresh: the API, the service, tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial

from pgtrickle.catalog import reader as catalog
from pgtrickle.db import Connection
from pgtrickle.errors import StateError
from pgtrickle.refresh import loop
from pgtrickle.refresh import tick as ticks
from pgtrickle.refresh.circle.circle_refresh import CircleAttempt
from pgtrickle.refresh.connections import Connections
from pgtrickle.refresh.group.group_refresh import GroupAttempt, GroupMember
from pgtrickle.refresh.group.members import sources_of
from pgtrickle.refresh.immediate import switch
from pgtrickle.refresh.lock import PATIENCE_S
from pgtrickle.refresh.loop import Attempt, Members, Results
from pgtrickle.refresh.refresher import Refresher
from pgtrickle.refresh.result import RefreshResult
from pgtrickle.refresh.table_refresh import TableRefresh
from pgtrickle.refresh.tick import Tick

ASKED_IN_FULL = "full refresh asked for"


def refresh_table(
    refresher: Refresher,
    pgt_id: int,
    *,
    full: bool = False,
    initiated_by: str = "MANUAL",
    tick: Tick | None = None,
    still: Callable[[Connection], bool] | None = None,
) -> Results:
    """Refreshes a stream table, and with it those that it is in a circle with; returns what was done, by table.

    To the tick's snapshot, if there is one and it can be. Raises what went wrong, after recording it for all of them.
    `still` is asked of a table in no circle, once its lock is held: whether it may be refreshed by itself.
    """
    unit = _Table(pgt_id, full, initiated_by, still)
    results = loop.refresh(refresher, unit, tick)
    _take_into_immediate(refresher, results)
    return results


def refresh_group(
    refresher: Refresher,
    asked: Mapping[int, GroupMember],
    tick: Tick | None = None,
    *,
    still: Callable[[Connection], bool] | None = None,
    patience_s: float = 0.0,
    on_change: Callable[[Connection], None] | None = None,
) -> Results:
    """Refreshes these stream tables, which come each after those it reads, and commits them together or not at all;
    `on_change` is part of that transaction, unless none of them had anything to do.

    `still` is asked once the locks are held: whether these are still those that belong together, and all of them. To
    the tick's snapshot, if there is one and they can be. If they cannot be refreshed now all are skipped, with the
    reason. What goes wrong with one is raised, after recording it, and all stay as they were.
    """
    results = loop.refresh(refresher, _Group(asked, still, patience_s, on_change), tick)
    _take_into_immediate(refresher, results)
    return results


def _take_into_immediate(refresher: Refresher, results: Results) -> None:
    """Those of the tables that are to be kept in IMMEDIATE mode, and are up to date now."""
    for pgt_id in results:
        if switch.is_due(catalog.by_id(refresher.connections().aside, pgt_id)):
            switch.into(refresher, pgt_id, partial(_refresh_alone, refresher, pgt_id))


def _refresh_alone(refresher: Refresher, pgt_id: int) -> Results:
    return loop.refresh(refresher, _Table(pgt_id, full=False, by="MANUAL", still=None))


@dataclass(frozen=True, slots=True)
class _Table:
    """A table by itself, or with those that it is in a circle with."""

    pgt_id: int
    full: bool
    by: str
    still: Callable[[Connection], bool] | None

    @property
    def patience_s(self) -> float:
        return 0.0 if self.by == "SCHEDULER" else PATIENCE_S

    @property
    def redefines_at_tick(self) -> bool:
        return False

    @property
    def in_full(self) -> bool:
        return self.full

    def members(self, conn: Connection) -> Members:
        circle = catalog.circle(conn, self.pgt_id)
        return Members(tuple(circle), circular=True) if circle else Members((self.pgt_id,))

    def belongs_together(self, conn: Connection, members: Members) -> bool:
        return members.circular or self.still is None or self.still(conn)

    def asked_by(self, pgt_id: int) -> str:
        return self.by

    def moment(self, refresher: Refresher, tick: Tick | None) -> nullcontext[Tick | None]:
        return nullcontext(tick)

    def attempt(self, refresher: Refresher, connections: Connections, members: Members) -> Attempt:
        if members.circular:
            return CircleAttempt(refresher, connections, tuple(members.pgt_ids), self.by, self.full)
        return _TableAttempt(refresher, connections, self.pgt_id, self.by, ASKED_IN_FULL if self.full else None)

    def too_often(self, attempt: Attempt, reason: str) -> Results:
        what = "the circle keeps" if isinstance(attempt, CircleAttempt) else "the sources keep"
        raise StateError(
            f"{what} changing while it is refreshed: {reason}",
            code="PT375" if isinstance(attempt, CircleAttempt) else "PT342",
            hint="refresh again when no DDL is under way",
        )


@dataclass(slots=True)
class _TableAttempt:
    refresher: Refresher
    connections: Connections
    pgt_id: int
    by: str
    full: str | None
    refresh: TableRefresh = field(init=False)

    def __post_init__(self) -> None:
        self.refresh = self._new(None)

    def _new(self, at: Tick | None) -> TableRefresh:
        return TableRefresh(self.refresher, self.connections, self.pgt_id, self.by, self.full, at)

    def run(self, at: Tick | None) -> dict[int, RefreshResult]:
        self.refresh = self._new(at)
        return {self.pgt_id: self.refresh.run()}

    def define_anew(self, outdated: Mapping[int, str]) -> None:
        self.refresh.define_anew(outdated[self.pgt_id])

    def skip(self, reason: str) -> dict[int, RefreshResult]:
        return {self.pgt_id: self.refresh.skip(reason)}

    def clean(self) -> None:
        self.refresh.clean()


@dataclass(frozen=True, slots=True)
class _Group:
    """An atomic group."""

    asked: Mapping[int, GroupMember]
    still: Callable[[Connection], bool] | None
    patience_s: float
    on_change: Callable[[Connection], None] | None

    @property
    def redefines_at_tick(self) -> bool:
        return True

    @property
    def in_full(self) -> bool:
        return any(each.full is not None for each in self.asked.values())

    def members(self, conn: Connection) -> Members:
        return Members(tuple(self.asked))

    def belongs_together(self, conn: Connection, members: Members) -> bool:
        reads = sources_of(conn, members.pgt_ids)
        return _in_order(members.pgt_ids, reads) and (self.still is None or self.still(conn))

    def asked_by(self, pgt_id: int) -> str:
        return self.asked[pgt_id].by

    @contextmanager
    def moment(self, refresher: Refresher, tick: Tick | None) -> Iterator[Tick | None]:
        """The tick, or one of now: each attempt has its own, so that no snapshot is held for longer than it is of
        use."""
        if tick is not None:
            yield tick
            return
        with ticks.connect(refresher.dsn) as connection, ticks.held(connection) as at:
            yield at

    def attempt(self, refresher: Refresher, connections: Connections, members: Members) -> GroupAttempt:
        return GroupAttempt(refresher, connections, self.asked, self.on_change)

    def too_often(self, attempt: Attempt, reason: str) -> Results:
        return attempt.skip(f"tried {loop.MOST_ATTEMPTS} times: {reason}")


def _in_order(pgt_ids: Sequence[int], reads: Mapping[int, frozenset[int]]) -> bool:
    """Whether each still comes after those it reads: a definition may have changed since that was worked out. While the
    locks are held, none does but by us."""
    return all(reads[pgt_id].isdisjoint(pgt_ids[place:]) for place, pgt_id in enumerate(pgt_ids))
