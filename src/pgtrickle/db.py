"""Connections to PostgreSQL with pinned session settings. Every part that opens one goes through `connect`."""

from __future__ import annotations

import os
import re
import selectors
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from weakref import WeakKeyDictionary

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus
from psycopg.sql import SQL, Identifier

from pgtrickle.answers import OF_INTEREST, PINNED, stored
from pgtrickle.errors import ServerError, UsageError

Connection: TypeAlias = psycopg.Connection[tuple[object, ...]]

OLDEST_SERVER: Final = 14

OWN_PATH: Final = "pg_catalog, pg_temp"
"""The path of every session of ours: no one else can put a function or an operator on it that fits our calls better
than PostgreSQL's own. What a user names or defines is read by the user's path (`caller`)."""

LOCK_TIMEOUT: Final = "10s"
"""How long a refresh waits for a table that someone else holds."""

_instance: str | None = None
"""Which process with services this is, if it is one: see `instance`."""

_SECRETS = ("password", "sslpassword")


def connect(
    dsn: str,
    *,
    autocommit: bool = True,
    application_name: str = "pgtrickle",
    connect_timeout: int = 10,
) -> Connection:
    """Open a session of ours: under `OWN_PATH`, with what is pinned in effect. An unreachable server is a ServerError
    (PT400)."""
    conn = log_in(dsn, application_name, connect_timeout)
    prepare_session(conn)
    conn.autocommit = autocommit
    return conn


def open_session(dsn: str, *, autocommit: bool = True, application_name: str = "pgtrickle") -> Connection:
    """Open a session as a user has it: the login's own search path, but the settings that are pinned. Not for our own
    statements: whoever may create an operator on that path would have it called."""
    conn = log_in(dsn, application_name, 10)
    conn.execute(statement(_pinning(PINNED)))
    conn.autocommit = autocommit
    return conn


def log_in(dsn: str, application_name: str, connect_timeout: int) -> Connection:
    """A session that is not yet ours, for who bounds the time that its first statements take: `prepare_session` is to
    come before all else."""
    try:
        conninfo = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        # libpq's own message may quote a part of the password, so it is not shown.
        raise UsageError(
            f"not a connection string: {mask(dsn)}", code="PT003", hint="Write postgresql://user@host:port/database."
        ) from None
    timeout = conninfo.pop("connect_timeout", None) or connect_timeout
    conninfo.pop("application_name", None)
    try:
        conn = psycopg.connect(
            make_conninfo("", **conninfo),
            autocommit=True,
            connect_timeout=int(timeout),
            application_name=session_name(application_name),
        )
    except psycopg.OperationalError as error:
        raise ServerError(
            f"cannot connect to {mask(dsn)}: {' '.join(str(error).split())}",
            hint="Check that the server runs and that host, port, database, user and password are right.",
        ) from error
    if conn.info.server_version < OLDEST_SERVER * 10000:
        version = conn.info.parameter_status("server_version")
        conn.close()
        raise ServerError(
            f"PostgreSQL {version} is too old", code="PT401", hint=f"Use PostgreSQL {OLDEST_SERVER} or newer."
        )
    return conn


def instance() -> str:
    """The name of this process, which all sessions that it opens from now on carry: who takes over from a service that
    hangs ends them by that."""
    global _instance
    _instance = _instance or uuid.uuid4().hex[:12]
    return _instance


def session_name(application_name: str) -> str:
    """What a session calls itself to the server."""
    return application_name if _instance is None else f"{application_name} [{_instance}]"


def is_usable(conn: Connection) -> bool:
    """Whether an idle session can be used. One that the server has ended meanwhile does not know it: the server's last
    words wait unread, and so would any others, for which opening it anew does no harm."""
    if conn.closed or conn.broken:
        return False
    with selectors.DefaultSelector() as unread:
        unread.register(conn.fileno(), selectors.EVENT_READ)
        return not unread.select(0)


def prepare_session(conn: Connection) -> None:
    """Makes a session ours: path and pinned settings."""
    for each in session_sql():
        conn.execute(statement(each))


def session_sql() -> tuple[str, str]:
    """The two statements that do it, for any driver. The path comes first: nothing else runs under the login's."""
    return (f"SET search_path = {OWN_PATH}", _pinning(PINNED))


def own_path_dsn(dsn: str) -> str:
    """`dsn` such that a session begins under `OWN_PATH`: for drivers that ask the server before we can say so. ADBC
    knows types by the names of their functions, which are other texts if all identifiers are quoted."""
    options = conninfo_to_dict(dsn).get("options") or os.environ.get("PGOPTIONS") or ""
    ours = f"-csearch_path={OWN_PATH.replace(' ', '')} -cquote_all_identifiers=off"
    return make_conninfo(dsn, options=f"{options} {ours}".strip())


def dsn_elsewhere(conn: Connection, application_name: str) -> str:
    """How another machine opens a session like this one, to the same server. What this machine's variables, service and
    password files have said is written out; so is the one host, of several, that this session is with."""
    known = {
        name: value
        for name, value in conn.info.get_parameters().items()
        if name not in {"service", "servicefile", "passfile", "hostaddr", "target_session_attrs", "load_balance_hosts"}
    }
    known |= {"host": conn.info.host, "port": str(conn.info.port), "dbname": conn.info.dbname, "user": conn.info.user}
    known |= {"application_name": session_name(application_name)}
    return make_conninfo("", **known, **({"password": conn.info.password} if conn.info.password else {}))


def _pinning(settings: Mapping[str, str]) -> str:
    """Settings that the server does not know are left out."""
    values = ", ".join(f"('{name}', '{value}')" for name, value in settings.items())
    return (
        f"SELECT pg_catalog.set_config(s.name, s.value, false) FROM (VALUES {values}) AS s(name, value)"
        " JOIN pg_catalog.pg_settings AS known"
        " ON pg_catalog.lower(known.name) OPERATOR(pg_catalog.=) pg_catalog.lower(s.name)"
    )


@dataclass(frozen=True, slots=True)
class Caller:
    """What a user's session has: by this path names are looked up, and by both the user's query is read."""

    search_path: str
    settings: Mapping[str, str]


_acting_for: WeakKeyDictionary[psycopg.Connection[Any], Caller] = WeakKeyDictionary()


@contextmanager
def acting_for(conn: psycopg.Connection[Any], caller: Caller) -> Iterator[None]:
    """For a time, what is done on `conn` is done for a user whose session has these."""
    before = _acting_for.get(conn)
    _acting_for[conn] = caller
    try:
        yield
    finally:
        if before is None:
            del _acting_for[conn]
        else:
            _acting_for[conn] = before


def acts_for_another(conn: psycopg.Connection[Any]) -> bool:
    return conn in _acting_for


def caller(conn: psycopg.Connection[Any]) -> Caller:
    """Whom we act for on `conn`: who was named, or else the login itself, as it is configured. A session that is not
    ours speaks for itself."""
    known = _acting_for.get(conn)
    if known is not None:
        return known
    rows = conn.execute(
        # SET writes the path in quotes where quote_all_identifiers is on for the database
        "SELECT s.name, CASE WHEN pg_catalog.replace(pg_catalog.current_setting('search_path'), '\"', '')"
        " OPERATOR(pg_catalog.=) %s"
        " THEN s.reset_val ELSE s.setting END FROM pg_catalog.pg_settings AS s"
        " WHERE pg_catalog.lower(s.name) OPERATOR(pg_catalog.=) ANY (%s::pg_catalog.text[])",
        (OWN_PATH, [name.lower() for name in ("search_path", *OF_INTEREST)]),
    ).fetchall()
    found = {str(name): str(value) for name, value in rows}
    return Caller(found.pop("search_path"), found)


_SCHEMAS: Final = """
WITH before AS MATERIALIZED (SELECT pg_catalog.current_setting('search_path') AS path),
there AS MATERIALIZED (SELECT path, pg_catalog.set_config('search_path', %s, true) AS now FROM before),
found AS MATERIALIZED (
    SELECT path, pg_catalog.current_schemas(false)::pg_catalog.text[] AS schemas FROM there WHERE now IS NOT NULL
)
SELECT schemas, pg_catalog.set_config('search_path', path, true) FROM found
"""
"""Looks from another path, and goes back. In one statement, and no transaction to roll back: at a ROLLBACK psycopg
forgets all that it has prepared."""


def schemas_of(conn: psycopg.Connection[Any], search_path: str) -> list[str]:
    """The schemas of a user's path, in order: those that exist and that this role may use."""
    row = conn.execute(_SCHEMAS, (search_path,)).fetchone()
    assert row is not None
    return list(row[0])


def use_settings(conn: psycopg.Connection[Any], settings: Mapping[str, str]) -> None:
    """Puts the settings that are stored with a stream table in effect, to the end of the transaction that is open. By
    SET, which takes no snapshot: locks may have to come before that."""
    assert conn.info.transaction_status is not TransactionStatus.IDLE, "it would not last"
    each = [SQL("SET LOCAL {} = {}").format(Identifier(name), value) for name, value in stored(settings).items()]
    if each:
        conn.execute(SQL("; ").join(each), prepare=False)


def statement(sql: str) -> SQL:
    """SQL text that we composed ourselves, of quoted identifiers and analysed expressions, as psycopg wants it."""
    return SQL(sql)


def execute(conn: Connection, sql: str) -> int:
    """Runs a statement composed by us; returns the number of rows it changed."""
    return conn.execute(statement(sql)).rowcount


def row(conn: Connection, sql: str) -> tuple[object, ...]:
    """The one row a query composed by us answers."""
    found = conn.execute(statement(sql)).fetchone()
    assert found is not None, sql
    return found


def scalar(conn: Connection, sql: str) -> object:
    """The one value a query composed by us answers."""
    return row(conn, sql)[0]


def mask(dsn: str) -> str:
    """`dsn` with its passwords replaced by `***`, for logs and messages."""
    try:
        conninfo = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        hidden = re.sub(r"(://[^:/@\s]*):.*@", r"\1:***@", dsn)
        return re.sub(r"(?i)((?:ssl)?password\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&]+)", r"\1***", hidden)
    secrets = {key: "***" for key in _SECRETS if key in conninfo}
    return make_conninfo("", **{**conninfo, **secrets}) if secrets else dsn
