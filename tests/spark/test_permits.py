"""Permits to connect: never more than the bound, all that a task may need at once, and back when
whoever has them ends.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pgtrickle.errors import EnvironmentProblem
from pgtrickle.spark import permits
from pgtrickle.spark.permits import Giver, Permits


@pytest.fixture
def giver() -> Iterator[Giver]:
    found = Giver("127.0.0.1", 4)
    yield found
    found.close()


@contextmanager
def task(known: Permits, number: int, task: int) -> Iterator[socket.socket]:
    """A Python worker of that task, which has asked."""
    with socket.create_connection((known.host, known.port), timeout=30) as asking:
        asking.sendall(f"{known.token} {task} {number}\n".encode())
        yield asking


def test_a_task_waits_until_it_can_have_all(giver: Giver) -> None:
    known = giver.for_tasks("127.0.0.1")
    with task(known, 3, 1) as first:
        assert first.recv(1) == b"+"
        with task(known, 3, 1) as beside:  # another worker of the same task takes no more
            assert beside.recv(1) == b"+"
            assert giver.given == 3
        with task(known, 2, 2) as second:
            second.settimeout(0.3)
            with pytest.raises(TimeoutError):
                second.recv(1)
            assert giver.given == 3
            second.settimeout(30)
            first.close()
            assert second.recv(1) == b"+"
            assert giver.given == 2


def test_who_lacks_the_token_is_given_nothing(giver: Giver) -> None:
    known = giver.for_tasks("127.0.0.1")
    with task(Permits(known.host, known.port, "guessed", 4), 1, 1) as asking:
        assert asking.recv(1) == b""
    assert giver.given == 0
    assert known.token not in repr(known)


def test_who_asks_for_nonsense_is_cut_off_quietly(
    giver: Giver, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(permits, "_FIRST_LINE_S", 0.3)
    known = giver.for_tasks("127.0.0.1")
    token = known.token.encode()
    for line in (b"", b"half a li", "clé 1 1\n".encode(), b"\xff\xfe 1 1\n", token + b" 1\n", token + b" x \xc3\n"):
        with socket.create_connection((known.host, known.port), timeout=30) as asking:
            asking.sendall(line)
            assert asking.recv(1) == b"", line
    with task(known, 4, 1) as asking:
        assert asking.recv(1) == b"+"
        asking.settimeout(1)
        with pytest.raises(TimeoutError):  # it may work for as long as it likes
            asking.recv(1)
        assert giver.given == 4
    assert capsys.readouterr().err == ""


def test_a_task_that_needs_more_than_there_are_is_refused(giver: Giver) -> None:
    with pytest.raises(EnvironmentProblem, match="takes up to 5 connections") as caught:
        giver.for_tasks("127.0.0.1").of(5)
    assert caught.value.code == "PT518"


def test_many_tasks_take_turns(giver: Giver) -> None:
    most, lock = [0], threading.Lock()

    def run(number: int) -> None:
        with task(giver.for_tasks("127.0.0.1"), 1 + number % 3, number) as asking:
            assert asking.recv(1) == b"+"
            with lock:
                most[0] = max(most[0], giver.given)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 3 <= most[0] <= 4
