"""Attaching and detaching: widening, DDL on sources, what is refused, and locks that do not hold writers up."""

from __future__ import annotations

import threading
import time

import pytest

from pgtrickle import db
from pgtrickle.capture import buffer, triggers
from pgtrickle.capture.change_window import pending
from pgtrickle.catalog import reader, writer
from pgtrickle.catalog.install import install
from pgtrickle.catalog.writer import Definition
from pgtrickle.db import Connection
from pgtrickle.errors import StateError, Unsupported
from pgtrickle.model import Table

from .conftest import Follow, Ledger, buffered, run, table_of


@pytest.fixture
def t(conn: Connection) -> Table:
    run(conn, "CREATE TABLE t (id int, a int, b text, c numeric)")
    run(conn, "INSERT INTO t SELECT g, g, 'b', g FROM generate_series(1, 10) g")
    return table_of(conn, "t")


def test_a_second_consumer_widens_the_buffer(conn: Connection, t: Table, follow: Follow) -> None:
    first = follow("t", "id", "a")
    run(conn, "UPDATE t SET a = 0 WHERE id = 1", "UPDATE t SET b = 'unseen'")
    second = follow("t", "b", "id")
    assert buffered(conn, t) == ["U"]
    run(conn, "UPDATE t SET b = 'seen' WHERE id < 3", "DELETE FROM t WHERE id = 9")
    assert second.check().changes == 3
    assert first.check().changes == 4
    found = reader.tracking(conn, t.oid)
    assert found is not None
    assert (found.columns, found.trigger_level) == (("id", "a", "b"), "STATEMENT")


def test_attaching_what_is_captured_takes_no_lock(conn: Connection, other: Connection, t: Table) -> None:
    assert triggers.attach(conn, t, ["id", "a"])
    other.autocommit = False
    other.execute("UPDATE t SET a = 1")
    assert not triggers.attach(conn, t, ["a"])


def test_attach_that_is_rolled_back_leaves_nothing(conn: Connection, t: Table) -> None:
    with conn.transaction(force_rollback=True):
        assert triggers.attach(conn, t, ["id"])
    assert reader.tracking(conn, t.oid) is None
    assert not buffer.exists(conn, t.oid)
    run(conn, "DELETE FROM t")


def test_attach_waits_for_a_writer_and_lets_others_through(
    conn: Connection, other: Connection, database: str, t: Table
) -> None:
    """While a long transaction keeps us from the lock, a short one is not held up for longer than one try."""
    other.autocommit = False
    other.execute("UPDATE t SET a = 1 WHERE id = 1")
    done = threading.Event()

    def attach() -> None:
        with db.open_session(database) as mine:
            triggers.attach(mine, t, ["id", "a"])
        done.set()

    thread = threading.Thread(target=attach)
    thread.start()
    longest = 0.0
    for each in range(5):
        start = time.monotonic()
        run(conn, f"UPDATE t SET a = 2 WHERE id = {each + 2}")
        longest = max(longest, time.monotonic() - start)
        time.sleep(0.1)
    assert not done.is_set()
    assert longest < 10  # else it would wait for the long one, which ends below
    other.commit()
    thread.join(20)
    assert done.is_set()
    ledger = Ledger(conn, t, ["id", "a"])
    ledger.reset()
    run(conn, "DELETE FROM t WHERE id = 1")
    assert ledger.check().changes == 1


def test_attach_gives_up_with_a_clear_error(conn: Connection, other: Connection, t: Table) -> None:
    other.autocommit = False
    other.execute("UPDATE t SET a = 1")
    with pytest.raises(StateError) as error:
        triggers.attach_all(conn, {t: ["id"]}, give_up_after_s=0)
    assert error.value.code == "PT326"
    assert not buffer.exists(conn, t.oid)


def test_widening_waits_for_a_refresh_that_reads(conn: Connection, other: Connection, t: Table, follow: Follow) -> None:
    follow("t", "id")
    other.autocommit = False
    other.execute(db.statement(f"SELECT count(*) FROM pgtrickle_changes.changes_{t.oid}"))
    with pytest.raises(StateError, match="could not lock"):
        triggers.attach_all(conn, {t: ["a"]}, give_up_after_s=0)
    run(conn, "DELETE FROM t WHERE id = 1")
    other.commit()
    assert triggers.attach(conn, t, ["a"])


@pytest.mark.parametrize("mode", ["statement", "row"])
@pytest.mark.parametrize(
    "ddl",
    [
        "ALTER TABLE t DROP COLUMN a",
        "ALTER TABLE t RENAME a TO z",
        "ALTER TABLE t ALTER a TYPE text",
        "ALTER TABLE t ALTER c TYPE numeric(5,1)",
    ],
)
def test_ddl_never_breaks_a_writer(conn: Connection, t: Table, follow: Follow, ddl: str, mode: str) -> None:
    follow("t", "id", "a", "c", mode=mode)
    run(conn, "UPDATE t SET c = 100 WHERE id = 1")
    run(conn, ddl)
    run(conn, "INSERT INTO t (id) VALUES (99)", "UPDATE t SET c = 5 WHERE id = 2", "DELETE FROM t WHERE id = 3")
    assert buffered(conn, t) == ["U", "T", "T", "T"]


def test_ddl_that_touches_no_used_column_goes_unnoticed(conn: Connection, t: Table, follow: Follow) -> None:
    ledger = follow("t", "id", "c")
    run(conn, "ALTER TABLE t DROP COLUMN a", "ALTER TABLE t ADD COLUMN d int DEFAULT 7", "ALTER TABLE t RENAME b TO bb")
    run(
        conn, "INSERT INTO t (id, c) VALUES (1, 1)", "UPDATE t SET c = c + 1 WHERE id < 3", "DELETE FROM t WHERE id = 5"
    )
    found = ledger.check()
    assert (found.changes, found.truncated) == (5, False)


def test_a_renamed_table_is_still_captured(conn: Connection, t: Table, follow: Follow) -> None:
    ledger = follow("t", "id")
    run(
        conn,
        "CREATE SCHEMA s",
        "ALTER TABLE t RENAME TO u",
        "ALTER TABLE u SET SCHEMA s",
        "DELETE FROM s.u WHERE id = 1",
    )
    ledger.source = Table(t.oid, "s", "u")
    assert ledger.check().changes == 1
    assert triggers.detach(conn, t.oid)


def test_attach_after_a_column_changed_its_type(conn: Connection, t: Table, follow: Follow) -> None:
    """The buffer's column is replaced, and whoever had not read it is told to start anew."""
    behind = follow("t", "id", "a")
    run(conn, "UPDATE t SET a = 5 WHERE id = 1", "ALTER TABLE t ALTER a TYPE text USING 'x' || a")
    ledger = follow("t", "id", "a")
    run(conn, "UPDATE t SET a = 'long text' WHERE id = 2")
    assert ledger.check().changes == 1
    assert behind.check().truncated


def test_attach_after_a_used_column_is_gone(conn: Connection, t: Table, follow: Follow) -> None:
    follow("t", "id", "a")
    run(conn, "ALTER TABLE t DROP COLUMN a")
    with pytest.raises(StateError, match="no column 'a'"):
        triggers.attach(conn, t, ["a"])
    ledger = follow("t", "id")
    run(conn, "DELETE FROM t WHERE id = 1")
    assert not ledger.check().truncated


@pytest.mark.parametrize(
    "loss",
    [
        "ALTER TABLE t DISABLE TRIGGER ALL; DELETE FROM t WHERE id = 1; ALTER TABLE t ENABLE TRIGGER ALL",
        "DROP TRIGGER pgtrickle_{oid}_delete ON t",
        "DROP FUNCTION pgtrickle_changes.capture_{oid}() CASCADE",
    ],
    ids=["disabled for a time", "trigger dropped", "function dropped"],
)
def test_lost_capture_is_noticed_and_mended(conn: Connection, t: Table, follow: Follow, loss: str) -> None:
    ledger = follow("t", "id")
    conn.execute(db.statement(loss.format(oid=t.oid)))
    assert not pending(conn, [t.oid], ledger.frontier)[t.oid].captured
    assert triggers.attach(conn, t, ["id"])
    assert pending(conn, [t.oid], ledger.frontier)[t.oid].captured


@pytest.mark.parametrize(
    ("ddl", "name", "why"),
    [
        ("CREATE VIEW x AS SELECT 1 AS id", "x", "a view"),
        ("CREATE MATERIALIZED VIEW x AS SELECT 1 AS id", "x", "a materialized view"),
        ("CREATE TEMP TABLE x (id int)", "x", "a temporary table"),
        ("CREATE TABLE x (id int); CREATE TEMP TABLE y () INHERITS (x)", "x", "inherited by a temporary table"),
        ("CREATE SEQUENCE x", "x", "not a table"),
        ("SELECT 1", "pg_catalog.pg_class", "a system catalog"),
        ("SELECT 1", "information_schema.sql_features", "a system catalog"),
    ],
)
def test_what_cannot_be_captured_is_refused(conn: Connection, ddl: str, name: str, why: str) -> None:
    conn.execute(db.statement(ddl))
    with pytest.raises(Unsupported, match=why) as error:
        triggers.attach(conn, table_of(conn, name), [])
    assert error.value.code == "PT250"
    assert error.value.hint


def test_a_foreign_table_is_refused(conn: Connection) -> None:
    run(
        conn,
        "CREATE FOREIGN DATA WRAPPER w",
        "CREATE SERVER s FOREIGN DATA WRAPPER w",
        "CREATE FOREIGN TABLE f (id int) SERVER s",
    )
    with pytest.raises(Unsupported, match="a foreign table"):
        triggers.require_capturable(conn, table_of(conn, "f"))
    run(conn, "CREATE TABLE x (id int)", "ALTER FOREIGN TABLE f INHERIT x")
    with pytest.raises(Unsupported, match="inherited by a foreign table"):
        triggers.require_capturable(conn, table_of(conn, "x"))


def test_detach_only_when_no_consumer_is_left(conn: Connection, t: Table, follow: Follow) -> None:
    follow("t", "id")
    run(conn, "CREATE TABLE st (id int)")
    definition = Definition("q", "q", "public", "AUTO", "DIFFERENTIAL", None, None, [(t, ["id"])])
    pgt_id = writer.register(conn, table_of(conn, "st"), definition, schedule=None, requested_cdc_mode=None)
    assert not triggers.detach(conn, t.oid)
    writer.unregister(conn, pgt_id)
    assert triggers.detach(conn, t.oid)
    assert reader.tracking(conn, t.oid) is None
    ours = "SELECT FROM pg_class WHERE relnamespace = 'pgtrickle_changes'::regnamespace"
    functions = "SELECT FROM pg_proc WHERE pronamespace = 'pgtrickle_changes'::regnamespace"
    assert conn.execute(ours).rowcount == 0
    assert conn.execute(functions).rowcount == 0
    run(conn, "INSERT INTO t VALUES (1)", "UPDATE t SET a = 1", "DELETE FROM t", "TRUNCATE t")


def test_detach_after_the_source_was_dropped(conn: Connection, t: Table, follow: Follow) -> None:
    follow("t", "id")
    run(conn, "DROP TABLE t")
    with pytest.raises(StateError, match="no longer exists"):
        triggers.attach(conn, t, ["id"])
    assert triggers.detach(conn, t.oid)
    assert not buffer.exists(conn, t.oid)


def test_no_superuser_and_no_ownership(conn: Connection, database: str) -> None:
    """An owner who is no superuser captures his own table; another's is refused with the reason."""
    run(conn, "DROP ROLE IF EXISTS plain_owner", "CREATE ROLE plain_owner", "CREATE TABLE theirs (id int)")
    run(
        conn,
        "DROP SCHEMA pgtrickle, pgtrickle_changes, pgtrickle_internal, pgtrickle_state CASCADE",
        "GRANT CREATE ON SCHEMA public TO plain_owner",
    )
    conn.execute("DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO plain_owner', current_database()); END $$")
    try:
        conn.execute("SET ROLE plain_owner")
        assert install(conn).applied
        run(conn, "CREATE TABLE mine (id int)")
        assert triggers.attach(conn, table_of(conn, "mine"), ["id"])
        run(conn, "INSERT INTO mine VALUES (1)")
        assert buffered(conn, table_of(conn, "mine")) == ["I"]
        with pytest.raises(Unsupported, match="does not own it") as error:
            triggers.attach(conn, table_of(conn, "theirs"), ["id"])
        assert error.value.code == "PT251"
        assert triggers.detach(conn, table_of(conn, "mine").oid)
    finally:
        conn.execute("RESET ROLE")
        run(conn, "DROP OWNED BY plain_owner", "DROP ROLE plain_owner")
