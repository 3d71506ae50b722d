"""What an operator sees: `pgtrickle cdc`, `pgtrickle health`, and the same from SQL and Python."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg import sql
from tests.service.running import running, until
from tests.wal.world import World, world
from typer.testing import CliRunner

from pgtrickle import db
from pgtrickle.capture import slot
from pgtrickle.catalog.health import health
from pgtrickle.cli.main import app


@pytest.fixture
def made(database: str) -> Iterator[World]:
    with world(database) as it:
        yield it


@pytest.fixture
def made18(database18: str) -> Iterator[World]:
    with world(database18) as it:
        yield it


def ask(made: World, *arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(arguments), env={"PGTRICKLE_DSN": made.dsn})
    assert not done.stderr
    return done.exit_code, done.stdout


def problems(made: World) -> set[tuple[str, str, str]]:
    """In a session of its own, which sees what was set for the database. But that the table was never filled: these
    tests compute nothing."""
    with db.open_session(made.dsn) as conn:
        found = {(each.check_name, each.severity, each.detail) for each in health(conn) if each.severity != "OK"}
    return {each for each in found if "was never filled" not in each[2]}


def cures(made: World) -> list[str]:
    """What to do about all but the service."""
    with db.open_session(made.dsn) as conn:
        return [each.hint for each in health(conn) if each.hint is not None and each.check_name != "service"]


def update(made: World, **values: object) -> None:
    assignments = sql.SQL(", ").join(
        sql.SQL("{} = {}").format(sql.Identifier(name), value) for name, value in values.items()
    )
    made.conn.execute(sql.SQL("UPDATE pgtrickle.pgt_stream_tables SET {}").format(assignments))


def test_capture_is_shown_as_it_is(made18: World, tmp_path: Path) -> None:
    code, said = ask(made18, "cdc")
    assert code == 0
    assert "public.t" in said
    assert "slot: none" in said
    with running(made18.dsn, tmp_path) as service:
        until(lambda: made18.mode() == "WAL", lambda: service.log)
        until(lambda: not problems(made18), lambda: problems(made18))
        code, said = ask(made18, "cdc", "--json")
        assert code == 0
        shown = json.loads(said)
        (source,) = shown["sources"]
        assert (source["source_table"], source["cdc_mode"], source["requested"]) == ("public.t", "WAL", "auto")
        assert (source["eligible"], source["trigger_active"], source["decoder_status"]) == (True, False, "STREAMING")
        assert source["slot_lag_bytes"] >= 0
        assert source["confirmed_lsn"]
        name = slot.name(made18.conn)
        assert (shown["slot"]["slot_name"], shown["slot"]["active"], shown["slot"]["sources"]) == (name, True, 1)
        assert [change["new_mode"] for change in shown["history"]] == ["WAL", "TRANSITIONING"]
        code, said = ask(made18, "cdc", "--limit", "1")
        assert f"slot: {name}, being read, 1 sources, lag " in said
        assert ("TRANSITIONING  WAL" in said, "TRIGGER  TRANSITIONING" in said) == (True, False)
        code, said = ask(made18, "health")
        assert code == 0
        assert "a service leads" in said
    assert problems(made18) >= {("service", "ERROR", "no service runs in this database: pgtrickle run")}
    assert ("capture", "ERROR", "public.t (WAL): decoder_not_connected") in problems(made18)


def test_health_says_what_is_wrong_and_only_that(made: World) -> None:
    idle = ("service", "ERROR", "no service runs in this database: pgtrickle run")
    assert problems(made) == {idle}
    code, said = ask(made, "health", "--json")
    assert code == 1
    assert "public.st was never filled" in said
    assert [each["check_name"] for each in json.loads(said)] == [
        "service",
        "loops",
        "stream_tables",
        "staleness",
        "reinitialization",
        "capture",
        "slot",
        "buffers",
        "followers",
    ]

    hour_old = sql.SQL("now() - interval '1 hour'")
    update(made, is_populated=sql.SQL("true"), status=sql.Literal("ACTIVE"), data_timestamp=hour_old)
    assert problems(made) == {idle}  # calculated: nothing says how old it may be
    for schedule, stale in (("1h30m", False), ("25m", True), ("*/5 * * * *", False), ("1d", False), ("90s", True)):
        update(made, schedule=sql.Literal(schedule))
        text = f"public.st is 01:00:00 old, and should be refreshed every {schedule}"
        found = {(name, severity, detail.replace("01:00:01", "01:00:00")) for name, severity, detail in problems(made)}
        assert found == ({idle, ("staleness", "ERROR", text)} if stale else {idle})
    update(made, status=sql.Literal("SUSPENDED"))
    assert problems(made) == {idle, ("stream_tables", "WARN", "public.st is in state SUSPENDED")}
    assert cures(made) == ["Resume it: `pgtrickle resume public.st`."]
    update(made, consecutive_errors=sql.Literal(3), last_error=sql.Literal("PT340: no"), schedule=sql.SQL("NULL"))
    assert problems(made) == {idle, ("stream_tables", "ERROR", "public.st is in state SUSPENDED: PT340: no")}
    made.conn.execute(
        "INSERT INTO pgtrickle.pgt_refresh_history"
        " (pgt_id, action, status, initiated_by, finished_at, error_code, error, hint)"
        " SELECT pgt_id, 'FULL', 'FAILED', 'MANUAL', now(), 'PT340', 'no', 'change it' FROM pgtrickle.pgt_stream_tables"
    )
    assert cures(made) == ["Change it. It is suspended until `pgtrickle resume public.st`."]
    assert "stream_tables: Change it. It is suspended until" in ask(made, "health")[1]
    update(made, last_error=sql.Literal("PT999: something else"))
    assert cures(made) == ["It is suspended until `pgtrickle resume public.st`."], "that hint is of another error"
    update(made, status=sql.Literal("ACTIVE"), consecutive_errors=sql.Literal(0), last_error=sql.SQL("NULL"))

    update(made, needs_reinit=sql.SQL("true"), reinit_reason=sql.Literal("t was truncated"))
    reinit = ("reinitialization", "WARN", "public.st will be computed again: t was truncated")
    assert problems(made) == {idle, reinit}
    update(made, needs_reinit=sql.SQL("false"))

    name = slot.ensure(made.conn).name
    (unused,) = problems(made) - {idle}
    assert unused[:2] == ("slot", "WARN")
    assert unused[2].startswith(f"{name} holds back ")
    assert slot.drop_if_unused(made.conn)

    this = sql.Identifier(made.conn.info.dbname)
    made.conn.execute(sql.SQL("ALTER DATABASE {} SET pg_trickle.buffer_growth_warning_rows = 10").format(this))
    made.conn.execute("SELECT pg_stat_force_next_flush()")
    made.conn.execute("INSERT INTO t SELECT g, g FROM generate_series(1, 50) AS g")
    grown = ("buffers", "WARN", "about 50 changes of public.t wait to be applied")
    until(lambda: problems(made) == {idle, grown}, "no growth")
    made.conn.execute(sql.SQL("ALTER DATABASE {} RESET ALL").format(this))

    made.conn.execute(sql.SQL("ALTER DATABASE {} SET pg_trickle.enabled = off").format(this))
    paused = "refreshes will be paused when a service starts: pg_trickle.enabled is off"
    assert problems(made) == {idle, ("service", "WARN", paused)}
    made.conn.execute(sql.SQL("ALTER DATABASE {} RESET ALL").format(this))

    made.conn.execute("ALTER TABLE t DISABLE TRIGGER USER")
    assert problems(made) == {idle, ("capture", "ERROR", "public.t (TRIGGER): trigger_missing")}
    assert "pgtrickle repair" in cures(made)[0]


def test_a_source_that_was_dropped_has_its_name_and_is_told_once(made: World) -> None:
    """Not as missing triggers of a number, nor as a table that will be filled or computed again."""
    made.conn.execute("DROP TABLE t")
    shown = "SELECT source_table, alert FROM pgtrickle.check_cdc_health()"
    assert made.conn.execute(shown).fetchall() == [("public.t", "source_dropped")]
    assert ("capture", "ERROR", "public.t (TRIGGER): source_dropped") in problems(made), "its reader does not know yet"
    gone, dropped = sql.Literal("table public.t was dropped"), sql.Literal("t was dropped")
    update(made, status=sql.Literal("ERROR"), last_error=gone, needs_reinit=sql.SQL("true"), reinit_reason=dropped)
    assert {each for each in problems(made) if each[0] != "service"} == {
        ("stream_tables", "ERROR", "public.st is in state ERROR: table public.t was dropped")
    }
    with db.open_session(made.dsn) as conn:
        assert not any("was never filled" in each.detail for each in health(conn))


def test_what_writers_keep_is_not_old(made: World) -> None:
    hour_old = sql.SQL("now() - interval '1 hour'")
    update(made, effective_mode=sql.Literal("IMMEDIATE"), is_populated=sql.SQL("true"), data_timestamp=hour_old)
    ages = (
        "SELECT extract(epoch FROM staleness)::int FROM pgtrickle.pgt_status()",
        "SELECT extract(epoch FROM staleness)::int FROM pgtrickle.stream_tables_info",
        "SELECT extract(epoch FROM staleness)::int FROM pgtrickle.pg_stat_stream_tables",
        "SELECT staleness_secs::int FROM pgtrickle.st_refresh_stats()",
        "SELECT pgtrickle.get_staleness('public.st')::int",
    )

    def told() -> list[object]:
        shown = json.loads(ask(made, "status", "--json")[1])[0]["staleness_seconds"]
        looked = json.loads(ask(made, "top", "--count", "1", "--json")[1])["tables"][0]["staleness_s"]
        return [*(db.scalar(made.conn, query) for query in ages), int(shown), int(looked)]

    assert told() == [0] * 7
    update(made, needs_reinit=sql.SQL("true"))
    assert all(isinstance(age, int) and 3600 <= age < 7200 for age in told())
