"""The SQL functions: what they refuse at once and how, what they write, who may call them, and waiting."""

from __future__ import annotations

import json
import threading
from random import Random

import psycopg
import pytest
from psycopg import sql

from pgtrickle import db
from pgtrickle.api import Trickle
from pgtrickle.db import Connection
from pgtrickle.errors import UsageError
from pgtrickle.schedule import check_schedule
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
    ("'t', 'SELECT 1 AS a', '61 * * * *'", "PT012", "cron"),
    ("'t', 'SELECT 1 AS a', '0 0 * foo *'", "PT012", "cron"),
    ("'t', 'SELECT 1 AS a', '*/0 * * * *'", "PT012", "cron"),
    ("'t', 'SELECT 1 AS a', refresh_mode => 'immediate', cdc_mode => 'wal'", "PT009", "does not go with"),
    ("'t', 'SELECT id FROM orders; DROP TABLE orders'", "42P11", "PT101: more than one statement"),
    ("'t', 'SELECT 1) AS q; DROP TABLE orders; --'", "42601", "PT100: syntax error"),
    ("'t', 'DELETE FROM orders'", "42P11", "PT102: not a query a view could have"),
    ("'t', 'DELETE FROM orders RETURNING id'", "42601", "PT102: not a query a view could have"),
    ("'t', 'WITH d AS (DELETE FROM orders RETURNING id) SELECT * FROM d'", "0A000", "PT102: not a query"),
    ("'t', 'SELECT id INTO made FROM orders'", "42P11", "PT102: not a query a view could have"),
    ("'t', 'SELECT id FROM orders WHERE id = $1'", "42P02", "PT103: a defining query cannot have parameters"),
    ("'t', 'SELECT FROM orders'", "PT112", "no columns"),
    ("'t', 'SELECT 1 / 0 AS a'", "22012", "PT100: division by zero"),
    ("'t', 'SELECT id FROM mine'", "PT108", "mine is temporary"),
    ("'t', 'SELECT pgt_id FROM pgtrickle.pgt_requests_seen'", "42P01", "PT106: relation"),
    ("'t', 'SELECT id FROM pgtrickle.pgt_requests'", "PT315", "belongs to pgtrickle itself"),
    ("'t', 'SELECT id FROM peeping'", "PT315", "belongs to pgtrickle itself"),
    ("'t', 'SELECT last_value FROM numbers', '1m', 'differential'", "PT206", "system relation"),
    ("'t', 'SELECT id, amount FROM orders', cdc_mode => 'wal'", "PT270", "orders cannot be captured from the WAL"),
    ("'t', 'SELECT id FROM scratch', 'calculated', 'DIFFERENTIAL', cdc_mode => 'wal'", "PT262", "cannot be captured"),
    ("'t', 'SELECT 1 AS a', diamond_consistency => 'maybe'", "PT013", "diamond consistency"),
    ("'t', 'SELECT 1 AS a', diamond_schedule_policy => 'mean'", "PT014", "diamond schedule policy"),
    ("'t', E' \\n'", "PT100", "empty"),
    ("'t', NULL", "PT100", "empty"),
    ("'t', 'SELEC 1'", "42601", "syntax error"),
    ("'t', 'SELECT nothing FROM orders'", "42703", "nothing"),
    ("'t', 'SELECT id FROM nowhere'", "42P01", "nowhere"),
    ("'t', 'SELECT 1 AS a, 2 AS a'", "42701", 'PT104: column "a" specified more than once'),
]


def test_what_is_wrong_is_refused_at_once(world: World) -> None:
    world.run(
        "CREATE TEMPORARY TABLE mine (id int)",
        "CREATE VIEW peeping AS SELECT id FROM pgtrickle.pgt_requests",
        "CREATE UNLOGGED TABLE scratch (id int PRIMARY KEY)",
        "CREATE SEQUENCE numbers",
    )
    for arguments, code, said in WRONG:
        error = refusal(world.admin, f"{CREATE}({arguments})")
        assert (error.sqlstate, arguments) == (code, arguments)
        assert said in str(error.diag.message_primary)
        assert str(error.diag.message_primary).startswith(code if code.startswith("PT") else "PT1")
        assert error.diag.message_hint
    for call in (
        "alter_stream_table('t')",
        "drop_stream_table('t')",
        "refresh_stream_table('t')",
        "repair_stream_table('t')",
    ):
        assert refusal(world.admin, f"SELECT pgtrickle.{call}").sqlstate == "42P01"
    assert world.requests() == []


def test_what_is_wrong_to_alter_is_refused_at_once(world: World) -> None:
    world.run("CREATE SEQUENCE numbers")
    with Trickle(world.dsn) as trickle:
        trickle.create_stream_table("copy", "SELECT id, amount FROM orders", initialize=False)
        trickle.create_stream_table("whole", "SELECT id, amount FROM orders", refresh_mode="FULL", initialize=False)
    for arguments, code in (
        ("", "PT031"),
        (", refresh_mode => 'SOMETIMES'", "PT006"),
        (", refresh_mode => 'IMMEDIATE', cdc_mode => 'wal'", "PT009"),
        (", schedule => '61 * * * *'", "PT012"),
        (", status => 'ERROR'", "PT008"),
        (", cdc_mode => 'wal'", "PT270"),
        (", query => 'SELECT nothing FROM orders'", "42703"),
        (", query => 'SELECT amount FROM orders', cdc_mode => 'wal'", "PT270"),
        (", query => 'SELECT 1 AS a; SELECT 2 AS a'", "42P11"),
        (", query => 'SELECT last_value AS id FROM numbers', refresh_mode => 'DIFFERENTIAL'", "PT206"),
    ):
        error = refusal(world.admin, f"SELECT pgtrickle.alter_stream_table('copy'{arguments})")
        assert (error.sqlstate, arguments) == (code, arguments)
        assert error.diag.message_hint
    assert world.requests() == []
    world.run(
        "SELECT pgtrickle.alter_stream_table('whole', cdc_mode => 'wal')",  # nothing is captured for it
        "SELECT pgtrickle.alter_stream_table('copy', query => 'SELECT id FROM orders', cdc_mode => 'wal')",
        "SELECT pgtrickle.alter_stream_table('copy', refresh_mode => 'FULL', cdc_mode => 'wal')",
    )


def test_a_name_that_is_taken_may_be_no_error(world: World) -> None:
    if_not_exists = "SELECT pgtrickle.create_stream_table_if_not_exists('copy', 'SELECT id FROM orders', '2m')"
    or_replace = "SELECT pgtrickle.create_or_replace_stream_table('copy', 'SELECT id FROM orders', NULL)"
    world.run(if_not_exists, or_replace)
    with Trickle(world.dsn) as trickle:
        trickle.create_stream_table("copy", "SELECT id, amount FROM orders", initialize=False)
    assert value(world.admin, if_not_exists) is None
    world.run(or_replace)
    found = world.admin.execute("SELECT kind, args ->> 'schedule' FROM pgtrickle.pgt_requests ORDER BY id").fetchall()
    assert found == [("create", "2m"), ("create", "calculated"), ("alter", "calculated")]
    assert refusal(world.admin, or_replace.replace("copy", "secret")).sqlstate == "PT302"
    assert refusal(world.admin, if_not_exists.replace("copy", "secret")).sqlstate == "PT302", "it is no stream table"


def test_no_good_cron_expression_is_refused(world: World) -> None:
    """SQL knows less of them than the service, and so refuses fewer: never one that the service would take."""
    random = Random(18)
    parts = [
        "*",
        "*/5",
        "0",
        "7",
        "12",
        "31",
        "59",
        "60",
        "1-5",
        "5-1",
        "1,2",
        "1,,2",
        "jan",
        "mon-fri",
        "sun",
        "l",
        "5#2",
        "*/0",
        "x",
        "?",
    ]
    texts = [" ".join(random.choices(parts, k=random.choice([5, 5, 6]))) for _ in range(3000)]
    texts += ["@hourly", "@annually", "0 0 l * *", "0 0 * * l5", "0 0 * * 7", "0 0 1 JAN Mon", "59 23 31 12 0-7/2"]
    world.run(
        "CREATE FUNCTION pg_temp.is_taken(schedule text) RETURNS boolean LANGUAGE plpgsql AS $$"
        " BEGIN PERFORM pgtrickle_internal.check_schedule(schedule); RETURN true;"
        " EXCEPTION WHEN SQLSTATE 'PT012' THEN RETURN false; END $$"
    )
    found = world.admin.execute("SELECT t, pg_temp.is_taken(t) FROM unnest(%s::text[]) AS t", (texts,)).fetchall()
    by_service = {text for text in texts if schedule_is_good(text)}
    assert {str(text) for text, taken in found if not taken} & by_service == set()
    assert len(by_service) > 20
    assert sum(1 for _, taken in found if taken) < len(by_service) * 1.5, "most of the others are refused at once"


def schedule_is_good(text: str) -> bool:
    try:
        check_schedule(text, 1)
    except UsageError:
        return False
    return True


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
        (notice,) = list(service.notifies(timeout=60, stop_after=1))
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
    """Not even when the text is more than a query: several statements are refused before any of them runs."""
    world.run("INSERT INTO orders VALUES (1, 10)", "CREATE SEQUENCE calls")
    for text in (
        "SELECT 1 AS a; DELETE FROM orders; SELECT nextval('calls')",
        "SELECT 1 AS a; CREATE TABLE made (i int)",
        "WITH d AS (DELETE FROM orders RETURNING nextval('calls')) SELECT * FROM d",
        "INSERT INTO orders VALUES (nextval('calls'), 1) RETURNING id",
    ):
        with pytest.raises(psycopg.Error, match=r"PT10[12]"):
            world.admin.execute("SELECT pgtrickle_internal.check_query(%s)", (text,))
    world.admin.execute("SELECT pgtrickle_internal.check_query('SELECT nextval(''calls'') AS n FROM orders;')")
    assert value(world.admin, "SELECT count(*) FROM orders") == 1
    assert value(world.admin, "SELECT is_called FROM calls") is False, "a sequence would tell, whatever is undone"
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
        denied = refusal(ann, f"{CREATE}('mine', 'SELECT id FROM secret')")
        assert (denied.sqlstate, "PT107" in str(denied)) == ("42501", True)
        world.run("CREATE TABLE lent (id int)", "GRANT SELECT ON lent TO {ann}")
        lent = refusal(ann, f"{CREATE}('mine', 'SELECT id FROM lent', refresh_mode => 'DIFFERENTIAL')")
        assert (lent.sqlstate, "public.lent" in str(lent)) == ("PT251", True)
        wal = refusal(ann, f"{CREATE}('mine', 'SELECT id, amount FROM orders', cdc_mode => 'wal')")
        assert (wal.sqlstate, "public.orders" in str(wal)) == ("PT270", True), "she may ask, and is told"
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
    assert value(world.admin, "SELECT count(*) FROM pgtrickle_internal.serving_roles()") == 0
    with leading(world.dsn_of(world.service)), leading(world.dsn):
        found = world.admin.execute("SELECT role_name FROM pgtrickle_internal.serving_roles()").fetchall()
        assert {name for (name,) in found} == {world.service, me}
    serves = "SELECT pgtrickle_internal.serves({!r}::regrole, {!r}::regrole)"
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
    assert (error.sqlstate, error.diag.message_primary) == ("PT106", "PT106: no column x")
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
    assert "request 2 was made in this transaction" in str(early.value)
    assert "Commit first, then CALL pgtrickle.wait_for(2)" in str(early.value)
    with pytest.raises(psycopg.Error) as inside, world.admin.transaction():
        world.admin.execute(db.statement(f"CALL pgtrickle.wait_for({number})"))
    assert (inside.value.sqlstate, "by itself" in str(inside.value.diag.message_hint)) == ("PT454", True)
    end(world, number, "DONE")
    with world.admin.transaction():
        world.admin.execute(db.statement(f"CALL pgtrickle.wait_for({number})"))  # there is nothing to wait for
        world.admin.execute("CALL pgtrickle.wait_for(NULL)")


def test_arguments_that_no_function_wrote(world: World) -> None:
    for args in ("[]", "{}", '{"name": null}'):
        with pytest.raises(psycopg.errors.CheckViolation):
            world.admin.execute(
                "INSERT INTO pgtrickle.pgt_requests (kind, args) VALUES ('drop', %s)", (json.dumps(json.loads(args)),)
            )
