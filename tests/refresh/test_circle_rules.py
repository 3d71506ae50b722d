"""What the refresh of a circle does, and why; the way around it."""

from __future__ import annotations

import pytest

from pgtrickle.errors import StateError
from pgtrickle.refresh.circle.rules import Gained, Member, decide, require_monotone, route
from tests.delta.trees import TABLES, TIME, Names, call, filtered, grouped, joined, scan

A, B, C = TABLES


def member(relid: int, title: str, *sources: int) -> Member:
    return Member(relid, title, None, "window functions cannot be maintained", frozenset(sources))


def test_the_way_around_begins_with_the_oldest_and_goes_from_what_is_read_to_what_reads() -> None:
    assert route([member(7, "z", 7, 900)]) == "z → z"
    assert route([member(1, "a", 3), member(2, "b", 1), member(3, "c", 2)]) == "a → b → c → a"
    assert route([member(1, "a", 2, 3), member(2, "b", 1), member(3, "c", 1)]) == "a → b → a"
    assert route([member(1, "a"), member(2, "b", 1)]) == "a, b"


def test_a_query_without_operators_is_refused_in_its_own_words() -> None:
    with pytest.raises(StateError, match="z → z cannot run to a fixpoint: in z, window functions") as refused:
        require_monotone([member(7, "z", 7)])
    assert refused.value.code == "PT372"


def test_the_clock_is_in_the_way() -> None:
    names = Names()
    recent = filtered(scan(names, A, "x"), f"c1 < {TIME}", "c1")
    with pytest.raises(StateError, match="in a, it reads the clock") as refused:
        require_monotone([Member(A.oid, "a", recent, None, frozenset({A.oid}))])
    assert refused.value.code == "PT372"


def test_when_it_may_go_on_from_what_is_there() -> None:
    names = Names()
    own, other, third = (scan(names, table, "x") for table in TABLES)
    most = grouped(third, (), call(names, "max", third.columns[0]))
    tree = joined(joined(own, other, (own.names[0], other.names[0])), most)
    members = [Member(A.oid, "a", tree, None, frozenset({A.oid, B.oid, C.oid}))]
    require_monotone(members)

    def decided(*sources: tuple[int, Gained], reinitialize: str | None = None, full: str | None = None) -> list[str]:
        found = decide(members, reinitialize, full, dict(sources))
        return [found.action.value, found.reason]

    quiet, grown, shrunk = Gained("b", 0, False, False), Gained("b", 2, False, False), Gained("b", 2, False, True)
    truncated, aside = Gained("b", 1, True, False), Gained("c", 1, False, False)
    assert decided((B.oid, quiet))[0] == "NO_DATA"
    assert decided((B.oid, grown)) == ["DIFFERENTIAL", "2 changes"]
    assert decided((B.oid, shrunk)) == ["FULL", "2 changes, and rows of b are gone"]
    assert decided((B.oid, grown), (C.oid, aside)) == ["FULL", "3 changes, some below aggregate max in a"]
    assert decided((B.oid, truncated)) == ["REINITIALIZE", "b was truncated"]
    assert decided((B.oid, quiet), reinitialize="altered") == ["REINITIALIZE", "altered"]
    assert decided((B.oid, grown), reinitialize="altered", full="asked for") == ["FULL", "asked for"]
