"""The refresh of several stream tables in one transaction: all of them, of one snapshot, or none.

    locks ─▶ at the tick: each after those it reads ─▶ commit
                ▲        │ one cannot be brought to the tick: nothing is committed
                └────────┘ it is defined anew, where it must be; then all of them again, at a snapshot of now

For atomic groups, whoever asks: the service, and `scheduler/asked.py`. No member is ever committed without the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from pgtrickle import failpoints
from pgtrickle.catalog import reader as catalog
from pgtrickle.catalog import writer as record
from pgtrickle.db import Connection
from pgtrickle.query.fingerprint import fingerprint, still_holds
from pgtrickle.refresh import tick as ticks
from pgtrickle.refresh.account import OTHER_GROUP, UNDER_WAY, skipped
from pgtrickle.refresh.connections import Connections
from pgtrickle.refresh.decide import Action
from pgtrickle.refresh.group import Group, sources_of
from pgtrickle.refresh.lock import refresh_locks
from pgtrickle.refresh.result import RefreshResult
from pgtrickle.refresh.run import Refresher, at_hand
from pgtrickle.refresh.tick import NotInTick, Tick
from pgtrickle.refresh.underway import CHANGED, KEPT_OTHERWISE, Halted, Refresh
from pgtrickle.refresh.window import Behind
from pgtrickle.spark.trace import text_of

MOST_TRIES = 3
"""At the tick, and then at snapshots of now; those do not count in which a table was found that had to be defined anew,
once each. Those that are not done by then keep being altered, or refreshed by others."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of one of them: who asks, and the reason if it is to be computed in full."""

    by: str
    full: str | None = None


def refresh(
    refresher: Refresher,
    asked: Mapping[int, Asked],
    tick: Tick | None = None,
    *,
    still: Callable[[Connection], bool] | None = None,
    patience_s: float = 0.0,
    on_change: Callable[[Connection], None] | None = None,
) -> dict[int, RefreshResult]:
    """Refreshes these stream tables, which come each after those it reads, and commits them together or not at all;
    `on_change` is part of that transaction, unless none of them had anything to do.

    `still` is asked once the locks are held: whether these are still those that belong together, and all of them. To
    the tick's snapshot, if there is one and they can be. If they cannot be refreshed now all are skipped, with the
    reason. What goes wrong with one is raised, after recording it, and all stay as they were.
    """
    connections = refresher.connections()
    with refresh_locks(connections.locks, list(asked), patience_s) as locked:
        tries = _Together(refresher, connections, asked, on_change)
        if not locked:
            return tries.skip(UNDER_WAY)
        for pgt_id in asked:
            record.close_abandoned(connections.aside, pgt_id)
        reads = sources_of(connections.aside, list(asked))
        if not _in_order(list(asked), reads) or (still is not None and not still(connections.aside)):
            return tries.skip(OTHER_GROUP)
        left, anew = MOST_TRIES, set[int]()
        while True:
            tries = _Together(refresher, connections, asked, on_change)
            try:
                with _moment(refresher, tick) as at:
                    return tries.run(at)
            except NotInTick as outside:
                tick = None
                if not outside.outdated or outside.pgt_id in anew:
                    left -= 1
                if not left:
                    return tries.skip(f"tried {MOST_TRIES} times: {outside}")
                if outside.outdated:
                    anew.add(outside.pgt_id)
                    tries.define_anew(outside)
                    if sources_of(connections.aside, list(asked)) != reads:
                        return tries.skip(OTHER_GROUP)
            except (Behind, Halted) as halted:
                return tries.skip(str(halted))


@contextmanager
def _moment(refresher: Refresher, tick: Tick | None) -> Iterator[Tick]:
    """The tick, or one of now: each try has its own, so that no snapshot is held for longer than it is of use."""
    if tick is not None:
        yield tick
        return
    with ticks.connect(refresher.dsn) as connection, ticks.held(connection) as at:
        yield at


def _in_order(pgt_ids: Sequence[int], reads: Mapping[int, frozenset[int]]) -> bool:
    """Whether each still comes after those it reads: a definition may have changed since that was worked out. While the
    locks are held, none does but by us."""
    return all(reads[pgt_id].isdisjoint(pgt_ids[place:]) for place, pgt_id in enumerate(pgt_ids))


@dataclass(slots=True)
class _Together:
    """One try; the caller holds the locks of all."""

    refresher: Refresher
    connections: Connections
    asked: Mapping[int, Asked]
    on_change: Callable[[Connection], None] | None
    begun: dict[int, Refresh] = field(default_factory=dict)
    results: dict[int, RefreshResult] = field(default_factory=dict)

    def run(self, at: Tick) -> dict[int, RefreshResult]:
        try:
            self._transaction(at)
        except (Behind, Halted):
            raise
        except Exception as error:
            for refresh in self.begun.values():
                refresh.record_failure()
            for pgt_id in self.results:
                self.begun[pgt_id].undone(f"undone with the others of its group: {text_of(error)}")
            raise
        finally:  # not sooner: the writer had the staging tables locked, from which it read
            for refresh in self.begun.values():
                refresh.drop_staging()
        failpoints.reach("after-group-commit")
        for refresh in self.begun.values():
            refresh.clean()
        return self.results

    def _transaction(self, at: Tick) -> None:
        writer = self.connections.writer
        with writer.transaction():
            group = Group.begin(writer, list(self.asked))
            for pgt_id, asked in self.asked.items():
                refresh = Refresh(self.refresher, self.connections, pgt_id, asked.by, asked.full, at, group)
                self.begun[pgt_id] = refresh
                self.results[pgt_id] = refresh.run()
            if self.on_change is not None and any(r.action is not Action.NO_DATA for r in self.results.values()):
                self.on_change(writer)
            failpoints.reach("before-group-commit")
            self.refresher.hold_fence(writer)

    def skip(self, reason: str) -> dict[int, RefreshResult]:
        """Says so of each of them, in its history."""
        aside = self.connections.aside
        return {
            each: self.begun[each].skip(reason) if each in self.begun else skipped(aside, each, asked.by, reason)
            for each, asked in self.asked.items()
        }

    def define_anew(self, outside: NotInTick) -> None:
        """Defines the table anew that must be; and those others of which it is known that they must be as well, or all
        that was computed before their turn would be computed again."""
        self.begun[outside.pgt_id].define_anew(str(outside))
        for pgt_id, asked in self.asked.items():
            reason = self._outdated(pgt_id) if pgt_id != outside.pgt_id else None
            if reason is not None:
                Refresh(self.refresher, self.connections, pgt_id, asked.by, None).define_anew(reason)

    def _outdated(self, pgt_id: int) -> str | None:
        """Why one must be defined anew, as far as that is known without its turn."""
        stream = catalog.by_id(self.connections.aside, pgt_id)
        known = at_hand(self.refresher.compiled, stream) if stream is not None else None
        if stream is None or known is None:
            return None
        if not known.fits:
            return KEPT_OTHERWISE
        found = fingerprint(self.connections.aside, known.compiled.analysis.dependencies)
        return None if still_holds(stream.source_fingerprint, found) else CHANGED
