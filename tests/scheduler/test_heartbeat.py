"""Each loop of a service says when it last woke and what it is at: one that is stuck does not read as well."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from graphlib import TopologicalSorter

import pytest

from pgtrickle import db, embedded
from pgtrickle.api import Trickle
from pgtrickle.catalog.install import install
from pgtrickle.config import Settings
from pgtrickle.db import Connection
from pgtrickle.errors import ServerError
from pgtrickle.refresh.refresher import Refresher
from pgtrickle.scheduler.diamonds import Unit
from pgtrickle.scheduler.heartbeat import Activity, Busy, Loop, report
from pgtrickle.scheduler.loop_thread import LoopThread
from pgtrickle.scheduler.refresh_loop import RefreshLoop
from pgtrickle.scheduler.request_loop import RequestLoop
from pgtrickle.scheduler.service import Controls, Service
from pgtrickle.scheduler.worker_pool import WorkerPool
from tests.conftest import fresh_database
from tests.scheduler.conftest import leading


def test_times_are_told_as_seconds_before_the_heartbeat() -> None:
    loops = (
        Loop("refreshes", 90.0, 1.0, Busy("refreshing public.t", 95.0, (17,))),
        Loop("audits", 99.5, 1.0, paused=True),
    )
    assert json.loads(report(loops, 100.0)) == [
        {
            "loop": "refreshes",
            "woken_s": 10.0,
            "interval_s": 1.0,
            "paused": False,
            "busy_with": "refreshing public.t",
            "busy_s": 5.0,
            "backend_pids": [17],
        },
        {"loop": "audits", "woken_s": 0.5, "interval_s": 1.0, "paused": True},
    ]


def test_a_refresher_says_what_it_is_at() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def task(_refresher: Refresher, _unit: Unit) -> int:
        begun.set()
        assert go_on.wait(10)
        return 1

    crew: WorkerPool[int] = WorkerPool(lambda: Refresher("", Settings(), lambda: None))  # type: ignore[arg-type,return-value]
    units: TopologicalSorter[Unit] = TopologicalSorter({(7, 8): []})
    units.prepare()
    caller = threading.Thread(target=crew.work, args=(units, 1, task, lambda _: True, lambda _: None))
    caller.start()
    assert begun.wait(10)
    (at_work,) = crew.loops(str)
    assert at_work.busy is not None
    assert (at_work.name, at_work.busy.what) == ("refresh-1", "(7, 8)")
    go_on.set()
    caller.join(10)
    (idle,) = crew.loops(str)
    assert idle.busy is None
    crew.close()


def test_a_round_says_which_tables_it_is_refreshing(database18: str) -> None:
    """The refresh waits for its source, which is locked, and then gone."""
    with Trickle(database18) as trickle, db.open_session(database18) as other:
        trickle.connection.execute("CREATE TABLE public.t (v int)")
        trickle.create_stream_table("public.st", "SELECT v FROM public.t", schedule="1s", initialize=False)
        trickle.connection.execute(
            "UPDATE pgtrickle.pgt_stream_tables"
            " SET is_populated = true, status = 'ACTIVE', data_timestamp = '2020-01-01'"
        )
        refreshes = RefreshLoop(database18)
        with other.transaction():
            other.execute("LOCK TABLE t")
            round_ = threading.Thread(target=refreshes.round, args=(Settings(),))
            round_.start()

            def at_work() -> list[str]:
                return [each.busy.what for each in refreshes.activity.inner if each.busy and each.busy.backend_pids]

            until(lambda: at_work() == ["public.st"], lambda: refreshes.activity)
            busy = refreshes.activity.busy
            assert busy is not None
            assert busy.what == "refreshing public.st"
            other.execute("DROP TABLE t")
        round_.join(30)
        assert not round_.is_alive()
        assert refreshes.activity.busy is None
        refreshes.close()


@contextmanager
def serving(dsn: str) -> Iterator[Controls]:
    """A service in a thread of this process."""
    controls = Controls()
    service = Service(
        dsn,
        refreshes=lambda fence: RefreshLoop(dsn, fence),
        requests=lambda fence: RequestLoop(dsn, lambda _: Trickle(dsn), fence),
        controls=controls,
    )
    thread = threading.Thread(target=service.run, daemon=True)
    thread.start()
    try:
        yield controls
    finally:
        controls.stop.set()
        thread.join(20)
    assert not thread.is_alive()


def loops(conn: Connection) -> dict[str, tuple[float, bool]]:
    rows = conn.execute("SELECT loop, asleep_s, paused FROM pgtrickle.pgt_service_loops").fetchall()
    return {str(loop): (float(str(asleep)), bool(paused)) for loop, asleep, paused in rows}


def until(holds: Callable[[], bool], told: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline, told()
        time.sleep(0.1)


def test_a_loop_that_hangs_is_seen_while_the_others_go_on(database18: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The round of refreshes waits for a lock that no one else needs; the lease and the other loops live on."""
    monkeypatch.setattr(db, "_instance", None)  # what a service calls its sessions is for its own process
    with db.open_session(database18) as conn, db.open_session(database18) as other:
        install(conn)
        with serving(database18) as controls:
            until(lambda: {"refreshes", "requests", "capture", "audits"} <= loops(conn).keys(), lambda: loops(conn))
            assert all(asleep < 10 for asleep, _ in loops(conn).values())
            with other.transaction():
                other.execute("LOCK TABLE pgtrickle.pgt_dependencies")
                until(lambda: loops(conn)["refreshes"][0] > 3, lambda: loops(conn))
                assert loops(conn)["audits"][0] < loops(conn)["refreshes"][0]
                wake = "SELECT heartbeat_age < '3 s' AND last_scheduler_wake < now() - interval '2 s'"
                assert db.scalar(conn, f"{wake} FROM pgtrickle.pgt_leaders WHERE purpose = 'service'")
            until(lambda: loops(conn)["refreshes"][0] < 2, lambda: loops(conn))
            assert not loops(conn)["refreshes"][1]
            name = db.scalar(conn, "SELECT current_database()")
            db.execute(conn, f"ALTER DATABASE {name} SET pg_trickle.enabled = off")
            with db.open_session(database18) as new:
                assert any("has not read it yet: send it SIGHUP" in told for told in service_health(new))
                controls.reload.set()
                until(lambda: loops(new)["refreshes"][1], lambda: loops(new))
                assert any("refreshes are paused in the service of" in told for told in service_health(new))
        assert loops(conn) == {}, "a service that has ended has no loops"


def service_health(conn: Connection) -> list[str]:
    return [str(detail) for (detail,) in conn.execute("SELECT detail FROM pgtrickle_internal.pause_problems()")]


@pytest.mark.parametrize(
    ("told", "severity", "text"),
    [
        ({"woken_s": 5, "interval_s": 1}, "OK", "no loop of a service is stuck"),
        ({"woken_s": 40, "interval_s": 1}, "WARN", "the loop refreshes of the service of"),
        ({"woken_s": 200, "interval_s": 1}, "ERROR", "is stuck: it last woke at"),
        ({"woken_s": 200, "interval_s": 60}, "OK", "no loop of a service is stuck"),
        (
            {"woken_s": 200, "interval_s": 1, "busy_with": "refreshing a.b", "busy_s": 199},
            "OK",
            "refreshing a.b, since",
        ),
        (
            {"woken_s": 900, "interval_s": 1, "busy_with": "refreshing a.b", "busy_s": 899},
            "WARN",
            "refreshing a.b; it may",
        ),
    ],
)
def test_health_tells_a_stuck_loop_from_a_long_refresh(
    leader: Connection, told: dict[str, object], severity: str, text: str
) -> None:
    row = json.dumps([{"loop": "refreshes", "paused": False, **told}])
    leader.execute("UPDATE pgtrickle.pgt_leases SET loops = %s WHERE purpose = 'service'", (row,))
    ((found, detail),) = leader.execute(
        "SELECT severity, detail FROM pgtrickle.health_check() WHERE check_name = 'loops'"
    ).fetchall()
    assert found == severity, detail
    assert text in str(detail)


def test_a_refresh_that_waits_for_a_lock_is_told_sooner(leader: Connection, dsn: str) -> None:
    with db.open_session(dsn) as holder, db.open_session(dsn) as waiter, holder.transaction():
        holder.execute("LOCK TABLE pgtrickle.pgt_diamonds")
        thread = threading.Thread(target=waiter.execute, args=("SELECT FROM pgtrickle.pgt_diamonds",))
        thread.start()
        pids = [waiter.info.backend_pid]
        told = {
            "loop": "refresh-1",
            "woken_s": 60,
            "interval_s": 0,
            "busy_with": "a.b",
            "busy_s": 60,
            "backend_pids": pids,
        }
        leader.execute("UPDATE pgtrickle.pgt_leases SET loops = %s WHERE purpose = 'service'", (json.dumps([told]),))
        waits = f"SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = {pids[0]}"
        until(lambda: bool(db.scalar(leader, waits)), lambda: "it waits for nothing")
        found = "SELECT severity || ' ' || detail FROM pgtrickle.health_check() WHERE check_name = 'loops'"
        assert "WARN" in (text := str(db.scalar(leader, found)))
        assert "a.b; it waits for a lock" in text
    thread.join(10)


@pytest.fixture(scope="module")
def dsn(server18: embedded.Server) -> Iterator[str]:
    with fresh_database(server18) as found:
        yield found


@pytest.fixture(scope="module")
def leader(dsn: str) -> Iterator[Connection]:
    """A database with a service that leads, as far as others can see."""
    with db.open_session(dsn) as conn:
        install(conn)
        with leading(dsn):
            yield conn


def test_a_round_that_pauses_after_failures_is_not_stuck() -> None:
    def fail(_settings: Settings) -> bool:
        raise ServerError("no")

    rounds = LoopThread("failing", fail, Settings(scheduler_interval_ms=10))
    until(lambda: rounds.loop(Activity()).interval_s >= 0.5, lambda: rounds.loop(Activity()))
    rounds.stop()
    assert rounds.join(5)
