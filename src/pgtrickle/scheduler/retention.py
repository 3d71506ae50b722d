"""How long the record is kept: the history of refreshes and requests that are done, and followers that stay away.

Called by `refresh_loop.py`. Once an hour, and a part at a time, so that a record that has grown for years goes without
one long transaction.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from pgtrickle.catalog import followers
from pgtrickle.db import Connection

KEPT_DAYS: Final = 7
KEPT_REFRESHES: Final = 100
"""Of each stream table, however old: what last happened to one that is seldom refreshed."""
EVERY_S: Final = 3600.0
AT_ONCE: Final = 10_000

# The index on (pgt_id, refresh_id) leads to each table's rows beyond the last ones; a RUNNING row has not finished.
# What goes is added to the sums of its table: counters must not fall.
_REFRESHES: Final = """
WITH gone AS (DELETE FROM pgtrickle.pgt_refresh_history WHERE refresh_id IN (
    SELECT h.refresh_id FROM pgtrickle.pgt_stream_tables AS t
    CROSS JOIN LATERAL (SELECT k.refresh_id FROM pgtrickle.pgt_refresh_history AS k WHERE k.pgt_id = t.pgt_id
                        ORDER BY k.refresh_id DESC OFFSET %(last)s LIMIT 1) AS beyond
    JOIN pgtrickle.pgt_refresh_history AS h ON h.pgt_id = t.pgt_id AND h.refresh_id <= beyond.refresh_id
    WHERE h.finished_at < now() - %(days)s * interval '1 day' LIMIT %(most)s)
    RETURNING *
), kept AS (
    INSERT INTO pgtrickle.pgt_pruned_refreshes AS sums
    SELECT pgt_id, coalesce(action, ''), status, pgtrickle_internal.duration_bucket(duration_ms), count(*),
           sum(rows_inserted), sum(rows_deleted), sum(changes_read), coalesce(sum(duration_ms), 0) / 1000
    FROM gone GROUP BY 1, 2, 3, 4
    ON CONFLICT (pgt_id, action, status, bucket) DO UPDATE SET
        refreshes = sums.refreshes + excluded.refreshes, rows_inserted = sums.rows_inserted + excluded.rows_inserted,
        rows_deleted = sums.rows_deleted + excluded.rows_deleted,
        changes_read = sums.changes_read + excluded.changes_read, seconds = sums.seconds + excluded.seconds
)
SELECT FROM gone
"""
_REQUESTS: Final = """
DELETE FROM pgtrickle.pgt_requests WHERE id IN (
    SELECT id FROM pgtrickle.pgt_requests WHERE finished_at < now() - %(days)s * interval '1 day' LIMIT %(most)s)
"""


@dataclass(slots=True)
class Retention:
    """When the record was last gone through."""

    _next: float = 0.0

    def keep(self, conn: Connection) -> None:
        """Removes what is too old, if it is time to."""
        now = time.monotonic()
        if now >= self._next and not prune(conn):
            self._next = now + EVERY_S


def prune(conn: Connection) -> bool:
    """Removes a part of what is too old; whether there may be more."""
    values = {"days": KEPT_DAYS, "last": KEPT_REFRESHES, "most": AT_ONCE}
    followers.expire(conn)
    removed = [conn.execute(query, values).rowcount for query in (_REFRESHES, _REQUESTS)]
    return max(removed) == AT_ONCE
