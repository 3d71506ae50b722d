"""Whether a server is ready for us, and the statements that make it so. For `pgtrickle doctor`; changes nothing.

Only what stops us is an error. Without the WAL all works by triggers: what keeps capture from it is a warning.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from pgtrickle import db
from pgtrickle.capture import advice
from pgtrickle.catalog import install
from pgtrickle.config import Settings
from pgtrickle.errors import Error
from pgtrickle.record import Record

_FACTS = """
SELECT current_setting('server_version_num')::integer / 10000, pg_is_in_recovery(), current_setting('wal_level'),
       current_setting('max_replication_slots')::integer,
       current_setting('max_replication_slots')::integer - (SELECT count(*)::integer FROM pg_replication_slots),
       current_setting('max_wal_senders')::integer,
       current_setting('max_wal_senders')::integer - (SELECT count(*)::integer FROM pg_stat_replication),
       has_database_privilege(current_database(), 'CREATE'),
       (SELECT rolsuper OR rolreplication OR EXISTS (SELECT FROM pg_roles AS g
            WHERE g.rolname = 'rds_replication' AND pg_has_role(current_user, g.oid, 'MEMBER'))
        FROM pg_roles WHERE rolname = current_user)
"""
_OWN_SLOTS = "SELECT count(*)::integer FROM pg_replication_slots WHERE slot_name = pgtrickle.slot_name()"
_INDEX_LESS = """
SELECT DISTINCT format('%I.%I', n.nspname, c.relname), pg_size_pretty(pg_relation_size(c.oid))
FROM pgtrickle.pgt_dependencies AS d
JOIN pg_class AS c ON c.oid = d.source_relid JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND c.relpages > 1000 AND NOT EXISTS (SELECT FROM pg_index AS i WHERE i.indrelid = c.oid)
ORDER BY 1
"""


@dataclass(frozen=True, slots=True)
class Finding(Record):
    """What was looked at: `severity` is OK, WARN or ERROR, `mend` the statement or command that puts it right, if there
    is one."""

    check_name: str
    severity: str
    detail: str
    mend: str | None = None


@dataclass(frozen=True, slots=True)
class _Server:
    version: int
    is_standby: bool
    wal_level: str
    slots: int
    free_slots: int
    senders: int
    free_senders: int
    may_create: bool
    may_replicate: bool


def examine(conn: psycopg.Connection[Any]) -> tuple[Finding, ...]:
    """Every check, of a server with our catalog or without."""
    row = conn.execute(_FACTS).fetchone()
    assert row is not None
    server = _Server(*row)
    catalog = _catalog(conn, server)
    found = [_version(server), _writable(server), catalog, _rights(conn, server, catalog)]
    return (*found, *_wal(conn, server, catalog), *(_sources(conn) if catalog.severity == "OK" else ()))


def _version(server: _Server) -> Finding:
    if server.version < db.OLDEST_SERVER:
        detail = f"PostgreSQL {server.version}; pgtrickle needs {db.OLDEST_SERVER} or newer"
        return Finding("server", "ERROR", detail, f"upgrade the server to PostgreSQL {db.OLDEST_SERVER} or newer")
    return Finding("server", "OK", f"PostgreSQL {server.version}")


def _writable(server: _Server) -> Finding:
    if server.is_standby:
        return Finding("primary", "ERROR", "a standby: nothing can be captured here", "connect to the primary")
    return Finding("primary", "OK", "it takes writes")


def _catalog(conn: psycopg.Connection[Any], server: _Server) -> Finding:
    try:
        return Finding("catalog", "OK", f"version {install.require(conn)}")
    except Error as error:
        return Finding("catalog", "WARN", error.message, "pgtrickle install")


def _rights(conn: psycopg.Connection[Any], server: _Server, catalog: Finding) -> Finding:
    if server.may_create or catalog.severity == "OK":
        return Finding("rights", "OK", f"{conn.info.user} has what the catalog needs")
    grant = sql.SQL("GRANT CREATE ON DATABASE {} TO {};").format(
        sql.Identifier(conn.info.dbname), sql.Identifier(conn.info.user)
    )
    detail = f"{conn.info.user} may not make schemas here, and so not install the catalog"
    return Finding("rights", "ERROR", detail, grant.as_string(conn))


def _wal(conn: psycopg.Connection[Any], server: _Server, catalog: Finding) -> Iterator[Finding]:
    """What capture from the WAL needs of the server."""
    own = 0
    if catalog.severity == "OK":
        row = conn.execute(_OWN_SLOTS).fetchone()
        own = row[0] if row is not None else 0
    if server.wal_level == "logical":
        yield Finding("wal_level", "OK", "logical")
    else:
        mend = "ALTER SYSTEM SET wal_level = 'logical'; -- then restart the server"
        yield Finding("wal_level", "WARN", f"{server.wal_level}: changes are captured by triggers", mend)
    for name, most, free in (
        ("max_replication_slots", server.slots, server.free_slots),
        ("max_wal_senders", server.senders, server.free_senders),
    ):
        if free + own > 0:
            yield Finding(name, "OK", f"{free} of {most} are free")
        else:
            mend = f"ALTER SYSTEM SET {name} = {most + 2}; -- then restart the server"
            yield Finding(name, "WARN", f"all {most} are in use: changes are captured by triggers", mend)
    if server.may_replicate:
        yield Finding("replication", "OK", f"{conn.info.user} may read the WAL")
    else:
        alter = sql.SQL("ALTER ROLE {} REPLICATION;").format(sql.Identifier(conn.info.user)).as_string(conn)
        detail = f"{conn.info.user} may not read the WAL: changes are captured by triggers"
        yield Finding("replication", "WARN", detail, alter)


def _sources(conn: psycopg.Connection[Any]) -> Iterator[Finding]:
    """What keeps single sources from the WAL, and large ones that can only be read whole."""
    settings = Settings.load(conn)
    missing = advice.missing_identities(conn, settings)
    for each in missing:
        yield Finding("replica identity", "WARN", f"{each.table} has {each.has}: captured by triggers", each.mend)
    if not missing:
        yield Finding("replica identity", "OK", "no source is kept from the WAL by it")
    for table, size in conn.execute(_INDEX_LESS):
        yield Finding("indexes", "WARN", f"{table} ({size}) has no index: joins with it read all of it")
