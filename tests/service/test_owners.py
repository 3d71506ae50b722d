"""One process that serves two owners, by two logins that share a catalog and one Spark; neither is a superuser."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from tests.conftest import fresh_database
from tests.service.running import running, until

from pgtrickle import db, embedded
from pgtrickle.catalog.install import install
from pgtrickle.db import Connection, statement


@dataclass(frozen=True)
class Owners:
    """ann and bob own a schema each, and share `sold`, which is of a role that both are members of; so is the catalog.
    eve may make requests, and no more. Passwords are in a passfile."""

    passfile: Path
    dsn: str
    admin: Connection
    ann: str
    bob: str
    eve: str
    keeper: str

    def dsn_of(self, role: str) -> str:
        parts = {**conninfo_to_dict(self.dsn), "user": role, "passfile": str(self.passfile)}
        return make_conninfo("", **{name: value for name, value in parts.items() if name != "password"})

    def run(self, *statements: str) -> None:
        names = {"ann": self.ann, "bob": self.bob, "eve": self.eve, "keeper": self.keeper}
        for each in statements:
            self.admin.execute(statement(each.format(**names)))

    def rows(self, query: str) -> list[tuple[object, ...]]:
        return self.admin.execute(statement(query)).fetchall()


@pytest.fixture
def owners(server18: embedded.Server, tmp_path: Path) -> Iterator[Owners]:
    suffix = uuid.uuid4().hex[:8]
    names = [f"{name}_{suffix}" for name in ("ann", "bob", "eve", "keeper")]
    passfile = tmp_path / "passfile"
    passfile.write_text("*:*:*:*:plain")
    passfile.chmod(0o600)
    with db.open_session(server18.dsn) as server:
        for name in names[:3]:
            server.execute(statement(f"CREATE ROLE {name} LOGIN PASSWORD 'plain'"))
        server.execute(statement(f"CREATE ROLE {names[3]} NOLOGIN"))
        with fresh_database(server18) as dsn, db.open_session(dsn) as admin:
            yield _populate(Owners(passfile, dsn, admin, *names))
        for name in names:
            server.execute(statement(f"DROP ROLE {name}"))


def _populate(made: Owners) -> Owners:
    if not made.rows("SELECT FROM pg_roles WHERE rolname = 'pgtrickle_user'"):  # the installer may not create it
        made.run("CREATE ROLE pgtrickle_user NOLOGIN")
    made.run(
        f"GRANT CREATE ON DATABASE {made.admin.info.dbname} TO {{keeper}}",
        "GRANT {keeper} TO {ann}, {bob}",
        "CREATE SCHEMA shop AUTHORIZATION {keeper}",
        "SET ROLE {keeper}",
        "CREATE TABLE shop.sold (id int PRIMARY KEY, amount int)",
        "INSERT INTO shop.sold SELECT g, g FROM generate_series(1, 10) AS g",
        "RESET ROLE",
    )
    for role in (made.ann, made.bob, made.eve):
        made.run(f"CREATE SCHEMA {role} AUTHORIZATION {role}")
    with db.open_session(make_conninfo(made.dsn_of(made.ann), options=f"-c role={made.keeper}")) as keeper:
        install(keeper)
    made.run("GRANT pgtrickle_user TO {ann}, {bob}, {eve}", "GRANT USAGE ON SCHEMA shop TO {eve}")
    made.run("GRANT SELECT ON shop.sold TO {eve}")
    return made


def test_each_owner_is_served_by_its_own_login(owners: Owners, tmp_path: Path) -> None:
    logins = [owners.dsn_of(role) for role in (owners.ann, owners.bob)]
    flags = [part for login in logins for part in ("--dsn", login)]
    with running("", tmp_path, *flags) as service:
        service.await_event("lease_taken", 2)
        total = "SELECT sum(amount) AS total, count(*) AS n FROM shop.sold"
        for role in (owners.ann, owners.bob):
            with db.open_session(owners.dsn_of(role)) as session:
                request = db.scalar(
                    session,
                    f"SELECT pgtrickle.create_stream_table('{role}.totals', '{total}', schedule => '1s',"
                    " refresh_mode => 'DIFFERENTIAL')",
                )
                session.execute("CALL pgtrickle.wait_for(%s, '5 minutes')", (request,))
        found = owners.rows(
            "SELECT pg_get_userbyid(c.relowner)::text, r.taken_by FROM pgtrickle.pgt_stream_tables AS t"
            " JOIN pg_class AS c ON c.oid = t.pgt_relid JOIN pgtrickle.pgt_requests AS r"
            " ON r.args ->> 'name' = format('%I.%I', t.pgt_schema, t.pgt_name) ORDER BY 1"
        )
        assert found == [(role, role) for role in (owners.ann, owners.bob)]
        with db.open_session(owners.dsn_of(owners.eve)) as eve:
            heard: list[str] = []
            eve.add_notice_handler(lambda notice: heard.append(str(notice.message_primary)))
            db.scalar(eve, f"SELECT pgtrickle.create_stream_table('{owners.eve}.totals', '{total}')")
            assert [f"no running service serves the role {owners.eve}" in each for each in heard] == [True]
        owners.run("INSERT INTO shop.sold VALUES (100, 1000)")
        both = f"SELECT total, n FROM {owners.ann}.totals UNION ALL SELECT total, n FROM {owners.bob}.totals"
        until(lambda: owners.rows(both) == [(1055, 11)] * 2, lambda: f"{owners.rows(both)}\n{service.log[-6000:]}", 120)
        owners.run("INSERT INTO shop.sold VALUES (101, 1)")  # the buffer that both read was cleaned, by both
        until(lambda: owners.rows(both) == [(1056, 12)] * 2, lambda: f"{owners.rows(both)}\n{service.log[-6000:]}", 120)
        assert owners.rows("SELECT state FROM pgtrickle.pgt_requests ORDER BY id") == [
            ("DONE",),
            ("DONE",),
            ("PENDING",),
        ]
        failed = "SELECT error FROM pgtrickle.pgt_refresh_history WHERE status = 'FAILED'"
        assert owners.rows(failed) == []
        health = owners.rows("SELECT detail FROM pgtrickle.health_check() WHERE check_name = 'service'")
        assert [
            all(f"leads as {role}," in str(detail) for role in (owners.ann, owners.bob)) for (detail,) in health
        ] == [True]
