"""What a follower does in the database: begins, asks what is new, and tells what it has. Called by `spark_source/`.

A follower goes from snapshot to snapshot, as a refresh does: what is visible in the later and not in the earlier is its
batch, and stays readable until the follower has told that it has applied it. The stream table is captured by triggers,
as for a stream table that reads it; a refresh writes only what differs, so its changes are real ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from pgtrickle.capture import buffer, triggers
from pgtrickle.capture.buffer import SCHEMA
from pgtrickle.capture.change_window import NotCaptured, Pending, covers, in_window, pending
from pgtrickle.catalog import followers
from pgtrickle.catalog import reader as catalog
from pgtrickle.catalog.reader import StreamTable
from pgtrickle.config import Settings
from pgtrickle.db import Connection, statement
from pgtrickle.errors import StateError, UsageError
from pgtrickle.model import Table


@dataclass(frozen=True, slots=True)
class Followed:
    """A stream table, as one follower sees it."""

    follower_id: int
    name: str
    relid: int


def follow(connection: Connection, stream: StreamTable, name: str, columns: Sequence[str], expires: str) -> Followed:
    """The follower of that name, registered if there is none, with the changes of these columns captured. All changes
    that are not visible in a snapshot taken after this are in the buffer."""
    found = followers.find(connection, name)
    if found is None:
        _register(connection, stream, name, columns, expires)
        found = followers.find(connection, name)
        assert found is not None
    if found.expired_at is not None:
        raise followers.unknown(found, found.follower_id, name)
    if found.pgt_id != stream.pgt_id or not set(columns) <= set(found.columns):
        what = "another stream table" if found.pgt_id != stream.pgt_id else "other columns"
        raise UsageError(
            f"the follower {name} follows {what}", code="PT554", hint="Give each of them a name of its own."
        )
    return Followed(found.follower_id, name, stream.pgt_relid)


def _register(connection: Connection, stream: StreamTable, name: str, columns: Sequence[str], expires: str) -> None:
    settings = Settings.load(connection)
    table = Table(stream.pgt_relid, stream.pgt_schema, stream.pgt_name)
    try:
        with connection.transaction():
            followers.register(connection, name, stream.pgt_id, columns, expires)
            triggers.attach_all(connection, {table: columns}, trigger_mode=settings.cdc_trigger_mode)
    except (psycopg.errors.InvalidDatetimeFormat, psycopg.errors.CheckViolation) as error:
        raise UsageError(
            f"expires: {expires!r} is no length of time", code="PT558", hint="Write 7 days, or 12 hours."
        ) from error


def latest(connection: Connection, followed: Followed, since: str | None, until: str | None = None) -> str:
    """The snapshot up to which there is something new since that one, or since what the follower has told, `until` or
    now; the same again if there is nothing."""
    known = since or followers.seen(connection, followed.follower_id, followed.name)
    _require_kept(connection, followed, known)
    row = connection.execute(
        statement(
            f"SELECT EXISTS (SELECT FROM {SCHEMA}.{buffer.buffer_name(followed.relid)}"
            f" WHERE {in_window(known, until, None)}), pg_current_snapshot()::text"
        )
    ).fetchone()
    assert row is not None
    return (until or str(row[1])) if row[0] else known


def _require_kept(connection: Connection, followed: Followed, since: str) -> None:
    """An error if what has happened since then may have left the buffer."""
    if not covers(since, followers.seen(connection, followed.follower_id, followed.name)):
        raise StateError(
            f"another stream has gone on under the name {followed.name}: changes were not kept for this one",
            code="PT559",
            hint="Give each stream a name of its own; begin this one from the start.",
        )


def require_told(connection: Connection, followed: Followed, since: str) -> None:
    """An error if the changes since then are not all there, or do not add up to what became of the table."""
    _require_kept(connection, followed, since)
    try:
        found = pending(connection, [followed.relid], since)[followed.relid]
    except NotCaptured as error:
        raise not_captured() from error
    require_whole(found)


def not_captured() -> StateError:
    """The error where there is no buffer."""
    return followers.not_told("its changes were not captured for a time")


def require_whole(found: Pending) -> None:
    """An error if changes are not all there, or do not add up to what became of the table."""
    if not found.captured:
        raise followers.not_told("its triggers were disabled or dropped")
    if found.truncated:
        raise followers.not_told("it was truncated, or its columns were changed")


def applied(connection: Connection, followed: Followed, snapshot: str, settings: Settings) -> None:
    """The follower has all up to there: what no one else needs leaves the buffer."""
    followers.apply(connection, followed.follower_id, followed.name, snapshot)
    followers.expire(connection)
    frontiers = catalog.frontiers_of(connection, [followed.relid]).get(followed.relid, [])
    buffer.clean(connection, followed.relid, frontiers, use_truncate=settings.cleanup_use_truncate)


def require_none(connection: Connection, stream: StreamTable) -> None:
    """An error if someone follows a stream table that is to be dropped."""
    names = followers.of(connection, stream.pgt_id)
    if names:
        named = sql.Literal(names[0]).as_string(connection)
        raise StateError(
            f"the follower {names[0]} reads {stream}",
            code="PT557",
            hint=f"SELECT pgtrickle.drop_follower({named}) first, or drop with cascade",
        )
