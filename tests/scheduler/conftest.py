"""Roles and databases for requests: roles belong to the whole server, so each test has its own, dropped afterwards."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgtrickle import db, embedded
from pgtrickle.catalog.install import install
from pgtrickle.db import Connection
from pgtrickle.scheduler import lease


@dataclass(frozen=True)
class World:
    """A database with the catalog, a table `orders` of ann's and one, `secret`, of no one else's; ann and eve may make
    requests, eve owns nothing and may read nothing."""

    dsn: str
    admin: Connection
    ann: str
    eve: str
    service: str

    @contextmanager
    def session(self, role: str) -> Iterator[Connection]:
        with db.open_session(self.dsn_of(role)) as connection:
            yield connection

    def dsn_of(self, role: str) -> str:
        return make_conninfo(self.dsn, user=role, password="plain")

    def run(self, *statements: str) -> None:
        for each in statements:
            self.admin.execute(db.statement(each.format(ann=self.ann, eve=self.eve, service=self.service)))

    def installed_by(self, role: str) -> None:
        """The catalog anew, owned by a role that may log in and create schemas, and nothing else."""
        name = db.scalar(self.admin, "SELECT current_database()")
        self.run(
            "DROP SCHEMA pgtrickle, pgtrickle_changes, pgtrickle_internal, pgtrickle_state CASCADE",
            f"GRANT CREATE ON DATABASE {name} TO {role}",
            f"GRANT CREATE ON SCHEMA public TO {role}",
        )
        with self.session(role) as owner:
            install(owner)

    def requests(self) -> list[tuple[object, ...]]:
        return self.admin.execute("SELECT kind, state, error_code FROM pgtrickle.pgt_requests ORDER BY id").fetchall()


@contextmanager
def leading(dsn: str) -> Iterator[None]:
    """A service with this login leads, as far as others can see."""
    held = lease.acquire(dsn, f"test-{uuid.uuid4().hex[:8]}", 15_000, threading.Event(), print)
    assert held is not None
    try:
        yield
    finally:
        held.release()


@pytest.fixture
def roles(server: embedded.Server) -> Iterator[tuple[str, str, str]]:
    suffix = uuid.uuid4().hex[:8]
    names = (f"ann_{suffix}", f"eve_{suffix}", f"service_{suffix}")
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        for name in names:
            admin.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'plain'").format(sql.Identifier(name)))
        yield names
        for name in names:
            admin.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


@pytest.fixture
def world(roles: tuple[str, str, str], database: str) -> Iterator[World]:
    with db.open_session(database) as admin:
        install(admin)
        found = World(database, admin, *roles)
        found.run(
            "GRANT pgtrickle_user TO {ann}, {eve}",
            "GRANT CREATE ON SCHEMA public TO {ann}",
            "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
            "CREATE TABLE orders (id int PRIMARY KEY, amount int)",
            "ALTER TABLE orders OWNER TO {ann}",
            "CREATE TABLE secret (id int PRIMARY KEY)",
        )
        yield found
