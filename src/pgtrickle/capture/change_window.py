"""What changed between two snapshots. Called by the refresh: first `pending`, then `changes_sql` within its plan.

A change is in the window (since, until] iff its transaction is visible in `until` and not in `since`. A reader whose
own snapshot is `until` sees no other rows in a buffer filled by triggers, so `until` may then be left out.

Where a source has been handed over between triggers and WAL, its buffer has rows of both, and only one side counts for
each transaction (`Sides`). A T row counts on either side: to compute anew once too often does no harm.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg import sql

from pgtrickle.capture import captured
from pgtrickle.capture.buffer import SCHEMA, buffer_column, buffer_identifier, buffer_name, function_name
from pgtrickle.errors import StateError
from pgtrickle.model import TABLEOID, quote

_SNAPSHOT = re.compile(r"\d+:\d+:(\d+(,\d+)*)?")
_SINCE, _UNTIL = "%(since)s::pg_snapshot", "%(until)s::pg_snapshot"


class NotCaptured(StateError):
    """A source has no buffer: it is new to the query, or someone dropped the buffer."""

    code = "PT322"


@dataclass(frozen=True, slots=True)
class Pending:
    """Changes of one source in a window.

    `truncated`: they do not tell its content, compute it anew. `captured` is false when a trigger of ours is missing,
    was disabled for a time or does not see a subscription's rows, or the slot or the publication is gone, so that
    changes may be lost: `attach` again, then compute anew. (The triggers are enabled ALWAYS; a user's DISABLE TRIGGER
    ALL … ENABLE TRIGGER ALL leaves them enabled otherwise, and so shows.)
    """

    changes: int
    truncated: bool
    captured: bool


@dataclass(frozen=True, slots=True)
class Handover:
    """For transactions not visible in the snapshot `at`, rows of `side` (T or W) count, up to the next handover."""

    at: str
    side: str
    handover_id: int = 0

    def __post_init__(self) -> None:
        if _SNAPSHOT.fullmatch(self.at) is None:
            raise ValueError(f"not a snapshot: {self.at!r}")
        if self.side not in ("T", "W"):
            raise ValueError(f"not a side: {self.side!r}")


@dataclass(frozen=True, slots=True)
class Sides:
    """Which rows of a source's buffer count: its handovers, oldest first. Before the first, those of triggers.

    `awaits`: rows that count are to come from the decoder as long as it has not passed this position (None: none are,
    or, while `decoded`, up to the end of the WAL).
    """

    handovers: tuple[Handover, ...] = ()
    decoded: bool = False
    awaits: str | None = None

    def reach(self, since: str) -> tuple[str, tuple[Handover, ...]]:
        """The side at the window's start, and the handovers that may divide it."""
        side, left = "T", self.handovers
        while left and covers(since, left[0].at):  # then no row of the window is from before that handover
            side, left = left[0].side, left[1:]
        return side, left

    def from_decoder(self, since: str) -> bool:
        """Whether the window has transactions whose decoded rows count. They arrive after their commit: wait for them,
        and read the buffer at a snapshot taken after that, with `until` given."""
        side, left = self.reach(since)
        return side == "W" or any(handover.side == "W" for handover in left)

    def counts(self, since: str) -> str:
        """The condition on a row of the window: that it is of the side that counts for its transaction."""
        side, left = self.reach(since)
        whens = []
        for handover in left:
            whens.append(f"WHEN pg_visible_in_snapshot(xid, {_snapshot(handover.at)}) THEN '{side}'")
            side = handover.side
        counting = f"""CASE {" ".join(whens)} ELSE '{side}' END::"char\"""" if whens else f"'{side}'"
        return f"(cdc_source = {counting} OR action = 'T')"


def sides_of(conn: psycopg.Connection[Any], source_oids: Sequence[int]) -> dict[int, Sides]:
    """The sides of those sources that have ever been decoded; the others are not in the answer.

    Read in the snapshot `until`, or later: a handover that `until` does not see divides no transaction it sees, as the
    source was locked from that handover's snapshot to its commit.
    """
    if not source_oids:
        return {}
    sides = {
        int(oid): Sides((), decoded, awaits)
        for oid, decoded, awaits in conn.execute(
            "SELECT k.source_relid::bigint, k.cdc_mode = 'WAL', g.lsn::text FROM pgtrickle.pgt_change_tracking AS k"
            " LEFT JOIN pgtrickle_internal.pgt_draining AS g USING (source_relid)"
            " WHERE k.source_relid = ANY(%s::oid[]) AND k.transition_lsn IS NOT NULL",
            (list(source_oids),),
        )
    }
    if sides:
        for oid, at, side, handover_id in conn.execute(
            "SELECT source_relid::bigint, at::text, side::text, handover_id FROM pgtrickle.pgt_handovers"
            " WHERE source_relid = ANY(%s::oid[]) ORDER BY handover_id",
            (list(sides),),
        ):
            found = sides[int(oid)]
            sides[int(oid)] = replace(found, handovers=(*found.handovers, Handover(at, side, handover_id)))
    return sides


def covers(later: str, earlier: str) -> bool:
    """Whether every transaction visible in the snapshot `earlier` is visible in `later`; false if in doubt."""
    _, later_end, later_open = _parts(later)
    _, earlier_end, earlier_open = _parts(earlier)
    return later_end >= earlier_end and all(xid >= earlier_end or xid in earlier_open for xid in later_open)


def pending(
    conn: psycopg.Connection[Any],
    source_oids: Sequence[int],
    since: str,
    until: str | None = None,
    *,
    sides: Mapping[int, Sides] | None = None,
) -> dict[int, Pending]:
    """Count the window's changes of every source, and see that it is captured, in one round trip."""
    if not source_oids:
        return {}
    try:
        if sides:
            rows = conn.execute(pending_sql(source_oids, since, until, sides=sides)).fetchall()
        else:  # the same text each time, so that it is planned once
            asked = _pending_sql(source_oids, dict.fromkeys(source_oids, _tests(_SINCE, until and _UNTIL)))
            rows = conn.execute(asked, {"since": since, "until": until}).fetchall()
    except psycopg.errors.UndefinedTable as error:
        raise NotCaptured(
            f"a change buffer is missing: {error.diag.message_primary}",
            hint="The next refresh sets up capture again.",
        ) from error
    return {oid: Pending(changes, truncated, is_captured) for oid, changes, truncated, is_captured in rows}


def pending_sql(
    source_oids: Sequence[int], since: str, until: str | None = None, *, sides: Mapping[int, Sides] | None = None
) -> sql.Composed:
    """What `pending` asks: of each source its oid, and the values of a `Pending`."""
    return _pending_sql(source_oids, {oid: in_window(since, until, (sides or {}).get(oid)) for oid in source_oids})


def _pending_sql(source_oids: Sequence[int], windows: Mapping[int, str]) -> sql.Composed:
    counts = [
        sql.SQL(
            "SELECT {oid}::bigint, count(*), coalesce(bool_or(action = 'T'), false),"
            " coalesce((SELECT {rule} FROM pgtrickle.pgt_change_tracking AS k, (SELECT {triggers} FROM pg_trigger"
            "     WHERE tgfoid = to_regproc({function}) AND tgenabled = 'A') AS t"
            "   WHERE k.source_relid = {oid}), false)"
            " FROM {buffer} WHERE {window}"
        ).format(
            oid=sql.Literal(oid),
            rule=sql.SQL(captured.RULE),
            triggers=sql.SQL(captured.TRIGGERS),
            function=sql.Literal(f"{SCHEMA}.{function_name(oid)}"),
            buffer=buffer_identifier(oid),
            window=sql.SQL(windows[oid]),
        )
        for oid in source_oids
    ]
    return sql.SQL(" UNION ALL ").join(counts)


def changes_sql(
    source_oid: int,
    columns: Sequence[tuple[str, str]],
    since: str,
    until: str | None = None,
    *,
    within: str = "true",
    sides: Sides | None = None,
) -> str:
    """SELECT text of the window's changes: one output column for each (attribute, output name), then weight `w`.

    An inserted row has weight 1, a deleted one −1, an update is −old +new. Columns have the types of the source (the
    base type where that is a domain). Not consolidated; a window with a T row must not be read this way. `within` is
    a condition on the buffer's rows, for readers that share them.
    """
    buffer = f"{quote(SCHEMA)}.{quote(buffer_name(source_oid))}"

    def side(name: str, weight: int, without: str) -> str:
        values = "".join(
            f"{quote(buffer_column(name, attribute))} AS {quote(output)}, " for attribute, output in columns
        )
        return (
            f"SELECT {values}({weight})::bigint AS w FROM {buffer}"
            f" WHERE action NOT IN ('{without}', 'T') AND {in_window(since, until, sides)} AND {within}"
        )

    # Two scans: measured no slower than one scan that makes two rows of each, and at times much faster.
    return f"{side('old', -1, 'I')} UNION ALL {side('new', 1, 'D')}"


def of_itself(source_oid: int) -> str:
    """The condition on a buffer's row that it is of the source itself, not of a table that inherits from it."""
    return f"{source_oid} IN ({', '.join(quote(buffer_column(side, TABLEOID)) for side in ('old', 'new'))})"


def of_heirs(source_oid: int) -> str:
    return f"({of_itself(source_oid)}) IS NOT TRUE"


def in_window(since: str, until: str | None, sides: Sides | None) -> str:
    """The condition on a buffer's row that it is in the window, and counts."""
    tests = _tests(_snapshot(since), until and _snapshot(until))
    return tests if sides is None else f"{tests} AND {sides.counts(since)}"


def _tests(since: str, until: str | None) -> str:
    """Of SQL that has the snapshots."""
    begun = f"NOT pg_visible_in_snapshot(xid, {since})"
    return begun if until is None else f"{begun} AND pg_visible_in_snapshot(xid, {until})"


def _parts(snapshot: str) -> tuple[int, int, frozenset[int]]:
    """A snapshot's first transaction that was open, the first that had not begun, and all that were open."""
    first, end, open_ones = snapshot.split(":")
    return int(first), int(end), frozenset(int(each) for each in open_ones.split(",") if each)


def _snapshot(text: str) -> str:
    """A snapshot as a literal; it becomes part of SQL text, so nothing else may pass."""
    if _SNAPSHOT.fullmatch(text) is None:
        raise ValueError(f"not a snapshot: {text!r}")
    return f"'{text}'::pg_snapshot"
