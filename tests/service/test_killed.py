"""The service killed (−9) at each step of a refresh, under constant writes, and started again: all is equal."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from tests.conftest import fresh_database
from tests.service.running import Running
from tests.service.serving import PATIENCE_S, Served, served

from pgtrickle import db, embedded
from pgtrickle.db import statement

ACCOUNTS = 40
MANY = 21_000
"""Changes whose refresh is distributed, and lands in a staging table."""
EARLY = ["snapshot-taken", "window-read"]
"""Steps before Spark is needed: a service that has just started is killed at its first refresh."""
LATER = ["spark-done", "staged", "before-commit", "after-commit", "before-group-commit", "after-group-commit"]
"""Steps at which a service is killed that has caught up with what the one before it left."""
QUERIES = {
    "entries": "SELECT l.id, l.amount, a.region FROM ledger l JOIN accounts a ON a.id = l.account",
    "regions": "SELECT a.region, count(*) AS n, sum(l.amount) AS amount, max(l.amount) AS most"
    " FROM ledger l JOIN accounts a ON a.id = l.account GROUP BY 1",
    "halves": "SELECT region % 2 AS half, sum(amount) AS amount, sum(n) AS n FROM regions GROUP BY 1",
    "gained": "SELECT account, sum(amount) AS amount FROM ledger WHERE amount > 0 GROUP BY 1",
    "spent": "SELECT account, sum(amount) AS amount FROM ledger WHERE amount < 0 GROUP BY 1",
    "balances": "SELECT g.account, g.amount AS gained, s.amount AS spent"
    " FROM gained g JOIN spent s ON s.account = g.account",
    "loads": "SELECT v, count(*) AS n FROM bulk GROUP BY 1",
}
BROKEN = """
SELECT 'entries' WHERE (SELECT sum(amount) FROM entries) <> 0
UNION ALL SELECT 'regions' WHERE (SELECT sum(amount) FROM regions) <> 0
UNION ALL SELECT 'halves' WHERE (SELECT sum(amount) FROM halves) <> 0
UNION ALL SELECT 'arms' WHERE (SELECT sum(amount) FROM gained) + (SELECT sum(amount) FROM spent) <> 0
UNION ALL SELECT 'balances' WHERE EXISTS (
    SELECT account, g.amount, s.amount FROM gained g JOIN spent s USING (account)
    EXCEPT ALL SELECT account, gained, spent FROM balances)
"""
"""Of transfers, whose amounts add up to nothing: what a reader must never see."""
LEFT = """
SELECT 'running ' || pgt_id FROM pgtrickle.pgt_refresh_history WHERE status = 'RUNNING'
UNION ALL SELECT 'staging ' || relname FROM pg_class WHERE relname LIKE 'stage\\_%'
UNION ALL SELECT 'transition ' || source_relid FROM pgtrickle.pgt_change_tracking WHERE cdc_mode = 'TRANSITIONING'
"""


class Writers:
    """Threads that move amounts between accounts, again and again; `paused` leaves a moment to compare."""

    def __init__(self, dsn: str, threads: int = 2) -> None:
        self._go, self._stop = threading.Event(), threading.Event()
        self._go.set()
        self._busy = threading.Semaphore(threads)
        self._failures: list[BaseException] = []
        self._number = threads
        self._threads = [threading.Thread(target=self._write, args=(dsn,), daemon=True) for _ in range(threads)]
        for each in self._threads:
            each.start()

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._go.clear()
        for _ in range(self._number):
            assert self._busy.acquire(timeout=30), self._failures
        try:
            yield
        finally:
            self._go.set()
            self._busy.release(self._number)

    def stop(self) -> None:
        self._stop.set()
        self._go.set()
        for each in self._threads:
            each.join(30)
        assert not self._failures, self._failures

    def _write(self, dsn: str) -> None:
        try:
            with db.open_session(dsn) as conn:
                while not self._stop.is_set():
                    self._go.wait()
                    with self._busy:
                        transfer(conn)
                    time.sleep(0.02)
        except BaseException as error:  # noqa: BLE001 - raised by `stop`
            self._failures.append(error)


def transfer(conn: db.Connection) -> None:
    """In several statements; now and then entries move to another account, or go, or all is rolled back."""
    with conn.transaction(force_rollback=random.random() < 0.1):
        for _ in range(2):
            account, amount = random.randint(1, ACCOUNTS), random.randint(1, 100)
            conn.execute("INSERT INTO ledger (account, amount) VALUES (%s, %s)", (account, -amount))
            conn.execute("INSERT INTO ledger (account, amount) VALUES (%s, %s)", (account % ACCOUNTS + 1, amount))
        match random.randint(0, 3):
            case 0:
                moved = "UPDATE ledger SET account = account %% %s + 1 WHERE id = %s"
                conn.execute(moved, (ACCOUNTS, random.randint(1, 99)))
            case 1:
                conn.execute("UPDATE accounts SET region = region + 1 WHERE id = %s", (random.randint(1, ACCOUNTS),))
            case 2:
                conn.execute("DELETE FROM ledger WHERE amount = 0 AND id %% 50 = %s", (random.randint(0, 49),))


def many_changes(conn: db.Connection) -> None:
    conn.execute("INSERT INTO bulk SELECT g %% 10 FROM generate_series(1, %s) AS g", (MANY,))


def nothing_half_done(dsn: str) -> None:
    with db.open_session(dsn) as conn:
        conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with conn.transaction():
            assert conn.execute(statement(BROKEN)).fetchall() == []


@dataclass(frozen=True, slots=True)
class Place:
    """A database with the stream tables in it, and the file that says where the next service dies."""

    dsn: str
    directory: Path

    @property
    def failpoint(self) -> Path:
        return self.directory / "failpoint"

    @contextmanager
    def served(self, failpoint: str) -> Iterator[Served]:
        self.failpoint.write_text(failpoint)
        with served(self.dsn, self.directory, failpoint=f"@{self.failpoint}") as found:
            found.queries = dict(QUERIES)
            yield found

    def await_death(self, service: Running) -> None:
        assert service.process.wait(PATIENCE_S) == -signal.SIGKILL, service.log
        assert '"traceback":' not in service.log
        nothing_half_done(self.dsn)


@pytest.fixture(scope="module")
def place(server18: embedded.Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Made by a service, which is killed at no step in particular."""
    with fresh_database(server18) as dsn:
        made = Place(dsn, tmp_path_factory.mktemp("killed"))
        with made.served("") as first:
            first.run(
                "CREATE TABLE accounts (id int PRIMARY KEY, region int)",
                "CREATE TABLE ledger (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, account int, amount numeric)",
                "ALTER TABLE ledger REPLICA IDENTITY FULL",
                "ALTER TABLE accounts REPLICA IDENTITY FULL",
                "CREATE TABLE bulk (v int)",
                "ALTER TABLE bulk REPLICA IDENTITY FULL",
                f"INSERT INTO accounts SELECT g, g % 5 FROM generate_series(1, {ACCOUNTS}) AS g",
                f"INSERT INTO ledger (account, amount) SELECT 1 + g % {ACCOUNTS}, 0 FROM generate_series(1, 500) AS g",
            )
            for name, query in QUERIES.items():
                first.create(name, query)
            first.service.kill()
        yield made


MODES_OF_TABLES = """
SELECT DISTINCT cdc_mode FROM pgtrickle.pgt_change_tracking
WHERE source_relid NOT IN (SELECT pgt_relid FROM pgtrickle.pgt_stream_tables)
"""  # a stream table that others read stays with triggers


@pytest.mark.long  # four minutes; `test_kills.py` has a few kills in every run
def test_killed_at_each_step(place: Place) -> None:
    writers = Writers(place.dsn)
    try:
        for step in EARLY:
            with place.served(step) as dying:
                place.await_death(dying.service)
        for step in LATER:
            with place.served("") as here:
                all_is_well(here, writers)
                place.failpoint.write_text(step)
                if step == "staged":
                    many_changes(here.conn)
                place.await_death(here.service)
        with place.served("") as here:
            all_is_well(here, writers)
            assert here.rows(MODES_OF_TABLES) == [("WAL",)]
            assert here.rows("SELECT pgt_name FROM pgtrickle.pgt_stream_tables WHERE consecutive_errors > 0") == []
            anew = "SELECT count(*) FROM pgtrickle.pgt_refresh_history WHERE action IN ('FULL', 'REINITIALIZE')"
            assert here.one(f"{anew} AND initiated_by <> 'INITIAL'") == 0
    finally:
        writers.stop()


def all_is_well(here: Served, writers: Writers) -> None:
    """Once the service has caught up, while no one writes."""
    with writers.paused():
        here.await_equal(*QUERIES)
        here.until(lambda: here.rows(LEFT) == [], lambda: here.rows(LEFT))
