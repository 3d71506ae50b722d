"""Servers, databases and Spark for the tests: real ones, started once per run and stopped whatever happens."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgtrickle import embedded
from pgtrickle.spark import archive
from pgtrickle.spark.java import QUICK
from tests import servers
from tests.suite import pytest_addoption as pytest_addoption
from tests.suite import pytest_collection_modifyitems as pytest_collection_modifyitems
from tests.suite import pytest_configure as pytest_configure
from tests.suite import pytest_runtest_setup as pytest_runtest_setup
from tests.suite import pytest_terminal_summary as pytest_terminal_summary
from tests.suite import pytest_xdist_make_scheduler as pytest_xdist_make_scheduler

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FAST = {
    "fsync": False,
    "synchronous_commit": False,
    "full_page_writes": False,
    "max_prepared_transactions": 10,
    "max_connections": 200,
}
for variable in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):
    os.environ.setdefault(variable, QUICK)  # Spark lives for minutes here; also for the processes that tests start
os.environ.setdefault("PGTRICKLE_POSTGRES_ROWS", "0")  # tables of tests are small, and Spark is to be tried
os.environ.setdefault("PGTRICKLE_LEARN_COSTS", "false")  # what a test does must not depend on how long it takes
os.environ.setdefault(archive.VARIABLE, "use")  # `make test` makes it first


def _remove(directory: Path) -> None:
    embedded.stop(directory)
    shutil.rmtree(directory.parent, ignore_errors=True)


@contextmanager
def _server(version: int) -> Iterator[embedded.Server]:
    home = Path(tempfile.mkdtemp(prefix="pgtrickle-test-"))
    home.chmod(0o755)  # as root, the server runs under another account, which must get through
    directory = home / "data"
    remove = partial(_remove, directory)
    atexit.register(remove)  # also when pytest is interrupted before fixtures end
    try:
        yield embedded.start(directory, version=version, settings=FAST)
    finally:
        remove()
        atexit.unregister(remove)


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """An empty one that a server's account can enter: pytest's own are closed to others than who runs it."""
    path = Path(tempfile.mkdtemp(prefix="pgtrickle-test-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def server18() -> Iterator[embedded.Server]:
    with _server(18) as server:
        yield server


@pytest.fixture(scope="session")
def server16() -> Iterator[embedded.Server]:
    with _server(16) as server:
        yield server


@pytest.fixture(scope="session")
def server14() -> Iterator[embedded.Server]:
    with _server(servers.fetched(14)) as server:
        yield server


@pytest.fixture(scope="session")
def server15() -> Iterator[embedded.Server]:
    with _server(servers.fetched(15)) as server:
        yield server


@pytest.fixture(scope="session")
def server17() -> Iterator[embedded.Server]:
    with _server(servers.fetched(17)) as server:
        yield server


@pytest.fixture(params=(18, 16, *servers.FETCHED), ids=lambda version: f"pg{version}")
def server(request: pytest.FixtureRequest) -> embedded.Server:
    """Each version in turn; which of them a run takes says `suite.py`."""
    found = request.getfixturevalue(f"server{request.param}")
    assert isinstance(found, embedded.Server)
    return found


@pytest.fixture
def database(server: embedded.Server) -> Iterator[str]:
    """The DSN of a fresh database, dropped afterwards with whoever is still connected."""
    with fresh_database(server) as dsn:
        yield dsn


@pytest.fixture
def database18(server18: embedded.Server) -> Iterator[str]:
    """The same on PostgreSQL 18 only, for tests that do not depend on the version."""
    with fresh_database(server18) as dsn:
        yield dsn


@contextmanager
def fresh_database(server: embedded.Server) -> Iterator[str]:
    name = f"t_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            yield make_conninfo(server.dsn, dbname=name)
        finally:
            _drop(admin, name)


def _drop(admin: psycopg.Connection, name: str) -> None:
    """Drop a database for good: forgotten prepared transactions and replication slots would keep it."""
    for (gid,) in admin.execute("SELECT gid FROM pg_prepared_xacts WHERE database = %s", [name]).fetchall():
        with psycopg.connect(
            make_conninfo(admin.info.dsn, password=admin.info.password, dbname=name), autocommit=True
        ) as c:
            c.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))
    admin.execute("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s", [name])
    admin.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s", [name])
    admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The warm session: local, unless PGTRICKLE_SPARK_MASTER names a cluster (`tests/cluster/` runs tests so)."""
    from pgtrickle.config import Settings
    from pgtrickle.spark import session

    yield session.configured(Settings.load())
    session.stop()
