"""The set-up that SECURITY.md gives, word for word: all a stream table can do, as a role with those rights and no more;
and what becomes of it when the login may no longer read its source, or not all of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession

from pgtrickle import db
from pgtrickle.db import statement
from pgtrickle.errors import Error, ServerError
from tests.stories.telling import Story, telling
from tests.wal.moving import moving

GUIDE = Path(__file__).parents[2] / "docs" / "SECURITY.md"


@pytest.fixture
def least(database18: str, spark: SparkSession) -> Iterator[Story]:
    """Told by the role that the guide makes; `shop` belongs to the whole server, so it has a name of its own here."""
    (text,) = re.findall(r"```sql\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    with db.open_session(database18) as admin:
        database = admin.info.dbname
        role = f"shop_{database}"
        admin.execute(statement(f"REVOKE ALL ON DATABASE {database} FROM PUBLIC"))
        for each in text.split(";\n"):
            if each.strip():
                admin.execute(statement(re.sub(r"\bapp\b", database, re.sub(r"\bshop\b", role, each))))
        dsn = make_conninfo(database18, user=role, password="change me")
        try:
            with telling(dsn, spark) as told, moving(dsn) as told.mover:
                yield told
        finally:
            admin.execute(statement("SELECT pg_drop_replication_slot(slot_name) FROM pgtrickle_internal.pgt_slot"))
            admin.execute(statement(f"DROP OWNED BY {role} CASCADE"))
            admin.execute(statement(f"DROP ROLE {role}"))


def test_a_life_with_the_least_rights(least: Story) -> None:
    """Created, refreshed by triggers and from the WAL; then with row security, and then with nothing to read."""
    least.run(
        "CREATE TABLE notes (id int PRIMARY KEY, who text, n int)",
        "INSERT INTO notes SELECT g, CASE g % 2 WHEN 0 THEN 'us' ELSE 'them' END, g FROM generate_series(1, 10) g",
    )
    mover, least.mover = least.mover, None
    least.create("totals", "SELECT who, sum(n) AS total FROM notes GROUP BY who")
    least.run("INSERT INTO notes VALUES (11, 'them', 100)")
    least.check("totals")
    least.mover = mover
    least.to_wal("totals")
    assert least.value("SELECT cdc_mode FROM pgtrickle.pgt_change_tracking") == "WAL"
    least.run("INSERT INTO notes VALUES (12, 'us', 1000)")
    least.check("totals")
    assert least.value("SELECT bool_or(rolsuper OR rolcreaterole) FROM pg_roles WHERE rolname = current_user") is False

    least.run(
        "CREATE POLICY ours ON notes USING (who = 'us')",
        "ALTER TABLE notes ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY",
        "INSERT INTO notes VALUES (13, 'us', 10000)",
    )
    with pytest.raises(Error) as caught:
        least.trickle.refresh_stream_table("totals")
    assert caught.value.code == "PT207", "asked for as DIFFERENTIAL"
    assert (least.stream("totals").status, "row-level security" in str(least.stream("totals").last_error)) == (
        "ERROR",
        True,
    )
    least.trickle.alter_stream_table("totals", refresh_mode="AUTO")
    result = least.trickle.refresh_stream_table("totals")
    assert least.rows("SELECT * FROM totals") == [("us", 11030)], result

    least.run("DROP POLICY ours ON notes", "ALTER TABLE notes DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY")
    least.check("totals", "REINITIALIZE")
    least.run("INSERT INTO notes VALUES (14, 'them', 1)", f"REVOKE ALL ON notes FROM {least.connection.info.user}")
    before = least.content("totals")
    for _ in range(2):
        with pytest.raises(Error) as caught:
            least.trickle.refresh_stream_table("totals")
        assert caught.value.code == "PT107"
    assert least.content("totals") == before, "not fed from the buffer"
    assert least.stream("totals").status == "ERROR"
    assert "permission denied" in str(least.stream("totals").last_error)


def test_a_superuser_computes_nothing_of_theirs(least: Story, database18: str, spark: SparkSession) -> None:
    least.run("CREATE TABLE t (id int)")
    least.create("copied", "SELECT id FROM t")
    with pytest.raises(ServerError) as caught, telling(database18, spark):
        pass
    assert caught.value.code == "PT419"
