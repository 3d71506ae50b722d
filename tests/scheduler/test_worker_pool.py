"""Units side by side: each after what it reads, no more at a time than allowed, whatever becomes of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from graphlib import TopologicalSorter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgtrickle.config import Settings
from pgtrickle.refresh.refresher import Refresher
from pgtrickle.scheduler.diamonds import Unit
from pgtrickle.scheduler.worker_pool import Outcome, WorkerPool


def refresher() -> Refresher:
    """One that is never asked to refresh."""

    def no_session() -> object:
        raise AssertionError("Spark is not asked for")

    return Refresher("", Settings(), no_session)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool[int]]:
    made: WorkerPool[int] = WorkerPool(refresher)
    yield made
    made.close()


def sorter(edges: dict[int, set[int]]) -> TopologicalSorter[Unit]:
    made: TopologicalSorter[Unit] = TopologicalSorter(
        {(unit,): [(source,) for source in sources] for unit, sources in edges.items()}
    )
    made.prepare()
    return made


@st.composite
def graphs(draw: st.DrawFn) -> dict[int, set[int]]:
    size = draw(st.integers(1, 12))
    return {unit: draw(st.sets(st.integers(0, unit - 1), max_size=3)) if unit else set() for unit in range(size)}


@settings(max_examples=60, deadline=None)
@given(
    edges=graphs(), width=st.integers(1, 4), failing=st.sets(st.integers(0, 11)), refused=st.sets(st.integers(0, 11))
)
def test_order_width_and_outcomes(
    pool: WorkerPool[int], edges: dict[int, set[int]], width: int, failing: set[int], refused: set[int]
) -> None:
    lock = threading.Lock()
    at_work: set[int] = set()
    ended: dict[int, Outcome[int]] = {}
    most = 0

    def task(_: Refresher, unit: Unit) -> int:
        nonlocal most
        with lock:
            at_work.add(unit[0])
            most = max(most, len(at_work))
            assert edges[unit[0]] - refused <= ended.keys()
        time.sleep(0.0005)
        with lock:
            at_work.discard(unit[0])
        if unit[0] in failing:
            raise ValueError(unit)
        return unit[0]

    def note(outcome: Outcome[int]) -> None:
        ended[outcome.unit[0]] = outcome

    pool.work(sorter(edges), width, task, lambda unit: unit[0] not in refused, note)
    assert ended.keys() == edges.keys() - refused
    assert most <= width
    for unit, outcome in ended.items():
        assert isinstance(outcome.error, ValueError) if unit in failing else outcome.answer == unit


def test_one_begins_when_its_own_sources_are_done(pool: WorkerPool[int]) -> None:
    """Not when all of its level are: 2 reads 0 only, and 1 ends after 2 has begun."""
    begun = threading.Event()

    def task(_: Refresher, unit: Unit) -> int:
        if unit == (2,):
            begun.set()
        return int(begun.wait(20)) if unit == (1,) else 1

    answers: dict[Unit, int | None] = {}
    pool.work(
        sorter({0: set(), 1: set(), 2: {0}}),
        2,
        task,
        lambda _: True,
        lambda outcome: answers.update({outcome.unit: outcome.answer}),
    )
    assert answers == {(0,): 1, (1,): 1, (2,): 1}


def test_trouble_with_the_record_leaves_no_one_behind(pool: WorkerPool[int]) -> None:
    """What is raised when one has ended is told, and the next call is not confused by the others."""

    def fail(outcome: Outcome[int]) -> None:
        raise OSError(f"cannot write down {outcome.unit}")

    with pytest.raises(OSError, match="cannot write down"):
        pool.work(sorter({0: set(), 1: set(), 2: {0}}), 2, lambda _, unit: unit[0], lambda _: True, fail)
    heard: list[int | None] = []
    pool.work(sorter({7: set()}), 2, lambda _, unit: unit[0], lambda _: True, lambda each: heard.append(each.answer))
    assert heard == [7]
