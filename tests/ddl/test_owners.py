"""Code below a stream table that someone else changes is not run before the stream table's owner says so.

alice owns the database, the tables and the stream table, and is the service; bob owns a view, functions and types that
her query uses, and may read her table `t`, but not `secret`. No Spark: the tables are empty, or only refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from psycopg.conninfo import make_conninfo

from pgtrickle import db
from pgtrickle.api import Trickle
from pgtrickle.db import Connection
from pgtrickle.refresh.definition.owners import WaitsForOwner
from tests.ddl.conftest import owned
from tests.ddl.place import NO_SPARK, Place, place

OF_BOB = """
CREATE SEQUENCE calls;
GRANT USAGE ON SEQUENCE calls TO PUBLIC;
CREATE FUNCTION spy(a int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT a';
CREATE FUNCTION inner_spy(a int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT a';
CREATE FUNCTION outer_spy(a int) RETURNS int LANGUAGE sql IMMUTABLE RETURN inner_spy(a);
CREATE FUNCTION near(a int, b int) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT a = b';
CREATE OPERATOR ~= (FUNCTION = near, LEFTARG = int, RIGHTARG = int);
CREATE DOMAIN small AS int;
CREATE VIEW seen AS SELECT id, v FROM t;
"""
# A sequence is not rolled back, as all is that we analyse or compare.
SPYING = (
    "CREATE OR REPLACE FUNCTION {}(a int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS "
    "'BEGIN PERFORM nextval(''public.calls''); RETURN a; END'"
)
CHANGES = {
    "SELECT id, v FROM seen": (
        "CREATE OR REPLACE VIEW seen WITH (security_invoker) AS SELECT id, v FROM secret",
        "view public.seen",
    ),
    "SELECT id, spy(1) AS one FROM t": (SPYING.format("spy"), "function public.spy(integer)"),
    "SELECT id, outer_spy(2) AS two FROM t": (
        SPYING.format("inner_spy"),
        "function public.inner_spy(integer)",
    ),
    "SELECT id, 1 ~= 1 AS near FROM t": (
        "CREATE OR REPLACE FUNCTION near(a int, b int) RETURNS bool IMMUTABLE RETURN spy(a) = b",
        "function public.near(integer,integer)",
    ),
    "SELECT id, 3::small AS small FROM t": ("ALTER DOMAIN small ADD CHECK (spy(VALUE) > 0)", "type public.small"),
}


@dataclass
class Two:
    alice: Place
    bob: Connection
    admin: Connection

    def calls(self) -> int:
        """How often code that spies was run."""
        return int(str(db.scalar(self.admin, "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM calls")))


@pytest.fixture
def two(database18: str) -> Iterator[Two]:
    with db.open_session(database18) as admin, owned(database18) as dsn, place(dsn) as alice:
        alice.run("DROP TABLE st", "DROP VIEW seen")
        alice.trickle.connection.execute("DELETE FROM pgtrickle.pgt_stream_tables")
        name = f"bob_{admin.info.dbname}"
        admin.execute(db.statement(f"CREATE ROLE {name} LOGIN PASSWORD 'plain'"))
        alice.run("CREATE TABLE secret (id int, v int)", f"GRANT SELECT ON t TO {name}")
        alice.run(f"GRANT CREATE, USAGE ON SCHEMA public TO {name}")
        try:
            with db.open_session(make_conninfo(database18, user=name, password="plain")) as bob:
                bob.execute(db.statement(OF_BOB))
                bob.execute("GRANT SELECT ON seen TO PUBLIC")
                yield Two(alice, bob, admin)
        finally:
            admin.execute(db.statement(f"DROP OWNED BY {name} CASCADE"))
            admin.execute(db.statement(f"DROP ROLE {name}"))


def test_what_bob_changes_waits_for_alice(two: Two) -> None:
    alice, trickle = two.alice, two.alice.trickle
    tables = {f"st{place}": query for place, query in enumerate(CHANGES)}
    for name, query in tables.items():
        alice.create(name, query)
    for change, _ in CHANGES.values():
        two.bob.execute(db.statement(change))
    refused(trickle, tables)
    with Trickle(alice.dsn, master=NO_SPARK) as anew:  # which has nothing compiled in memory
        refused(anew, tables)
    assert two.calls() == 0, "not even by planning"
    alice.run("UPDATE pgtrickle.pgt_stream_tables SET is_populated = false")  # for alter would fill them, with Spark
    for name, query in tables.items():
        trickle.alter_stream_table(name, query=query)
        assert trickle.verify(name)[0].error is None
        assert trickle.explain(name)
    assert two.calls() > 0


def refused(trickle: Trickle, tables: dict[str, str]) -> None:
    for name, query in tables.items():
        _, changed = CHANGES[query]
        with pytest.raises(WaitsForOwner, match="belongs to bob") as caught:
            trickle.refresh_stream_table(name)
        assert changed in caught.value.message
        assert caught.value.hint
        (stream,) = trickle.status(name)
        assert (stream.status, stream.last_error) == ("ERROR", str(caught.value)), name
        assert (trickle.verify(name)[0].error or "").startswith("PT350")
        with pytest.raises(WaitsForOwner):
            trickle.alter_stream_table(name, refresh_mode="FULL" if stream.refresh_mode == "AUTO" else "AUTO")


def test_the_same_by_alice_or_a_superuser_is_taken_up(two: Two) -> None:
    two.alice.create("st", "SELECT id, twice(v) AS v FROM seen")
    two.alice.run("CREATE OR REPLACE FUNCTION twice(a int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 3 * a'")
    two.admin.execute(f"ALTER VIEW seen OWNER TO {two.admin.info.user}")
    two.admin.execute("CREATE OR REPLACE VIEW seen AS SELECT id, v FROM t WHERE v > 1")
    analysed = two.alice.trickle.explain("st")
    assert "v > 1" in analysed
    two.bob.execute("CREATE FUNCTION twice(a smallint) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 4 * a'")
    assert two.alice.trickle.explain("st"), "a function beside one of hers that no call means is nothing to ask about"


def test_a_function_put_before_the_one_that_was_meant(two: Two) -> None:
    """Its name is looked up again; what is found then is new, and not hers."""
    two.alice.run(
        "CREATE SCHEMA early", "ALTER SCHEMA early OWNER TO CURRENT_USER", "GRANT ALL ON SCHEMA early TO PUBLIC"
    )
    two.alice.trickle.connection.execute("SET search_path = early, public")
    two.alice.create("public.st", "SELECT id, twice(1) AS v FROM t")
    two.bob.execute(db.statement(SPYING.format("early.twice")))
    with Trickle(two.alice.dsn, master=NO_SPARK) as anew:
        with pytest.raises(WaitsForOwner, match=r"early\.twice"):
            anew.refresh_stream_table("public.st")
        assert (anew.verify("public.st")[0].error or "").startswith("PT350")
    assert two.calls() == 0


def test_policies_of_a_table_that_bob_owns(two: Two) -> None:
    two.bob.execute(
        "CREATE TABLE b (id int, v int); ALTER TABLE b ENABLE ROW LEVEL SECURITY; GRANT SELECT ON b TO PUBLIC"
    )
    two.bob.execute("CREATE POLICY all_of_them ON b USING (true)")
    two.alice.create("st", "SELECT id, v FROM b")
    two.bob.execute("ALTER TABLE b ALTER v SET NOT NULL; ALTER TABLE b ADD COLUMN more int")
    assert two.alice.trickle.verify("st")[0].error is None
    two.bob.execute("CREATE POLICY more ON b USING (spy(1) = 1)")
    with pytest.raises(WaitsForOwner, match="policy more"):
        two.alice.trickle.refresh_stream_table("st")
