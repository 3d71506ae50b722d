"""Databases for the tests of the WAL: a source that moves (`made`), and tables captured from the WAL alone (`wal`)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pgtrickle import db
from pgtrickle.db import Connection

from .captured import Wal, prepared
from .world import World, world


@pytest.fixture
def made(database: str) -> Iterator[World]:
    with world(database) as it:
        yield it


@pytest.fixture
def made18(database18: str) -> Iterator[World]:
    with world(database18) as it:
        yield it


@pytest.fixture
def other(database: str) -> Iterator[Connection]:
    """A second session, whose transactions the test opens and ends itself."""
    with db.open_session(database) as connection:
        yield connection
        connection.rollback()


@pytest.fixture
def wal(database: str) -> Iterator[Wal]:
    with prepared(database) as found:
        yield found


@pytest.fixture
def wal18(database18: str) -> Iterator[Wal]:
    with prepared(database18) as found:
        yield found
