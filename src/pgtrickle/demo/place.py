"""Where the demo runs: a database of its own that is gone afterwards, on an embedded server or on the user's."""

from __future__ import annotations

import secrets
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgtrickle import db, embedded
from pgtrickle.catalog import install
from pgtrickle.errors import ServerError

_ROLE: Final = "shopkeeper"
_QUICK: Final = {"fsync": False, "synchronous_commit": False}  # nothing here outlives the demo


@contextmanager
def embedded_server() -> Iterator[str]:
    """A private PostgreSQL 18 in a temporary directory, and on it a database of a role that is no superuser: what
    SECURITY.md asks for, and no more. Stopped and removed whatever happens."""
    home = Path(tempfile.mkdtemp(prefix="pgtrickle-demo-"))
    home.chmod(0o755)  # as root, the server runs under another account, which must get through
    directory = home / "data"
    try:
        yield _least_privileged(embedded.start(directory, version=18, settings=_QUICK).dsn)
    finally:
        embedded.stop(directory)
        shutil.rmtree(home, ignore_errors=True)


def _least_privileged(dsn: str) -> str:
    """A login that owns its database, and may read the WAL."""
    password = secrets.token_urlsafe(24)
    with db.connect(dsn, application_name="pgtrickle demo") as admin:
        role = sql.SQL("CREATE ROLE {} LOGIN REPLICATION PASSWORD {}")
        admin.execute(role.format(sql.Identifier(_ROLE), sql.Literal(password)))
        admin.execute(sql.SQL("CREATE DATABASE {0} OWNER {0}").format(sql.Identifier(_ROLE)))
    return make_conninfo(dsn, dbname=_ROLE, user=_ROLE, password=password)


@contextmanager
def database_of(dsn: str) -> Iterator[str]:
    """A new database beside the one of `dsn`; dropped whatever happens."""
    name = f"pgtrickle_demo_{uuid.uuid4().hex[:8]}"
    with db.open_session(dsn, application_name="pgtrickle demo") as admin:
        try:
            admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        except psycopg.errors.InsufficientPrivilege as error:
            raise ServerError(
                "this role may not create the demo's database",
                code="PT402",
                hint="ALTER ROLE … CREATEDB, or leave --dsn",
            ) from error
        try:
            yield make_conninfo(dsn, dbname=name)
        finally:
            with db.open_session(make_conninfo(dsn, dbname=name), application_name="pgtrickle demo") as inside:
                install.uninstall(inside, drop_stream_tables=True)  # or its replication slot would keep the database
            admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
