"""Kills in the middle of refreshes, under constant writes, of the service, Java, Python workers and the server: nothing
is lost or doubled, in trigger and in WAL mode. Three of each in the usual run, twenty in each mode in a long one."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest
from tests.conftest import _server
from tests.refresh.oracle import differing
from tests.service import circles
from tests.service.circles import MODES
from tests.service.running import Running, running, until
from tests.service.serving import PATIENCE_S, Served
from tests.service.test_faults import SPARK, running_below

from pgtrickle import db, embedded
from pgtrickle.api import connect
from pgtrickle.db import statement
from pgtrickle.errors import ServerError

FEW, MANY = 3, 40
"""Half of them in each mode."""
QUERIES = {f"of_{source}": f"SELECT s.a, s.b, d.name FROM {source} s JOIN d ON d.k = s.b % 5" for source in MODES}
BY_SPARK = ("before-commit", "spark-done", "window-read", "fenced", "after-commit")
BY_POSTGRES = ("before-group-commit", "fenced", "snapshot-taken")
OF_DECODER = ("decoder-copied", "decoder-recorded", "decoder-committed")
DONE = "SELECT count(*) FROM pgtrickle.pgt_refresh_history WHERE status = 'COMPLETED' AND action <> 'NO_DATA'"
RUNNING = "SELECT count(*) FROM pgtrickle.pgt_refresh_history WHERE status = 'RUNNING'"
FAILED = "SELECT count(*) FROM pgtrickle.pgt_refresh_history WHERE error LIKE '%%Python worker exited%%'"
LEFT = """
SELECT 'running ' || pgt_id FROM pgtrickle.pgt_refresh_history WHERE status = 'RUNNING'
UNION ALL SELECT 'staging ' || relname FROM pg_class WHERE relname LIKE 'stage\\_%'
UNION ALL SELECT 'anew ' || action FROM pgtrickle.pgt_refresh_history
    WHERE action = 'REINITIALIZE' AND initiated_by = 'SCHEDULER'
UNION ALL SELECT 'failed ' || pgt_name FROM pgtrickle.pgt_stream_tables WHERE consecutive_errors > 0
UNION ALL SELECT 'mode ' || cdc_mode FROM pgtrickle.pgt_change_tracking
    WHERE source_relid = 'u'::regclass AND cdc_mode <> 'WAL'
"""


class Writer:
    """Writes to one of the sources all the time, over a new session whenever the server was killed."""

    def __init__(self, dsn: str, seed: int) -> None:
        self.source = "t"
        self._dsn, self._random = dsn, random.Random(seed)
        self._stop = threading.Event()
        self._failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._failures, self._failures

    def _write(self) -> None:
        while not self._stop.is_set():
            try:
                with db.open_session(self._dsn) as conn:
                    while not self._stop.wait(0.05):
                        self._change(conn)
            except (ServerError, psycopg.OperationalError):  # killed with the server
                time.sleep(0.1)
            except BaseException as error:  # noqa: BLE001 - raised by `stop`
                self._failures.append(error)
                return

    def _change(self, conn: db.Connection) -> None:
        source, pick = self.source, self._random.randint(1, 500)
        with conn.transaction(force_rollback=pick % 10 == 0):
            conn.execute(statement(f"INSERT INTO {source} VALUES ({pick}, {pick + (pick % 10 != 9)})"))
            conn.execute(statement(f"UPDATE {source} SET a = a + 10, b = b + 10 WHERE a = {pick // 2}"))
            conn.execute(statement(f"DELETE FROM {source} WHERE a = {pick // 3}"))


@dataclass
class Field:
    """A server that may be killed, with a service at work on it that is started again when it was."""

    server: embedded.Server
    directory: Path
    service: Running
    steps: Sequence[str]
    """Of its refreshes, at which something is killed."""
    wrong: Callable[[db.Connection], list[str]]
    """Which of its tables are not what PostgreSQL answers."""
    counted: dict[str, int] = field(default_factory=dict)
    """Kills by victim, mode, and whether a refresh or the decoder was known to be in the middle."""

    @property
    def failpoint(self) -> Path:
        return self.directory / "failpoint"

    @contextmanager
    def asking(self) -> Iterator[Served]:
        found = Served(self.server.dsn, self.service)
        try:
            yield found
        finally:
            found.conn.close()

    def start(self) -> None:
        self.failpoint.write_text("")
        log = self.directory / f"service-{len(list(self.directory.glob('service-*')))}.log"
        self.service = Running(self.server.dsn, log, {"PGTRICKLE_FAILPOINT": f"@{self.failpoint}"})

    def until(self, holds: Callable[[], object]) -> None:
        until(holds, lambda: self.service.log[-6000:], PATIENCE_S)

    def hang_at(self, step: str) -> None:
        """Have the service stop there, in the middle."""
        self.failpoint.write_text(f"stop:{step}")
        stat = Path(f"/proc/{self.service.process.pid}/stat")
        self.until(lambda: stat.read_text().rsplit(")", 1)[1].split()[0] == "T")

    def go_on(self) -> None:
        self.failpoint.write_text("")
        self.service.signal(signal.SIGCONT)

    def one(self, query: str) -> int:
        """Asked again while the server comes back."""
        until = time.monotonic() + 60
        while True:
            try:
                with db.open_session(self.server.dsn) as conn:
                    return int(str(db.scalar(conn, query)))
            except (ServerError, psycopg.OperationalError):
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)

    def await_refresh(self) -> None:
        """Wait until the service is at work again: a kill while it starts hits no refresh."""
        before = self.one(DONE)
        self.until(lambda: self.one(DONE) > before)

    def count(self, victim: str, source: str, where: str) -> None:
        key = f"{victim}, {MODES[source]}, {where}"
        self.counted[key] = self.counted.get(key, 0) + 1


@contextmanager
def serving(
    server: embedded.Server, directory: Path, steps: Sequence[str], wrong: Callable[[db.Connection], list[str]]
) -> Iterator[Field]:
    """The service, for as long as the field is needed."""
    (directory / "failpoint").write_text("")
    with running(server.dsn, directory, failpoint=f"@{directory / 'failpoint'}") as first:
        made = Field(server, directory, first, steps, wrong)
        circles.await_wal(server.dsn)
        try:
            yield made
        finally:
            made.go_on()
            if made.service is not first and made.service.process.poll() is None:
                made.service.kill()


@pytest.fixture(scope="module")
def without_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    with _server(18) as server:
        circles.make(server.dsn)
        with serving(server, tmp_path_factory.mktemp("kills"), BY_POSTGRES, circles.wrong) as found:
            yield found


@pytest.fixture(scope="module")
def with_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    with _server(18) as server:
        with connect(server.dsn) as trickle, db.open_session(server.dsn) as conn:
            conn.execute("CREATE TABLE d (k int PRIMARY KEY, name text)")
            conn.execute("INSERT INTO d SELECT g, 'n' || g FROM generate_series(0, 4) AS g")
            conn.execute("ALTER TABLE d REPLICA IDENTITY FULL")
            for source, mode in MODES.items():
                conn.execute(statement(f"CREATE TABLE {source} (a int, b int)"))
                conn.execute(statement(f"ALTER TABLE {source} REPLICA IDENTITY FULL"))
                name = f"of_{source}"
                trickle.create_stream_table(name, QUERIES[name], "1s", cdc_mode=mode, refresh_mode="DIFFERENTIAL")
        with serving(server, tmp_path_factory.mktemp("kills"), BY_SPARK, _wrong) as found:
            yield found


def _wrong(conn: db.Connection) -> list[str]:
    return [name for name, query in QUERIES.items() if differing(conn, name, query)]


def the_service(at: Field, source: str, step: str | None, pause_s: float) -> None:
    if step is None:
        time.sleep(pause_s)
        at.count("service", source, "in a refresh" if at.one(RUNNING) else "at any time")
        at.service.kill()
    else:
        at.failpoint.write_text(step)
        assert at.service.process.wait(PATIENCE_S) == -signal.SIGKILL, at.service.log[-6000:]
        at.count("service", source, f"at {step}")
    at.start()


def java(at: Field, source: str, step: str | None, pause_s: float) -> None:
    at.until(lambda: running_below(at.service.process.pid, SPARK))  # a service that hangs would not start it
    if step is None:
        time.sleep(pause_s)
    else:
        at.hang_at(step)
    where = f"at {step}" if step else "in a refresh" if at.one(RUNNING) else "at any time"
    for pid in running_below(at.service.process.pid, SPARK):
        os.kill(pid, signal.SIGKILL)
        at.count("java", source, where)
    at.go_on()


def a_worker(at: Field, source: str, step: str | None, pause_s: float) -> None:
    """It kills itself as its task begins: no pause finds one at work so surely."""
    before = at.one(FAILED)
    at.failpoint.write_text("task-begun")
    at.until(lambda: at.one(FAILED) > before)
    at.failpoint.write_text("")
    at.count("worker", source, "in its task")


def the_server(at: Field, source: str, step: str | None, pause_s: float) -> None:
    """By killing one of its sessions' processes: all others end, and it recovers as from a crash."""
    if step is None:
        time.sleep(pause_s)
    else:
        at.hang_at(step)
    with db.open_session(at.server.dsn) as conn:
        inside = db.scalar(conn, RUNNING)
        os.kill(conn.info.backend_pid, signal.SIGKILL)
    at.count("server", source, f"at {step}" if step else "in a refresh" if inside else "at any time")
    at.until(lambda: _answers(at.server.dsn))
    at.go_on()


def _answers(dsn: str) -> bool:
    try:
        db.open_session(dsn).close()
    except ServerError:
        return False
    return True


VICTIMS = (
    pytest.param("without_spark", the_service, id="service"),
    pytest.param("without_spark", the_server, id="server"),
    pytest.param("with_spark", java, id="java"),
    pytest.param("with_spark", a_worker, id="worker"),
)
SPARK_TOO = (
    pytest.param("with_spark", the_service, id="service-spark"),
    pytest.param("with_spark", the_server, id="server-spark"),
)
Victim = Callable[[Field, str, str | None, float], None]


def kill_again_and_again(at: Field, victim: Victim, times: int) -> None:
    """So often: in each mode by turns, two at a step of a refresh and two at a random moment."""
    chance = random.Random(times)
    writer = Writer(at.server.dsn, times)
    try:
        for number in range(times):
            writer.source = source = "tu"[number % 2]
            steps = (*at.steps, *OF_DECODER) if source == "u" else at.steps
            step = steps[number // 4 % len(steps)] if number % 4 < 2 else None
            if step is None:
                at.await_refresh()
            victim(at, source, step, chance.uniform(0.0, 1.5))
    finally:
        at.go_on()
        writer.stop()
    with at.asking() as here:
        here.until(lambda: not at.wrong(here.conn), lambda: at.wrong(here.conn))
        here.until(lambda: here.rows(LEFT) == [], lambda: here.rows(LEFT))
    faults = [
        line for line in at.service.log.splitlines() if '"traceback":' in line and '"event": "library"' not in line
    ]
    assert not faults, faults  # py4j tells of its own when Java dies
    print(dict(sorted(at.counted.items())))


@pytest.mark.parametrize(("place", "victim"), VICTIMS)
def test_a_few_kills(place: str, victim: Victim, request: pytest.FixtureRequest) -> None:
    kill_again_and_again(request.getfixturevalue(place), victim, FEW)


@pytest.mark.long
@pytest.mark.parametrize(("place", "victim"), VICTIMS + SPARK_TOO)
def test_many_kills(place: str, victim: Victim, request: pytest.FixtureRequest) -> None:
    kill_again_and_again(request.getfixturevalue(place), victim, MANY)
