"""An attempt to refresh several stream tables in one transaction: all of them, of one snapshot, or none.

For atomic groups, whoever asks (`units.py`). No member is ever committed without the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pgtrickle import failpoints
from pgtrickle.catalog import reader as catalog
from pgtrickle.db import Connection
from pgtrickle.query.analyse.fingerprint import fingerprint, still_holds
from pgtrickle.refresh.connections import Connections
from pgtrickle.refresh.decide import Action
from pgtrickle.refresh.group.members import RefreshGroup
from pgtrickle.refresh.outcome import Skip, Stop
from pgtrickle.refresh.refresh_record import skipped
from pgtrickle.refresh.refresher import Refresher, at_hand
from pgtrickle.refresh.result import RefreshResult
from pgtrickle.refresh.table_refresh import CHANGED, KEPT_OTHERWISE, TableRefresh
from pgtrickle.refresh.tick import Tick
from pgtrickle.spark.java_errors import text_of


@dataclass(frozen=True, slots=True)
class GroupMember:
    """What is asked of one of them: who asks, and the reason if it is to be computed in full."""

    by: str
    full: str | None = None


@dataclass(slots=True)
class GroupAttempt:
    """One attempt; the caller holds the locks of all. They are in order, each after those it reads.

    `on_change` is part of the transaction, unless none of them had anything to do."""

    refresher: Refresher
    connections: Connections
    asked: Mapping[int, GroupMember]
    on_change: Callable[[Connection], None] | None
    begun: dict[int, TableRefresh] = field(default_factory=dict)
    results: dict[int, RefreshResult] = field(default_factory=dict)

    def run(self, at: Tick | None) -> dict[int, RefreshResult]:
        """What goes wrong with one is raised, after recording it, and all stay as they were."""
        assert at is not None
        try:
            self._transaction(at)
        except Exception as error:
            if isinstance(error, Stop) and isinstance(error.outcome, Skip):
                raise
            for refresh in self.begun.values():
                refresh.record_failure()
            for pgt_id in self.results:
                self.begun[pgt_id].undone(f"undone with the others of its group: {text_of(error)}")
            raise
        finally:  # not sooner: the writer had the staging tables locked, from which it read
            for refresh in self.begun.values():
                refresh.drop_staging()
        failpoints.reach("after-group-commit")
        return self.results

    def clean(self) -> None:
        for refresh in self.begun.values():
            refresh.clean()

    def _transaction(self, at: Tick) -> None:
        writer = self.connections.writer
        with writer.transaction():
            group = RefreshGroup.begin(writer, list(self.asked))
            for pgt_id, asked in self.asked.items():
                refresh = TableRefresh(self.refresher, self.connections, pgt_id, asked.by, asked.full, at, group)
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

    def define_anew(self, outdated: Mapping[int, str]) -> None:
        """And those others of which it is known that they must be as well, or all that was computed before their turn
        would be computed again."""
        for pgt_id, asked in self.asked.items():
            reason = outdated.get(pgt_id) or self._outdated(pgt_id)
            if reason is not None:
                refresh = TableRefresh(self.refresher, self.connections, pgt_id, asked.by, None)
                refresh.define_anew(reason, for_readers=True)

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
