"""Refreshes of several stream tables in one transaction: what they see of each other and of those outside the group.

`group_refresh.py` begins a group on its writer, and commits it; the refreshes of its members ask it what they may read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pgtrickle.db import Connection
from pgtrickle.refresh.tick import now
from pgtrickle.refresh.window import including


@dataclass(frozen=True, slots=True)
class RefreshGroup:
    """Tables whose refreshes are one transaction of the writer's; their locks are held.

    `seen` is the snapshot at which all of them see the stream tables outside, whoever refreshes those meanwhile;
    `outside` has those of them that members read, and their frontiers no later than then.
    """

    writer: Connection
    members: Sequence[int]
    seen: str
    outside: Mapping[int, str]

    @classmethod
    def begin(cls, writer: Connection, members: Sequence[int]) -> RefreshGroup:
        outside = _outside(writer, members)  # first: what is refreshed between the two then counts as moved
        return cls(writer, members, now(writer).snapshot, outside)

    def until(self) -> str:
        """The snapshot that members see stream tables at: with what the group has done so far, as if committed."""
        row = self.writer.execute("SELECT pg_current_xact_id_if_assigned()::text").fetchone()
        assert row is not None
        return self.seen if row[0] is None else including(self.seen, int(str(row[0])))

    def moved(self) -> frozenset[int]:
        """The stream tables outside that were refreshed since the group began, by oid."""
        found = _outside(self.writer, self.members)
        return frozenset(oid for oid, frontier in self.outside.items() if found.get(oid) != frontier)


def _outside(writer: Connection, members: Sequence[int]) -> dict[int, str]:
    rows = writer.execute(
        "SELECT t.pgt_relid::bigint, t.frontier::text FROM pgtrickle.pgt_stream_tables AS t"
        " WHERE t.pgt_id <> ALL(%(members)s) AND t.pgt_relid IN ("
        "   SELECT d.source_relid FROM pgtrickle.pgt_dependencies AS d WHERE d.pgt_id = ANY(%(members)s))",
        {"members": list(members)},
    )
    return {int(str(oid)): str(frontier) for oid, frontier in rows}


def sources_of(conn: Connection, pgt_ids: Sequence[int]) -> Mapping[int, frozenset[int]]:
    """The stream tables that each of these stream tables reads, by id."""
    rows = conn.execute(
        "SELECT d.pgt_id, t.pgt_id FROM pgtrickle.pgt_dependencies AS d"
        " JOIN pgtrickle.pgt_stream_tables AS t ON t.pgt_relid = d.source_relid WHERE d.pgt_id = ANY(%s)",
        (list(pgt_ids),),
    )
    pairs = [(int(str(reader)), int(str(source))) for reader, source in rows]
    return {each: frozenset(source for reader, source in pairs if reader == each) for each in pgt_ids}
