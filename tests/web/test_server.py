"""The dashboard by HTTP, on a real database: what is answered, to whom, and what is told of one that hangs."""

from __future__ import annotations

import http.client
import json
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgtrickle import db
from pgtrickle.api import Trickle
from pgtrickle.db import Connection, statement
from pgtrickle.errors import EnvironmentProblem, Error, StateError
from pgtrickle.web import server, watch
from pgtrickle.web.access import Access, Address
from pgtrickle.web.watch import Watch
from tests.monitor.test_metrics import free_port
from tests.service.running import PROGRAM, until

TOKEN = "a token of the tests".replace(" ", "-")
HEADERS = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}


def asked(port: int, path: str, method: str = "GET", body: object = None, **headers: str) -> tuple[int, Any]:
    """The status and the answer, as JSON where it is."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, None if body is None else json.dumps(body), sent)
    found = connection.getresponse()
    text = found.read().decode()
    connection.close()
    is_json = (found.getheader("Content-Type") or "").startswith("application/json")
    return found.status, json.loads(text) if is_json else text


def serve(dsn: str, token: str | None = None) -> int:
    port = free_port()
    server.serve([dsn], Access(Address("127.0.0.1", port), token))
    return port


@pytest.fixture
def shop(database18: str) -> Iterator[tuple[str, Connection]]:
    """A stream table that was filled by PostgreSQL alone, and one that reads it."""
    with Trickle(database18) as trickle:
        conn = trickle.connection
        conn.execute("CREATE TABLE public.orders (id int PRIMARY KEY, region text, amount int)")
        conn.execute("INSERT INTO public.orders SELECT n, 'r' || n % 3, n FROM generate_series(1, 30) AS n")
        trickle.create_stream_table(
            "public.totals",
            "SELECT region, sum(amount) AS total FROM public.orders GROUP BY region",
            initialize=False,
        )
        trickle.create_stream_table("public.tops", "SELECT max(total) FROM public.totals", initialize=False)
        yield database18, conn


@pytest.fixture
def closing_later() -> Iterator[Callable[[Watch], Watch]]:
    """Keeps what is given to it, and closes it after the test."""
    with ExitStack() as stack:
        yield lambda watching: stack.enter_context(closing(watching))


def test_what_is_told(shop: tuple[str, Connection]) -> None:
    dsn, conn = shop
    port = serve(dsn)
    status, told = asked(port, "/api/overview")
    assert (status, "problem" in told, told["can_steer"]) == (200, False, False)
    assert {each["name"]: each["state"] for each in told["tables"]} == {
        "public.totals": "empty",
        "public.tops": "empty",
    }
    ids = {each["name"]: each["pgt_id"] for each in told["tables"]}
    names = {each["pgt_relid"]: each["name"] for each in told["tables"]}
    names |= {node["relid"]: node["name"] for node in told["graph"]["nodes"] if node["pgt_id"] is None}
    assert {(names[line["from"]], names[line["to"]]) for line in told["graph"]["lines"]} == {
        ("public.orders", "public.totals"),
        ("public.totals", "public.tops"),
    }
    assert {each["source_table"] for each in told["captured"]} == {"public.orders", "public.totals"}
    assert any(each["severity"] == "ERROR" for each in told["checks"]), "no service runs"
    conn.execute("INSERT INTO public.orders VALUES (31, 'new', 1)")
    status, table = asked(port, f"/api/table?id={ids['public.totals']}")
    assert status == 200
    assert table["query"].startswith("SELECT region")
    assert "Aggregate" in table["facts"]["operators"]
    assert list(table["waiting"].values()) == [1]
    assert [each["source"] for each in table["sources"]] == ["public.orders"]
    status, plan = asked(port, f"/api/explain?id={ids['public.totals']}")
    assert (status, "reads when only public.orders changed" in plan["text"]) == (200, True)
    assert conn.execute("SELECT pid FROM pg_stat_activity WHERE application_name = 'pgtrickle web'").fetchall() != []


def test_a_failed_refresh_says_what_to_do(shop: tuple[str, Connection]) -> None:
    dsn, conn = shop
    with Trickle(dsn) as trickle:
        conn.execute("CREATE TABLE public.parts (v int)")
        conn.execute("INSERT INTO public.parts VALUES (1)")
        trickle.create_stream_table("public.shares", "SELECT 1 / v AS part FROM public.parts", initialize=False)
        conn.execute("INSERT INTO public.parts VALUES (0)")
        with pytest.raises(StateError, match="division by zero"):
            trickle.refresh_stream_table("public.shares", full=True)
        (failed,) = trickle.history("public.shares")
        assert failed.hint is not None
        assert "correct the data" in failed.hint
    told = asked(serve(dsn), "/api/overview")[1]
    (shares,) = [each for each in told["tables"] if each["name"] == "public.shares"]
    assert (shares["error_hint"], shares["error_code"]) == (failed.hint, "PT343")
    assert told["recent"][0]["hint"] == failed.hint


def test_headers_of_every_answer(database18: str) -> None:
    port = serve(database18)
    for path, status in (("/", 200), ("/dashboard.js", 200), ("/nothing", 404), ("/api/overview", 200)):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", path)
        found = connection.getresponse()
        assert found.status == status
        policy = str(found.getheader("Content-Security-Policy"))
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert found.getheader("X-Content-Type-Options") == "nosniff"
        assert found.getheader("Cache-Control") == "no-store"
        assert found.getheader("Set-Cookie") is None
        assert found.getheader("Access-Control-Allow-Origin") is None
        connection.close()


def test_the_page_has_no_markup_from_data_and_nothing_from_elsewhere() -> None:
    """Values go into the page as text; a script that makes markup of text could be fooled."""
    static = Path(server.__file__).parent / "static"
    script = (static / "dashboard.js").read_text()
    for name in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "Function(",
        "localStorage",
    ):
        assert name not in script
    for file in static.iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text, file
        assert "style=" not in text.lower()
    assert sum(file.stat().st_size for file in static.iterdir()) < 80_000


def test_without_a_token_nothing_is_told_or_done(shop: tuple[str, Connection]) -> None:
    dsn, conn = shop
    port = serve(dsn, TOKEN)
    assert asked(port, "/")[0] == 200, "the page has nothing to hide"
    for headers in ({}, {"Authorization": "Bearer no"}, {"Authorization": f"Basic {TOKEN}"}):
        assert asked(port, "/api/overview", **headers)[0] == 401
        assert asked(port, "/api/refresh", "POST", {"id": 1}, Content_Type="application/json", **headers)[0] == 401
    assert asked(port, f"/api/overview?token={TOKEN}&Authorization=Bearer%20{TOKEN}")[0] == 401, "never in an address"
    assert asked(port, "/api/overview", **HEADERS)[0] == 200
    assert conn.execute("SELECT count(*) FROM pgtrickle.pgt_requests").fetchone() == (0,)
    assert asked(serve(dsn), "/api/refresh", "POST", {"id": 1}, Content_Type="application/json")[0] == 403


def test_pages_of_others_are_refused(shop: tuple[str, Connection]) -> None:
    dsn, conn = shop
    port = serve(dsn, TOKEN)
    assert asked(port, "/", Host="evil.example")[0] == 403
    assert asked(port, "/api/overview", Host=f"evil.example:{port}", **HEADERS)[0] == 403
    assert asked(port, "/api/refresh", "POST", {"id": 1}, Origin="http://evil.example", **HEADERS)[0] == 403
    form = {**HEADERS, "Content-Type": "text/plain"}
    assert asked(port, "/api/refresh", "POST", {"id": 1}, **form)[0] == 415
    assert asked(port, "/api/refresh?id=1", **HEADERS)[0] == 404, "nothing is changed by GET"
    assert conn.execute("SELECT count(*) FROM pgtrickle.pgt_requests").fetchone() == (0,)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/api/nothing", None, 404),
        ("GET", "/../pyproject.toml", None, 404),
        ("GET", "/static/dashboard.js", None, 404),
        ("GET", "/api/table", None, 400),
        ("GET", "/api/table?id=1;DROP", None, 400),
        ("GET", "/api/table?id=-1", None, 400),
        ("GET", "/api/table?id=99999999999999999999", None, 400),
        ("GET", "/api/table?id=4000000", None, 409),
        ("GET", "/api/overview?of=1", None, 400),
        ("POST", "/api/refresh", [1], 400),
        ("POST", "/api/refresh", {"id": "x"}, 400),
        ("POST", "/api/refresh", {"id": "x" * 9000}, 400),
        ("POST", "/api/refresh", {"id": 4000000}, 409),
        ("POST", "/api/drop", {"id": 1}, 404),
        ("PUT", "/api/refresh", {"id": 1}, 501),
        ("DELETE", "/", None, 501),
    ],
)
def test_what_is_asked_wrongly(served_once: int, method: str, path: str, body: object, status: int) -> None:
    found, told = asked(served_once, path, method, body, **HEADERS)
    assert (found, bool(told["problem"]["message"])) == (status, True)


@pytest.fixture(scope="module")
def served_once(server18: Any) -> Iterator[int]:
    from tests.conftest import fresh_database

    with fresh_database(server18) as dsn:
        Trickle(dsn).close()
        yield serve(dsn, TOKEN)


def test_steering_is_a_request_like_any_other(shop: tuple[str, Connection]) -> None:
    dsn, conn = shop
    port = serve(dsn, TOKEN)
    (pgt_id,) = conn.execute("SELECT pgtrickle.pgt_id_of('public.totals')").fetchone() or (0,)
    for what, kind, args in (
        ("refresh", "refresh", {"name": "public.totals"}),
        ("full", "refresh", {"name": "public.totals", "full": True}),
        ("suspend", "alter", {"name": "public.totals", "status": "SUSPENDED"}),
        ("resume", "alter", {"name": "public.totals", "status": "ACTIVE"}),
    ):
        status, told = asked(port, f"/api/{what}", "POST", {"id": pgt_id}, **HEADERS)
        assert status == 200, told
        row = conn.execute(
            "SELECT kind, args, requested_by FROM pgtrickle.pgt_requests WHERE id = %s", (told["request"],)
        ).fetchone()
        assert row is not None
        assert (row[0], row[1], row[2]) == (kind, args, conn.info.user)
        state = asked(port, f"/api/request?id={told['request']}", **HEADERS)[1]
        assert (state["state"], state["waits"]) == ("PENDING", "no service runs in this database")


def test_a_login_without_rights_may_look_but_not_steer(shop: tuple[str, Connection]) -> None:
    dsn, conn = shop
    name, password = f"looker_{os.getpid()}", "looker's password"
    conn.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(name), sql.Literal(password)))
    conn.execute(sql.SQL("GRANT pgtrickle_user TO {}").format(sql.Identifier(name)))
    try:
        port = serve(make_conninfo(dsn, user=name, password=password), TOKEN)
        told = asked(port, "/api/overview", **HEADERS)[1]
        (pgt_id,) = [each["pgt_id"] for each in told["tables"] if each["name"] == "public.totals"]
        assert asked(port, f"/api/table?id={pgt_id}", **HEADERS)[0] == 200
        status, refused = asked(port, "/api/refresh", "POST", {"id": pgt_id}, **HEADERS)
        assert (status, refused["problem"]["code"]) == (409, "PT402")
        status, refused = asked(port, f"/api/explain?id={pgt_id}", **HEADERS)
        assert (status, refused["problem"]["code"]) == (409, "PT107"), "it may not read what the query reads"
        assert conn.execute("SELECT count(*) FROM pgtrickle.pgt_requests").fetchone() == (0,)
    finally:
        conn.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(name)))


def test_it_cannot_write_where_it_only_reads(
    shop: tuple[str, Connection], closing_later: Callable[[Watch], Watch]
) -> None:
    watching = closing_later(Watch(shop[0]))
    assert "problem" not in watching.overview()
    conn = watching._connection
    assert conn is not None
    assert conn.execute("SHOW default_transaction_read_only").fetchone() == ("on",)


def test_a_catalog_that_is_locked_is_not_waited_for(shop: tuple[str, Connection]) -> None:
    dsn, conn = shop
    port = serve(dsn)
    assert "problem" not in asked(port, "/api/overview")[1]
    time.sleep(watch.FRESH_S)
    with conn.transaction():
        conn.execute("LOCK TABLE pgtrickle.pgt_stream_tables IN ACCESS EXCLUSIVE MODE")
        told = asked(port, "/api/overview")[1]
        assert "lock timeout" in told["problem"]["message"]
        assert {each["name"] for each in told["data"]["tables"]} == {"public.tops", "public.totals"}, "what it saw last"
        assert told["age_s"] >= watch.FRESH_S
        assert asked(port, "/api/table?id=1")[0] == 409
    assert "problem" not in asked(port, "/api/overview")[1]


def test_a_server_that_does_not_answer_loses_its_connection(
    shop: tuple[str, Connection], closing_later: Callable[[Watch], Watch]
) -> None:
    """As if it, or the network, were frozen: not even a timeout of its own fires."""
    dsn, conn = shop
    watching = closing_later(Watch(dsn))
    watching.overview()
    time.sleep(watch.FRESH_S)
    (pid,) = conn.execute(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'pgtrickle web%'"
    ).fetchone() or (0,)
    os.kill(int(str(pid)), signal.SIGSTOP)
    try:
        answers: list[watch.Json] = []
        threads = [threading.Thread(target=lambda: answers.append(watching.overview())) for _ in range(3)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)
        assert len(answers) == 3
        told = [each for each in answers if "problem" in each]  # one that waited may have been the first to read again
        assert told
        assert {each["problem"]["code"] for each in told} <= {"PT403", "PT470"}
        assert all(each["data"]["tables"] for each in told)
        assert "problem" not in watching.overview(), "over another connection"
    finally:
        os.kill(int(str(pid)), signal.SIGCONT)


@pytest.mark.parametrize("asks", ["overview", "explain"])
def test_a_server_that_freezes_after_the_login(
    shop: tuple[str, Connection],
    closing_later: Callable[[Watch], Watch],
    monkeypatch: pytest.MonkeyPatch,
    asks: str,
) -> None:
    """Before the first statement, that is."""
    watching, log_in = closing_later(Watch(shop[0])), db.log_in
    frozen: list[int] = []

    def freezing(*arguments: Any) -> Connection:
        opened = log_in(*arguments)
        frozen.append(opened.info.backend_pid)
        os.kill(frozen[0], signal.SIGSTOP)
        return opened

    monkeypatch.setattr(watch, "ANSWER_S", 0.5)
    monkeypatch.setattr(db, "log_in", freezing)
    answers: list[object] = []

    def ask() -> None:
        try:
            answers.append(watching.explain(1) if asks == "explain" else watching.overview()["problem"]["code"])
        except Error as error:
            answers.append(error.code)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    try:
        asking.join(20)
        assert answers == ["PT403"]
    finally:
        os.kill(frozen[0], signal.SIGCONT)
    monkeypatch.setattr(db, "log_in", log_in)
    assert "problem" not in watching.overview()


def test_what_is_cut_off_is_its_own_line(database18: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what has the number of a line that was closed."""
    monkeypatch.setattr(watch, "ANSWER_S", 0.2)
    conn = db.connect(database18)
    number = conn.fileno()
    with watch._cut_off(conn):
        conn.close()
        one, other = socket.socketpair()
        with one, other:
            assert number in (one.fileno(), other.fileno())
            time.sleep(0.5)
            one.sendall(b"there")
            assert other.recv(5) == b"there"


def test_a_database_that_is_down_is_told() -> None:
    port = serve("host=127.0.0.1 port=1")
    told = asked(port, "/api/overview")[1]
    assert (told["problem"]["code"], told["data"]) == ("PT400", None)
    status, told = asked(port, "/api/table?id=1")
    assert (status, told["problem"]["code"]) == (503, "PT400")


def test_a_session_that_was_ended_is_opened_again(
    shop: tuple[str, Connection], closing_later: Callable[[Watch], Watch]
) -> None:
    dsn, conn = shop
    watching = closing_later(Watch(dsn))
    watching.overview()
    conn.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name LIKE 'pgtrickle web%'"
    )
    time.sleep(watch.FRESH_S)
    assert "problem" not in watching.overview()


def test_those_who_only_hold_the_line_keep_nobody_out_for_long(database18: str) -> None:
    port = serve(database18)
    idle = [socket.create_connection(("127.0.0.1", port), timeout=5) for _ in range(server.MOST_AT_ONCE + 5)]
    try:
        until(lambda: len(select.select(idle, [], [], 0.1)[0]) >= 5, "as many threads as it can have, and no more")
    finally:
        for each in idle:
            each.close()
    until(lambda: _answers(port), "it is there again")


def _answers(port: int) -> bool:
    try:
        return asked(port, "/")[0] == 200
    except OSError:
        return False


def test_an_address_that_is_taken() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(EnvironmentProblem, match="PT522"):
            server.serve(["host=127.0.0.1 port=1"], Access(Address("127.0.0.1", other.getsockname()[1]), None))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--web", "0.0.0.0:8080"], "PT038"),
        (["--web", "nonsense"], "PT035"),
        (["--web", "8080", "--web-token-file", "/nowhere/token"], "PT036"),
    ],
)
def test_the_service_does_not_start_with_a_door_that_is_open(database18: str, arguments: list[str], code: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PGTRICKLE_WEB_TOKEN"}
    done = subprocess.run(
        [PROGRAM, "run", *arguments],
        env={**environment, "PGTRICKLE_DSN": database18},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    failed = json.loads(done.stderr.splitlines()[-1])
    assert (failed["code"], bool(failed["hint"])) == (code, True)
    with db.open_session(database18) as conn:
        assert conn.execute(statement("SELECT to_regnamespace('pgtrickle')")).fetchone() == (None,)
