"""When a circle of stream tables may be, and what its refresh does. Pure; `circle_refresh.py` gathers what it depends
on.

The tables of a circle hold the least fixpoint of their queries: what follows from the other tables, and nothing that
only follows from itself. There is one if the queries are monotone in each other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pgtrickle.delta.monotone import name, obstacle
from pgtrickle.errors import Refused, StateError
from pgtrickle.query.clock import values_in
from pgtrickle.query.operators import Operator
from pgtrickle.refresh.decide import Action, Decision, counted


@dataclass(frozen=True, slots=True)
class Member:
    """A stream table of a circle: its storage, its query if that can be maintained by changes, or why it cannot."""

    relid: int
    title: str
    tree: Operator | None
    refusal: str | None
    sources: frozenset[int]


@dataclass(frozen=True, slots=True)
class Gained:
    """A source outside the circle in the window: changes captured, whether it was truncated or has lost rows."""

    title: str
    changes: int
    truncated: bool
    lost_rows: bool


def route(members: Iterable[Member]) -> str:
    """The names around the circle, or around one if there are several."""
    known = {member.relid: member for member in members}
    way = [min(known)]
    while reads := known[way[-1]].sources & known.keys():
        source = min(reads)
        if source in way:
            around = way[way.index(source) :][::-1]
            first = around.index(min(around))
            return arrows([known[relid].title for relid in (*around[first:], *around[:first])])
        way.append(source)
    return ", ".join(member.title for member in known.values())  # a view was replaced: it is none any more


def arrows(titles: Sequence[str]) -> str:
    """A circle as it is written."""
    return " → ".join([*titles, titles[0]])


def not_allowed(way: str) -> Refused:
    """The error for a circle where there may be none."""
    return Refused(
        f"stream tables would read each other in a circle: {way}",
        code="PT371",
        hint="let one of them read base tables instead, or allow monotone circles (setting allow_circular)",
    )


def require_monotone(members: Collection[Member]) -> None:
    """StateError if the circle cannot run to a fixpoint, naming what is in the way."""
    relids = frozenset(member.relid for member in members)
    for member in members:
        if member.tree is None:
            found = member.refusal or "its query cannot be maintained by changes"
        elif values_in(member.tree):
            found = "it reads the clock, which moves from round to round"
        elif (above := obstacle(member.tree, relids)) is not None:
            found = f"{name(above)} is not monotone"
        else:
            continue
        raise StateError(
            f"the circle {route(members)} cannot run to a fixpoint: in {member.title}, {found}",
            code="PT372",
            hint="around it only filters, projections, inner joins, UNION ALL and DISTINCT (GROUP BY) are allowed",
        )


def other_columns(title: str) -> Refused:
    """The error for a table that would get other columns while others of its circle read it."""
    return Refused(
        f"{title} would get other columns in the same step that puts it in a circle",
        code="PT376",
        hint="alter it to a query with these columns first, then to the one that reads the circle",
    )


def unsettled(way: str, rounds: int) -> StateError:
    """The error for a circle that grows and grows."""
    return StateError(
        f"the circle {way} has not settled after {rounds} rounds",
        code="PT373",
        hint="see that no round makes rows that are all new (DISTINCT, a bound on what is counted up), or raise "
        "max_fixpoint_iterations; nothing was changed",
    )


def decide(
    members: Collection[Member], reinitialize: str | None, full: str | None, sources: Mapping[int, Gained]
) -> Decision:
    """What the refresh of all members does: nothing, go on from what they hold (DIFFERENTIAL), or begin from nothing.

    They may go on only if their queries can but grow. `reinitialize` and `full` are reasons to begin from nothing.
    """
    if full:
        return Decision(Action.FULL, full)
    truncated = [source.title for source in sources.values() if source.truncated]
    if truncated:
        reinitialize = reinitialize or f"{', '.join(truncated)} was truncated"
    if reinitialize:
        return Decision(Action.REINITIALIZE, reinitialize)
    changed = {oid: source for oid, source in sources.items() if source.changes}
    total = sum(source.changes for source in changed.values())
    if not total:
        return Decision(Action.NO_DATA, "no changes since the last refresh")
    lost = [source.title for source in changed.values() if source.lost_rows]
    if lost:
        return Decision(Action.FULL, f"{counted(total)}, and rows of {', '.join(lost)} are gone")
    for member in members:
        above = obstacle(member.tree, changed.keys()) if member.tree is not None else None
        if above is not None:
            return Decision(Action.FULL, f"{counted(total)}, some below {name(above)} in {member.title}")
    return Decision(Action.DIFFERENTIAL, counted(total))
