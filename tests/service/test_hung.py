"""A leader that hangs in the middle of a refresh is replaced, and commits nothing when it wakes up."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.refresh.oracle import differing
from tests.service import circles
from tests.service.running import Running, running, until
from tests.service.serving import PATIENCE_S, Served

from pgtrickle import db
from pgtrickle.api import connect

TIMEOUT_MS = "6000"
QUERIES = {
    "by_trigger": "SELECT t.a, t.b, d.name FROM t JOIN d ON d.k = t.b % 5",
    "by_wal": "SELECT u.a, u.b, d.name FROM u JOIN d ON d.k = u.b % 5",
}
BY_POSTGRES = (
    ("before-group-commit", "t"),
    ("fenced", "u"),
    ("decoder-recorded", "u"),
    ("before-group-commit", "u"),
    ("fenced", "t"),
)
BY_SPARK = (("before-commit", "t"), ("fenced", "u"), ("spark-done", "u"), ("fenced", "t"))
"""Where the leader of the time hangs, and the source whose changes it was at. At `fenced` its transaction holds the
lease, and who takes over has to end it first."""


@dataclass(slots=True)
class Hanging:
    """One of two services, and the file that says where it hangs."""

    service: Running
    failpoint: Path

    def is_stopped(self) -> bool:
        stat = Path(f"/proc/{self.service.process.pid}/stat").read_text()
        return stat.rsplit(")", 1)[1].split()[0] == "T"

    def go_on(self) -> None:
        self.failpoint.write_text("")
        self.service.signal(signal.SIGCONT)

    def wakes_up_and_waits(self) -> None:
        awaited = len(self.service.events("lease_awaited"))
        self.go_on()
        self.until(lambda: len(self.service.events("lease_awaited")) > awaited)

    def until(self, holds: Callable[[], bool]) -> None:
        until(holds, lambda: self.service.log[-6000:], PATIENCE_S)

    def leads(self) -> bool:
        return len(self.service.events("lease_taken")) > len(self.service.events("lease_given_up"))


@contextmanager
def hanging(dsn: str, directory: Path, name: str) -> Iterator[Hanging]:
    failpoint = directory / f"failpoint-{name}"
    failpoint.write_text("")
    with running(dsn, directory, failpoint=f"@{failpoint}", lease_timeout_ms=TIMEOUT_MS) as service:
        found = Hanging(service, failpoint)
        try:
            yield found
        finally:
            found.go_on()


def test_a_leader_that_hangs_is_replaced_and_commits_nothing(database18: str, tmp_path: Path) -> None:
    circles.make(database18)
    hang_by_turns(database18, tmp_path, BY_POSTGRES, circles.wrong)


@pytest.mark.long
def test_a_leader_that_hangs_while_spark_works(database18: str, tmp_path: Path) -> None:
    with connect(database18) as trickle, db.open_session(database18) as conn:
        conn.execute("CREATE TABLE d (k int PRIMARY KEY, name text)")
        conn.execute("INSERT INTO d SELECT g, 'n' || g FROM generate_series(0, 4) AS g")
        conn.execute("ALTER TABLE d REPLICA IDENTITY FULL")
        for source, (name, query), mode in zip("tu", QUERIES.items(), ("trigger", "wal"), strict=True):
            conn.execute(db.statement(f"CREATE TABLE {source} (a int, b int)"))
            conn.execute(db.statement(f"ALTER TABLE {source} REPLICA IDENTITY FULL"))
            trickle.create_stream_table(name, query, "1s", cdc_mode=mode, refresh_mode="DIFFERENTIAL")
    hang_by_turns(
        database18,
        tmp_path,
        BY_SPARK,
        lambda conn: [name for name, query in QUERIES.items() if differing(conn, name, query)],
    )


def hang_by_turns(
    dsn: str, directory: Path, steps: Sequence[tuple[str, str]], wrong: Callable[[db.Connection], list[str]]
) -> None:
    """Two services: each hangs while it leads, the other takes over, and the first waits to lead again."""
    with hanging(dsn, directory, "a") as one:
        here = Served(dsn, one.service)
        circles.await_wal(dsn)
        one.until(lambda: not wrong(here.conn))
        with hanging(dsn, directory, "b") as other:
            other.service.await_event("lease_awaited")
            for number, (step, source) in enumerate(steps, start=1):
                leader, follower = (one, other) if one.leads() else (other, one)
                epoch = _epoch(here)
                leader.failpoint.write_text(f"stop:{step}")
                here.run(f"INSERT INTO {source} SELECT {number} * 100 + g, g FROM generate_series(1, 9) AS g")
                leader.until(leader.is_stopped)
                here.run(
                    "DELETE FROM t WHERE a = 3",
                    f"UPDATE u SET b = b + 1 WHERE a = {number}",
                    f"INSERT INTO {source} VALUES ({number}, 1), ({number}, 1)",
                )
                follower.until(follower.leads)
                follower.until(lambda: not wrong(here.conn))
                assert _epoch(here) > epoch
                before = _refreshes(here)
                leader.wakes_up_and_waits()
                assert _refreshes(here) == before, "nothing was left to do, so none is from the one that woke up"
                assert not wrong(here.conn)
            assert here.rows("SELECT pgt_name FROM pgtrickle.pgt_stream_tables WHERE consecutive_errors > 0") == []
        assert '"traceback":' not in one.service.log + other.service.log
        here.conn.close()


def _epoch(here: Served) -> int:
    return int(str(here.one("SELECT epoch FROM pgtrickle.pgt_leases WHERE purpose = 'service'")))


def _refreshes(here: Served) -> object:
    """Those that have changed a table."""
    return here.one(
        "SELECT count(*) FROM pgtrickle.pgt_refresh_history WHERE status = 'COMPLETED' AND action <> 'NO_DATA'"
    )
