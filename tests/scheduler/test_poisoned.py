"""Rows of the catalog that make no sense: the table itself is in ERROR and says why, all others go on."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

import pgtrickle
from pgtrickle import db
from pgtrickle.catalog import reader as catalog
from pgtrickle.config import Settings
from pgtrickle.db import Connection
from pgtrickle.scheduler.refresh_loop import RefreshLoop

NONSENSE = ["99999999999999999999d", "5000000000d", "9" * 5000 + "d", "soon", "", "0 0 31 2 *", "R * * * *", "-1s"]


@pytest.fixture
def rounds(database18: str) -> Iterator[tuple[Connection, RefreshLoop]]:
    """Tables `good` and `bad`, populated by word alone: with nothing to do, no Spark is needed."""
    with pgtrickle.connect(database18) as api, db.open_session(database18) as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY)")
        conn.execute("CREATE TABLE u (id int PRIMARY KEY)")
        for name, query in {"bad": "SELECT id FROM u", "good": "SELECT id FROM t"}.items():
            api.create_stream_table(name, query, schedule="1s", initialize=False)
        conn.execute(
            "UPDATE pgtrickle.pgt_stream_tables SET is_populated = true, status = 'ACTIVE',"
            " data_timestamp = now() - interval '1 day', frontier = pg_current_snapshot()"
        )
        refreshes = RefreshLoop(database18)
        yield conn, refreshes
        refreshes.close()


def _table(conn: Connection, name: str) -> catalog.StreamTable:
    return catalog.resolve(conn, name)


def _moves_on(conn: Connection, refreshes: RefreshLoop) -> None:
    """A round in which the good table is found up to date, whatever becomes of the other."""
    conn.execute("UPDATE pgtrickle.pgt_stream_tables SET data_timestamp = now() - interval '1 day'")
    refreshes.round(Settings())
    assert _table(conn, "good").status == "ACTIVE"
    assert conn.execute(
        "SELECT data_timestamp > now() - interval '1 hour' FROM pgtrickle.pgt_stream_tables WHERE pgt_name = 'good'"
    ).fetchone() == (True,)


def test_a_schedule_that_makes_no_sense_stops_its_own_table_alone(rounds: tuple[Connection, RefreshLoop]) -> None:
    conn, refreshes = rounds
    for schedule in NONSENSE:
        conn.execute("UPDATE pgtrickle.pgt_stream_tables SET schedule = %s WHERE pgt_name = 'bad'", (schedule,))
        _moves_on(conn, refreshes)
        bad = _table(conn, "bad")
        assert bad.status == "ERROR", schedule
        assert bad.last_error is not None
        assert "PT017" in bad.last_error
        health = conn.execute("SELECT check_name, detail FROM pgtrickle.health_check()").fetchall()
        assert any("bad is in state ERROR" in str(detail) for name, detail in health if name == "stream_tables")
    conn.execute("UPDATE pgtrickle.pgt_stream_tables SET schedule = '1s' WHERE pgt_name = 'bad'")
    _moves_on(conn, refreshes)
    assert (_table(conn, "bad").status, _table(conn, "bad").last_error) == ("ACTIVE", None)


def test_a_row_that_someone_holds_is_not_waited_for(rounds: tuple[Connection, RefreshLoop], database18: str) -> None:
    conn, refreshes = rounds
    conn.execute("UPDATE pgtrickle.pgt_stream_tables SET schedule = 'soon' WHERE pgt_name = 'bad'")
    with db.open_session(database18) as other, other.transaction():
        other.execute("SELECT FROM pgtrickle.pgt_stream_tables WHERE pgt_name = 'bad' FOR UPDATE")
        refreshes.round(Settings())
        assert _table(conn, "bad").status == "ACTIVE"
    _moves_on(conn, refreshes)
    assert _table(conn, "bad").status == "ERROR"


def test_times_beyond_all_bounds_are_refused(rounds: tuple[Connection, RefreshLoop]) -> None:
    conn, _ = rounds
    for moment in ("infinity", "-infinity", "0044-03-15 BC", "20000-01-01"):
        with pytest.raises(psycopg.errors.CheckViolation):
            conn.execute("UPDATE pgtrickle.pgt_stream_tables SET data_timestamp = %s WHERE pgt_name = 'bad'", (moment,))


def test_a_buffer_dropped_by_hand_stops_no_other_table(rounds: tuple[Connection, RefreshLoop]) -> None:
    conn, refreshes = rounds
    _moves_on(conn, refreshes)
    conn.execute("UPDATE pgtrickle.pgt_stream_tables SET frontier = pg_current_snapshot()")
    conn.execute("INSERT INTO u VALUES (1)")
    conn.execute("DELETE FROM u")
    buffer = db.scalar(conn, "SELECT buffer_name FROM pgtrickle.pgt_change_tracking WHERE source_relid = 'u'::regclass")
    conn.execute(db.statement(f"ALTER TABLE {buffer} DROP COLUMN xid CASCADE"))
    for _ in range(2):
        _moves_on(conn, refreshes)
