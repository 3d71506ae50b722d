"""Followers: readers outside of the database that keep up with a stream table by its changes. Their catalog rows.

What a follower has not applied stays in the stream table's buffer, until it expires. Called by `refresh/follow.py`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import psycopg
from psycopg.rows import class_row

from pgtrickle.errors import StateError
from pgtrickle.record import Record

AGAIN: Final = "SELECT pgtrickle.drop_follower(…), then begin from the start: a new checkpoint and an empty copy."


@dataclass(frozen=True, slots=True)
class Follower(Record):
    """A follower as it is shown: what it follows, and until when changes are kept for it if it stays away."""

    name: str
    pgt_schema: str
    pgt_name: str
    status: str
    registered_by: str
    registered_at: datetime
    seen_at: datetime
    expires_at: datetime
    buffer_bytes: int | None


@dataclass(frozen=True, slots=True)
class Registered:
    """A follower as it is kept: changes that are not visible in `has_applied` are kept for it."""

    follower_id: int
    name: str
    pgt_id: int
    columns: list[str]
    has_applied: str
    expired_at: str | None


def list_all(conn: psycopg.Connection[Any]) -> tuple[Follower, ...]:
    with conn.cursor(row_factory=class_row(Follower)) as cursor:
        return tuple(cursor.execute("SELECT * FROM pgtrickle.pgt_follower_status ORDER BY name"))


def of(conn: psycopg.Connection[Any], pgt_id: int) -> tuple[str, ...]:
    """The names of those that follow a stream table, and have not expired."""
    rows = conn.execute(
        "SELECT name FROM pgtrickle.pgt_followers WHERE pgt_id = %s AND expired_at IS NULL ORDER BY name", (pgt_id,)
    )
    return tuple(str(name) for (name,) in rows)


def find(conn: psycopg.Connection[Any], name: str) -> Registered | None:
    """The follower of that name, which may have expired."""
    with conn.cursor(row_factory=class_row(Registered)) as cursor:
        return cursor.execute(
            "SELECT follower_id, name, pgt_id, columns, has_applied::text AS has_applied,"
            " expired_at::text AS expired_at FROM pgtrickle.pgt_followers WHERE name = %s",
            (name,),
        ).fetchone()


def register(
    conn: psycopg.Connection[Any], name: str, pgt_id: int, columns: Collection[str], expires_after: str
) -> None:
    conn.execute(
        "INSERT INTO pgtrickle.pgt_followers (name, pgt_id, columns, expires_after) VALUES (%s, %s, %s, %s::interval)",
        (name, pgt_id, list(columns), expires_after),
    )


def seen(conn: psycopg.Connection[Any], follower_id: int, name: str) -> str:
    """The snapshot up to which it has all changes; StateError if it is not known any more. It counts as seen."""
    conn.execute(
        "UPDATE pgtrickle.pgt_followers SET seen_at = now() WHERE follower_id = %s AND expired_at IS NULL"
        " AND seen_at < now() - interval '1 minute'",
        (follower_id,),
    )
    found = find(conn, name)
    if found is None or found.follower_id != follower_id or found.expired_at is not None:
        raise unknown(found, follower_id, name)
    return found.has_applied


def apply(conn: psycopg.Connection[Any], follower_id: int, name: str, snapshot: str) -> None:
    """It has all changes up to there."""
    moved = conn.execute(
        "UPDATE pgtrickle.pgt_followers SET has_applied = %s::pg_snapshot, seen_at = now()"
        " WHERE follower_id = %s AND expired_at IS NULL",
        (snapshot, follower_id),
    ).rowcount
    if not moved:
        raise unknown(find(conn, name), follower_id, name)


def drop(conn: psycopg.Connection[Any], name: str) -> None:
    if not conn.execute("DELETE FROM pgtrickle.pgt_followers WHERE name = %s", (name,)).rowcount:
        raise StateError(
            f"there is no follower {name}", code="PT552", hint="pgtrickle.pgt_follower_status lists all of them"
        )


def expire(conn: psycopg.Connection[Any]) -> None:
    """Marks those that have stayed away for too long. Before changes are taken away."""
    conn.execute("SELECT pgtrickle_internal.expire_followers()")


def unknown(found: Registered | None, follower_id: int, name: str) -> StateError:
    """Why changes are not kept any more for a follower that comes with a checkpoint."""
    if found is None:
        why = "was dropped, or the stream table was"
    elif found.follower_id != follower_id:
        why = "was dropped, and registered again"
    else:
        why = f"expired at {found.expired_at}: it had stayed away for too long"
    return StateError(f"the follower {name} {why}: changes were not kept for it", code="PT553", hint=AGAIN)


def not_told(why: str) -> StateError:
    """What capture does not know of the time since a follower's last batch."""
    return StateError(f"the changes of the stream table are not known: {why}", code="PT555", hint=AGAIN)
