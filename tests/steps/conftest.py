"""A PostgreSQL database for step files, made in the server that PGTRICKLE_TEST_DSN names and dropped at the end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo


@pytest.fixture(scope="session")
def steps_connection() -> Iterator[psycopg.Connection[Any]]:
    server = os.environ.get("PGTRICKLE_TEST_DSN")
    if server is None:
        pytest.skip("PGTRICKLE_TEST_DSN names no server")
    name = f"steps_{uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            with psycopg.connect(make_conninfo(server, dbname=name), autocommit=True) as connection:
                yield connection
        finally:
            admin.execute(sql.SQL("DROP DATABASE {}").format(sql.Identifier(name)))
