"""One look at every source: what is known of it, what is decided, and the step taken. Called by the service in turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from pgtrickle.capture import handover, shift, slot
from pgtrickle.capture.modes import Decision, DecoderState, Step, decide
from pgtrickle.capture.observe import Observed, observe
from pgtrickle.config import Settings
from pgtrickle.errors import Error, StateError


@dataclass(frozen=True, slots=True)
class Steered:
    """What became of one source: the decision, and the error that kept its step from being taken, if one did."""

    source_oid: int
    decision: Decision
    error: Error | None = None


def steer(
    conn: psycopg.Connection[Any], settings: Settings, *, decoder: DecoderState | None = None
) -> tuple[Steered, ...]:
    """Take one step for each source, then drop the slot if nothing needs it and no one reads it. `conn` must be in no
    transaction. Who runs the decoder asks `slot.is_used` whether to go on.

    `decoder` is its state if the caller runs it and knows better than what it last recorded of itself: that it is
    FAILED for good, say, and not about to be started again.
    """
    steered = []
    for each in observe(conn, settings, decoder=decoder):
        if decide(each.situation).step is Step.STAY:
            steered.append(_step(conn, each, settings))
            continue
        # The steps before this one may have taken their time: look again, at this one only.
        steered += [
            _step(conn, again, settings)
            for again in observe(conn, settings, decoder=decoder, source_oid=each.source_oid)
        ]
    if slot.inspect(conn).active_pid is None:
        slot.drop_if_unused(conn)
    return tuple(steered)


def _step(conn: psycopg.Connection[Any], source: Observed, settings: Settings) -> Steered:
    """Decide, and do it. What goes wrong with one source must not keep the others from their steps."""
    decision = decide(source.situation)
    _note(conn, source, decision)
    try:
        handover.carry_out(conn, source.source_oid, decision, set_identity=settings.auto_replica_identity)
    except (Error, psycopg.Error) as raised:
        if conn.broken:
            raise
        error = raised if isinstance(raised, Error) else _refusal(raised)
        if decision.step is Step.START:
            shift.postpone(conn, source.source_oid, str(error))
        return Steered(source.source_oid, decision, error)
    return Steered(source.source_oid, decision)


def _note(conn: psycopg.Connection[Any], source: Observed, decision: Decision) -> None:
    """Show to whoever looks what is asked for and why the source is captured as it is."""
    noted = (source.situation.asked.mode, decision.reason)
    if noted != source.noted:
        conn.execute(
            "UPDATE pgtrickle.pgt_change_tracking SET requested = %s, note = %s WHERE source_relid = %s",
            (*noted, source.source_oid),
        )


def _refusal(error: psycopg.Error) -> StateError:
    said = error.diag.message_primary or str(error)
    return StateError(f"PostgreSQL refused: {said}", code="PT340", hint=error.diag.message_hint)
