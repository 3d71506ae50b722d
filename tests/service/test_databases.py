"""One process that serves several databases: one that is gone, or can be served no more, does not harm the others."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families
from psycopg.conninfo import conninfo_to_dict
from tests.conftest import fresh_database
from tests.monitor.test_metrics import answer, free_port
from tests.service.running import Running, running, until

from pgtrickle import db, embedded
from pgtrickle.catalog.install import uninstall

SMALL = {"postgres_rows": "100000"}


@pytest.fixture
def dsns(server18: embedded.Server) -> Iterator[tuple[str, str]]:
    with fresh_database(server18) as first, fresh_database(server18) as second:
        yield first, second


def name_of(dsn: str) -> str:
    return str(conninfo_to_dict(dsn)["dbname"])


def made(dsn: str, mode: str = "AUTO") -> None:
    with db.open_session(dsn) as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
        number = db.scalar(
            conn,
            "SELECT pgtrickle.create_stream_table('st', 'SELECT id FROM t', schedule => '1s',"
            f" refresh_mode => '{mode}')",
        )
        conn.execute("CALL pgtrickle.wait_for(%s, '5 minutes')", (number,))


def follows(dsn: str, value: int, service: Running) -> None:
    with db.open_session(dsn) as conn:
        conn.execute("INSERT INTO t VALUES (%s)", (value,))
        until(
            lambda: conn.execute("SELECT FROM st WHERE id = %s", (value,)).rowcount == 1,
            lambda: f"{value} did not come to {name_of(dsn)}\n{service.log[-4000:]}",
        )


def removed(dsn: str) -> bool:
    """Removes the catalog; its service, which looks at it meanwhile, may win a deadlock."""
    with db.open_session(dsn) as conn:
        try:
            uninstall(conn, drop_stream_tables=True)
        except psycopg.errors.DeadlockDetected:
            return False
    return True


def up(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as found:
        text = found.read().decode()
    return {
        sample.labels["database"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "pgtrickle_up"
    }


def shut(server: embedded.Server, dsn: str, *, is_open: bool) -> None:
    """Nobody gets into the database any more, and whoever is in it is thrown out; or all as it was."""
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        admin.execute(db.statement(f"ALTER DATABASE {name_of(dsn)} ALLOW_CONNECTIONS {str(is_open).lower()}"))
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name_of(dsn),))


def test_one_that_is_gone_does_not_harm_the_other(
    server18: embedded.Server, dsns: tuple[str, str], tmp_path: Path
) -> None:
    first, second = dsns
    file, port = tmp_path / "databases", free_port()
    file.write_text(f"# ours\n{first}\n\n{second}\n")
    shut(server18, second, is_open=False)
    with running("", tmp_path, "--dsn-file", str(file), "--metrics-port", str(port), **SMALL) as service:
        service.await_event("lease_taken")  # the other is waited for, though it was not there at the start
        made(first)
        follows(first, 2, service)
        assert up(port) == {name_of(first): 1, name_of(second): 0}
        assert answer(port, "/readyz") == 200
        shut(server18, second, is_open=True)
        service.await_event("lease_taken", 2)
        made(second)
        follows(second, 2, service)
        assert up(port) == {name_of(first): 1, name_of(second): 1}
        told = {str(event["database"]) for event in service.events("request_done")}
        assert told == {name_of(first), name_of(second)}, "the log says of which it speaks"

        shut(server18, second, is_open=False)
        until(lambda: up(port)[name_of(second)] == 0, "the second is down")
        follows(first, 3, service)
        shut(server18, second, is_open=True)
        follows(second, 3, service)
        follows(first, 4, service)


def test_one_that_cannot_be_served_any_more_ends_alone(dsns: tuple[str, str], tmp_path: Path) -> None:
    first, second = dsns
    with running("", tmp_path, "--dsn", first, "--dsn", second, **SMALL) as service:
        service.await_event("lease_taken", 2)
        made(first)
        until(lambda: removed(second), "the catalog is removed")
        service.await_event("service_ended")
        (ended,) = service.events("service_ended")
        assert ended["database"] == name_of(second)
        assert "PT408" in str(ended["error"])
        follows(first, 2, service)
        assert service.stop() == 3, "it says at its end that not all went well"


@pytest.mark.long
def test_they_share_one_spark(dsns: tuple[str, str], tmp_path: Path) -> None:
    with running("", tmp_path, "--dsn", dsns[0], "--dsn", dsns[1]) as service:
        service.await_event("lease_taken", 2)
        for dsn in dsns:
            made(dsn, "DIFFERENTIAL")
            follows(dsn, 2, service)
        parents = [
            (path / "status").read_text().split("PPid:\t")[1].split()[0]
            for path in Path("/proc").glob("[0-9]*")
            if (path / "comm").exists() and (path / "comm").read_text().strip() == "java"
        ]
        assert parents.count(str(service.process.pid)) == 1
