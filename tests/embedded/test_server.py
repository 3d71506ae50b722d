"""The embedded server: starts, keeps its data, stops, and says clearly why it cannot."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from pgtrickle import embedded
from pgtrickle.errors import EnvironmentProblem, UsageError


@pytest.fixture
def home() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="pgtrickle-test-"))
    path.chmod(0o755)
    yield path
    for child in path.iterdir():
        embedded.stop(child)
    shutil.rmtree(path)


def ask(server: embedded.Server, query: str) -> list[tuple[object, ...]]:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        cursor = connection.execute(query.encode())
        return cursor.fetchall() if cursor.description else []


@pytest.mark.parametrize("version", [18, 16])
def test_data_and_port_stay_between_starts(home: Path, version: int) -> None:
    first = embedded.start(home / "pg", version=version)
    assert first.version == version
    ask(first, "CREATE TABLE kept AS SELECT 7 AS n")
    assert embedded.stop(first.data_dir)
    assert embedded.status(first.data_dir) is None
    assert not embedded.stop(first.data_dir)
    again = embedded.start(home / "pg", version=version)
    assert (again.port, again.dsn) == (first.port, first.dsn)
    assert ask(again, "SELECT n FROM kept") == [(7,)]


def test_it_is_set_up_for_logical_decoding_in_utf8_and_utc(server: embedded.Server) -> None:
    assert ask(server, "SHOW wal_level") == [("logical",)]
    assert ask(server, "SHOW server_encoding") == [("UTF8",)]
    assert ask(server, "SHOW timezone") == [("UTC",)]
    assert ask(server, "SELECT upper('é'), 'B' < 'a'") == [("É", True)]
    [(number,)] = ask(server, "SHOW server_version_num")
    assert int(str(number)) // 10000 == server.version


def test_it_listens_on_loopback_only_and_wants_the_password(server: embedded.Server) -> None:
    assert ask(server, "SHOW listen_addresses") == [("127.0.0.1",)]
    assert ask(server, "SHOW unix_socket_directories") == [("",)]
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(host=server.host, port=server.port, user="postgres", password="wrong")
    secret = (server.data_dir / embedded.STATE_FILE).stat()
    assert stat.S_IMODE(secret.st_mode) == 0o600
    assert secret.st_uid == server.data_dir.stat().st_uid != 0


def test_a_running_server_is_returned_not_started_twice(home: Path) -> None:
    first = embedded.start(home / "pg")
    assert embedded.start(home / "pg") == first == embedded.status(home / "pg")
    with pytest.raises(EnvironmentProblem, match=f"already runs on port {first.port}") as caught:
        embedded.start(home / "pg", port=first.port - 1)
    assert caught.value.code == "PT505"


def test_a_given_port_is_used_and_a_taken_one_refused(home: Path) -> None:
    with socket.socket() as other:
        other.bind((embedded.HOST, 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(EnvironmentProblem, match=f"port {port} .* taken") as caught:
            embedded.start(home / "pg", port=port)
        assert caught.value.code == "PT501"
        assert caught.value.hint
    assert embedded.start(home / "pg", port=port).port == port


def test_the_last_port_taken_by_another_program_gives_a_new_one(home: Path) -> None:
    first = embedded.start(home / "pg")
    embedded.stop(home / "pg")
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((embedded.HOST, first.port))
        other.listen()
        assert embedded.start(home / "pg").port != first.port


def test_a_data_directory_of_another_version_is_refused(home: Path) -> None:
    embedded.start(home / "pg", version=16)
    embedded.stop(home / "pg")
    with pytest.raises(EnvironmentProblem, match="data of PostgreSQL 16, not 18") as caught:
        embedded.start(home / "pg", version=18)
    assert "16" in (caught.value.hint or "")


def test_a_directory_of_someone_else_is_left_alone(home: Path) -> None:
    theirs = home / "theirs"
    theirs.mkdir(mode=0o755)
    (theirs / "letter").write_text("keep me")
    with pytest.raises(EnvironmentProblem, match="not made by pgtrickle"):
        embedded.start(theirs)
    assert stat.S_IMODE(theirs.stat().st_mode) == 0o755
    assert (theirs / "letter").read_text() == "keep me"


def test_a_start_that_fails_shows_the_end_of_the_log(home: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="unrecognized configuration parameter") as caught:
        embedded.start(home / "pg", settings={"no_such_setting": 1})
    assert caught.value.code == "PT504"
    assert embedded.start(home / "pg").port  # and is no obstacle to the next


def test_settings_hold_for_one_start(home: Path) -> None:
    quoted = "it's \\ here"
    server = embedded.start(home / "pg", settings={"fsync": False, "work_mem": "7MB", "application_name": quoted})
    assert ask(server, "SELECT current_setting('fsync'), current_setting('work_mem')") == [("off", "7MB")]
    embedded.stop(home / "pg")
    server = embedded.start(home / "pg")
    assert ask(server, "SELECT current_setting('fsync'), current_setting('work_mem')") == [("on", "4MB")]


def test_killed_it_starts_again_with_what_was_committed(home: Path) -> None:
    server = embedded.start(home / "pg")
    ask(server, "CREATE TABLE kept AS SELECT 7 AS n")
    os.kill(server.pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while embedded.status(home / "pg") is not None and time.monotonic() < deadline:
        time.sleep(0.05)
    again = embedded.start(home / "pg")
    assert again.pid != server.pid
    assert ask(again, "SELECT n FROM kept") == [(7,)]


def test_wrong_arguments() -> None:
    with pytest.raises(UsageError):
        embedded.start(version=15)
    with pytest.raises(UsageError):
        embedded.start(port=0)
    assert embedded.status("/no/such/directory") is None
    assert not embedded.stop("/no/such/directory")
