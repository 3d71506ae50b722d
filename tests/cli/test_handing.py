"""Work that the command line hands to a running service: the same words, codes and definitions as when it works itself.

The service is its requests' side, in a thread of the test, with a lease: nothing here needs Spark.
"""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from tests.cli.conftest import Call
from tests.scheduler.conftest import leading
from tests.service.running import until

from pgtrickle import api
from pgtrickle.catalog.install import install
from pgtrickle.catalog.requests import Progress
from pgtrickle.cli import handing
from pgtrickle.config import Settings
from pgtrickle.scheduler.request_loop import RequestLoop

PROGRAM = Path(sys.executable).parent / "pgtrickle"
BIG = "SELECT id, amount FROM orders WHERE amount > 100"


@contextmanager
def serving(dsn: str) -> Iterator[None]:
    """A service for this login, as far as requests go."""
    with leading(dsn):
        stop = threading.Event()

        def work() -> None:
            desk = RequestLoop(dsn, lambda settings: api.connect(dsn))
            try:
                while not stop.wait(0.02):
                    desk.round(Settings())
            finally:
                desk.close()

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def rows(dsn: str, query: str) -> list[tuple[object, ...]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute(query.encode()).fetchall()


def installed(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        install(connection)


@pytest.mark.filterwarnings("default")
def test_definitions_are_the_same_by_the_service_and_here(call: Call, shop: str) -> None:
    with psycopg.connect(shop, autocommit=True) as connection:
        for setting in ("TimeZone = 'Asia/Tokyo'", "search_path = other, public", "IntervalStyle = iso_8601"):
            connection.execute(f"ALTER DATABASE {connection.info.dbname} SET {setting}".encode())
        connection.execute("CREATE SCHEMA other; CREATE TABLE other.orders (id int PRIMARY KEY, amount numeric)")
    installed(shop)
    with serving(shop):
        by_service = call("create", "big", "--query", BIG, "--no-initialize", "--schedule", "5m", "--json")
        again = call("create", "big", "--query", BIG, "--no-initialize", "--if-not-exists")
        replaced = call("create", "big", "--query", f"{BIG} OR id = 1", "--or-replace", "--schedule", "calculated")
        here = call("create", "here", "--query", BIG, "--no-initialize", "--schedule", "5m", "--json", "--here")
    assert (by_service.exit_code, here.exit_code) == (0, 0), (by_service, by_service.exception, here.exception)
    assert by_service.stderr.replace("big:", "here:") == here.stderr != "", "what is worth knowing is said"
    facts, alike = json.loads(by_service.stdout), json.loads(here.stdout)
    assert (facts.pop("table"), alike.pop("table")) == ("other.big", "other.here")
    assert facts == alike
    assert (again.stdout, replaced.stdout) == ("other.big exists already\n", "replaced other.big\n")
    assert rows(shop, "SELECT kind, state, taken_by = session_user FROM pgtrickle.pgt_requests ORDER BY id") == [
        ("create", "DONE", True),
        ("alter", "DONE", True),
    ]
    kept = (
        "SELECT search_path, settings, owner FROM pgtrickle.pgt_stream_tables JOIN pgtrickle.pgt_present USING (pgt_id)"
    )
    big, mine = rows(shop, f"{kept} ORDER BY pgt_present.pgt_name")
    assert big[1:] == mine[1:]
    assert rows(shop, "SELECT DISTINCT source_schema FROM pgtrickle.pgt_dependencies") == [("other",)]


def test_errors_are_the_same_by_the_service_and_here(call: Call, shop: str) -> None:
    installed(shop)
    call("create", "big", "--query", BIG, "--no-initialize", "--refresh-mode", "DIFFERENTIAL")
    wrong = [
        ("create", "t", "--query", "SELECT nothing FROM orders"),
        ("create", "t", "--query", "SELECT id FROM orders", "--schedule", "soon"),
        ("create", "t", "--query", "SELECT ctid FROM orders", "--refresh-mode", "DIFFERENTIAL"),
        ("create", "nowhere.t", "--query", BIG),
        ("create", "pgtrickle.t", "--query", BIG),
        ("create", "t", "--query", "SELECT id FROM pgtrickle.pgt_requests"),
        ("create", "big", "--query", BIG),
        ("create", "1x", "--query", BIG),
        ("alter", "big", "--query", "SELECT id FROM nowhere"),
        ("alter", "nothing", "--query", BIG),
        ("refresh", "nothing"),
        ("refresh", "big"),
    ]
    with serving(shop):
        for words in wrong:
            told, here = call(*words, "--json"), call(*words, "--json", "--here")
            assert told.exit_code == here.exit_code != 0, words
            assert json.loads(told.stderr) == json.loads(here.stderr), words
        told, here = call(*wrong[0]), call(*wrong[0], "--here")
        assert told.stderr == here.stderr
    assert rows(shop, "SELECT count(*) FROM pgtrickle.pgt_requests WHERE state = 'FAILED'") == [(10,)]


def test_a_service_that_does_not_serve_the_login_is_not_asked(call: Call, shop: str) -> None:
    """Nor is one without which the work can be done: another schedule, say."""
    installed(shop)
    with psycopg.connect(shop, autocommit=True) as connection:
        role = f"other_{connection.info.dbname}"
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'plain'".encode())
        connection.execute(
            f"GRANT ALL ON ALL TABLES IN SCHEMA pgtrickle TO {role}; GRANT USAGE ON SCHEMA pgtrickle TO {role}".encode()
        )
    try:
        with leading(make_conninfo(shop, user=role, password="plain")):
            assert call("create", "big", "--query", BIG, "--no-initialize", "--refresh-mode", "FULL").exit_code == 0
            call("pause", "big")
            assert call("refresh", "--all").stdout.startswith("public.big: SKIP")
        with leading(shop):
            assert call("alter", "big", "--schedule", "3m").exit_code == 0
        assert rows(shop, "SELECT count(*) FROM pgtrickle.pgt_requests") == [(0,)]
    finally:
        with psycopg.connect(shop, autocommit=True) as connection:
            connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


def test_refreshes_are_handed_over_one_after_another(call: Call, shop: str) -> None:
    installed(shop)
    for name in ("a", "b"):
        call("create", name, "--query", BIG, "--no-initialize", "--refresh-mode", "FULL")
    call("pause", "--all")
    with serving(shop):
        one, full, every = (
            call("refresh", "a"),
            call("refresh", "b", "--full", "--json"),
            call("refresh", "--all", "--json"),
        )
    assert (one.exit_code, full.exit_code, every.exit_code) == (1, 1, 1)
    assert one.stdout.startswith("SKIP: +0 -0 rows in ")
    assert (json.loads(full.stdout)["table"], json.loads(full.stdout)["phases"]) == ("public.b", {})
    assert [each["action"] for each in json.loads(every.stdout)] == ["SKIP", "SKIP"]
    assert [args for (args,) in rows(shop, "SELECT args FROM pgtrickle.pgt_requests ORDER BY id")] == [
        {"name": "public.a"},
        {"name": "public.b", "full": True},
        {"name": "public.a"},
        {"name": "public.b"},
    ]


def test_who_stops_waiting_leaves_the_request_to_the_service(shop: str) -> None:
    """On a terminal, which shows meanwhile what is waited for."""
    installed(shop)
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PGTRICKLE_DSN": shop, "TERM": "xterm", "COLUMNS": "200"}
    with leading(shop):
        command = [str(PROGRAM), "create", "big", "--query", BIG]
        waiting = subprocess.Popen(command, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        said = ""
        while "creating big: waiting for the service (" not in said:
            said += os.read(ours, 65536).decode()
        waiting.send_signal(signal.SIGINT)
        with suppress(OSError):  # the other end is closed
            while more := os.read(ours, 65536):
                said += more.decode()
        assert waiting.wait(60) == 130
    os.close(ours)
    assert "error: PT450: interrupted; the service goes on with request 1" in said
    assert "Traceback" not in said
    assert rows(shop, "SELECT kind, state FROM pgtrickle.pgt_requests") == [("create", "PENDING")]


def test_a_service_that_goes_away_is_told_of(call: Call, shop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(shop)
    monkeypatch.setattr(handing, "GONE_AFTER_S", 0.3)
    gone = threading.Event()

    def lead() -> None:
        with leading(shop):
            started.set()
            until(lambda: rows(shop, "SELECT FROM pgtrickle.pgt_requests"), "a request")
        gone.set()

    started = threading.Event()
    thread = threading.Thread(target=lead)
    thread.start()
    assert started.wait(30)
    told = call("create", "big", "--query", BIG)
    thread.join()
    assert gone.is_set()
    assert told.exit_code == 3
    assert re.match(
        r"error: PT451: the service is gone; request \d+ waits for the next one\nhint: Start it", told.stderr
    )


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (Progress("PENDING", 0, None, True, False, None, None), "waiting for the service"),
        (Progress("PENDING", 2, None, True, False, None, None), "waiting for the service, 2 before it"),
        (
            Progress("PENDING", 0, "no service runs in this database", False, False, None, None),
            "waiting: no service runs",
        ),
        (Progress("RUNNING", 0, None, True, False, None, None), "the service is at it"),
        (Progress("RUNNING", 0, None, True, True, None, None), "the service is refreshing"),
        (Progress("RUNNING", 0, None, True, True, 12345, None), "the service is refreshing, 12,345 rows so far"),
        (Progress("RUNNING", 0, None, True, True, 12345, 20_000), "the service is refreshing, 12,345 of about 20,000"),
        (Progress("RUNNING", 0, None, False, True, 5, None), "waiting: the service is gone"),
    ],
)
def test_what_the_terminal_shows_meanwhile(seen: Progress, said: str) -> None:
    assert handing.described(seen).startswith(said)
