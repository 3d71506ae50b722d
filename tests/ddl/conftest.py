"""A source, a function, and an empty stream table over both: what it takes to see DDL without computing anything."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from psycopg.conninfo import make_conninfo

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
def plain_dsn(database: str) -> Iterator[str]:
    """The database as a role sees it that owns it, and may do no more than that."""
    with db.connect(database) as admin:
        role = f"owner_{admin.info.dbname}"
        admin.execute(db.statement(f"CREATE ROLE {role} LOGIN PASSWORD 'plain'"))
        admin.execute(db.statement(f"ALTER DATABASE {admin.info.dbname} OWNER TO {role}"))
        admin.execute(db.statement(f"ALTER SCHEMA public OWNER TO {role}"))
    try:
        yield make_conninfo(database, user=role, password="plain")
    finally:
        with db.connect(database) as admin:
            admin.execute(db.statement(f"REASSIGN OWNED BY {role} TO CURRENT_USER"))
            admin.execute(db.statement(f"DROP OWNED BY {role}"))
            admin.execute(db.statement(f"DROP ROLE {role}"))


@pytest.fixture
def plain(plain_dsn: str) -> Iterator[Place]:
    """As that role: with no event triggers."""
    with place(plain_dsn) as found:
        yield found


@pytest.fixture(params=["made", "plain"], ids=["events", "fingerprint"])
def either(request: pytest.FixtureRequest) -> Place:
    """Both ways in which DDL is noticed."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Place)
    return found
