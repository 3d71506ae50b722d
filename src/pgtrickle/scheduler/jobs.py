"""The record of what the service ran (`pgt_scheduler_jobs`): a row for each unit of a tick. Written by
`refresh_loop.py`.

The rows are for people. What a refresh did stands in the history, in the transaction that did it; these are not waited
for on disk.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import psycopg

KEPT: Final = 10_000


def begin(conn: psycopg.Connection[Any], tick: datetime, members: Sequence[int]) -> int:
    """One unit of a tick is started; returns its number."""
    row = conn.execute(
        "INSERT INTO pgtrickle.pgt_scheduler_jobs (tick, members) VALUES (%s, %s) RETURNING job_id",
        (tick, list(members)),
    ).fetchone()
    assert row is not None
    return int(row[0])


def finish(
    conn: psycopg.Connection[Any], job_id: int, state: str, actions: Mapping[str, str], error: str | None = None
) -> None:
    """What became of it: DONE, FAILED or SKIPPED, and the action for each member, by name."""
    conn.execute(
        "UPDATE pgtrickle.pgt_scheduler_jobs SET state = %s, actions = %s, error = %s, finished_at = clock_timestamp()"
        " WHERE job_id = %s",
        (state, json.dumps(dict(actions)), error, job_id),
    )


def skip(conn: psycopg.Connection[Any], tick: datetime, members: Sequence[int], reason: str) -> None:
    """A unit is not run in this tick."""
    conn.execute(
        "INSERT INTO pgtrickle.pgt_scheduler_jobs (tick, members, state, error, finished_at)"
        " VALUES (%s, %s, 'SKIPPED', %s, clock_timestamp())",
        (tick, list(members), reason),
    )


def prune(conn: psycopg.Connection[Any]) -> int:
    """Keeps the last ones; returns how many went."""
    return conn.execute(
        "DELETE FROM pgtrickle.pgt_scheduler_jobs"
        " WHERE job_id <= (SELECT max(job_id) FROM pgtrickle.pgt_scheduler_jobs) - %s",
        (KEPT,),
    ).rowcount
