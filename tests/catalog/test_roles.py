"""What the roles pgtrickle_user and pgtrickle_admin may do: all that reads works for both, and no more is given."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgtrickle import db, embedded
from pgtrickle.api import Trickle
from pgtrickle.catalog.install import install
from pgtrickle.db import Connection

CALLS: Final = {
    "pgt_status": "pgt_status()",
    "pgt_id_of": "pgt_id_of('mine.totals')",
    "full_name_of": "full_name_of(1)",
    "id_of_relation": "id_of_relation('mine.totals'::regclass, 'mine.totals')",
    "get_refresh_history": "get_refresh_history('mine.totals', 5)",
    "history_of_full_name": "history_of_full_name('mine.totals', 5)",
    "get_staleness": "get_staleness('mine.totals')",
    "staleness_of_full_name": "staleness_of_full_name('mine.totals')",
    "explain_st": "explain_st('mine.totals')",
    "explain_delta": "explain_delta('mine.totals')",
    "delta_plans_of": "delta_plans_of(1)",
    "costs_of": "costs_of(1)",
    "last_refresh_of": "last_refresh_of(1)",
    "is_in_the_way": "is_in_the_way()",
    "explain_full_name": "explain_full_name('mine.totals')",
    "dependency_tree": "dependency_tree()",
    "diamond_groups": "diamond_groups()",
    "st_refresh_stats": "st_refresh_stats()",
    "slot_name": "slot_name()",
    "slot_health": "slot_health()",
    "check_cdc_health": "check_cdc_health()",
    "health_check": "health_check()",
    "lease_problems": "lease_problems()",
    "who_leads": "who_leads()",
    "service_pid": "service_pid()",
    "serving_roles": "serving_roles()",
    "serves": "serves('pg_monitor'::regrole, 'pg_monitor'::regrole)",
    "computes": "computes('pg_monitor'::regrole, 'mine.totals'::regclass)",
    "is_served": "is_served('pg_monitor'::regrole)",
    "unserved_tables": "unserved_tables()",
    "why_waiting": "why_waiting(1)",
    "tell_waiting": "tell_waiting(1)",
    "setting": "setting('enabled', 'on')",
    "session_settings": "session_settings()",
    "callers_path": "callers_path()",
    "duration_bounds": "duration_bounds()",
    "duration_bucket": "duration_bucket(12)",
    "schedule_period": "schedule_period('5s')",
    "check_schedule": "check_schedule('5s')",
    "check_choice": "check_choice('mode', 'a', 'PT000', 'a', 'b')",
    "check_options": "check_options('5s', 'AUTO', NULL, NULL, 'auto')",
    "check_query": "check_query('SELECT 1 AS one')",
    "require_query": "require_query('SELECT 1 AS one')",
    "check_new_name": "check_new_name('mine.other')",
    "check_new_name_in": "check_new_name_in('other', 'mine')",
    "check_own_name": "check_own_name('mine.totals')",
    "check_own_full_name": "check_own_full_name('mine.totals')",
    "sees_all_writers": "sees_all_writers('mine.orders'::regclass, 'STATEMENT')",
    "wal_since": "wal_since('0/0')",
    "wal_eligibility": "wal_eligibility('mine.orders'::regclass, ARRAY['id'], 'pg_monitor'::regrole, false)",
    "wal_verdict": (
        "wal_verdict(false, 'r', 'p', false, 'logical', 1, 1, true, true, '{}', false, '{}', '{}', '{}', 'UTF8')"
    ),
    "object_shapes": "object_shapes(ARRAY['pg_class'::regclass::oid], ARRAY['mine.orders'::regclass::oid], ARRAY[0])",
    "object_names": "object_names(ARRAY['pg_class'::regclass::oid], ARRAY['mine.orders'::regclass::oid])",
    "describe_object": "describe_object('pg_class'::regclass, 'mine.orders'::regclass, 0)",
    "describe_change": "describe_change('a table', NULL, NULL)",
    "begin_waiting": "begin_waiting(1, '1s')",
    "is_done": "is_done(1, now() + interval '1 min')",
    "create_stream_table": "create_stream_table('mine.more', 'SELECT id FROM mine.orders')",
    "alter_stream_table": "alter_stream_table('mine.totals', schedule => '2s')",
    "drop_stream_table": "drop_stream_table('mine.totals')",
    "refresh_stream_table": "refresh_stream_table('mine.totals')",
    "add_request": "add_request('refresh', '{\"name\": \"mine.totals\"}')",
    "pause_stream_table": "pause_stream_table('mine.totals')",
    "resume_stream_table": "resume_stream_table('mine.totals')",
    "pause_all": "pause_all()",
    "resume_all": "resume_all()",
    "steerable_tables": "steerable_tables()",
    "validate_query": "validate_query('SELECT id FROM mine.orders')",
    "check_steered_name": "check_steered_name('totals', ARRAY['mine']::name[])",
    "steers": "steers('pg_monitor'::regrole, 'refresh', '{\"name\": \"mine.totals\"}')",
    "loop_problems": "loop_problems()",
    "id_of_name": "id_of_name('totals', ARRAY['mine']::name[])",
    "source_type": "source_type('mine.orders'::regclass)",
    "pause_problems": "pause_problems()",
    "takers": "takers('pg_monitor'::regrole, 'pg_monitor'::regrole)",
    "is_taken": "is_taken('pg_monitor'::regrole, 'pg_monitor'::regrole)",
    "request_progress": "request_progress(1)",
    "rows_staged": "rows_staged(1)",
    "unfilled_tables": "unfilled_tables()",
    "staleness_of": "staleness_of('AUTO', false, now())",
    "capture_cure": "capture_cure('slot_lost')",
    "read_by_view": "read_by_view('mine.seen'::regclass)",
    "sources_of_view": "sources_of_view('mine.seen'::regclass)",
    "is_of_the_query": "is_of_the_query('42601')",
    "is_wrong_in_cron": "is_wrong_in_cron('5', 0, 59)",
    "is_wrong_cron": "is_wrong_cron('* * * * *')",
    "check_schedule_shape": "check_schedule_shape('5s')",
    "check_wal": "check_wal('{}')",
    "check_differential": "check_differential('{}')",
    "check_capture": "check_capture(1, '{}', '{}')",
    "is_stream_table": "is_stream_table('mine.totals'::regclass)",
    "create_stream_table_if_not_exists": (
        "create_stream_table_if_not_exists('mine.more', 'SELECT id FROM mine.orders')"
    ),
    "create_or_replace_stream_table": "create_or_replace_stream_table('mine.more', 'SELECT id FROM mine.orders')",
    "no_commit_here": "no_commit_here()",
    "catalog_is_here": "catalog_is_here()",
    "repair_stream_table": "repair_stream_table('mine.totals')",
    "with_descendants": "with_descendants('mine.orders'::regclass)",
    "outlived_crashes": "outlived_crashes('mine.orders'::regclass, false)",
    "follower_problems": "follower_problems()",
    "track_ddl": "track_ddl()",
    "track_subscriptions": "track_subscriptions()",
}
"""How each function is called. All of the schema are here or below; one that is in neither fails the test."""
NOT_CALLED: Final = {
    "drop_follower": "is for who may write to the catalog: tests/source/test_changes.py",
    "expire_followers": "is called by the service and by followers, who may write to the catalog",
    "wait_for_request": "waits for a service: tests/scheduler/test_waiting.py",
    "require_visible_end": "is called by wait_for_request",
    "refuse": "does nothing but raise the error that it is given",
    "refuse_source_ddl": "does nothing but raise the error of a refused DDL",
    "note_dropped": "works only within an event trigger, which runs with the rights of the catalog's owner",
    "note_altered": "works only within an event trigger, which runs with the rights of the catalog's owner",
    "refuse_query": "does nothing but raise the error that PostgreSQL has for a query",
    "require_own_transaction": "does nothing but refuse to wait within a transaction, which this test is in",
    "set_origin": "is called by the catalog's owner alone, when it is installed or repaired",
    "wait_for": "is a procedure that commits: begin_waiting and is_done are all that it calls",
}


@dataclass(frozen=True)
class Place:
    """A database with a stream table of `owner`, a login with one of our roles, over a table of the same owner."""

    dsn: str
    owner: str
    role: str
    admin: Connection

    @property
    def login(self) -> str:
        return make_conninfo(self.dsn, user=self.owner, password="plain")


@pytest.fixture(params=["pgtrickle_user", "pgtrickle_admin"])
def place(request: pytest.FixtureRequest, server18: embedded.Server, database18: str) -> Iterator[Place]:
    owner = f"bob_{uuid.uuid4().hex[:8]}"
    name = sql.Identifier(owner)
    with psycopg.connect(server18.dsn, autocommit=True) as cluster:
        cluster.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'plain'").format(name))
        try:
            with db.open_session(database18) as admin:
                install(admin)
                admin.execute(sql.SQL("CREATE SCHEMA mine AUTHORIZATION {}").format(name))
                admin.execute("CREATE TABLE mine.orders (id int PRIMARY KEY, amount int)")
                admin.execute("INSERT INTO mine.orders VALUES (1, 10), (2, 20)")
                admin.execute("CREATE VIEW mine.seen AS SELECT id FROM mine.orders")
                with Trickle(database18) as trickle:
                    query = "SELECT count(*) AS n, sum(amount) AS total FROM mine.orders"
                    trickle.create_stream_table("mine.totals", query, initialize=False)
                    trickle.create_stream_table(
                        "mine.later", "SELECT now() AS t, id FROM mine.orders", initialize=False
                    )
                    admin.execute("CREATE SCHEMA hidden")
                    trickle.create_stream_table("hidden.more", "SELECT id FROM mine.orders", initialize=False)
                for table in ("orders", "totals", "later"):
                    admin.execute(sql.SQL("ALTER TABLE {} OWNER TO {}").format(sql.Identifier("mine", table), name))
                admin.execute(sql.SQL("GRANT {} TO {}").format(sql.Identifier(request.param), name))
                yield Place(database18, owner, request.param, admin)
                admin.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(name))
        finally:
            cluster.execute(sql.SQL("DROP ROLE {}").format(name))


def test_every_view_and_function_works_for_it(place: Place) -> None:
    with db.open_session(place.login) as bob:
        bob.execute("SELECT pgtrickle.refresh_stream_table('mine.totals')")  # there is a request
        relations = bob.execute(
            "SELECT relnamespace::regnamespace::text, relname FROM pg_class WHERE relkind IN ('r', 'v', 'm', 'p')"
            " AND relnamespace IN ('pgtrickle'::regnamespace, 'pgtrickle_internal'::regnamespace)"
        ).fetchall()
        assert len(relations) > 30
        for schema, relation in relations:
            bob.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(str(schema), str(relation)))).fetchall()
        functions = bob.execute(
            "SELECT DISTINCT proname::text, pronamespace::regnamespace::text FROM pg_proc"
            " WHERE pronamespace IN ('pgtrickle'::regnamespace, 'pgtrickle_internal'::regnamespace)"
            " AND prorettype NOT IN ('trigger'::regtype, 'event_trigger'::regtype)"  # called by their triggers alone
        ).fetchall()
        schemas = {str(name): str(schema) for name, schema in functions}
        assert schemas.keys() == CALLS.keys() | NOT_CALLED.keys()
        for name in sorted(CALLS):
            with bob.transaction(force_rollback=True):
                bob.execute(db.statement(f"SELECT * FROM {schemas[name]}.{CALLS[name]}")).fetchall()


def test_it_may_ask_about_tables_in_schemas_that_it_may_not_use(place: Place) -> None:
    with db.open_session(place.login) as bob:
        for call in ("explain_st", "get_refresh_history", "get_staleness", "pgt_id_of"):
            bob.execute(db.statement(f"SELECT * FROM pgtrickle.{call}('hidden.more')"))
        steers = place.role == "pgtrickle_admin"  # an administrator may have it refreshed, no more
        refused = ("drop_stream_table", "alter_stream_table", *(() if steers else ("refresh_stream_table",)))
        for call in refused:
            with pytest.raises(psycopg.Error, match=r"does not own hidden\.more"):
                bob.execute(db.statement(f"SELECT pgtrickle.{call}('hidden.more')"))
        with pytest.raises(psycopg.errors.UndefinedTable, match="there is no stream table no such name"):
            bob.execute("SELECT pgtrickle.pgt_id_of('no such name')")


def test_it_may_explain_and_verify_its_own_table(place: Place) -> None:
    """Changes that wait are not its to read: `explain` supposes some, `verify` compares with the present."""
    with Trickle(place.login, install_catalog=False) as trickle:
        told = trickle.explain("mine.totals")
        assert "operators" in told
        assert "delta plan" in told
        assert "100 changes supposed" in told
        assert [each.pgt_name for each in trickle.status()] == ["more", "later", "totals"]
        assert trickle.cdc_status()
        assert {check.severity for check in trickle.health()} <= {"OK", "WARN", "ERROR"}
        place.admin.execute(
            "UPDATE pgtrickle.pgt_stream_tables SET is_populated = true, status = 'ACTIVE', data_timestamp = now()"
        )
        stale, _ = trickle.verify("mine.totals", "mine.later")
        assert (stale.error, stale.missing, stale.extra) == (None, 1, 0)
        assert stale.compared_with == "the present; this role may not read the changes that wait"
        place.admin.execute("INSERT INTO mine.totals VALUES (2, 30)")
        (found,) = trickle.verify("mine.totals")
        assert found.equal, found


def test_it_gets_no_more_than_that(place: Place) -> None:
    """It writes to nothing of ours but requests, and reads no rows of sources by way of our buffers and state."""
    with db.open_session(place.login) as bob:
        rows = bob.execute(
            "SELECT c.oid::regclass::text FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
            " WHERE n.nspname LIKE 'pgtrickle%' AND c.relkind IN ('r', 'v')"
            " AND (has_table_privilege(c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE, TRIGGER, REFERENCES')"
            "      OR n.nspname NOT IN ('pgtrickle', 'pgtrickle_internal') AND has_table_privilege(c.oid, 'SELECT'))"
        ).fetchall()
        assert rows == []
        definers = bob.execute(
            "SELECT p.oid::regprocedure FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace"
            " WHERE n.nspname LIKE 'pgtrickle%' AND p.prosecdef AND has_function_privilege(p.oid, 'EXECUTE')"
        ).fetchall()
        assert definers == []
