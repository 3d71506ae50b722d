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
from pgtrickle.spark.permits import Giver, Permits


@pytest.fixture
def giver() -> Iterator[Giver]:
    found = Giver("127.0.0.1", 4)
    yield found
    found.close()


@contextmanager
def task(permits: Permits, number: int, task: int) -> Iterator[socket.socket]:
    """A Python worker of that task, which has asked."""
    with socket.create_connection((permits.host, permits.port), timeout=30) as asking:
        asking.sendall(f"{permits.token} {task} {number}\n".encode())
        yield asking


def test_a_task_waits_until_it_can_have_all(giver: Giver) -> None:
    permits = giver.for_tasks("127.0.0.1")
    with task(permits, 3, 1) as first:
        assert first.recv(1) == b"+"
        with task(permits, 3, 1) as beside:  # another worker of the same task takes no more
            assert beside.recv(1) == b"+"
            assert giver.given == 3
        with task(permits, 2, 2) as second:
            second.settimeout(0.3)
            with pytest.raises(TimeoutError):
                second.recv(1)
            assert giver.given == 3
            second.settimeout(30)
            first.close()
            assert second.recv(1) == b"+"
            assert giver.given == 2


def test_who_lacks_the_token_is_given_nothing(giver: Giver) -> None:
    permits = giver.for_tasks("127.0.0.1")
    with task(Permits(permits.host, permits.port, "guessed", 4), 1, 1) as asking:
        assert asking.recv(1) == b""
    assert giver.given == 0
    assert permits.token not in repr(permits)


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
