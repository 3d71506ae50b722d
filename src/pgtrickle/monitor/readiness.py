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
from pgtrickle.catalog import install, reader, serving
from pgtrickle.catalog.reader import StreamTable
from pgtrickle.config import Settings
from pgtrickle.errors import Error
from pgtrickle.monitor import server_settings
from pgtrickle.monitor.finding import Finding
from pgtrickle.monitor.pooler import pooler
from pgtrickle.refresh.definition.define import load
from pgtrickle.refresh.explain import missing_indexes

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
_OWN_SLOTS = "SELECT count(*)::integer FROM pg_replication_slots WHERE slot_name = pgtrickle_internal.slot_name()"
_INDEX_LESS = """
SELECT DISTINCT format('%I.%I', n.nspname, c.relname), pg_size_pretty(pg_relation_size(c.oid))
FROM pgtrickle.pgt_dependencies AS d
JOIN pg_class AS c ON c.oid = d.source_relid JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND c.relpages > 1000 AND NOT EXISTS (SELECT FROM pg_index AS i WHERE i.indrelid = c.oid)
ORDER BY 1
"""


UNREADABLE = "PT402"
"""The error of a catalog that is there, and not for this role."""


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
    settings, told = server_settings.own_settings(conn)
    found = [_version(server), _writable(server), pooler(conn), server_settings.encoding(conn), catalog]
    found += [_rights(conn, server, catalog), *server_settings.connections(conn, settings)]
    found += [*_wal(conn, server, catalog), *server_settings.server_settings(conn), told]
    if catalog.severity == "OK":
        found += [*_sources(conn, settings), *(() if server.is_standby else _indexes(conn))]
    return tuple(found)


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
        if error.code != UNREADABLE:
            return Finding("catalog", "WARN", error.message, "pgtrickle install")
        grant = sql.SQL("GRANT {} TO {};").format(sql.Identifier(install.USER_ROLE), sql.Identifier(conn.info.user))
        return Finding("catalog", "ERROR", error.message, grant.as_string(conn))


def _rights(conn: psycopg.Connection[Any], server: _Server, catalog: Finding) -> Finding:
    if server.may_create or catalog.severity in {"OK", "ERROR"}:  # it is there, if it cannot be read
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


def _sources(conn: psycopg.Connection[Any], settings: Settings) -> Iterator[Finding]:
    """What keeps single sources from the WAL."""
    missing = advice.missing_identities(conn, settings)
    for each in missing:
        yield Finding("replica identity", "WARN", f"{each.table} has {each.has}: captured by triggers", each.mend)
    if not missing:
        yield Finding("replica identity", "OK", "no source is kept from the WAL by it")


def _indexes(conn: psycopg.Connection[Any]) -> Iterator[Finding]:
    """The indexes that `explain` would name, of all stream tables that this login computes, and large sources that can
    only be read whole."""
    wanted: dict[str, list[str]] = {}
    all_known = True
    computed = serving.computable(conn)
    for stream in reader.list_tables(conn):
        if stream.pgt_id not in computed or stream.effective_mode == "FULL":
            continue
        try:
            for statement in _missing(conn, stream):
                wanted.setdefault(statement, []).append(str(stream))
        except (Error, psycopg.Error) as error:
            all_known = False
            told = "; ".join(filter(None, [str(error), getattr(error, "hint", None)]))
            yield Finding("indexes", "WARN", f"{stream} cannot be explained: {' '.join(told.split())}")
    for statement, streams in wanted.items():
        yield Finding("indexes", "WARN", f"refreshes of {', '.join(streams)} read a table whole", statement)
    bare = conn.execute(_INDEX_LESS).fetchall()
    for table, size in bare:
        yield Finding("indexes", "WARN", f"{table} ({size}) has no index: joins with it read all of it")
    if all_known and not wanted and not bare:
        yield Finding("indexes", "OK", "none is missed by a refresh")


def _missing(conn: psycopg.Connection[Any], stream: StreamTable) -> tuple[str, ...]:
    """Analysed as for a refresh: by a view that is there for a moment, in a transaction that is rolled back."""
    with conn.transaction(force_rollback=True):
        conn.execute("SELECT set_config('lock_timeout', %s, true)", (db.LOCK_TIMEOUT,))
        return missing_indexes(conn, load(conn, stream), immediate=stream.refresh_mode == "IMMEDIATE")
