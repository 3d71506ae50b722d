"""What SQL shows of the graph: the tree, diamonds and their epochs, statistics, what the catalog knows of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from typer.testing import CliRunner

from pgtrickle import db
from pgtrickle.api import Trickle
from pgtrickle.catalog import reader, writer
from pgtrickle.cli.main import app
from pgtrickle.config import Settings
from pgtrickle.errors import StateError
from pgtrickle.schedule import seconds
from pgtrickle.scheduler import dag, diamonds, due
from pgtrickle.scheduler.refresh_loop import RefreshLoop
from pgtrickle.scheduler.request_executor import carry_out


@pytest.fixture
def trickle(database: str) -> Iterator[Trickle]:
    """orders → paid, refunded → balance, and one table that reads something else."""
    with db.open_session(database) as connection:
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY, amount int)")
        connection.execute("CREATE TABLE other (id int PRIMARY KEY)")
    with Trickle(database) as found:
        found.create_stream_table("paid", "SELECT id, amount FROM orders WHERE amount > 0", initialize=False)
        found.create_stream_table("refunded", "SELECT id, amount FROM orders WHERE amount < 0", None, initialize=False)
        found.create_stream_table(
            "balance",
            "SELECT p.id FROM paid AS p JOIN refunded AS r ON p.id = r.id",
            refresh_mode="FULL",
            initialize=False,
        )
        found.create_stream_table("alone", "SELECT id FROM other", initialize=False)
        yield found


def ids(trickle: Trickle) -> dict[str, int]:
    return {stream.pgt_name: stream.pgt_id for stream in trickle.status()}


def test_the_graph_is_read_from_the_catalog_and_kept_while_it_stays(trickle: Trickle) -> None:
    known = dag.read(trickle._connection)
    number = ids(trickle)
    assert known.upstream(number["balance"]) == {number["paid"], number["refunded"]}
    assert known.needed({number["balance"]}) == {number["balance"], number["refunded"]}
    assert dag.read(trickle._connection, known) is known
    trickle.alter_stream_table("refunded", schedule="5s")
    changed = dag.read(trickle._connection, known)
    assert changed.needed({number["balance"]}) == {number["balance"]}
    orders = db.scalar(trickle._connection, "SELECT 'public.orders'::regclass::oid::bigint")
    balance = reader.resolve(trickle._connection, "balance")
    assert isinstance(orders, int)
    changed.require_no_cycle(number["paid"], [orders])
    with pytest.raises(StateError, match=r"public\.paid → public\.balance → public\.paid"):
        changed.require_no_cycle(number["paid"], [orders, balance.pgt_relid])


def test_the_tree(trickle: Trickle) -> None:
    rows = trickle._connection.execute("SELECT tree_line, node_type, depth, status FROM pgtrickle.dependency_tree()")
    assert rows.fetchall() == [
        ("public.alone", "stream_table", 0, "INITIALIZING"),
        ("`-- public.other [src]", "source_table", 1, None),
        ("public.balance", "stream_table", 0, "INITIALIZING"),
        ("|-- public.paid", "stream_table", 1, "INITIALIZING"),
        ("|   `-- public.orders [src]", "source_table", 2, None),
        ("`-- public.refunded", "stream_table", 1, "INITIALIZING"),
        ("    `-- public.orders [src]", "source_table", 2, None),
    ]


def shown(trickle: Trickle) -> list[tuple[object, ...]]:
    return trickle._connection.execute(
        "SELECT member_name, is_convergence, epoch, schedule_policy, consistency FROM pgtrickle.diamond_groups()"
    ).fetchall()


def test_diamonds_are_shown_and_keep_their_epoch(trickle: Trickle) -> None:
    conn, settings = trickle._connection, Settings()
    found = diamonds.groups(dag.read(conn), settings)
    diamonds.store(conn, found)
    assert shown(trickle) == [
        ("paid", False, 0, "fastest", "atomic"),
        ("refunded", False, 0, "fastest", "atomic"),
        ("balance", True, 0, "fastest", "atomic"),
    ]
    with conn.transaction():
        diamonds.advance(conn, found[0])
    diamonds.ask(conn, ids(trickle)["balance"], diamond_schedule_policy="slowest")
    diamonds.store(conn, diamonds.groups(dag.read(conn), settings))
    assert {row[2:4] for row in shown(trickle)} == {(1, "slowest")}, "the same members: the same group"
    diamonds.store(conn, diamonds.groups(dag.read(conn), replace(settings, diamond_consistency="none")))
    assert {row[2:] for row in shown(trickle)} == {(0, "slowest", "none")}
    trickle.drop_stream_table("balance")
    diamonds.store(conn, diamonds.groups(dag.read(conn), settings))
    assert shown(trickle) == []


def explained(trickle: Trickle, name: str) -> dict[object, object]:
    rows = trickle._connection.execute("SELECT property, value FROM pgtrickle.explain_st(%s)", (name,))
    return {property: value for property, value in rows}  # noqa: C416 - dict() wants pairs, and rows may be any tuple


def test_statistics_and_what_is_known(trickle: Trickle) -> None:
    conn = trickle._connection
    stats = conn.execute(
        "SELECT pgt_name, is_populated, total_refreshes, staleness_secs FROM pgtrickle.st_refresh_stats()"
    )
    assert stats.fetchall() == [(name, False, 0, None) for name in ("alone", "balance", "paid", "refunded")]
    known = explained(trickle, "public.paid")
    assert known["name"] == "public.paid"
    assert known["schedule"] == "1m"
    assert known["effective mode"] == "DIFFERENTIAL"
    assert known["sources"] == "public.orders (id, amount) by TRIGGER"
    assert known["read by"] == "public.balance"
    assert known["data of"] == "not populated"
    told = trickle.explain("public.paid")
    for title, property in (("operators", "operators"), ("delta plan, every source changed", "delta plan")):
        indented = "\n".join(f"  {line}" for line in str(known[property]).splitlines())
        assert f"{title}\n{indented}\n" in told, "as `pgtrickle explain` says it"
    assert known["changes waiting"] == "public.orders about 0"
    assert str(known["table"]).startswith("owned by postgres, about 0 rows, ")
    full = explained(trickle, "public.balance")
    assert full["effective mode"] == "FULL: refresh mode is FULL"
    assert "read by" not in full
    assert "operators" not in full
    assert full["sources"] == "public.paid (id) read in full\npublic.refunded (id) read in full"


def test_nothing_is_captured_for_a_table_computed_in_full(trickle: Trickle) -> None:
    conn = trickle._connection
    trickle.create_stream_table("late", "SELECT ctid::text AS at, id FROM other", initialize=False)
    shown = (
        "SELECT cdc_mode, source_type FROM pgtrickle.pgt_stream_table_sources WHERE pgt_name = %s ORDER BY source_name"
    )
    assert conn.execute(shown, ("late",)).fetchall() == [(None, "TABLE")]
    assert conn.execute(shown, ("balance",)).fetchall() == [(None, "STREAM_TABLE")] * 2
    assert conn.execute(shown, ("alone",)).fetchall() == [("TRIGGER", "TABLE")]
    modes = "SELECT cdc_modes FROM pgtrickle.pg_stat_stream_tables WHERE pgt_name = 'late'"
    assert db.scalar(conn, modes) is None
    tracked = {each.source_table: each.tracked_by_pgt_ids for each in trickle.cdc_status()}
    assert tracked == {
        "public.orders": (ids(trickle)["paid"], ids(trickle)["refunded"]),
        "public.other": (ids(trickle)["alone"],),
    }
    trickle.alter_stream_table("paid", refresh_mode="FULL")
    assert conn.execute(shown, ("paid",)).fetchall() == [(None, "TABLE")]
    trickle.alter_stream_table("paid", refresh_mode="AUTO")
    assert conn.execute(shown, ("paid",)).fetchall() == [("TRIGGER", "TABLE")]


def test_circles_have_an_id_and_a_place_in_the_tree(database18: str) -> None:
    with Trickle(database18) as trickle:
        conn = trickle._connection
        conn.execute("SET search_path = public")
        conn.execute("CREATE TABLE edge (a int, b int)")
        for name in ("up", "down", "reads"):
            trickle.create_stream_table(name, "SELECT a, b FROM edge", initialize=False)
        number, oid = ids(trickle), {each.pgt_name: each.pgt_relid for each in trickle.status()}
        add = (
            "INSERT INTO pgtrickle.pgt_dependencies (pgt_id, source_relid, source_schema, source_name, columns_used)"
            " VALUES (%s, %s, 'public', %s, '{a}')"
        )
        for reader_name, source in (("up", "down"), ("down", "up")):
            conn.execute(add, (number[reader_name], oid[source], source))
        tree = "SELECT tree_line FROM pgtrickle.dependency_tree()"
        assert [line for (line,) in conn.execute(tree)] == [
            "public.reads",
            "`-- public.edge [src]",
            "public.up",
            "|-- public.down",
            "|   |-- public.edge [src]",
            "|   `-- public.up [circle]",
            "`-- public.edge [src]",
        ]
        circles = conn.execute("SELECT pgt_name, circle_id FROM pgtrickle.stream_tables_info ORDER BY 1").fetchall()
        assert circles == [("down", number["up"]), ("reads", None), ("up", number["up"])]
        assert explained(trickle, "public.up")["circle"] == "public.up, public.down"
        conn.execute(add, (number["reads"], oid["down"], "down"))
        lines = [str(line) for (line,) in conn.execute(tree)]
        assert [line for line in lines if line[0] == "p"] == ["public.reads"], "the circle stands below who reads it"
        assert "|       |-- public.down [circle]" in lines


def test_the_next_run_is_that_of_the_service(database18: str) -> None:
    with Trickle(database18) as trickle:
        conn = trickle._connection
        trickle.create_stream_table("public.st", "SELECT 1 AS one", initialize=False)
        at = datetime(2026, 5, 4, 3, 2, 1, 345678, tzinfo=UTC)
        conn.execute("UPDATE pgtrickle.pgt_stream_tables SET is_populated = true, data_timestamp = %s", (at,))
        for schedule in ("1s", "47s", "48s", "95s", "96s", "1m", "1h30m", "10d", "3650d"):
            trickle.alter_stream_table("public.st", schedule=schedule)
            (stream,) = trickle.status()
            assert stream.next_run == due.next_run(schedule, at, at), schedule
            deadline = "SELECT freshness_deadline FROM pgtrickle.stream_tables_info"
            assert db.scalar(conn, deadline) == at + timedelta(seconds=seconds(schedule) or 0)
        assert db.scalar(conn, "SELECT next_run FROM pgtrickle.pgt_status()") == stream.next_run
        refresh_id = writer.start_refresh(conn, stream.pgt_id, initiated_by="MANUAL").refresh_id
        (past,) = trickle.history("public.st")
        assert (past.refresh_id, past.freshness_deadline) == (refresh_id, db.scalar(conn, deadline))
        trickle.alter_stream_table("public.st", status="SUSPENDED")
        assert trickle.status()[0].next_run is None


def test_the_next_run_of_a_cron_schedule_is_noted_by_the_service(database18: str) -> None:
    with Trickle(database18) as trickle:
        conn = trickle._connection
        trickle.create_stream_table("public.daily", "SELECT 1 AS one", schedule="0 4 * * *", initialize=False)
        conn.execute("UPDATE pgtrickle.pgt_stream_tables SET is_populated = true, data_timestamp = now()")
        assert trickle.status()[0].next_run is None, "no service has looked"
        rounds = RefreshLoop(database18)
        rounds.round(Settings())
        rounds.close()
        (stream,) = trickle.status()
        assert stream.data_timestamp is not None
        assert stream.next_run == due.next_run("0 4 * * *", stream.data_timestamp, stream.data_timestamp)
        trickle.alter_stream_table("public.daily", schedule="0 5 * * *")
        assert trickle.status()[0].next_run is None, "of another schedule nothing is known yet"


def test_options_go_back_to_the_setting(database18: str) -> None:
    """From Python, SQL and the command line."""
    asked: dict[str, Any] = {"cdc_mode": "trigger", "diamond_consistency": "none", "diamond_schedule_policy": "slowest"}
    with Trickle(database18) as trickle:
        conn = trickle.connection
        conn.execute("CREATE TABLE public.t (id int PRIMARY KEY)")
        trickle.create_stream_table("public.st", "SELECT id FROM public.t", initialize=False, **asked)
        stored = (
            "SELECT requested_cdc_mode, diamond_consistency, diamond_schedule_policy FROM pgtrickle.pgt_stream_tables"
        )
        in_sql = "pgtrickle.alter_stream_table('public.st', cdc_mode => 'Inherit', diamond_consistency => 'inherit',"
        inherited: dict[str, Any] = dict.fromkeys(asked, "inherit")
        flags = [f"--{name.replace('_', '-')}=inherit" for name in asked]
        ways: dict[str, Callable[[], object]] = {
            "Python": lambda: trickle.alter_stream_table("public.st", **inherited),
            "SQL": lambda: (
                db.scalar(conn, f"SELECT {in_sql} diamond_schedule_policy => 'inherit')"),
                carry_out(conn, trickle),
            ),
            "the command line": lambda: CliRunner().invoke(app, ["--dsn", database18, "alter", "public.st", *flags]),
        }
        for way, give_back in ways.items():
            trickle.alter_stream_table("public.st", **asked)
            assert conn.execute(db.statement(stored)).fetchall() == [tuple(asked.values())]
            give_back()
            assert conn.execute(db.statement(stored)).fetchall() == [(None, None, None)], way
