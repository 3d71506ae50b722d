"""Which tables that were never filled have their turn: pure, on small graphs."""

from __future__ import annotations

from pgtrickle.scheduler.dag import Dag, Vertex
from pgtrickle.scheduler.filling import to_fill


def graph(*reads: tuple[int, int], calculated: tuple[int, ...] = ()) -> Dag:
    """Tables 1 to 4, stored under their number; pairs say who reads whom, 9 is a table of the user's."""
    tables = [Vertex(n, n, f"t{n}", None if n in calculated else "1m") for n in range(1, 5)]
    return Dag(tables, [(reader, source) for reader, source in reads])


def test_what_is_due_is_filled_and_nothing_else() -> None:
    dag = graph((1, 9), (2, 9), (3, 9))
    assert to_fill(dag, {1, 2}, {3, 4}, due={1, 3}) == {1}
    assert to_fill(dag, {1, 2}, {3, 4}, due={1, 2}, halted={2}) == {1}
    assert to_fill(dag, {1, 2}, {3, 4}, due=()) == frozenset()
    assert to_fill(dag, {1}, {3, 4}, due={77}) == frozenset(), "dropped meanwhile"


def test_what_reads_an_unfilled_table_waits_for_it() -> None:
    chain = graph((2, 1), (3, 2))
    assert to_fill(chain, {1, 2, 3}, {4}, due={1, 2, 3}) == {1}
    assert to_fill(chain, {2, 3}, {1, 4}, due={1, 2, 3}) == {2}
    assert to_fill(chain, {2, 3}, {4}, due={2, 3}) == frozenset(), "1 is filled by someone else, or by no one"


def test_a_table_without_schedule_is_filled_for_its_readers() -> None:
    dag = graph((2, 1), (3, 2), calculated=(1, 2))
    assert to_fill(dag, {1, 2, 3}, {4}, due={3}) == {1}
    assert to_fill(dag, {1}, {2, 3, 4}, due={3}) == {1}, "also where they were filled before it"
    assert to_fill(dag, {1, 2, 3}, {4}, due=()) == frozenset()


def test_a_circle_does_not_wait_for_itself() -> None:
    dag = graph((1, 2), (2, 1), (1, 3))
    assert to_fill(dag, {1, 2}, {3, 4}, due={1}) == {1}
    assert to_fill(dag, {1, 2}, {4}, due={1}) == frozenset()
