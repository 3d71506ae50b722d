"""A refresh that someone asks for by name: of one stream table, and with it of its atomic group or circle.

A table of a group that is brought up to date by itself would be of another version than the rest. Called by the API.
"""

from __future__ import annotations

from typing import Final

from pgtrickle.db import Connection
from pgtrickle.refresh.group.group_refresh import GroupMember
from pgtrickle.refresh.lock import PATIENCE_S
from pgtrickle.refresh.refresh_record import OTHER_GROUP
from pgtrickle.refresh.refresher import Refresher
from pgtrickle.refresh.result import RefreshResult
from pgtrickle.refresh.units import ASKED_IN_FULL, refresh_group, refresh_table
from pgtrickle.scheduler import diamonds
from pgtrickle.scheduler.diamonds import AtomicGroup, Unit
from pgtrickle.scheduler.membership import group_of

_MOST_TRIES: Final = 5


def refresh(refresher: Refresher, pgt_id: int, *, full: bool = False, initiated_by: str = "MANUAL") -> RefreshResult:
    """Brings a stream table up to date, with all that must be of one version with it; answers what was done to it."""

    def found(conn: Connection) -> tuple[AtomicGroup, Unit] | None:
        return group_of(conn, pgt_id, refresher.settings)

    for _ in range(_MOST_TRIES):
        group = found(refresher.connections().aside)
        if group is None:
            alone = refresh_table(
                refresher, pgt_id, full=full, initiated_by=initiated_by, still=lambda conn: found(conn) is None
            )
            result = alone[pgt_id]
        else:
            result = _refresh_group(refresher, *group, pgt_id, full=full, initiated_by=initiated_by)
        if result.reason != OTHER_GROUP:
            break
    return result


def _refresh_group(
    refresher: Refresher, group: AtomicGroup, unit: Unit, pgt_id: int, *, full: bool, initiated_by: str
) -> RefreshResult:
    def count(writer: Connection) -> None:
        diamonds.advance(writer, group)

    def still(conn: Connection) -> bool:
        return group_of(conn, pgt_id, refresher.settings) == (group, unit)

    others = dict.fromkeys(unit, GroupMember("MANUAL"))
    asked = {pgt_id: GroupMember(initiated_by, ASKED_IN_FULL if full else None)}
    return refresh_group(refresher, others | asked, still=still, patience_s=PATIENCE_S, on_change=count)[pgt_id]
