"""Nothing of an owner whom a session does not serve runs in it: not by refresh, verify, explain, alter, requests or
rounds of the service. The owner's code notes who ran it, and tries to take what it can get."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import psycopg
import pytest

from pgtrickle import db
from pgtrickle.api import Trickle
from pgtrickle.apply import storage
from pgtrickle.capture import triggers
from pgtrickle.catalog import reader as catalog
from pgtrickle.catalog import serving
from pgtrickle.config import Settings
from pgtrickle.db import Connection
from pgtrickle.errors import Error, ServerError
from pgtrickle.model import Table
from pgtrickle.refresh.definition import define
from pgtrickle.scheduler import request_executor
from pgtrickle.scheduler.capture_loop import CaptureLoop
from pgtrickle.scheduler.refresh_loop import RefreshLoop
from tests.scheduler.conftest import World, leading

pytestmark = pytest.mark.parametrize("server", [18], indirect=True, ids=["pg18"])

HOSTILE = """
CREATE OR REPLACE FUNCTION {eve}.grab() RETURNS text LANGUAGE plpgsql VOLATILE AS $body$
BEGIN
    RESET ROLE;
    IF session_user <> '{eve}' THEN
        PERFORM nextval('{eve}.ran');  -- which stays when what analysed her query is rolled back
    END IF;
    INSERT INTO {eve}.caught VALUES (current_user, session_user, pg_backend_pid());
    BEGIN
        EXECUTE 'ALTER ROLE {eve} SUPERUSER';
    EXCEPTION WHEN OTHERS THEN
        NULL;
    END;
    BEGIN
        RETURN (SELECT string_agg(id::text, ',') FROM public.secret);
    EXCEPTION WHEN OTHERS THEN
        RETURN 'nothing';
    END;
END $body$;
CREATE OR REPLACE FUNCTION {eve}.note(int) RETURNS text LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN {eve}.grab(); END';
CREATE OR REPLACE FUNCTION {eve}.on_row() RETURNS trigger LANGUAGE plpgsql
    AS 'BEGIN PERFORM {eve}.grab(); RETURN NULL; END';
CREATE TRIGGER at_once AFTER INSERT OR DELETE OR TRUNCATE ON {eve}.hers EXECUTE FUNCTION {eve}.on_row();
CREATE CONSTRAINT TRIGGER deferred AFTER INSERT OR UPDATE OR DELETE ON {eve}.hers
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {eve}.on_row();
"""


@dataclass(frozen=True)
class Trap:
    """A stream table of eve's in a superuser's catalog, as older versions left them, with her code in its query, below
    it and on it. `note(7)` is evaluated when the query is planned."""

    world: World
    trickle: Trickle

    @property
    def name(self) -> str:
        return f"{self.world.eve}.hers"

    def caught(self) -> list[tuple[object, ...]]:
        rows = self.world.admin.execute(
            db.statement(f"SELECT DISTINCT as_role, login FROM {self.world.eve}.caught ORDER BY 1, 2")
        )
        ran = db.scalar(self.world.admin, f"SELECT is_called FROM {self.world.eve}.ran")
        return [*rows.fetchall(), *([("somebody else", "rolled back")] if ran else [])]

    def as_eve(self, *statements: str) -> None:
        with self.world.session(self.world.eve) as eve:
            for each in statements:
                eve.execute(db.statement(each.format(eve=self.world.eve)))


@pytest.fixture
def trap(world: World) -> Iterator[Trap]:
    world.run(
        "INSERT INTO secret VALUES (42)",
        "CREATE SCHEMA {eve} AUTHORIZATION {eve}",
        "CREATE TABLE {eve}.t (id int PRIMARY KEY)",
        "ALTER TABLE {eve}.t OWNER TO {eve}",
        "CREATE TABLE {eve}.caught (as_role text, login text, pid int)",
        "ALTER TABLE {eve}.caught OWNER TO {eve}",
        "CREATE SEQUENCE {eve}.ran",
        "ALTER SEQUENCE {eve}.ran OWNER TO {eve}",
        "CREATE FUNCTION {eve}.note(int) RETURNS text LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RETURN 1; END'",
        "ALTER FUNCTION {eve}.note(int) OWNER TO {eve}",
    )
    with Trickle(world.dsn) as trickle:
        query = f"SELECT id, {world.eve}.note(7) AS n FROM {world.eve}.t"
        trickle.create_stream_table(f"{world.eve}.hers", query, schedule="1s", initialize=False)
        world.run("ALTER TABLE {eve}.hers OWNER TO {eve}")
        found = Trap(world, trickle)
        found.as_eve(HOSTILE, "INSERT INTO {eve}.t VALUES (1), (2)", "INSERT INTO {eve}.hers VALUES (0, NULL)")
        assert found.caught() == [(world.eve, world.eve)], "her code works, with her own rights"
        found.as_eve("TRUNCATE {eve}.caught, {eve}.hers", "TRUNCATE {eve}.caught")
        # As if it had been filled, so that it is due.
        world.run(
            "UPDATE pgtrickle.pgt_stream_tables SET is_populated = true, status = 'ACTIVE', data_timestamp = now(),"
            " frontier = '1:1:'"
        )
        yield found


def refused(act: Callable[[], object]) -> None:
    with pytest.raises(Error) as caught:
        act()
    assert caught.value.code == "PT416", caught.value
    assert caught.value.hint


def test_a_superusers_session_runs_nothing_of_others(trap: Trap) -> None:
    world, trickle, name = trap.world, trap.trickle, trap.name
    before = trickle.status(name)
    refused(lambda: trickle.refresh_stream_table(name))
    refused(lambda: trickle.refresh_stream_table(name, full=True))
    refused(lambda: trickle.verify(name))
    refused(lambda: trickle.explain(name))
    refused(lambda: trickle.alter_stream_table(name, query=f"SELECT id, {world.eve}.note(7) AS n FROM {world.eve}.t"))
    refused(lambda: trickle.alter_stream_table(name, refresh_mode="FULL"))
    refused(lambda: define.load(trickle.connection, before[0]))
    assert trickle.status(name) == before, "neither failed nor marked"
    assert trickle.history(name) == ()
    assert trickle.verify() == [], "all that are ours: none"
    trickle.alter_stream_table(name, status="SUSPENDED")  # computes nothing
    trickle.alter_stream_table(name, status="ACTIVE", schedule="2s")
    assert trap.caught() == []
    trickle.drop_stream_table(name)
    assert trap.caught() == []


def test_a_superusers_service_leaves_her_table_and_her_requests_alone(trap: Trap) -> None:
    world, trickle = trap.world, trap.trickle
    with world.session(world.eve) as eve:
        for call in (
            f"create_stream_table('{world.eve}.more', 'SELECT {world.eve}.note(7) AS n FROM {world.eve}.t')",
            f"refresh_stream_table('{trap.name}')",
            f"alter_stream_table('{trap.name}', query => 'SELECT 1 AS id, {world.eve}.note(7) AS n')",
        ):
            eve.execute(db.statement(f"SELECT pgtrickle.{call}"))
    trap.as_eve("TRUNCATE {eve}.caught")  # checking her query ran her code, in her own session
    before = trickle.status(trap.name)
    service, steering = RefreshLoop(world.dsn), CaptureLoop(world.dsn)
    try:
        with leading(world.dsn):
            for _ in range(2):
                service.round(Settings())
                steering.round(Settings())
                assert request_executor.carry_out(trickle.connection, trickle) == 0
            problems = world.admin.execute("SELECT detail FROM pgtrickle.health_check() WHERE check_name = 'service'")
            unserved = f"no running service serves the role {world.eve}, which owns {trap.name}"
            assert problems.fetchall() == [(f"{unserved}: pgtrickle run with its login",)]
    finally:
        service.close()
        steering.close()
    assert trickle.status(trap.name) == before
    assert trickle.history(trap.name) == ()
    assert [row[1] for row in world.requests()] == ["PENDING"] * 3
    assert trap.caught() == []
    assert db.scalar(world.admin, f"SELECT rolsuper FROM pg_roles WHERE rolname = '{world.eve}'") is False


def test_the_owner_cannot_change_while_a_refresh_writes(world: World) -> None:
    world.run("CREATE TABLE mine (id int)")
    world.admin.execute(
        "INSERT INTO pgtrickle.pgt_stream_tables (pgt_relid, pgt_schema, pgt_name, defining_query, normalized_query,"
        " refresh_mode, effective_mode, search_path)"
        " VALUES ('mine'::regclass, 'public', 'mine', 'q', 'q', 'FULL', 'FULL', 'public')"
    )
    stream = catalog.resolve(world.admin, "mine")
    with db.open_session(world.dsn) as writer:
        with writer.transaction():
            storage.locked(writer, stream.pgt_relid, "ROW EXCLUSIVE")
            serving.require(writer, stream)
            with pytest.raises(psycopg.errors.LockNotAvailable):
                world.run("SET lock_timeout = '100ms'", "ALTER TABLE mine OWNER TO {eve}")
        world.run("ALTER TABLE mine OWNER TO {eve}")
        with pytest.raises(serving.NotServed), writer.transaction():
            serving.require(writer, stream)


def test_a_session_that_acts_as_another_role_computes_nothing(world: World) -> None:
    """Any function in a query could RESET ROLE."""
    world.run("GRANT {service} TO {ann}")
    for options in (f"-c role={world.service}",):
        dsn = f"{world.dsn_of(world.ann)} options='{options}'"
        world.run("GRANT CREATE ON SCHEMA public TO {service}")
        with db.open_session(dsn) as session, pytest.raises(ServerError) as caught:
            define.create(
                session, "t", "SELECT 1 AS a", settings=Settings(), schedule="1m", refresh_mode="FULL", cdc_mode=None
            )
        assert caught.value.code == "PT417"


def test_a_superuser_does_not_use_a_catalog_of_others(world: World) -> None:
    """Whoever owns it writes its functions."""
    world.installed_by(world.eve)
    with world.session(world.eve) as eve:
        eve.execute(
            "CREATE OR REPLACE FUNCTION pgtrickle_internal.serves(login oid, owner oid) RETURNS boolean"
            " LANGUAGE plpgsql AS 'BEGIN ALTER ROLE CURRENT_USER NOLOGIN; RETURN true; END'"
        )
    with pytest.raises(ServerError) as caught:
        Trickle(world.dsn)
    assert caught.value.code == "PT419"
    assert world.eve in str(caught.value)
    assert db.scalar(world.admin, "SELECT rolcanlogin FROM pg_roles WHERE rolname = current_user") is True


def secure(conn: Connection) -> list[tuple[object, ...]]:
    """Our SECURITY DEFINER functions, with what there is to say of each."""
    return conn.execute(
        "SELECT p.proname, p.proconfig @> ARRAY['search_path=pg_catalog, pg_temp'],"
        " has_function_privilege('public', p.oid, 'EXECUTE'),"
        " has_function_privilege('pgtrickle_user', p.oid, 'EXECUTE')"
        " FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace"
        " WHERE n.nspname LIKE 'pgtrickle%%' AND p.prosecdef ORDER BY 1"
    ).fetchall()


def test_functions_that_run_with_our_rights_are_few_and_no_one_else_may_call_them(world: World) -> None:
    """Those that SECURITY.md lists; each has a fixed path, and can be reached only by the trigger that it is for."""
    oid = int(str(db.scalar(world.admin, "SELECT 'secret'::regclass::oid")))
    triggers.attach(world.admin, Table(oid, "public", "secret"), ["id"])
    assert secure(world.admin) == [
        (f"capture_{oid}", True, False, False),
        ("on_source_ddl", True, False, False),
        ("on_subscription_ddl", True, False, False),
        ("tell_source_ddl", True, False, False),
    ]
    with world.session(world.eve) as eve, pytest.raises(psycopg.errors.InsufficientPrivilege):
        eve.execute(
            db.statement(
                f"CREATE TEMPORARY TABLE fake (id int); CREATE TRIGGER feed AFTER INSERT ON fake"
                f" REFERENCING NEW TABLE AS new_rows EXECUTE FUNCTION pgtrickle_changes.capture_{oid}()"
            )
        )
