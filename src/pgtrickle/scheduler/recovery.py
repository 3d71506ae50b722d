"""Puts right what a service that was killed left behind. Called when a service begins to lead.

Results are safe without: a refresh is one transaction. What stays is of the record: rows that say RUNNING, and staging
tables. A table whose refresh lock is taken is being refreshed, by hand or by a session that PostgreSQL has not ended
yet: it is left alone, and the caller asks again. Requests are taken up again by `requests.carry_out`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pgtrickle.apply import staging_tables
from pgtrickle.catalog import serving
from pgtrickle.catalog import writer as record
from pgtrickle.db import Connection
from pgtrickle.refresh.lock import lock_free


@dataclass(frozen=True, slots=True)
class Recovered:
    """How many refreshes and jobs were found unfinished, the staging tables that were dropped, and the stream tables
    that were left alone."""

    refreshes: int = 0
    jobs: int = 0
    staging: tuple[str, ...] = ()
    busy: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything was put right."""
        return bool(self.refreshes or self.jobs or self.staging)


def recover(conn: Connection) -> Recovered:
    """All of it, for tables that no one is refreshing and that are not another login's; the caller leads."""
    others = sorted(serving.others(conn))
    jobs = conn.execute(
        "UPDATE pgtrickle.pgt_scheduler_jobs SET state = 'ABANDONED', finished_at = clock_timestamp(),"
        " error = 'the service ended before the job did' WHERE state = 'RUNNING' AND NOT members && %s::bigint[]",
        (others,),
    ).rowcount
    refreshes, staging, busy = 0, list[str](), list[int]()
    for pgt_id in sorted((_unfinished(conn) | _staged(conn)).difference(others)):
        with conn.transaction():
            if lock_free(conn, [pgt_id]):
                refreshes += record.close_abandoned(conn, pgt_id)
                staging += staging_tables.drop_orphans(conn, pgt_id)
            else:
                busy.append(pgt_id)
    return Recovered(refreshes, jobs, tuple(staging), tuple(busy))


def _unfinished(conn: Connection) -> set[int]:
    rows = conn.execute("SELECT DISTINCT pgt_id FROM pgtrickle.pgt_refresh_history WHERE status = 'RUNNING'")
    return {int(str(pgt_id)) for (pgt_id,) in rows}


def _staged(conn: Connection) -> set[int]:
    """The stream tables that have staging tables, whether they themselves still exist or not."""
    rows = conn.execute(
        "SELECT c.relname FROM pg_class AS c WHERE c.relnamespace = to_regnamespace(%s) AND c.relkind = 'r'"
        " AND pg_has_role(c.relowner, 'USAGE')",
        (staging_tables.STATE_SCHEMA,),
    )
    found = (re.fullmatch(r"stage_(\d+)_[0-9a-f]+", str(name)) for (name,) in rows)
    return {int(match[1]) for match in found if match is not None}
