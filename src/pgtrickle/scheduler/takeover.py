"""Ends the sessions that a former leader has left: its locks and the replication slot are free then. Called by
`lease.py`.

A process that hangs keeps its sessions open, and with them the locks of what it was refreshing and the slot it was
reading. They are known by the mark that a service puts into the names of its sessions.
"""

from __future__ import annotations

import logging

import psycopg

from pgtrickle.db import Connection
from pgtrickle.scheduler.events import say


def end_sessions(conn: Connection, instance: str) -> str | None:
    """End all sessions of the service of that name in this database; what is in the way, if we may not end some."""
    sessions = conn.execute(
        "SELECT pid, usename, application_name FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name LIKE %s",
        (f"pgtrickle %[{instance}]",),
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
