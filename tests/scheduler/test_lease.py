"""Who leads, by the rows of `pgt_leases`: one at a time, replaced when it has ended or hangs, and fenced off then."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgtrickle import db
from pgtrickle.catalog.install import install
from pgtrickle.fence import LeaseLost, fenced
from pgtrickle.scheduler.lease import CAPTURE, SERVICE, Candidate, Lease

TIMEOUT_MS = 60_000


@pytest.fixture
def dsn(database18: str) -> str:
    with db.connect(database18) as conn:
        install(conn)
    return database18


@contextmanager
def candidate(dsn: str, name: str, role: str = "postgres") -> Iterator[Candidate]:
    with db.connect(dsn, application_name=f"pgtrickle lease [{name}]") as conn:
        yield Candidate(conn, role, name, TIMEOUT_MS)


def silence(conn: db.Connection) -> None:
    conn.execute("UPDATE pgtrickle.pgt_leases SET heartbeat_at = heartbeat_at - interval '1 hour'")


def test_one_leads_until_it_gives_up_or_its_session_ends(dsn: str) -> None:
    with candidate(dsn, "b") as b:
        with candidate(dsn, "a") as a:
            first = a.take(SERVICE)
            assert first is not None
            assert b.take(SERVICE) is None
            lease = Lease(a, first)
            lease.beat()
            assert lease.capture is not None, "whoever leads and finds capture without a leader leads it too"
            assert b.take(CAPTURE) is None
            lease.release()
            second = b.take(SERVICE)
            assert second is not None
            assert second.epoch == first.epoch + 1
        with candidate(dsn, "c") as c:
            assert c.take(SERVICE) is None
            b.conn.close()
            found = None
            while found is None:  # its session ends a moment after the connection
                found = c.take(SERVICE)
            assert found.epoch == second.epoch + 1


def test_a_leader_that_hangs_is_replaced_and_commits_no_more(dsn: str) -> None:
    with candidate(dsn, "a") as a, candidate(dsn, "b") as b, db.open_session(dsn) as worker:
        mine = a.take(SERVICE)
        assert mine is not None
        worker.execute("CREATE TABLE done (v int)")
        with fenced(worker, mine):
            worker.execute("INSERT INTO done VALUES (1)")
            with worker.transaction():
                mine.hold(worker)
                Lease(a, mine).beat()  # does not wait for those that hold the lease
        silence(b.conn)
        theirs = b.take(SERVICE)
        assert theirs is not None
        with pytest.raises(LeaseLost), fenced(worker, mine):
            worker.execute("INSERT INTO done VALUES (2)")
        with fenced(worker, theirs):
            worker.execute("INSERT INTO done VALUES (3)")
        assert worker.execute("SELECT v FROM done ORDER BY 1").fetchall() == [(1,), (3,)]
        with pytest.raises(psycopg.OperationalError):  # the one that took over has ended it
            a.conn.execute("SELECT 1")


def test_one_that_hangs_in_the_middle_of_a_commit_is_ended(dsn: str) -> None:
    with candidate(dsn, "a") as a, candidate(dsn, "b") as b:
        with db.connect(dsn, application_name="pgtrickle writer [a]") as writer:
            mine = a.take(SERVICE)
            assert mine is not None
            writer.execute("BEGIN")
            mine.hold(writer)
            silence(b.conn)
            assert b.take(SERVICE) is None
            with pytest.raises(psycopg.OperationalError):
                writer.execute("COMMIT")
        theirs = b.take(SERVICE)
        assert theirs is not None
        assert theirs.epoch == mine.epoch + 1


def test_sessions_that_may_not_be_ended_are_told_of(dsn: str) -> None:
    """Capture is led once in a database, whoever leads: the next one may be of another role."""
    name = f"r_{uuid.uuid4().hex[:8]}"
    decoding = db.connect(dsn, application_name="pgtrickle decoder [a]")
    with db.connect(dsn) as admin, candidate(dsn, "a") as a, decoding:
        role = sql.Identifier(name)
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'p'").format(role))
        try:
            for grant in ("USAGE ON SCHEMA", "ALL ON ALL TABLES IN SCHEMA", "EXECUTE ON ALL FUNCTIONS IN SCHEMA"):
                admin.execute(sql.SQL("GRANT {} pgtrickle TO {}").format(sql.SQL(grant), role))
            assert a.take(CAPTURE) is not None
            with candidate(make_conninfo(dsn, user=name, password="p"), "b", name) as b:
                assert b.take(CAPTURE) is None, "its session is there, which is all that another role can see"
                silence(admin)
                assert b.take(CAPTURE) is not None
                assert b.take(SERVICE) is not None, "each role has a lease of its own"
                told = "SELECT detail FROM pgtrickle.health_check() WHERE check_name = 'service' AND severity = 'WARN'"
                assert f"{decoding.info.backend_pid} (pgtrickle decoder [a], of role postgres)" in str(
                    db.scalar(admin, told)
                )
            decoding.execute("SELECT 1")
        finally:
            admin.execute(sql.SQL("DROP OWNED BY {0}").format(role))
            admin.execute(sql.SQL("DROP ROLE {}").format(role))


def test_a_hung_leader_is_told_of(dsn: str) -> None:
    with candidate(dsn, "a") as a, db.connect(dsn) as conn:
        assert a.take(SERVICE) is not None
        asked = "SELECT severity || ': ' || detail FROM pgtrickle.health_check() WHERE check_name = 'service'"
        assert str(db.scalar(conn, asked)).startswith("OK: a service leads as postgres, in session ")
        silence(conn)
        assert "hangs: its last heartbeat was 01:00:0" in str(db.scalar(conn, asked))
