"""Where the plans are kept, and a database to make them in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pgtrickle import db, embedded
from pgtrickle.catalog.install import install
from tests.conftest import fresh_database
from tests.plans.queries import Planned

ROOT = Path(__file__).parent / "expected"


def path_of(planned: Planned) -> Path:
    return ROOT / f"{planned.name}.plan"


@contextmanager
def planner(server: embedded.Server) -> Iterator[db.Connection]:
    """A session in a database with our catalog and nothing else."""
    with fresh_database(server) as dsn, db.open_session(dsn) as connection:
        install(connection)
        yield connection
