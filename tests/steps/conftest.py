"""A PostgreSQL database for step files: in the server PGTRICKLE_TEST_DSN names, else in an embedded one of its own."""

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


@pytest.fixture(scope="session")
def steps_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The DSN of a server in which databases can be made."""
    given = os.environ.get("PGTRICKLE_TEST_DSN")
    if given is not None:
        yield given
        return
    data_dir = tmp_path_factory.mktemp("steps") / "data"
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
