"""A source, a function, and an empty stream table over both: what it takes to see DDL without computing anything."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession

from pgtrickle import db
from tests.ddl.place import Place, place


@pytest.fixture
def made(database: str) -> Iterator[Place]:
    """As superuser: with event triggers."""
    with place(database) as found:
        yield found


@pytest.fixture
def made18(database18: str) -> Iterator[Place]:
    with place(database18) as found:
        yield found


@pytest.fixture
def plain(database: str) -> Iterator[Place]:
    """As the database's owner, who may not create event triggers."""
    with owned(database) as dsn, place(dsn) as found:
        yield found


@pytest.fixture(params=["events", "fingerprint"])
def either_dsn(database: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """Both ways in which DDL is noticed."""
    if request.param == "events":
        yield database
        return
    with owned(database) as dsn:
        yield dsn


@pytest.fixture
def either(either_dsn: str) -> Iterator[Place]:
    with place(either_dsn) as found:
        yield found


@pytest.fixture
def computing(either_dsn: str, spark: SparkSession) -> Iterator[Place]:
    """The same, with Spark."""
    with place(either_dsn, spark) as found:
        yield found


@contextmanager
def owned(dsn: str) -> Iterator[str]:
    """The database as a role sees it that owns it, and may do no more than that."""
    with db.open_session(dsn) as admin:
        role = f"owner_{admin.info.dbname}"
        admin.execute(db.statement(f"CREATE ROLE {role} LOGIN PASSWORD 'plain'"))
        admin.execute(db.statement(f"ALTER DATABASE {admin.info.dbname} OWNER TO {role}"))
        admin.execute(db.statement(f"ALTER SCHEMA public OWNER TO {role}"))
        try:
            yield make_conninfo(dsn, user=role, password="plain")
        finally:
            admin.execute(db.statement(f"REASSIGN OWNED BY {role} TO CURRENT_USER"))
            admin.execute(db.statement(f"DROP OWNED BY {role}"))
            admin.execute(db.statement(f"DROP ROLE {role}"))
