"""A refresh that someone asks for by name: of one stream table, and with it of its atomic group or circle.

A table of a group that is brought up to date by itself would be of another version than the rest. Called by the API.
"""

from __future__ import annotations

from typing import Final

from pgtrickle.catalog import reader as catalog
from pgtrickle.db import Connection
from pgtrickle.refresh import circle, together
from pgtrickle.refresh.lock import PATIENCE_S
from pgtrickle.refresh.result import RefreshResult
from pgtrickle.refresh.run import Refresher
from pgtrickle.refresh.together import OTHER_GROUP, Asked
from pgtrickle.scheduler import dag, diamonds
from pgtrickle.scheduler.diamonds import Group, Unit

_MOST_TRIES: Final = 5


def refresh(refresher: Refresher, pgt_id: int, *, full: bool = False, initiated_by: str = "MANUAL") -> RefreshResult:
    """Brings a stream table up to date, with all that must be of one version with it; answers what was done to it."""
    conn = refresher.connections().aside
    for _ in range(_MOST_TRIES):
        found = _group_of(conn, pgt_id, refresher)
        if found is None:
            return circle.refresh(refresher, pgt_id, full=full, initiated_by=initiated_by)[pgt_id]
        result = _refresh_group(refresher, *found, pgt_id, full=full, initiated_by=initiated_by)
        if result.reason != OTHER_GROUP:
            break
    return result


def _group_of(conn: Connection, pgt_id: int, refresher: Refresher) -> tuple[Group, Unit] | None:
    """The atomic group of a stream table, as the service would find it, and its members in order; None if it is in
    none. The table itself counts though it is not populated yet: it is about to be."""
    graph = dag.read(conn)
    populated = {stream.pgt_id for stream in catalog.list_tables(conn) if stream.is_populated}
    live = graph.only(populated | {pgt_id})
    for group in diamonds.groups(live, refresher.settings):
        if group.atomic and not group.circular and pgt_id in group.members:
            return group, diamonds.order(live, group, group.members)
    return None


def _refresh_group(
    refresher: Refresher, group: Group, unit: Unit, pgt_id: int, *, full: bool, initiated_by: str
) -> RefreshResult:
    def count(writer: Connection) -> None:
        diamonds.advance(writer, group)

    others = dict.fromkeys(unit, Asked("MANUAL"))
    asked = {pgt_id: Asked(initiated_by, "full refresh asked for" if full else None)}
    return together.refresh(refresher, others | asked, patience_s=PATIENCE_S, on_change=count)[pgt_id]
