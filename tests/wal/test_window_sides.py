"""Which rows of a buffer count: the condition against its definition, for every small history there is."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from pgtrickle import db
from pgtrickle.capture.change_window import Handover, Sides, changes_sql, covers
from pgtrickle.embedded import Server

BASE = 100
XIDS = range(4)
TIMES = range(6)


def snapshot(ends: tuple[int, ...], at: int) -> str:
    """At time `at`, of transactions that begin at times 0, 1, 2, 3 and end at `ends`."""
    begun = [x for x in XIDS if x < at]
    still_open = [BASE + x for x in begun if ends[x] >= at]
    end = BASE + len(begun)
    return f"{min(still_open, default=end)}:{end}:{','.join(map(str, still_open))}"


def visible(xid: int, text: str) -> bool:
    _, end, still_open = text.split(":")
    return xid < int(end) and str(xid) not in still_open.split(",")


HISTORIES = list(itertools.product(*(range(x + 1, TIMES[-1] + 1) for x in XIDS)))


def side_by_definition(xid: int, handovers: tuple[Handover, ...]) -> str:
    side = "T"
    for handover in handovers:
        if visible(xid, handover.at):
            return side
        side = handover.side
    return side


@pytest.fixture(scope="module")
def conn(server18: Server) -> Iterator[db.Connection]:
    with db.open_session(server18.dsn) as connection:
        yield connection


def test_covers_is_containment() -> None:
    for ends in HISTORIES:
        found = [snapshot(ends, at) for at in TIMES]
        for (i, earlier), (j, later) in itertools.product(enumerate(found), repeat=2):
            contained = all(visible(x, later) for x in range(BASE, BASE + 6) if visible(x, earlier))
            if covers(later, earlier):
                assert contained
            if j >= i:
                assert covers(later, earlier)


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_counts_is_the_rule(conn: db.Connection, count: int) -> None:
    """For all histories, handovers at all times and windows from all times, PostgreSQL picks the rows of the rule."""
    rows = [(BASE + x, side, action) for x in XIDS for side in "TW" for action in "IT"]
    values = ", ".join(f"('{x}'::xid8, '{side}'::\"char\", '{action}'::\"char\")" for x, side, action in rows)
    checked = set()
    for ends in HISTORIES:
        expected, queries = [], []
        for times in itertools.combinations_with_replacement(TIMES, count):
            sides = [("W", "T")[place % 2] for place in range(count)]
            handovers = tuple(Handover(snapshot(ends, at), side) for at, side in zip(times, sides, strict=True))
            for since in (snapshot(ends, at) for at in TIMES):
                if (handovers, since) in checked:
                    continue
                checked.add((handovers, since))
                condition = Sides(handovers).counts(since)
                queries.append(
                    f"SELECT ARRAY(SELECT xid::text || cdc_source::text || action::text FROM (VALUES {values})"
                    f" AS b(xid, cdc_source, action) WHERE NOT pg_visible_in_snapshot(xid, '{since}') AND {condition}"
                    " ORDER BY 1)"
                )
                expected.append(
                    sorted(
                        f"{x}{side}{action}"
                        for x, side, action in rows
                        if not visible(x, since) and (action == "T" or side == side_by_definition(x, handovers))
                    )
                )
        if queries:
            assert [found for (found,) in conn.execute(db.statement(" UNION ALL ".join(queries)))] == expected
    assert len(checked) > 10


def test_from_decoder_tells_whether_a_row_of_the_decoder_may_count() -> None:
    for ends in HISTORIES[::7]:
        for first, second in itertools.combinations_with_replacement(TIMES, 2):
            handovers = (Handover(snapshot(ends, first), "W"), Handover(snapshot(ends, second), "T"))
            for since in (snapshot(ends, at) for at in TIMES):
                counting = {side_by_definition(BASE + x, handovers) for x in XIDS if not visible(BASE + x, since)}
                if "W" in counting:
                    assert Sides(handovers).from_decoder(since)
                if covers(since, handovers[1].at):
                    assert not Sides(handovers).from_decoder(since)


def test_what_was_never_handed_over_costs_nothing() -> None:
    assert "cdc_source" not in changes_sql(1, [("a", "a")], "1:1:", "2:2:")


def test_handovers_that_the_window_starts_after_are_not_asked_about() -> None:
    handovers = (Handover("10:10:", "W"), Handover("20:20:", "T"), Handover("30:30:", "W"))
    assert Sides(handovers).counts("30:40:35") == "(cdc_source = 'W' OR action = 'T')"
    assert Sides(handovers).counts("20:25:22").count("pg_visible_in_snapshot") == 1
    assert Sides(()).counts("1:1:") == "(cdc_source = 'T' OR action = 'T')"


@pytest.mark.parametrize(("at", "side"), [("1:1", "W"), ("1:1:'", "W"), ("1:1:", "X")])
def test_only_snapshots_and_sides_become_sql(at: str, side: str) -> None:
    with pytest.raises(ValueError, match="not a"):
        Handover(at, side)
