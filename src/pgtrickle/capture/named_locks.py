"""Locks by name: rows of ours (`pgt_locks`), held until the caller's transaction ends. For `triggers.py`, `buffer.py`.

Only roles with the catalog's rights can lock these rows, other than PostgreSQL's advisory locks, which anyone may hold.
A row is made when its name is first asked for, and removed with what it is for.
"""

from __future__ import annotations

from typing import Any

import psycopg


def lock(conn: psycopg.Connection[Any], name: str) -> None:
    """Take the lock, waiting for who has it."""
    while not _locked(conn, name):  # missing, or removed by the one that we waited for
        _make(conn, name)


def try_lock(conn: psycopg.Connection[Any], name: str) -> bool:
    """Take the lock if it is free at this moment."""
    if _locked(conn, name, free_only=True):
        return True
    if conn.execute("SELECT FROM pgtrickle_internal.pgt_locks WHERE name = %s", (name,)).rowcount:
        return False
    _make(conn, name)
    return _locked(conn, name, free_only=True)


def remove(conn: psycopg.Connection[Any], name: str) -> None:
    """Forget the lock. One that another has stays: to wait for it here might close a circle."""
    conn.execute(
        "DELETE FROM pgtrickle_internal.pgt_locks WHERE name IN"
        " (SELECT l.name FROM pgtrickle_internal.pgt_locks AS l WHERE l.name = %s FOR UPDATE SKIP LOCKED)",
        (name,),
    )


def _locked(conn: psycopg.Connection[Any], name: str, *, free_only: bool = False) -> bool:
    query = "SELECT FROM pgtrickle_internal.pgt_locks WHERE name = %s FOR UPDATE"
    return bool(conn.execute(f"{query}{' SKIP LOCKED' if free_only else ''}", (name,)).rowcount)


def _make(conn: psycopg.Connection[Any], name: str) -> None:
    conn.execute("INSERT INTO pgtrickle_internal.pgt_locks (name) VALUES (%s) ON CONFLICT DO NOTHING", (name,))
