"""Connections to PostgreSQL with pinned session settings. Every part that opens one goes through `connect`."""

from __future__ import annotations

import re
import selectors
from typing import Final, TypeAlias

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.sql import SQL

from pgtrickle.errors import ServerError, UsageError

Connection: TypeAlias = psycopg.Connection[tuple[object, ...]]

OLDEST_SERVER: Final = 14

SESSION_SETTINGS: Final[dict[str, str]] = {
    # Text forms: lossless and the same in every session, since values travel and compare as text.
    # (`ISO` alone: the order in which a user's own casts read dates stays the database's.)
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "client_encoding": "UTF8",
    # What we read must be what was committed before each statement, whatever the database's defaults.
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    # A refresh may be long and its reader idle in its transaction: no limit of a role may end it half-way.
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",  # the service's sessions may have nothing to do for long
    "transaction_timeout": "0",
    # Row security applies as it does to the login; `off` would make errors of what is filtered.
    "row_security": "on",
    # Our statements are many, long of text and short of work: compiling one costs more than running it.
    "jit": "off",
}
"""What every session sets first, whatever driver opened it. `search_path` is left to the user: it analyses queries."""

OWN_PATH: Final = "pg_catalog, pg_temp"
"""A path on which no one else can put a function or an operator that fits our calls better than PostgreSQL's own."""

LOCK_TIMEOUT: Final = "10s"
"""How long a refresh waits for a table that someone else holds."""

_SECRETS = ("password", "sslpassword")


def connect(
    dsn: str,
    *,
    autocommit: bool = True,
    application_name: str = "pgtrickle",
    connect_timeout: int = 10,
    own_path: bool = False,
) -> Connection:
    """Open a connection with `SESSION_SETTINGS` in effect; an unreachable server is a ServerError (PT400).

    `own_path` is for sessions that analyse no user's query, see `OWN_PATH`.
    """
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
            application_name=application_name,
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
    prepare_session(conn, own_path=own_path)
    conn.autocommit = autocommit
    return conn


def is_usable(conn: Connection) -> bool:
    """Whether an idle session can be used. One that the server has ended meanwhile does not know it: the server's last
    words wait unread, and so would any others, for which opening it anew does no harm."""
    if conn.closed or conn.broken:
        return False
    with selectors.DefaultSelector() as unread:
        unread.register(conn.fileno(), selectors.EVENT_READ)
        return not unread.select(0)


def prepare_session(conn: Connection, *, own_path: bool = False) -> None:
    """Puts `SESSION_SETTINGS` in effect on a session."""
    conn.execute(statement(session_sql(own_path=own_path)))


def session_sql(*, own_path: bool = False) -> str:
    """The query that does it, for any driver; settings that the server does not know are left out."""
    settings = {**SESSION_SETTINGS, "search_path": OWN_PATH} if own_path else SESSION_SETTINGS
    values = ", ".join(f"('{name}', '{value}')" for name, value in settings.items())
    return (
        f"SELECT set_config(s.name, s.value, false) FROM (VALUES {values}) AS s(name, value) "
        "JOIN pg_catalog.pg_settings AS known ON lower(known.name) = lower(s.name)"
    )


def statement(sql: str) -> SQL:
    """SQL text that we composed ourselves, of quoted identifiers and analysed expressions, as psycopg wants it."""
    return SQL(sql)


def execute(conn: Connection, sql: str) -> int:
    """Runs a statement composed by us; returns the number of rows it changed."""
    return conn.execute(statement(sql)).rowcount


def scalar(conn: Connection, sql: str) -> object:
    """The one value a query composed by us answers."""
    row = conn.execute(statement(sql)).fetchone()
    assert row is not None, sql
    return row[0]


def mask(dsn: str) -> str:
    """`dsn` with its passwords replaced by `***`, for logs and messages."""
    try:
        conninfo = conninfo_to_dict(dsn)
    except psycopg.ProgrammingError:
        hidden = re.sub(r"(://[^:/@\s]*):.*@", r"\1:***@", dsn)
        return re.sub(r"(?i)((?:ssl)?password\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&]+)", r"\1***", hidden)
    secrets = {key: "***" for key in _SECRETS if key in conninfo}
    return make_conninfo("", **{**conninfo, **secrets}) if secrets else dsn
