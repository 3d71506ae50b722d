"""Names, records and their life: registered, refreshed, failed, dropped; and what users read of it in SQL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import psycopg
import pytest

from pgtrickle import db
from pgtrickle.catalog import reader, writer
from pgtrickle.catalog.install import install
from pgtrickle.catalog.names import Name, parse_name, qualify
from pgtrickle.catalog.reader import StreamTable
from pgtrickle.catalog.writer import Definition
from pgtrickle.db import Connection
from pgtrickle.errors import StateError, UsageError
from pgtrickle.model import Table

NOW = datetime(2024, 5, 1, 12, 0, tzinfo=UTC)
SOURCE, SECOND = Table(70001, "public", "orders"), Table(70002, "public", "customers")
DEFINITION = Definition(
    defining_query="SELECT id FROM orders",
    normalized_query="SELECT orders.id FROM orders",
    search_path='"$user", public',
    refresh_mode="AUTO",
    effective_mode="DIFFERENTIAL",
    mode_reason=None,
    source_fingerprint="f",
    sources=[(SOURCE, ["id", "amount"]), (SECOND, [])],
)


@pytest.fixture
def conn(database18: str) -> Iterator[Connection]:
    with db.open_session(database18) as connection:
        install(connection)
        connection.execute("CREATE TABLE totals (id int)")
        yield connection


@pytest.fixture
def table(conn: Connection) -> StreamTable:
    row = conn.execute("SELECT 'totals'::regclass::oid::bigint").fetchone()
    assert row is not None
    storage = Table(int(str(row[0])), "public", "totals")
    return current(conn, writer.register(conn, storage, DEFINITION, schedule="1m", requested_cdc_mode=None))


def current(conn: Connection, pgt_id: int) -> StreamTable:
    found = reader.by_id(conn, pgt_id)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("totals", Name(None, "totals")),
        ("Shop.Order_Totals$1", Name("shop", "order_totals$1")),
        ('"Shop"."a.b"', Name("Shop", "a.b")),
        ('s."say ""hi"""', Name("s", 'say "hi"')),
        (' s . "t" ', Name("s", "t")),
        ("größe", Name(None, "größe")),
    ],
)
def test_parse_name(text: str, name: Name) -> None:
    assert parse_name(text) == name
    assert parse_name(str(name)) == name


@pytest.mark.parametrize(
    "text", ["", ".", "a.", ".a", "a.b.c", "1a", "a b", 'a"b', '""', '"open', "a;b", "a-b", "x" * 64, "é" * 32, "t --"]
)
def test_what_is_no_name(text: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_name(text)
    assert error.value.code == "PT004"
    assert error.value.hint


def test_qualify(conn: Connection) -> None:
    assert qualify(conn, Name("s", "t")) == ("s", "t")
    assert qualify(conn, Name(None, "t")) == ("public", "t")
    conn.execute("SET search_path = nowhere")
    with pytest.raises(UsageError):
        qualify(conn, Name(None, "t"))


def test_register_and_read_back(conn: Connection, table: StreamTable) -> None:
    assert (table.status, table.is_populated, table.schedule) == ("INITIALIZING", False, "1m")
    assert table.defining_query == DEFINITION.defining_query
    assert table == reader.get(conn, "public", "totals") == reader.by_relation(conn, table.pgt_relid)
    assert reader.list_tables(conn) == (table,)
    assert reader.consumers_of(conn, SOURCE.oid) == (table,)
    assert reader.consumers_of(conn, 1) == ()
    first, second = reader.dependencies(conn, table.pgt_id)
    assert (first.source_relid, first.columns_used, first.cdc_mode) == (SOURCE.oid, ("id", "amount"), "TRIGGER")
    assert second.columns_used == ()


def test_the_frontier_starts_at_registration(conn: Connection, table: StreamTable) -> None:
    """So that no clean-up takes a change which the first population may not see."""
    row = conn.execute(
        "SELECT pg_visible_in_snapshot(pg_current_xact_id(), %s::pg_snapshot)", (table.frontier,)
    ).fetchone()
    assert row == (False,)


def test_register_twice(conn: Connection, table: StreamTable) -> None:
    storage = Table(table.pgt_relid, "public", "totals")
    with conn.transaction():
        with pytest.raises(StateError) as error:
            writer.register(conn, storage, DEFINITION, schedule=None, requested_cdc_mode=None)
        assert error.value.code == "PT302"
        assert reader.list_tables(conn) == (table,), "the caller's transaction goes on"


def test_resolve(conn: Connection, table: StreamTable) -> None:
    assert reader.resolve(conn, "totals") == reader.resolve(conn, "PUBLIC.Totals") == table
    conn.execute("SET search_path = pg_catalog")
    for missing in ("totals", "public.other", '"Totals"'):
        with pytest.raises(StateError) as error:
            reader.resolve(conn, missing)
        assert error.value.code == "PT301"


def test_redefine_replaces_the_sources(conn: Connection, table: StreamTable) -> None:
    conn.execute("UPDATE pgtrickle.pgt_dependencies SET cdc_mode = 'WAL' WHERE source_relid = %s", (SOURCE.oid,))
    writer.redefine(conn, table.pgt_id, replace(DEFINITION, refresh_mode="FULL", sources=[(SOURCE, ["note"])]))
    (only,) = reader.dependencies(conn, table.pgt_id)
    assert (only.columns_used, only.cdc_mode) == (("note",), "WAL")
    assert current(conn, table.pgt_id).refresh_mode == "FULL"


def test_refreshed_from_scratch_then_by_difference(conn: Connection, table: StreamTable) -> None:
    writer.mark_reinit(conn, table.pgt_id, "a column changed")
    assert current(conn, table.pgt_id).reinit_reason == "a column changed"
    writer.mark_refreshed(conn, table.pgt_id, frontier="10:20:12", data_timestamp=NOW, full_ms=12.5)
    found = current(conn, table.pgt_id)
    assert (found.status, found.is_populated, found.needs_reinit, found.reinit_reason) == ("ACTIVE", True, False, None)
    assert (found.frontier, found.data_timestamp, found.last_full_ms) == ("10:20:12", NOW, 12.5)
    writer.mark_reinit(conn, table.pgt_id, "asked for while a refresh ran")
    writer.mark_refreshed(conn, table.pgt_id, frontier="11:20:12", data_timestamp=NOW)
    found = current(conn, table.pgt_id)
    assert (found.frontier, found.last_full_ms, found.needs_reinit) == ("11:20:12", 12.5, True)


def test_a_difference_alone_does_not_populate(conn: Connection, table: StreamTable) -> None:
    writer.mark_refreshed(conn, table.pgt_id, frontier="1:1:", data_timestamp=NOW)
    assert not current(conn, table.pgt_id).is_populated


def test_suspension_after_errors_and_resume(conn: Connection, table: StreamTable) -> None:
    writer.mark_refreshed(conn, table.pgt_id, frontier="1:1:", data_timestamp=NOW, full_ms=1)
    assert [writer.mark_failed(conn, table.pgt_id, "no", max_consecutive_errors=3) for _ in range(3)] == [
        "ACTIVE",
        "ACTIVE",
        "SUSPENDED",
    ]
    assert (current(conn, table.pgt_id).consecutive_errors, current(conn, table.pgt_id).last_error) == (3, "no")
    writer.set_status(conn, table.pgt_id, "ACTIVE")
    assert (current(conn, table.pgt_id).consecutive_errors, current(conn, table.pgt_id).last_error) == (0, None)


def test_another_schedule(conn: Connection, table: StreamTable) -> None:
    writer.set_schedule(conn, table.pgt_id, None)
    assert current(conn, table.pgt_id).schedule is None


def test_history(conn: Connection, table: StreamTable) -> None:
    first = writer.start_refresh(conn, table.pgt_id, initiated_by="INITIAL").refresh_id
    duration = writer.finish_refresh(
        conn,
        first,
        status="COMPLETED",
        action="FULL",
        reason="first population",
        rows_inserted=5,
        snapshot="1:2:",
        data_timestamp=NOW,
        phases={"read": 1.5},
    )
    second = writer.start_refresh(conn, table.pgt_id, initiated_by="SCHEDULER").refresh_id
    newest, oldest = reader.history(conn, table.pgt_id)
    assert (newest.refresh_id, newest.status, newest.finished_at) == (second, "RUNNING", None)
    assert (oldest.action, oldest.rows_inserted, oldest.snapshot, oldest.phases) == ("FULL", 5, "1:2:", {"read": 1.5})
    assert oldest.duration_ms == duration >= 0
    assert writer.close_abandoned(conn, table.pgt_id) == 1
    assert reader.history(conn, table.pgt_id, 1)[0].status == "FAILED"


def test_what_users_read_in_sql(conn: Connection, table: StreamTable) -> None:
    refresh = writer.start_refresh(conn, table.pgt_id, initiated_by="MANUAL").refresh_id
    writer.finish_refresh(conn, refresh, status="COMPLETED", action="DIFFERENTIAL", reason="r", rows_deleted=2)
    assert conn.execute("SELECT pgtrickle.get_staleness('totals')").fetchone() == (None,)
    writer.mark_refreshed(conn, table.pgt_id, frontier="1:1:", data_timestamp=datetime.now(UTC), full_ms=1)
    staleness = conn.execute("SELECT pgtrickle.get_staleness('public.totals')").fetchone()
    assert staleness is not None
    assert 0 <= float(str(staleness[0])) < 60
    assert conn.execute("SELECT action, rows_deleted FROM pgtrickle.get_refresh_history('totals', 5)").fetchall() == [
        ("DIFFERENTIAL", 2)
    ]
    assert conn.execute("SELECT name, status, is_populated FROM pgtrickle.pgt_status()").fetchall() == [
        ("public.totals", "ACTIVE", True)
    ]
    assert conn.execute(
        "SELECT total_refreshes, successful_refreshes, rows_deleted, last_action, cdc_modes"
        " FROM pgtrickle.pg_stat_stream_tables"
    ).fetchall() == [(1, 1, 2, "DIFFERENTIAL", ["TRIGGER"])]
    assert conn.execute("SELECT source_name FROM pgtrickle.pgt_stream_table_sources ORDER BY 1").fetchall() == [
        ("customers",),
        ("orders",),
    ]
    assert conn.execute("SELECT pgt_name, effective_mode FROM pgtrickle.stream_tables_info").fetchall() == [
        ("totals", "DIFFERENTIAL")
    ]
    with pytest.raises(psycopg.errors.UndefinedTable, match="there is no stream table nope"):
        conn.execute("SELECT pgtrickle.get_staleness('nope')")


@pytest.mark.parametrize(
    "change",
    [
        "refresh_mode = 'SOMETIMES'",
        "effective_mode = 'AUTO'",
        "status = 'FINE'",
        "requested_cdc_mode = 'WAL'",
        "is_populated = true",
    ],
)
def test_only_the_contracts_values(conn: Connection, table: StreamTable, change: str) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        conn.execute(db.statement(f"UPDATE pgtrickle.pgt_stream_tables SET {change}"))


def test_unregister_forgets_everything(conn: Connection, table: StreamTable) -> None:
    writer.start_refresh(conn, table.pgt_id, initiated_by="MANUAL")
    writer.unregister(conn, table.pgt_id)
    assert reader.list_tables(conn) == ()
    assert reader.dependencies(conn, table.pgt_id) == ()
    assert reader.history(conn, table.pgt_id) == ()
    for act in (
        lambda: writer.unregister(conn, table.pgt_id),
        lambda: writer.set_status(conn, table.pgt_id, "ACTIVE"),
        lambda: writer.mark_failed(conn, table.pgt_id, "e", max_consecutive_errors=1),
    ):
        with pytest.raises(StateError) as error:
            act()
        assert error.value.code == "PT301"
