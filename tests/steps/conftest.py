"""A PostgreSQL database for step files: in the server PGTRICKLE_TEST_DSN names, else in an embedded one of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgtrickle import embedded
from tests.conftest import fresh_database


@pytest.fixture(scope="session")
def steps_server() -> Iterator[str]:
    """The DSN of a server in which databases can be made."""
    given = os.environ.get("PGTRICKLE_TEST_DSN")
    if given is not None:
        yield given
        return
    with TemporaryDirectory(prefix="steps-") as data_dir:  # not under pytest's: root's server runs as another account
        server = embedded.start(data_dir, settings={"fsync": False})
        yield server.dsn
        embedded.stop(data_dir)


@pytest.fixture(scope="session")
def steps_connection(steps_server: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection (autocommit) to an empty database that is dropped at the end."""
    name = f"steps_{uuid4().hex[:12]}"
    with psycopg.connect(steps_server, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            with psycopg.connect(make_conninfo(steps_server, dbname=name), autocommit=True) as connection:
                yield connection
        finally:
            admin.execute(sql.SQL("DROP DATABASE {}").format(sql.Identifier(name)))


@pytest.fixture(scope="module")
def database_of_steps(server18: embedded.Server) -> Iterator[str]:
    """A database of the server that all tests share, for stream tables of step files."""
    with fresh_database(server18) as dsn:
        yield dsn
