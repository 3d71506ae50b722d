"""Row-level security: whose policies hide rows is what PostgreSQL itself answers, role by role and view by view."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import pytest

from pgtrickle.db import Connection, statement
from pgtrickle.query.analyse.analyze import analyze
from pgtrickle.query.analyse.fingerprint import fingerprint


@dataclass
class Roles:
    conn: Connection
    name: str

    def run(self, *statements: str) -> None:
        """The names of roles stand in braces."""
        roles = {each: f"{each}_{self.name}" for each in ("owner", "member", "plain", "bypassing")}
        for each in statements:
            self.conn.execute(statement(each.format(**roles)))

    def becomes(self, role: str) -> Connection:
        self.run("RESET ROLE")
        self.run(f"SET ROLE {{{role}}}")
        return self.conn


@pytest.fixture
def roles(shop: Connection) -> Iterator[Roles]:
    made = Roles(shop, shop.info.dbname)
    made.run(
        "CREATE ROLE {owner}",
        "CREATE ROLE {member} IN ROLE {owner}",
        "CREATE ROLE {plain}",
        "CREATE ROLE {bypassing} BYPASSRLS",
        "GRANT pgtrickle_user TO {owner}, {plain}, {bypassing}",
        "CREATE TABLE memos (id int, who text)",
        "INSERT INTO memos VALUES (1, 'us'), (2, 'them')",
        "CREATE POLICY ours ON memos USING (who = 'us')",
        "ALTER TABLE memos OWNER TO {owner}",
        "GRANT SELECT ON memos TO {plain}, {bypassing}",
        "GRANT CREATE ON SCHEMA public TO {owner}, {plain}, {bypassing}",
    )
    try:
        yield made
    finally:
        made.run(
            "RESET ROLE",
            "DROP OWNED BY {owner}, {member}, {plain}, {bypassing} CASCADE",
            "DROP ROLE {member}, {owner}, {plain}, {bypassing}",
        )


def rows_seen(conn: Connection, query: str) -> int:
    return len(conn.execute(statement(query)).fetchall())


@pytest.mark.parametrize("security", ["ENABLE", "FORCE"])
def test_refused_where_rows_are_hidden(roles: Roles, security: str) -> None:
    """Each login, over the table and over views of each owner, of one and two levels: refused if PostgreSQL hides a row
    from the login or from the query. What is accepted reads all rows, as the triggers capture all."""
    roles.run("ALTER TABLE memos ENABLE ROW LEVEL SECURITY")
    if security == "FORCE":
        roles.run("ALTER TABLE memos FORCE ROW LEVEL SECURITY")
    invoker = " WITH (security_invoker = on)" if roles.conn.info.server_version >= 150000 else ""
    queries = ["SELECT id FROM memos"]
    for owner, options in product(("owner", "plain", "bypassing"), ("", invoker)):
        view = f"by_{owner}{'_invoking' if options else ''}"
        roles.becomes(owner)
        roles.run(
            f"CREATE VIEW {view}{options} AS SELECT id FROM memos",
            f"GRANT SELECT ON {view} TO PUBLIC",
        )
        queries.append(f"SELECT id FROM {view}")
    for inner in ("by_plain", f"by_plain{'_invoking' if invoker else ''}"):
        roles.becomes("bypassing")
        roles.run(
            f"CREATE OR REPLACE VIEW above_{inner} AS SELECT id FROM {inner}",
            f"GRANT SELECT ON above_{inner} TO PUBLIC",
        )
        queries.append(f"SELECT id FROM above_{inner}")
    found, answers = {}, {}
    for login, query in product(("owner", "member", "plain", "bypassing"), queries):
        conn = roles.becomes(login)
        all_rows = rows_seen(conn, "SELECT id FROM memos") == rows_seen(conn, query) == 2
        answers[login, query] = all_rows
        found[login, query] = [each.code for each in analyze(conn, query).reasons] == []
    assert found == answers
    assert {True, False} <= set(answers.values())


def test_who_is_subject_is_part_of_the_fingerprint(roles: Roles) -> None:
    """The login, and the owner of a view, whose attributes are in no object of the query."""
    roles.run("ALTER TABLE memos ENABLE ROW LEVEL SECURITY")
    roles.becomes("bypassing")
    roles.run("CREATE VIEW mine AS SELECT id FROM memos")
    roles.run("RESET ROLE", "GRANT SELECT ON mine TO {owner}")
    conn = roles.becomes("owner")
    dependencies = analyze(conn, "SELECT id FROM mine").dependencies
    seen = [fingerprint(conn, dependencies)]
    for change in ("ALTER ROLE {bypassing} NOBYPASSRLS", "ALTER TABLE memos FORCE ROW LEVEL SECURITY"):
        roles.run("RESET ROLE", change)
        conn = roles.becomes("owner")
        seen.append(fingerprint(conn, dependencies))
    assert len(set(seen)) == 3
