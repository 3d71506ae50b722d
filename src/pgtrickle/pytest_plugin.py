"""For tests of whoever uses pgtrickle: the fixture `pgtrickle_db`, a database of its own for each test.

pytest loads this module wherever pgtrickle is installed, so it imports nothing of it before a fixture is asked for.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pgtrickle import Trickle

VARIABLE = "PGTRICKLE_TEST_DSN"
_QUICK = {"fsync": False, "synchronous_commit": False, "full_page_writes": False}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("pgtrickle").addoption(
        "--pgtrickle-dsn",
        metavar="DSN",
        help="the server on which pgtrickle_db makes its databases; default: that of the variable PGTRICKLE_TEST_DSN,"
        " else an embedded one",
    )


@pytest.fixture(scope="session")
def pgtrickle_server(pytestconfig: pytest.Config) -> Iterator[str]:
    """The DSN of a server for tests: the one that was named, or an embedded PostgreSQL, which is gone afterwards."""
    named = pytestconfig.getoption("--pgtrickle-dsn") or os.environ.get(VARIABLE)
    if named:
        yield named
        return
    from pgtrickle import EnvironmentProblem, embedded

    home = Path(tempfile.mkdtemp(prefix="pgtrickle-pytest-"))
    home.chmod(0o755)  # as root, the server runs under another account, which must get through
    try:
        try:
            dsn = embedded.start(home / "data", settings=_QUICK).dsn
        except EnvironmentProblem as problem:
            pytest.fail(f"{problem}; {problem.hint}. Or name a server by --pgtrickle-dsn.", pytrace=False)
        yield dsn
    finally:
        embedded.stop(home / "data")
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def pgtrickle_db(pgtrickle_server: str) -> Iterator[Trickle]:
    """What `pgtrickle.connect()` gives, on a new database in which the catalog is installed. `pgtrickle_db.dsn` is for
    connections of the test's own. The database is dropped after the test, with whoever is still connected."""
    from psycopg.conninfo import make_conninfo

    import pgtrickle

    name = f"pgtrickle_test_{uuid.uuid4().hex[:12]}"
    _make(pgtrickle_server, name)
    try:
        with pgtrickle.connect(make_conninfo(pgtrickle_server, dbname=name)) as trickle:
            yield trickle
    finally:
        _drop(pgtrickle_server, name)


def _make(server: str, name: str) -> None:
    from psycopg import sql

    from pgtrickle import db

    with db.connect(server, application_name="pgtrickle pytest") as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))


def _drop(server: str, name: str) -> None:
    """A replication slot would keep the database, and whoever reads it the slot."""
    from psycopg import sql

    from pgtrickle import db

    with db.connect(server, application_name="pgtrickle pytest") as admin:
        admin.execute("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s", (name,))
        admin.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s", (name,)
        )
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
