"""What to run so that a source can be captured from the WAL, where its replica identity is all that is missing.

Most tables have a primary key and REPLICA IDENTITY DEFAULT, by which the WAL does not tell the old values of other
columns. Triggers do, so nothing is wrong; but a user should not have to look for the one line that changes it. Called
by the API, which shows it at creation and in `cdc` and `health`, and where a request made by SQL is answered.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from pgtrickle.capture import eligibility, mode_change
from pgtrickle.capture.eligibility import IDENTITY
from pgtrickle.capture.locks import LockRequest, lock_all
from pgtrickle.capture.observe import asked_of
from pgtrickle.config import Settings

_IDENTITIES = """
SELECT c.oid::bigint, format('%%I.%%I', n.nspname, c.relname), CASE c.relreplident
           WHEN 'd' THEN 'REPLICA IDENTITY DEFAULT' WHEN 'n' THEN 'REPLICA IDENTITY NOTHING'
           ELSE 'a replica identity that does not cover the columns used' END
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = ANY(%s::oid[])
ORDER BY 2
"""


@dataclass(frozen=True, slots=True)
class MissingIdentity:
    """A table, the replica identity that it `has`, and the statements that give it one that will do."""

    table: str
    has: str
    mend: str


def advice(
    conn: psycopg.Connection[Any], settings: Settings, sources: Collection[int] | None = None
) -> tuple[str, ...]:
    """One line a source, or one of those that are named, that only its replica identity keeps from the WAL."""
    return tuple(
        f"{each.table} has {each.has}, and is captured by triggers; to capture it from the WAL: {each.mend}"
        for each in missing_identities(conn, settings, sources)
    )


def missing_identities(
    conn: psycopg.Connection[Any], settings: Settings, sources: Collection[int] | None = None
) -> tuple[MissingIdentity, ...]:
    """Of those sources that only this keeps from the WAL."""
    asked = asked_of(conn, settings)
    verdicts = eligibility.verdicts(conn, set_identity=settings.auto_replica_identity)
    wanted = [
        (oid, found.unidentified)
        for oid, found in sorted(verdicts.items())
        if found.code == IDENTITY and (sources is None or oid in sources) and oid in asked
        if asked[oid].mode != "trigger"
    ]
    return tuple(_missing(conn, source, tables) for source, tables in wanted)


def set_identities(conn: psycopg.Connection[Any], settings: Settings, sources: Collection[int]) -> None:
    """Do what the advice says, in the caller's transaction; it is undone when the last stream table leaves. Where
    something else keeps the source from the WAL too, nothing is changed."""
    asked = asked_of(conn, settings)
    for oid, found in eligibility.verdicts(conn, set_identity=True).items():
        wal = oid in asked and asked[oid].mode != "trigger"
        if oid not in sources or not wal or not found.eligible or not found.unidentified:
            continue
        lock_all(conn, [LockRequest(each, "ACCESS EXCLUSIVE") for each in _names(conn, found.unidentified)])
        mode_change.set_identity(conn, oid, found.unidentified)


def _missing(conn: psycopg.Connection[Any], source: int, tables: Collection[int]) -> MissingIdentity:
    rows = conn.execute(_IDENTITIES, ([*tables],)).fetchall()
    first = next((row for row in rows if row[0] == source), rows[0])
    commands = " ".join(f"ALTER TABLE {name} REPLICA IDENTITY FULL;" for _, name, _ in rows)
    return MissingIdentity(first[1], first[2], commands)


def _names(conn: psycopg.Connection[Any], tables: Collection[int]) -> list[sql.Identifier]:
    rows = conn.execute(
        "SELECT n.nspname, c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
        " WHERE c.oid = ANY(%s::oid[]) ORDER BY c.oid",
        ([*tables],),
    ).fetchall()
    return [sql.Identifier(schema, name) for schema, name in rows]
