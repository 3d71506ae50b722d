"""Who belongs together by now: asked for a refresh by name, and again by whoever has the locks that it takes.

A member that came in between is populated, under the locks of all of its group, or cannot be before these are free: so
what is found while they are held stays true until they are let go.
"""

from __future__ import annotations

from pgtrickle.catalog import serving
from pgtrickle.config import Settings
from pgtrickle.db import Connection
from pgtrickle.scheduler import dag, diamonds
from pgtrickle.scheduler.dag import Dag
from pgtrickle.scheduler.diamonds import AtomicGroup, Unit


def group_of(conn: Connection, pgt_id: int, settings: Settings) -> tuple[AtomicGroup, Unit] | None:
    """The atomic group of a stream table, as the service would find it, and its members in order; None if it is in
    none. The table itself counts though it is not populated yet: it is about to be."""
    live = dag.read(conn).only(_live(conn) | {pgt_id})
    for group in diamonds.groups(live, settings):
        if group.atomic and not group.circular and pgt_id in group.members:
            return group, diamonds.order(live, group, group.members)
    return None


def still_together(conn: Connection, unit: Unit, settings: Settings, catalog: Dag, live: Dag) -> bool:
    """Whether the unit that was found in the graph, `live` with our populated tables only, is one of the present."""
    if dag.read(conn, catalog) is catalog and _live(conn) == live.tables.keys():
        return True
    found = group_of(conn, unit[0], settings)
    return unit == (unit[:1] if found is None else found[1])


def _live(conn: Connection) -> frozenset[int]:
    """Those that are populated, of owners that we serve: what others own is not committed together with ours."""
    rows = conn.execute("SELECT pgt_id FROM pgtrickle.pgt_stream_tables WHERE is_populated")
    return frozenset(int(str(pgt_id)) for (pgt_id,) in rows) & serving.served(conn)
