"""Brings the copies of compared sources up to date before an attempt to refresh what reads them. Called by `loop.py`.

A copy is compared once in a refresh, however many attempts that takes; one that is made meanwhile, as a table is
defined again, is filled before the next. The tick's snapshot does not see what a comparison has changed since.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pgtrickle.capture import copies
from pgtrickle.refresh.connections import Connections
from pgtrickle.refresh.failure import as_ours, known_failures
from pgtrickle.refresh.refresh_record import RefreshRecord
from pgtrickle.refresh.refresher import Refresher
from pgtrickle.refresh.retry import classify
from pgtrickle.refresh.tick import Tick


@dataclass(slots=True)
class Comparing:
    """The comparisons of one refresh."""

    refresher: Refresher
    connections: Connections
    asked_by: Callable[[int], str]
    in_full: bool
    done: set[int] = field(default_factory=set)

    def bring_up_to_date(self, pgt_ids: Sequence[int], tick: Tick | None) -> bool:
        """Whether the tick's snapshot sees all copies as they are now. What goes wrong is raised, after recording it
        for all that are refreshed together."""
        aside = self.connections.aside
        interval = 0 if self.in_full else self.refresher.settings.compare_interval
        found = copies.read_by(aside, list(pgt_ids), interval)
        for each in found:
            if each.copy_oid not in self.done and each.due:
                try:
                    copies.compare(aside, each.source_oid)
                except known_failures() as error:
                    self._fail(pgt_ids, error)
                self.done.add(each.copy_oid)
        return tick is None or all(copies.seen_in(aside, each.copy_oid, tick.moment.snapshot) for each in found)

    def _fail(self, pgt_ids: Sequence[int], error: Exception) -> None:
        raised = as_ours(error)
        for pgt_id in pgt_ids:
            failed = RefreshRecord(self.refresher, self.connections, pgt_id, self.asked_by(pgt_id))
            failed.stream = failed.read()
            failed.fail(raised, classify(error))
        if raised is error:
            raise error
        raise raised from error
