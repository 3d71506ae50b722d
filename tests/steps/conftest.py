"""A PostgreSQL database for step files: in the server PGTRICKLE_TEST_DSN names, else in that of all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgtrickle import embedded
from tests.conftest import fresh_database


@pytest.fixture(scope="session")
def steps_server(request: pytest.FixtureRequest) -> str:
    """The DSN of a server in which databases can be made."""
    given = os.environ.get("PGTRICKLE_TEST_DSN")
    return given if given is not None else str(request.getfixturevalue("server18").dsn)


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
