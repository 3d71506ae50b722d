"""Windows: a change arrives once, when its transaction commits, whatever the pace of commits and consumers."""

from __future__ import annotations

import uuid

import pytest

from pgtrickle import db
from pgtrickle.capture import buffer, change_window
from pgtrickle.capture.change_window import changes_sql
from pgtrickle.db import Connection
from pgtrickle.errors import StateError

from .conftest import Follow, Ledger, buffered, run


@pytest.fixture
def t(conn: Connection) -> None:
    run(conn, "CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t SELECT g, 0 FROM generate_series(1, 10) g")


def test_transaction_open_across_three_windows(conn: Connection, other: Connection, t: None, follow: Follow) -> None:
    ledger = follow("t", "id", "v")
    other.autocommit = False
    other.execute("INSERT INTO t VALUES (100, 1)")
    for each in range(3):
        run(conn, f"UPDATE t SET v = v + 1 WHERE id = {each + 1}")
        assert ledger.check().changes == 1
        other.execute("UPDATE t SET v = v + 1 WHERE id = 100")
    other.commit()
    assert ledger.check().changes == 4
    assert ledger.check().changes == 0


def test_transaction_with_an_old_xid_that_writes_late(
    conn: Connection, other: Connection, t: None, follow: Follow
) -> None:
    ledger = follow("t", "id", "v")
    other.autocommit = False
    other.execute("SELECT pg_current_xact_id()")
    run(conn, "DELETE FROM t WHERE id = 1")
    assert ledger.check().changes == 1
    other.execute("DELETE FROM t WHERE id = 2")
    assert ledger.check().changes == 0
    other.commit()
    assert ledger.check().changes == 1


def test_prepared_transaction_arrives_when_it_commits(
    conn: Connection, other: Connection, t: None, follow: Follow
) -> None:
    ledger = follow("t", "id", "v")
    gid = f"capture-{uuid.uuid4().hex}"
    other.execute("BEGIN")
    other.execute("UPDATE t SET v = 5 WHERE id < 4")
    other.execute(f"PREPARE TRANSACTION '{gid}'")
    for each in (8, 9, 10):
        run(conn, f"DELETE FROM t WHERE id = {each}")
        assert ledger.check().changes == 1
    other.execute(f"COMMIT PREPARED '{gid}'")
    assert ledger.check().changes == 3


def test_two_consumers_at_different_paces(conn: Connection, t: None, follow: Follow) -> None:
    fast, slow = follow("t", "id", "v"), follow("t", "id")
    for each in range(1, 5):
        run(conn, f"UPDATE t SET v = {each}", f"DELETE FROM t WHERE id = {each}")
        fast.check()
        buffer.clean(conn, fast.source.oid, [fast.frontier, slow.frontier])
    slow.check()
    assert buffer.clean(conn, fast.source.oid, [fast.frontier, slow.frontier]).rows == len([9, 8, 7, 6]) + 34
    assert buffered(conn, fast.source) == []
    fast.check()


def test_clean_keeps_what_one_consumer_lacks(conn: Connection, other: Connection, t: None, follow: Follow) -> None:
    ledger = follow("t", "id", "v")
    first = ledger.frontier
    other.autocommit = False
    other.execute("UPDATE t SET v = 1 WHERE id = 1")
    run(conn, "UPDATE t SET v = 2 WHERE id = 2")
    ledger.check()
    assert buffer.clean(conn, ledger.source.oid, [ledger.frontier, first]).rows == 0
    written = db.scalar(conn, f"SELECT max(lsn)::text FROM pgtrickle_changes.changes_{ledger.source.oid}")
    assert buffer.clean(conn, ledger.source.oid, [ledger.frontier]).rows == 1
    assert db.scalar(conn, "SELECT last_consumed_lsn::text FROM pgtrickle.pgt_cdc_status") == written
    other.commit()
    assert ledger.check().changes == 1


@pytest.mark.parametrize("use_truncate", [True, False])
def test_clean_of_a_large_buffer(conn: Connection, t: None, follow: Follow, use_truncate: bool) -> None:
    ledger = follow("t", "id", "v")
    run(conn, "INSERT INTO t SELECT g, 1 FROM generate_series(1000, 40000) g")
    before = ledger.frontier
    ledger.check()
    kept = buffer.clean(conn, ledger.source.oid, [ledger.frontier, before], use_truncate=use_truncate)
    assert (kept.rows, kept.truncated) == (0, False)
    written = db.scalar(conn, f"SELECT max(lsn)::text FROM pgtrickle_changes.changes_{ledger.source.oid}")
    cleaned = buffer.clean(conn, ledger.source.oid, [ledger.frontier], use_truncate=use_truncate)
    assert db.scalar(conn, "SELECT last_consumed_lsn::text FROM pgtrickle_internal.pgt_consumed") == written
    assert (cleaned.rows, cleaned.truncated) == ((None, True) if use_truncate else (39001, False))
    assert buffered(conn, ledger.source) == []


def test_clean_waits_for_no_one(conn: Connection, other: Connection, t: None, follow: Follow) -> None:
    """A writer holds the buffer: what all have is deleted, the writer's own row stays and arrives later."""
    ledger = follow("t", "id", "v")
    run(conn, "INSERT INTO t SELECT g, 1 FROM generate_series(1000, 40000) g")
    ledger.check()
    other.autocommit = False
    other.execute("DELETE FROM t WHERE id = 1")
    assert buffer.clean(conn, ledger.source.oid, [ledger.frontier]).rows == 39001
    other.commit()
    assert ledger.check().changes == 1


def test_a_reader_at_an_older_snapshot_survives_truncation(
    conn: Connection, other: Connection, t: None, follow: Follow
) -> None:
    """TRUNCATE is not undone by an older snapshot, so clean may only take what such a reader does not need."""
    ledger = follow("t", "id", "v")
    run(conn, "INSERT INTO t SELECT g, 1 FROM generate_series(1000, 40000) g")
    ledger.check()
    other.autocommit = False
    other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    other.execute("SELECT pg_current_snapshot()")
    assert buffer.clean(conn, ledger.source.oid, [ledger.frontier]).truncated
    reader = Ledger(other, ledger.source, ledger.columns, ledger.frontier)
    assert change_window.pending(other, [reader.source.oid], reader.frontier)[reader.source.oid].changes == 0


def test_pending_asks_for_all_sources_at_once(conn: Connection, t: None, follow: Follow) -> None:
    run(conn, "CREATE TABLE u (id int)")
    first, second = follow("t", "id"), follow("u", "id")
    run(conn, "DELETE FROM t WHERE id < 3", "TRUNCATE u")
    found = change_window.pending(conn, [first.source.oid, second.source.oid], second.frontier)
    assert found[first.source.oid] == change_window.Pending(2, truncated=False, captured=True)
    assert found[second.source.oid] == change_window.Pending(1, truncated=True, captured=True)
    assert change_window.pending(conn, [], second.frontier) == {}


def test_a_missing_buffer_is_a_state_error(conn: Connection) -> None:
    with pytest.raises(StateError) as error:
        change_window.pending(conn, [4242], "1:1:")
    assert error.value.code == "PT322"


@pytest.mark.parametrize("text", ["", "1:2", "1:1:'; DROP TABLE t; --", "1:1:1,", "1:1:\n"])
def test_only_a_snapshot_becomes_sql(text: str) -> None:
    with pytest.raises(ValueError, match="not a snapshot"):
        changes_sql(1, [("a", "a")], text)
