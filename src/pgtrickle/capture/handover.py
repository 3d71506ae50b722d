"""Moving a source between triggers and WAL. Called by the service with what `modes.decide` decided, and by tests.

Why nothing is lost or doubled. A source's rows come from two writers into one buffer: its triggers (T) and the decoder
(W). At each moment one side counts, and a handover at snapshot H says: for transactions visible in H the side before,
for all others the side after. What must hold is that each side is complete for the transactions it counts for.

* Transactions visible in H. We take H while holding SHARE ROW EXCLUSIVE on the source, which every writer's lock
  conflicts with until its transaction ends. So whoever wrote before has ended, and its changes are whole on the old
  side: fired by triggers that stood all the time (TRIGGER to WAL), or decoded from a slot that lives (back).
* Transactions not visible in H. Some may have got their id long before, but none has written to the source: it would
  still hold its lock. All that they write to it comes after our commit, so the new side sees the whole of it: triggers
  armed in this same transaction, or
* the slot (TRIGGER to WAL). `begin_transition` has made it, which means that its consistent point is reached: every
  transaction that commits later is decoded, whenever it began. And it has committed the membership in the publication
  under the same kind of lock: pgoutput asks for it as of the change at hand, or as of the last commit that changed the
  catalog, and no transaction with changes to the source was open then, so all changes after it are published.

Rows of the side that does not count are in the buffer too, and `change_window.py` passes them over. A T row always
counts.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

from pgtrickle.capture import eligibility, mode_change, slot, triggers
from pgtrickle.capture.change_window import Sides, covers, sides_of
from pgtrickle.capture.locks import GIVE_UP_AFTER_S, LockRequest, lock_all
from pgtrickle.capture.modes import CaptureMode, ModeDecision, SlotState, Step
from pgtrickle.errors import StateError
from pgtrickle.fence import Fence, fenced


def carry_out(
    conn: psycopg.Connection[Any],
    source_oid: int,
    decision: ModeDecision,
    *,
    set_identity: bool = False,
    give_up_after_s: float = GIVE_UP_AFTER_S,
    fence: Fence | None = None,
) -> None:
    """Take the step that was decided; `conn` must be in no transaction. A StateError says why it cannot be taken now:
    nothing has changed then, and the next decision is taken on new facts. `fence`: of the service that takes it."""
    if decision.step is Step.STAY:
        return
    reason, failed, patience = decision.reason, decision.failed, give_up_after_s
    if decision.step is Step.START:
        slot.ensure(conn)
    with fenced(conn, fence):
        match decision.step:
            case Step.START:
                _publish(conn, source_oid, reason, set_identity=set_identity, give_up_after_s=patience)
            case Step.COMPLETE:
                complete(conn, source_oid, reason, give_up_after_s=patience)
            case Step.ABANDON:
                abandon(conn, source_oid, reason, failed=failed, give_up_after_s=patience)
            case Step.FALL_BACK:
                back(conn, source_oid, reason, failed=failed, give_up_after_s=patience)
            case Step.FALL_BACK_LOSSY:
                back_lossy(conn, source_oid, reason, give_up_after_s=patience)
            case Step.LET_GO:
                let_go(conn, source_oid, reason)


def begin_transition(
    conn: psycopg.Connection[Any],
    source_oid: int,
    reason: str,
    *,
    set_identity: bool = False,
    give_up_after_s: float = GIVE_UP_AFTER_S,
) -> None:
    """TRIGGER → TRANSITIONING: from now on the source is decoded too, but its triggers' rows are those that count.

    Slot and publication are made first where they are missing, in transactions of their own.
    """
    slot.ensure(conn)
    _publish(conn, source_oid, reason, set_identity=set_identity, give_up_after_s=give_up_after_s)


def _publish(
    conn: psycopg.Connection[Any], source_oid: int, reason: str, *, set_identity: bool, give_up_after_s: float
) -> None:
    with conn.transaction():
        held = slot.hold(conn)
        triggers.serialise(conn, [source_oid])
        _require(mode_change.mode_of(conn, source_oid), CaptureMode.TRIGGER)
        found = _eligibility(conn, source_oid, set_identity=set_identity)
        locks = [_lock(conn, source_oid, "SHARE ROW EXCLUSIVE")]
        locks += [_lock(conn, oid, "ACCESS EXCLUSIVE") for oid in found.unidentified]
        lock_all(conn, locks, give_up_after_s=give_up_after_s)
        found = _eligibility(conn, source_oid, set_identity=set_identity)
        if not found.eligible or held.state is not SlotState.ALIVE:
            raise _cannot("move to WAL", found.reason or "the replication slot is gone", found.hint)
        mode_change.set_identity(conn, source_oid, found.unidentified)
        mode_change.publish(conn, source_oid)
        mode_change.record(conn, source_oid, CaptureMode.TRANSITIONING, reason, event="cdc_transition_started")


def complete(
    conn: psycopg.Connection[Any], source_oid: int, reason: str, *, give_up_after_s: float = GIVE_UP_AFTER_S
) -> str:
    """TRANSITIONING → WAL, exactly at the snapshot that is returned. Writers wait for the few milliseconds it takes.

    Refused if a trigger did not stand all the time: it would be the last moment at which that can be seen.
    """
    with conn.transaction():
        held = slot.hold(conn)
        triggers.serialise(conn, [source_oid])
        _require(mode_change.mode_of(conn, source_oid), CaptureMode.TRANSITIONING)
        lock_all(conn, [_lock(conn, source_oid, "SHARE ROW EXCLUSIVE")], give_up_after_s=give_up_after_s)
        found = _eligibility(conn, source_oid)
        problem = (
            found.reason
            or (None if held.state is SlotState.ALIVE else "the replication slot is gone")
            or (None if mode_change.is_published(conn, source_oid) else "it is no longer published")
            or (None if triggers.stand(conn, source_oid) else "a trigger is missing or was disabled")
        )
        if problem is not None:
            raise _cannot("move to WAL", problem, found.hint)
        triggers.disarm(conn, source_oid)
        at = mode_change.hand_over(conn, source_oid, "W")
        mode_change.record(conn, source_oid, CaptureMode.WAL, reason, event="cdc_transition_complete")
        return at


def abandon(
    conn: psycopg.Connection[Any],
    source_oid: int,
    reason: str,
    *,
    failed: bool = True,
    give_up_after_s: float = GIVE_UP_AFTER_S,
) -> None:
    """TRANSITIONING → TRIGGER. The triggers have counted all along, so nothing changes but that decoding ends."""
    with conn.transaction():
        triggers.serialise(conn, [source_oid])
        _require(mode_change.mode_of(conn, source_oid), CaptureMode.TRANSITIONING)
        lock_all(conn, [_lock(conn, source_oid, "SHARE UPDATE EXCLUSIVE")], give_up_after_s=give_up_after_s)
        mode_change.unpublish(conn, source_oid)
        event = "cdc_transition_failed" if failed else "cdc_transition_complete"
        mode_change.record(conn, source_oid, CaptureMode.TRIGGER, reason, event=event, failed=failed)


def back(
    conn: psycopg.Connection[Any],
    source_oid: int,
    reason: str,
    *,
    failed: bool = False,
    give_up_after_s: float = GIVE_UP_AFTER_S,
) -> str:
    """WAL → TRIGGER, exactly at the snapshot that is returned, as long as the slot lives.

    Decoded rows from before may still be to come: the source drains until the decoder has passed this point, and a
    refresh whose window reaches back over it waits for that.
    """
    with conn.transaction():
        triggers.serialise(conn, [source_oid])
        _require(mode_change.mode_of(conn, source_oid), CaptureMode.WAL)
        triggers.arm(conn, source_oid, give_up_after_s=give_up_after_s)
        return mode_change.to_triggers(conn, source_oid, reason, failed=failed)


def back_lossy(
    conn: psycopg.Connection[Any], source_oid: int, reason: str, *, give_up_after_s: float = GIVE_UP_AFTER_S
) -> None:
    """To TRIGGER after changes were lost: the dependents compute anew, and the history says so.

    From WAL, or from TRIGGER while the source still drains.
    """
    with conn.transaction():
        triggers.serialise(conn, [source_oid])
        mode = mode_change.mode_of(conn, source_oid)
        if mode is CaptureMode.WAL:
            triggers.arm(conn, source_oid, give_up_after_s=give_up_after_s)
            mode_change.to_triggers(conn, source_oid, reason, failed=True, lossy=True)
            return
        _require(mode, CaptureMode.TRIGGER)
        mode_change.lose(conn, source_oid, reason)
        mode_change.record(conn, source_oid, CaptureMode.TRIGGER, reason, event="cdc_fallback", failed=True)


def let_go(conn: psycopg.Connection[Any], source_oid: int, reason: str) -> None:
    """To TRIGGER, for a table that does not exist any more: no lock is needed, and no one waits for its changes."""
    with conn.transaction():
        triggers.serialise(conn, [source_oid])
        if mode_change.mode_of(conn, source_oid) is None:
            return
        mode_change.await_no_more(conn, source_oid)
        mode_change.record(conn, source_oid, CaptureMode.TRIGGER, reason, event="cdc_fallback")


def prune(conn: psycopg.Connection[Any], source_oid: int) -> int:
    """Forget the handovers that no consumer's window can reach back to; returns how many. Called after refreshes."""
    with conn.transaction():
        frontiers = [
            str(frontier)
            for (frontier,) in conn.execute(
                "SELECT t.frontier::text FROM pgtrickle.pgt_stream_tables AS t JOIN pgtrickle.pgt_dependencies AS d"
                " USING (pgt_id) WHERE d.source_relid = %s AND t.effective_mode = 'DIFFERENTIAL'",
                (source_oid,),
            )
        ]
        sides = sides_of(conn, [source_oid]).get(source_oid, Sides())
        needless = _needless(sides, frontiers)
        conn.execute("DELETE FROM pgtrickle.pgt_handovers WHERE handover_id = ANY(%s)", (needless,))
        return len(needless)


def _needless(sides: Sides, frontiers: list[str]) -> list[int]:
    """All handovers before the last one that every frontier covers; and that one too if the triggers' side follows,
    which is what counts where there is no handover."""
    covered = [
        place
        for place, handover in enumerate(sides.handovers)
        if all(covers(frontier, handover.at) for frontier in frontiers)
    ]
    if not covered:
        return []
    last = covered[-1]
    return [each.handover_id for each in sides.handovers[: last + (sides.handovers[last].side == "T")]]


def _eligibility(
    conn: psycopg.Connection[Any], source_oid: int, *, set_identity: bool = False
) -> eligibility.Eligibility:
    row = conn.execute(
        "SELECT columns FROM pgtrickle.pgt_change_tracking WHERE source_relid = %s", (source_oid,)
    ).fetchone()
    assert row is not None, "the caller has read its mode"
    return eligibility.check(conn, source_oid, row[0], set_identity=set_identity)


def _lock(conn: psycopg.Connection[Any], oid: int, mode: str) -> LockRequest:
    """A lock of a table, and of all its partitions."""
    row = conn.execute(
        "SELECT n.nspname, c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
        " WHERE c.oid = %s",
        (oid,),
    ).fetchone()
    if row is None:
        raise _cannot("change its mode", "the table does not exist", "Drop or alter the stream tables that read it.")
    return LockRequest(sql.Identifier(*row), mode)


def _require(mode: CaptureMode | None, expected: CaptureMode) -> None:
    if mode is not expected:
        raise _cannot(
            "change its mode",
            "it is not captured any more" if mode is None else f"it is in mode {mode}, not {expected}",
            "Another session has changed it meanwhile.",
        )


def _cannot(what: str, reason: str, hint: str | None) -> StateError:
    return StateError(f"the source cannot {what}: {reason}", code="PT359", hint=hint)
