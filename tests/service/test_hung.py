"""A leader that hangs in the middle of a refresh is replaced, and commits nothing when it wakes up."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.refresh.oracle import differing
from tests.service.running import Running, running, until
from tests.service.serving import PATIENCE_S, Served

TIMEOUT_MS = "6000"
QUERIES = {
    "by_trigger": "SELECT t.id, t.v, d.name FROM t JOIN d ON d.k = t.v % 5",
    "by_wal": "SELECT u.id, u.v, d.name FROM u JOIN d ON d.k = u.v % 5",
}
STEPS = (
    ("before-commit", "t"),
    ("fenced", "u"),
    ("before-commit", "u"),
    ("decoder-recorded", "u"),
    ("fenced", "t"),
)
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
    """Two services in turn: each hangs once it leads, the other takes over, and the first waits to lead again."""
    with hanging(database18, tmp_path, "a") as one:
        here = Served(database18, one.service)
        _make(here)
        with hanging(database18, tmp_path, "b") as other:
            other.service.await_event("lease_awaited")
            for number, (step, source) in enumerate(STEPS, start=1):
                leader, follower = (one, other) if one.leads() else (other, one)
                epoch = _epoch(here)
                leader.failpoint.write_text(f"stop:{step}")
                here.run(f"INSERT INTO {source} SELECT {number} * 100 + g, g FROM generate_series(1, 9) AS g")
                leader.until(leader.is_stopped)
                here.run(
                    "DELETE FROM t WHERE v = 3",
                    "UPDATE u SET v = v + 1 WHERE v = 4",
                    f"INSERT INTO {source} VALUES ({number}, 1)",
                )
                follower.until(follower.leads)
                _are_equal(here, follower)
                before = _refreshes(here)
                assert _epoch(here) > epoch
                leader.wakes_up_and_waits()
                assert _refreshes(here) == before, "nothing was left to do, so none is from the one that woke up"
                _are_equal(here, follower)
            anew = "SELECT count(*) FROM pgtrickle.pgt_refresh_history WHERE action IN ('FULL', 'REINITIALIZE')"
            assert here.one(f"{anew} AND initiated_by <> 'INITIAL'") == 0
            assert here.rows("SELECT pgt_name FROM pgtrickle.pgt_stream_tables WHERE consecutive_errors > 0") == []
        assert '"traceback":' not in one.service.log + other.service.log
        here.conn.close()


def _make(here: Served) -> None:
    here.run(
        "CREATE TABLE d (k int PRIMARY KEY, name text)",
        "INSERT INTO d SELECT g, 'n' || g FROM generate_series(0, 4) AS g",
    )
    for source, (name, query), mode in zip("tu", QUERIES.items(), ("trigger", "wal"), strict=True):
        here.run(f"CREATE TABLE {source} (id int, v int)", f"ALTER TABLE {source} REPLICA IDENTITY FULL")
        if mode == "wal":
            here.run("ALTER TABLE d REPLICA IDENTITY FULL")
        here.run(f"INSERT INTO {source} SELECT g, g FROM generate_series(1, 50) AS g")
        here.ask("create_stream_table(%s, %s, schedule => '1s', cdc_mode => %s)", name, query, mode)
    modes = "SELECT cdc_mode FROM pgtrickle.pgt_change_tracking WHERE source_relid = %s::regclass"
    here.until(lambda: here.one(modes, "u") == "WAL", "u is captured from the WAL")
    assert here.one(modes, "t") == "TRIGGER"


def _are_equal(here: Served, leader: Hanging) -> None:
    leader.until(lambda: not any(differing(here.conn, name, query) for name, query in QUERIES.items()))


def _epoch(here: Served) -> int:
    return int(str(here.one("SELECT epoch FROM pgtrickle.pgt_leases WHERE purpose = 'service'")))


def _refreshes(here: Served) -> object:
    """Those that have changed a table."""
    return here.one(
        "SELECT count(*) FROM pgtrickle.pgt_refresh_history WHERE status = 'COMPLETED' AND action <> 'NO_DATA'"
    )
