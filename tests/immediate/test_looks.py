"""What is said of a table in IMMEDIATE mode; dumped, restored, uninstalled; and the server killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from pgtrickle import db, embedded
from pgtrickle.api import Trickle
from pgtrickle.catalog.install import uninstall
from pgtrickle.monitor import metrics
from tests.conftest import FAST, _server, fresh_database
from tests.immediate.telling import Told, told
from tests.repair.dump import dump_and_restore

PAIRS = "SELECT t.id, t.v, s.name FROM t JOIN s ON s.k = t.k"
SUMS = "SELECT k, count(*) AS n, sum(v) AS total, max(v) AS most FROM t GROUP BY k"


def _tables(story: Told) -> None:
    story.run(
        "CREATE TABLE t (id int PRIMARY KEY, k int, v int)",
        "CREATE TABLE s (k int PRIMARY KEY, name text)",
        "INSERT INTO s SELECT g, 'n' || g FROM generate_series(0, 4) g",
        "INSERT INTO t SELECT g, g % 5, g FROM generate_series(1, 50) g",
    )
    story.create("pairs", PAIRS)
    story.create("sums", SUMS)


def test_told_apart_everywhere(story18: Told) -> None:
    _tables(story18)
    story18.write("UPDATE t SET v = v + 1")
    stream = story18.stream("pairs")
    assert (stream.refresh_mode, stream.effective_mode, stream.mode_reason) == ("IMMEDIATE", "IMMEDIATE", None)
    assert "IMMEDIATE" in story18.trickle.explain("pairs")
    assert "writers' own transactions" in story18.trickle.explain("pairs", analyze=True)
    assert not list(story18.trickle.cdc_status())
    wrong = [check for check in story18.trickle.health() if check.severity not in {"OK", "INFO"}]
    assert not [check for check in wrong if "pairs" in check.detail or "sums" in check.detail], wrong
    lines = [
        f"{sample.name} {sample.labels}"
        for metric in metrics._read(story18.trickle.connection)
        for sample in metric.samples
    ]
    assert any("pgtrickle_table_mode" in line and "IMMEDIATE" in line for line in lines)


def test_restored_from_a_dump(server18: embedded.Server) -> None:
    with fresh_database(server18) as source, fresh_database(server18) as target:
        with told(source) as story:
            _tables(story)
        dump_and_restore(server18, source, target)
        with db.open_session(target) as connection, Trickle(target, install_catalog=False) as trickle:
            trickle._refresher.without_spark = True
            again = Told(target, connection, trickle)
            with suppress(psycopg.Error):  # who writes before it is repaired may be told so, and loses nothing
                again.run("UPDATE t SET v = v + 1")
            found = trickle.repair()
            assert all(each.outcome != "ERROR" for each in found), found
            again.queries = {"pairs": PAIRS, "sums": SUMS}
            again.right()
            for name in again.queries:
                trickle.refresh_stream_table(name)
                assert again.stream(name).is_immediate, again.stream(name)
            again.write("UPDATE t SET v = v + 1", "DELETE FROM s WHERE k = 2")


def test_uninstalled(story18: Told) -> None:
    _tables(story18)
    story18.trickle.close()
    with db.connect(story18.dsn) as connection:
        uninstall(connection, drop_stream_tables=False)
    story18.run("UPDATE t SET v = v + 1", "INSERT INTO t VALUES (100, 1, 1)", "TRUNCATE s")
    assert not story18.rows("SELECT tgname FROM pg_trigger WHERE NOT tgisinternal")


def test_the_server_killed_under_writers(tmp_path_factory: pytest.TempPathFactory) -> None:
    """After recovery each statement counts in both or in neither; what is not logged was empty between them."""
    with _server(18) as server:
        dsn = server.dsn
        with told(dsn) as story:
            _tables(story)
        threads = [threading.Thread(target=_write, args=(dsn, number)) for number in range(3)]
        for thread in threads:
            thread.start()
        with suppress(psycopg.Error), db.open_session(dsn) as connection:
            connection.execute("SELECT pg_sleep(0.7)")
            connection.execute("CHECKPOINT")
            connection.execute("SELECT pg_sleep(0.3)")
        _kill(server)
        for thread in threads:
            thread.join()
        embedded.start(server.data_dir, version=18, settings=FAST)
        with db.open_session(dsn) as connection, Trickle(dsn) as trickle:
            trickle._refresher.without_spark = True
            again = Told(dsn, connection, trickle, queries={"pairs": PAIRS, "sums": SUMS})
            again.right()
            assert again.value("SELECT count(*) FROM t WHERE id >= 1000") != 0
            again.write("UPDATE t SET v = v + 1", "DELETE FROM s WHERE k = 2")
            assert trickle.refresh_stream_table("pairs").action == "NO_DATA"


def _write(dsn: str, number: int) -> None:
    """Until the server is gone."""
    with suppress(psycopg.Error), db.open_session(dsn) as connection:
        for id in range(1000 * (number + 1), 1000 * (number + 2)):
            with connection.transaction():
                connection.execute("INSERT INTO t VALUES (%s, %s, 1)", (id, id % 7))
                connection.execute("UPDATE t SET v = v + 1 WHERE id = %s", (id - 3,))


def _kill(server: embedded.Server) -> None:
    os.kill(server.pid, signal.SIGKILL)
    with suppress(psycopg.Error):
        while True:  # its processes end by themselves once they see that it is gone
            psycopg.connect(make_conninfo(server.dsn, connect_timeout=1)).close()
            time.sleep(0.1)
    time.sleep(1)
