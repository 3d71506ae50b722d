"""Functions of others that fit our calls better than PostgreSQL's own are not called, by whatever path."""

from __future__ import annotations

import time

from pgtrickle import db
from pgtrickle.capture import handover, slot
from pgtrickle.capture.modes import SlotState
from pgtrickle.catalog.install import install
from pgtrickle.config import Settings
from pgtrickle.scheduler.capture_loop import CaptureLoop

from .world import World, world

TRAPS = """
    CREATE TABLE public.loot (what text);
    CREATE FUNCTION public.hashtextextended(text, int) RETURNS bigint LANGUAGE sql AS $$
        INSERT INTO public.loot VALUES ('hashtextextended'); SELECT 1::bigint $$;
    CREATE FUNCTION public.hashtextextended(text, smallint) RETURNS bigint LANGUAGE sql AS $$
        INSERT INTO public.loot VALUES ('hashtextextended'); SELECT 1::bigint $$;
    CREATE FUNCTION public.format(text, name, name) RETURNS text LANGUAGE sql AS $$
        INSERT INTO public.loot VALUES ('format'); SELECT 'x' $$;
"""
OPERATOR = """
    CREATE FUNCTION public.same(oid, smallint) RETURNS boolean LANGUAGE sql AS $$
        INSERT INTO public.loot VALUES ('operator'); SELECT true $$;
    CREATE FUNCTION public.same(oid, int) RETURNS boolean LANGUAGE sql AS $$
        INSERT INTO public.loot VALUES ('operator'); SELECT true $$;
    CREATE OPERATOR public.= (FUNCTION = public.same, LEFTARG = oid, RIGHTARG = smallint);
    CREATE OPERATOR public.= (FUNCTION = public.same, LEFTARG = oid, RIGHTARG = int);
"""


def loot(made: World) -> list[object]:
    return [what for (what,) in made.conn.execute("SELECT DISTINCT what FROM public.loot")]


def test_no_one_elses_function_or_operator_runs_as_ours(database18: str) -> None:
    """Functions are called by their schema, as users' sessions have any path; operators cannot well be, so the sessions
    of the service have a path of their own."""
    with db.open_session(database18) as conn:
        install(conn)
        db.execute(conn, TRAPS)
    with world(database18) as made:
        handover.begin_transition(made.conn, made.oid, "asked")
        handover.complete(made.conn, made.oid, "caught up")
        made.conn.execute("INSERT INTO t VALUES (1, 1)")
        made.conn.execute("SELECT * FROM pgtrickle.health_check()")
        assert loot(made) == []
        db.execute(made.conn, OPERATOR)
        made.conn.execute("SET search_path = pg_catalog")
        steering = CaptureLoop(made.dsn)
        deadline = time.monotonic() + 30
        try:
            while slot.inspect(made.conn).state is not SlotState.ABSENT:
                steering.round(Settings(cdc_mode="trigger"))
                assert time.monotonic() < deadline
        finally:
            steering.close()
        assert made.mode() == "TRIGGER"
        assert made.buffered("W") == ["I"]
        assert loot(made) == []


def test_functions_with_the_callers_path_are_those_that_need_it(database18: str) -> None:
    """To find what the caller names, or to record the path that the query is to be read with."""
    with db.open_session(database18) as conn:
        install(conn)
        found = conn.execute(
            "SELECT p.proname FROM pg_proc AS p"
            " WHERE p.pronamespace IN ('pgtrickle'::regnamespace, 'pgtrickle_internal'::regnamespace)"
            " AND p.prosqlbody IS NULL AND coalesce(NOT 'search_path=pg_catalog, pg_temp' = ANY (p.proconfig), true)"
        )
        assert {name for (name,) in found} == {
            "pgt_id_of",
            "check_query",
            "check_new_name",
            "check_own_name",
            "add_request",
            "callers_path",
            "create_stream_table",
            "create_stream_table_if_not_exists",
            "create_or_replace_stream_table",
            "alter_stream_table",
            "drop_stream_table",
            "refresh_stream_table",
            "repair_stream_table",
            "pause_stream_table",
            "resume_stream_table",
            "explain_st",
            "explain_delta",
            "get_refresh_history",
            "get_staleness",
            "validate_query",
            "wait_for",  # commits, as a procedure with settings may not
        }
