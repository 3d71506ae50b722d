"""Ends the sessions that a former leader has left: its locks and the replication slot are free then. Called by
`lease.py`.

A process that hangs keeps its sessions open, and with them the locks of what it was refreshing and the slot it was
reading. They are known by the name of the process, which is part of their own. A process may serve several roles: only
sessions of the role at hand are ended, or, for the lease on capture, those of capture.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import psycopg

from pgtrickle.db import Connection
from pgtrickle.scheduler.events import say

OF_CAPTURE: Final = ("pgtrickle decoder", "pgtrickle capture")


def end_sessions(conn: Connection, instance: str, kinds: Sequence[str] | None = None) -> str | None:
    """End the sessions of that process in this database: those of our own role, or those of these kinds, whosever they
    are. What is in the way, if we may not end some."""
    names = None if kinds is None else [f"{kind} [{instance}]" for kind in kinds]
    sessions = conn.execute(
        "SELECT pid, usename, application_name FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name LIKE %(mark)s"
        " AND CASE WHEN %(names)s::text[] IS NULL THEN usename = session_user"
        " ELSE application_name = ANY(%(names)s) END",
        {"mark": f"pgtrickle %[{instance}]", "names": names},
    ).fetchall()
    ended, refused = [], []
    for pid, role, name in sessions:
        try:
            conn.execute("SELECT pg_terminate_backend(%s)", (pid,))
            ended.append(pid)
        except psycopg.errors.InsufficientPrivilege:
            refused.append(f"{pid} ({name}, of role {role})")
    if ended:
        say("former_leader_ended", logging.WARNING, instance=instance, backend_pids=ended)
    if not refused:
        return None
    obstacle = (
        "sessions of a service that hangs, or has just ended, could not be ended by the one that took over from it:"
        f" {', '.join(refused)}; end them, or grant pg_signal_backend"
    )
    say("former_leader_not_ended", logging.WARNING, instance=instance, obstacle=obstacle)
    return obstacle
