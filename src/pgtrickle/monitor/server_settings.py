"""Whether the server has room for our connections, an encoding and settings that we can work with. For
`readiness.py`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from pgtrickle.config import Settings
from pgtrickle.errors import UsageError
from pgtrickle.monitor.finding import Finding

OF_A_REFRESH: Final = 5
"""Connections that a thread with refreshes keeps (`refresh/connections.py`)."""
OF_THE_SERVICE: Final = 14
"""All others of a service: its lease, loops and tick, a request and its refresh, the decoder, metrics, the
dashboard."""
_LIMITS: Final = """
SELECT current_setting('max_connections')::integer,
       current_setting('superuser_reserved_connections')::integer
       + coalesce(current_setting('reserved_connections', true)::integer, 0),
       (SELECT sum(numbackends)::integer FROM pg_stat_database WHERE datid <> 0),
       r.rolsuper, r.rolconnlimit, d.datconnlimit,
       (SELECT count(*)::integer FROM pg_stat_activity WHERE usename = current_user AND datname IS NOT NULL),
       (SELECT numbackends FROM pg_stat_database WHERE datname = current_database()),
       (SELECT count(*)::integer FROM pg_stat_activity
        WHERE usename = current_user AND datname = current_database() AND application_name LIKE 'pgtrickle%'
          AND pid <> pg_backend_pid())
FROM pg_roles AS r, pg_database AS d WHERE r.rolname = current_user AND d.datname = current_database()
"""
_ENCODING: Final = "SELECT pg_encoding_to_char(encoding) FROM pg_database WHERE datname = current_database()"
_REPLICAS: Final = """
SELECT coalesce(d.datname, 'all databases'), coalesce(r.rolname, 'all roles'),
       CASE WHEN s.setrole = 0 THEN format('ALTER DATABASE %I RESET session_replication_role;', d.datname)
            WHEN s.setdatabase = 0 THEN format('ALTER ROLE %I RESET session_replication_role;', r.rolname)
            ELSE format('ALTER ROLE %I IN DATABASE %I RESET session_replication_role;', r.rolname, d.datname) END
FROM pg_db_role_setting AS s
LEFT JOIN pg_database AS d ON d.oid = s.setdatabase LEFT JOIN pg_roles AS r ON r.oid = s.setrole
WHERE (s.setdatabase = 0 OR d.datname = current_database())
  AND EXISTS (SELECT FROM unnest(s.setconfig) AS c WHERE c = 'session_replication_role=replica')
ORDER BY 1, 2
"""
_RELOAD: Final = "SELECT pg_reload_conf();"
_RESTART: Final = "-- then restart the server"


@dataclass(frozen=True, slots=True)
class _Limits:
    """`ours` are those that a service of ours has already."""

    most: int
    reserved: int
    used: int
    superuser: bool
    of_role: int
    of_database: int
    used_by_role: int
    used_in_database: int
    ours: int


def needed_connections(settings: Settings) -> int:
    """By a service with all its threads at work, and the tasks of a local Spark."""
    threads = settings.max_concurrent_refreshes if settings.parallel_refresh_mode == "on" else 1
    tasks = settings.spark_connections or (os.cpu_count() or 1)
    return OF_A_REFRESH * threads + OF_THE_SERVICE + tasks


def connections(conn: psycopg.Connection[Any], settings: Settings) -> Iterator[Finding]:
    """Whether the server, the role and the database leave room for all that a service opens."""
    row = conn.execute(_LIMITS).fetchone()
    assert row is not None
    found, needed = _Limits(*row), needed_connections(settings)
    role, database = sql.Identifier(conn.info.user), sql.Identifier(conn.info.dbname)
    usable = found.most - (0 if found.superuser else found.reserved)
    short = needed - (usable - found.used + found.ours)
    if short > 0:
        raise_it = f"ALTER SYSTEM SET max_connections = {found.most + short}; {_RESTART}"
        detail = f"{usable - found.used} of {found.most} connections are free for us, and a service may need {needed}"
        yield Finding("max_connections", "ERROR" if usable < needed else "WARN", detail, raise_it)
    else:
        free = usable - found.used
        yield Finding("max_connections", "OK", f"{free} of {found.most} are free; a service needs up to {needed}")
    for name, limit, used, alter in (
        ("role", found.of_role, found.used_by_role, sql.SQL("ALTER ROLE {} CONNECTION LIMIT {};").format),
        (
            "database",
            found.of_database,
            found.used_in_database,
            sql.SQL("ALTER DATABASE {} CONNECTION LIMIT {};").format,
        ),
    ):
        missing = needed - (limit - used + found.ours)
        if limit >= 0 and not found.superuser and missing > 0:
            statement = alter(role if name == "role" else database, sql.Literal(limit + missing)).as_string(conn)
            detail = f"the {name} may have {limit} connections, {used} are in use; a service may need {needed}"
            yield Finding("connection limit", "ERROR" if limit < needed else "WARN", detail, statement)


def encoding(conn: psycopg.Connection[Any]) -> Finding:
    """Texts travel in UTF8."""
    row = conn.execute(_ENCODING).fetchone()
    assert row is not None
    if row[0] == "UTF8":
        return Finding("encoding", "OK", "UTF8")
    if row[0] == "SQL_ASCII":
        detail = "SQL_ASCII: a text that is not UTF-8 cannot be read; changes are captured by triggers"
    else:
        detail = f"{row[0]}: changes are captured by triggers, as the WAL is read in UTF8"
    return Finding("encoding", "WARN", detail, "move to a database made with CREATE DATABASE … ENCODING 'UTF8'")


def server_settings(conn: psycopg.Connection[Any]) -> Iterator[Finding]:
    """Those of PostgreSQL by which we would work badly, or not be told of changes."""
    found = dict(
        conn.execute(
            "SELECT name, setting FROM pg_settings"
            " WHERE name IN ('autovacuum', 'track_counts', 'old_snapshot_threshold', 'max_slot_wal_keep_size')"
        ).fetchall()
    )
    before = True
    for name in ("autovacuum", "track_counts"):
        if found[name] == "off":
            before = False
            detail = f"{name} is off: sizes and statistics, by which reads are chosen, are not kept"
            yield Finding("settings", "WARN", detail, f"ALTER SYSTEM SET {name} = on; {_RELOAD}")
    if int(found.get("old_snapshot_threshold", -1)) >= 0:  # until PostgreSQL 16
        before = False
        detail = "old_snapshot_threshold is set: a refresh that takes long fails"
        yield Finding("settings", "WARN", detail, f"ALTER SYSTEM SET old_snapshot_threshold = -1; {_RESTART}")
    for database, role, mend in conn.execute(_REPLICAS).fetchall():
        before = False
        detail = f"session_replication_role is replica for {role} in {database}: triggers do not tell of their changes"
        yield Finding("settings", "WARN", detail, mend)
    if before:
        bound = "" if found["max_slot_wal_keep_size"] != "-1" else "; max_slot_wal_keep_size bounds no slot"
        yield Finding("settings", "OK", f"nothing of the server's is in the way{bound}")


def own_settings(conn: psycopg.Connection[Any]) -> tuple[Settings, Finding]:
    """Ours as they are in effect, or the defaults if they cannot be read."""
    try:
        found = Settings.load(conn)
    except UsageError as error:
        return Settings(), Finding("pg_trickle settings", "ERROR", error.message, error.hint)
    if not found.enabled:
        enable = sql.SQL("ALTER DATABASE {} SET pg_trickle.enabled = on;").format(sql.Identifier(conn.info.dbname))
        detail = "pg_trickle.enabled is off: the service refreshes nothing"
        return found, Finding("pg_trickle settings", "WARN", detail, enable.as_string(conn))
    return found, Finding("pg_trickle settings", "OK", "all can be read")
