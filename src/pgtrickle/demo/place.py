"""Where the demo runs: a database of its own that is gone afterwards, on an embedded server or on the user's."""

from __future__ import annotations

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

_QUICK: Final = {"fsync": False, "synchronous_commit": False}  # nothing here outlives the demo


@contextmanager
def embedded_server() -> Iterator[str]:
    """A private PostgreSQL 18 in a temporary directory; stopped and removed whatever happens."""
    home = Path(tempfile.mkdtemp(prefix="pgtrickle-demo-"))
    home.chmod(0o755)  # as root, the server runs under another account, which must get through
    directory = home / "data"
    try:
        yield embedded.start(directory, version=18, settings=_QUICK).dsn
    finally:
        embedded.stop(directory)
        shutil.rmtree(home, ignore_errors=True)


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
