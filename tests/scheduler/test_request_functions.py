"""The SQL functions: what they refuse at once and how, what they write, who may call them, and waiting."""

from __future__ import annotations

import json
import threading

import psycopg
import pytest
from psycopg import sql

from pgtrickle import db
from pgtrickle.db import Connection
from tests.scheduler.conftest import World, leading

CREATE = "SELECT pgtrickle.create_stream_table"


def refusal(conn: Connection, statement: str) -> psycopg.Error:
    with pytest.raises(psycopg.Error) as refused:
        conn.execute(db.statement(statement))
    return refused.value


def value(conn: Connection, statement: str) -> object:
    return db.scalar(conn, statement)


WRONG = [
    ("'1x', 'SELECT 1 AS a'", "PT004", "not a table's name"),
    ("'a.b.c', 'SELECT 1 AS a'", "PT004", "not a table's name"),
    (f"'{'x' * 64}', 'SELECT 1 AS a'", "PT004", "not a table's name"),
    ("'nowhere.t', 'SELECT 1 AS a'", "PT005", "no schema nowhere"),
    ("'secret', 'SELECT 1 AS a'", "PT302", "exists already"),
    ("'t', 'SELECT 1 AS a', refresh_mode => 'SOMETIMES'", "PT006", "no refresh mode"),
    ("'t', 'SELECT 1 AS a', cdc_mode => 'polling'", "PT007", "no capture mode"),
    ("'t', 'SELECT 1 AS a', refresh_mode => 'immediate', cdc_mode => 'WAL'", "PT009", "does not go with"),
    ("'t', 'SELECT 1 AS a', 'soon'", "PT010", "not a schedule"),
    ("'t', 'SELECT 1 AS a', ''", "PT010", "not a schedule"),
    ("'t', 'SELECT 1 AS a', '0s'", "PT011", "shorter than 1 s"),
    ("'t', 'SELECT 1 AS a', '@sometimes'", "PT012", "cron"),
    ("'t', 'SELECT 1 AS a', '* * * * !'", "PT012", "cron"),
    ("'t', 'SELECT 1 AS a', diamond_consistency => 'maybe'", "PT013", "diamond consistency"),
    ("'t', 'SELECT 1 AS a', diamond_schedule_policy => 'mean'", "PT014", "diamond schedule policy"),
    ("'t', E' \\n'", "PT100", "empty"),
    ("'t', NULL", "PT100", "empty"),
    ("'t', 'SELEC 1'", "42601", "syntax error"),
    ("'t', 'SELECT nothing FROM orders'", "42703", "nothing"),
    ("'t', 'SELECT id FROM nowhere'", "42P01", "nowhere"),
    ("'t', 'SELECT 1 AS a, 2 AS a'", "42701", "more than once"),
]


def test_what_is_wrong_is_refused_at_once(world: World) -> None:
    for arguments, code, said in WRONG:
        error = refusal(world.admin, f"{CREATE}({arguments})")
        assert (error.sqlstate, arguments) == (code, arguments)
        assert said in str(error.diag.message_primary)
        if code.startswith("PT"):
            assert error.diag.message_hint
    for call in (
        "alter_stream_table('t')",
        "drop_stream_table('t')",
        "refresh_stream_table('t')",
        "repair_stream_table('t')",
    ):
        assert refusal(world.admin, f"SELECT pgtrickle.{call}").sqlstate == "42P01"
    assert world.requests() == []


def test_good_schedules_are_taken(world: World) -> None:
    good = ["5s", " 1H30M ", "2d", "*/5 * * * *", "0 */5 * * * *", "0 6 * * mon-fri", "0 0 * * 5#2", "@hourly"]
    for number, schedule in enumerate([*good, "calculated", None]):
        world.admin.execute("SELECT pgtrickle.create_stream_table(%s, 'SELECT 1 AS a', %s)", (f"t{number}", schedule))
    stored = world.admin.execute("SELECT args ->> 'schedule' FROM pgtrickle.pgt_requests ORDER BY id").fetchall()
    assert [row[0] for row in stored] == [schedule.strip() for schedule in good] + ["calculated", "calculated"]


def test_a_request_is_part_of_its_transaction_and_wakes_the_service(world: World) -> None:
    with world.session(world.ann) as ann, db.open_session(world.dsn) as service:
        service.execute("LISTEN pg_trickle_wake")
        ann.execute('SET search_path = "$user", public')
        with ann.transaction(force_rollback=True):
            value(ann, f"{CREATE}('lost', 'SELECT id FROM orders')")
        number = value(ann, f"{CREATE}('totals', 'SELECT id FROM orders', refresh_mode => 'full', cdc_mode => 'AUTO')")
        (notice,) = list(service.notifies(timeout=10, stop_after=1))
        assert notice.payload == f"request {number}"
        row = service.execute(
            "SELECT kind, args, requested_by, search_path, state FROM pgtrickle.pgt_requests"
        ).fetchall()
    assert row == [
        (
            "create",
            {
                "name": "public.totals",
                "query": "SELECT id FROM orders",
                "schedule": "1m",
                "refresh_mode": "FULL",
                "cdc_mode": "auto",
                "initialize": True,
            },
            world.ann,
            "public",
            "PENDING",
        )
    ]


def test_checking_a_query_does_nothing(world: World) -> None:
    """Not even when the text is more than a query: what is done while checking is undone."""
    world.run("INSERT INTO orders VALUES (1, 10)")
    for text in ("SELECT 1 AS a; DELETE FROM orders", "SELECT 1 AS a; CREATE TABLE made (i int)"):
        world.admin.execute("SELECT pgtrickle.check_query(%s)", (text,))
    assert value(world.admin, "SELECT count(*) FROM orders") == 1
    assert value(world.admin, "SELECT to_regclass('made')") is None
    assert value(world.admin, "SELECT count(*) FROM pg_class WHERE relname = 'pgtrickle_requested'") == 0


def test_the_callers_rights_count(world: World) -> None:
    world.run("CREATE TABLE totals (id int)", "CREATE TABLE hers (id int)", "ALTER TABLE hers OWNER TO {ann}")
    for name in ("totals", "hers"):
        world.admin.execute(
            "INSERT INTO pgtrickle.pgt_stream_tables (pgt_relid, pgt_schema, pgt_name, defining_query,"
            " normalized_query, refresh_mode, effective_mode, search_path)"
            " VALUES (%s::regclass, 'public', %s, 'q', 'q', 'FULL', 'FULL', 'public')",
            (name, name),
        )
    with world.session(world.eve) as eve:
        assert refusal(eve, f"{CREATE}('mine', 'SELECT 1 AS a')").sqlstate == "PT402"
        assert refusal(eve, f"{CREATE}('mine', 'SELECT id FROM orders')").sqlstate == "PT402"
        assert refusal(eve, "SELECT pgtrickle.drop_stream_table('hers')").sqlstate == "PT402"
    with world.session(world.ann) as ann:
        assert refusal(ann, f"{CREATE}('mine', 'SELECT id FROM secret')").sqlstate == "42501"
        for call in ("alter_stream_table('totals', schedule => '5s')", "drop_stream_table('totals')"):
            error = refusal(ann, f"SELECT pgtrickle.{call}")
            assert error.sqlstate == "PT402"
            assert "does not own public.totals" in str(error)
        assert refusal(
            ann, "SELECT pgtrickle.alter_stream_table('hers', query => 'SELECT id FROM secret')"
        ).sqlstate == ("42501")
        assert refusal(ann, "SELECT pgtrickle.alter_stream_table('hers', status => 'ERROR')").sqlstate == "PT008"
        ann.execute("SELECT pgtrickle.alter_stream_table('hers', status => 'suspended', schedule => 'calculated')")
        ann.execute("SELECT pgtrickle.refresh_stream_table('hers'), pgtrickle.drop_stream_table('hers', true)")
    found = world.admin.execute("SELECT kind, args FROM pgtrickle.pgt_requests ORDER BY id").fetchall()
    assert found == [
        ("alter", {"name": "public.hers", "status": "SUSPENDED", "schedule": "calculated"}),
        ("refresh", {"name": "public.hers"}),
        ("drop", {"name": "public.hers", "cascade": True}),
    ]


def test_who_asked_cannot_be_forged(world: World) -> None:
    with world.session(world.ann) as ann:
        for forged in (
            "INSERT INTO pgtrickle.pgt_requests (kind, args, requested_by) VALUES ('drop', '{\"name\": \"t\"}', 'eve')",
            "INSERT INTO pgtrickle.pgt_requests (kind, args, search_path) VALUES ('drop', '{\"name\": \"t\"}', 'x')",
            "UPDATE pgtrickle.pgt_requests SET requested_by = 'eve'",
            "DELETE FROM pgtrickle.pgt_requests",
        ):
            assert refusal(ann, forged).sqlstate == "42501"
        ann.execute("INSERT INTO pgtrickle.pgt_requests (kind, args) VALUES ('drop', '{\"name\": \"t\"}')")
        assert value(ann, "SELECT requested_by FROM pgtrickle.pgt_requests") == world.ann
    world.run("REVOKE pgtrickle_user FROM {ann}")
    with world.session(world.ann) as ann:
        assert refusal(ann, f"{CREATE}('t', 'SELECT 1 AS a')").sqlstate == "42501"


def test_a_caller_whom_no_service_serves_hears_so_at_once(world: World) -> None:
    """The request waits, and says why as long as it does: no service, or none that would compute it."""
    world.installed_by(world.service)
    with world.session(world.ann) as ann:
        heard: list[str] = []
        ann.add_notice_handler(lambda notice: heard.append(str(notice.message_primary)))
        first = value(ann, f"{CREATE}('t', 'SELECT id FROM orders')")
        assert heard == [f"request {first} waits: no service runs in this database"]
        with leading(world.dsn_of(world.service)):
            second = value(ann, f"{CREATE}('u', 'SELECT id FROM orders')")
            said = f"no running service serves the role {world.ann}"
            assert heard[1:] == [f"request {second} waits: {said}"]
            late = refusal(ann, f"CALL pgtrickle.wait_for({second}, '0 s')")
            assert (late.sqlstate, said in str(late)) == ("PT382", True)
            world.run("GRANT {service} TO {ann}")
            value(ann, f"{CREATE}('v', 'SELECT id FROM orders')")
            assert heard[2:] == [], "one that has all rights of the service is served"
        assert [row[1] for row in world.requests()] == ["PENDING"] * 3


def test_no_stranger_passes_for_a_service(world: World) -> None:
    """Whoever is no member of the catalog's owner cannot take a lease."""
    world.installed_by(world.service)
    me = value(world.admin, "SELECT current_user")
    with pytest.raises(psycopg.errors.InsufficientPrivilege), leading(world.dsn_of(world.eve)):
        pass
    assert value(world.admin, "SELECT count(*) FROM pgtrickle.serving_roles()") == 0
    with leading(world.dsn_of(world.service)), leading(world.dsn):
        found = world.admin.execute("SELECT role_name FROM pgtrickle.serving_roles()").fetchall()
        assert {name for (name,) in found} == {world.service, me}
    serves = "SELECT pgtrickle.serves({!r}::regrole, {!r}::regrole)"
    world.run("GRANT {service} TO {ann}", f"GRANT {me} TO {{eve}}")
    for login, owner, said in (
        (world.service, world.service, True),
        (world.service, world.ann, True),
        (world.service, me, True),
        (world.service, world.eve, False),  # what a superuser may do is no right of others to inherit
        (world.ann, world.service, False),
        (me, world.ann, False),
        (me, world.eve, False),  # attributes are not inherited
        (me, me, True),
    ):
        assert (login, owner, value(world.admin, serves.format(login, owner))) == (login, owner, said)


def asked(world: World) -> int:
    return int(str(value(world.admin, f"{CREATE}('t', 'SELECT 1 AS a')")))


def end(world: World, number: int, state: str, **columns: str) -> None:
    set_them = [sql.SQL("{} = {}").format(sql.Identifier(name), sql.Literal(text)) for name, text in columns.items()]
    world.admin.execute(
        sql.SQL("UPDATE pgtrickle.pgt_requests SET {}, finished_at = now() WHERE id = {}").format(
            sql.SQL(", ").join([sql.SQL("state = {}").format(sql.Literal(state)), *set_them]), sql.Literal(number)
        )
    )


def test_waiting_sees_what_another_session_does(world: World) -> None:
    number = asked(world)
    failures: list[Exception] = []

    def wait() -> None:
        try:
            with world.session(world.ann) as ann:
                ann.execute(db.statement(f"CALL pgtrickle.wait_for({number}, '1 minute')"))
        except psycopg.Error as error:
            failures.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not value(world.admin, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'CALL pgtrickle.wait_for%'"):
        assert waiting.is_alive()
    end(world, number, "DONE")
    waiting.join(30)
    assert not waiting.is_alive()
    assert failures == []


def test_waiting_raises_the_requests_error(world: World) -> None:
    number = asked(world)
    end(world, number, "FAILED", error_code="PT106", error="no column x", hint="check the name")
    error = refusal(world.admin, f"CALL pgtrickle.wait_for({number})")
    assert (error.sqlstate, error.diag.message_primary) == ("PT106", "no column x")
    assert error.diag.message_hint == "check the name"
    bare = asked(world)
    end(world, bare, "FAILED", error_code="PT341", error="Spark failed")
    assert refusal(world.admin, f"CALL pgtrickle.wait_for({bare})").diag.message_hint is None


def test_waiting_in_vain(world: World) -> None:
    number = asked(world)
    late = refusal(world.admin, f"CALL pgtrickle.wait_for({number}, '0.2 s')")
    assert (late.sqlstate, "still PENDING" in str(late), "pgtrickle run" in str(late)) == ("PT382", True, True)
    assert refusal(world.admin, "CALL pgtrickle.wait_for(0)").sqlstate == "PT381"
    with pytest.raises(psycopg.Error) as early, world.admin.transaction():
        world.admin.execute(db.statement(f"CALL pgtrickle.wait_for({asked(world)})"))
    assert early.value.sqlstate == "PT380"
    assert "Commit first" in str(early.value)


def test_arguments_that_no_function_wrote(world: World) -> None:
    for args in ("[]", "{}", '{"name": null}'):
        with pytest.raises(psycopg.errors.CheckViolation):
            world.admin.execute(
                "INSERT INTO pgtrickle.pgt_requests (kind, args) VALUES ('drop', %s)", (json.dumps(json.loads(args)),)
            )
