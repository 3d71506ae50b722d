"""One look at every source: what is known of it, what is decided, and the step taken. Called by the service in turn."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import psycopg

from pgtrickle.capture import eligibility, handover, shift, slot, triggers
from pgtrickle.capture.modes import (
    Asked,
    Decision,
    DecoderState,
    Limits,
    Mode,
    Situation,
    SlotState,
    Step,
    combine,
    decide,
)
from pgtrickle.capture.slot import Slot
from pgtrickle.config import Settings
from pgtrickle.errors import Error, StateError

_DECODER_STATES: Final = {"STREAMING": DecoderState.RUNNING, "ERROR": DecoderState.FAILED}


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
    sources = conn.execute("SELECT source_relid FROM pgtrickle.pgt_change_tracking ORDER BY source_relid").fetchall()
    steered = []
    for (oid,) in sources:
        found = observe(conn, oid, settings, decoder=decoder)
        if found is None:
            continue
        decision = decide(found)
        _note(conn, oid, found.asked, decision)
        try:
            handover.carry_out(conn, oid, decision, set_identity=settings.auto_replica_identity)
            steered.append(Steered(oid, decision))
        except (Error, psycopg.Error) as raised:
            if conn.broken:
                raise
            error = raised if isinstance(raised, Error) else _refusal(raised)
            if decision.step is Step.START:
                shift.postpone(conn, oid, str(error))
            steered.append(Steered(oid, decision, error))
    if slot.inspect(conn).active_pid is None:
        slot.drop_if_unused(conn)
    return tuple(steered)


def observe(
    conn: psycopg.Connection[Any], source_oid: int, settings: Settings, *, decoder: DecoderState | None = None
) -> Situation | None:
    """All that the decision about a source depends on; None if it is not captured (any more)."""
    row = conn.execute(
        "SELECT k.cdc_mode, k.columns, k.transition_started_at, k.next_try_at, clock_timestamp(), g.since, d.status,"
        " d.error, coalesce(p.lsn >= k.transition_lsn, false),"
        " EXISTS (SELECT FROM pg_publication_rel AS r WHERE r.oid = k.membership)"
        " FROM pgtrickle.pgt_change_tracking AS k CROSS JOIN pgtrickle.pgt_decoded AS p"
        " LEFT JOIN pgtrickle.pgt_draining AS g USING (source_relid)"
        " LEFT JOIN pgtrickle.pgt_decoder AS d ON d.slot_name = pgtrickle.slot_name() WHERE k.source_relid = %s",
        (source_oid,),
    ).fetchone()
    if row is None:
        return None
    mode, columns, started, next_try, now, draining, status, error, caught_up, published = row
    current = slot.inspect(conn)
    return Situation(
        mode=Mode(mode),
        asked=asked(conn, source_oid, settings),
        eligibility=eligibility.check(conn, source_oid, columns, set_identity=settings.auto_replica_identity),
        slot=current.state,
        published=published,
        decoder=decoder or _decoder_state(status, current),
        caught_up=caught_up,
        lag_bytes=current.lag_bytes,
        limits=limits(settings),
        now=now,
        triggers_stand=triggers.stand(conn, source_oid),
        draining_since=draining,
        transition_started_at=started,
        next_try_at=next_try,
        decoder_error=error,
    )


def asked(conn: psycopg.Connection[Any], source_oid: int, settings: Settings) -> Asked:
    """What the source's consumers ask for together."""
    consumers = conn.execute(
        "SELECT format('%%I.%%I', t.pgt_schema, t.pgt_name), t.requested_cdc_mode FROM pgtrickle.pgt_stream_tables AS t"
        " JOIN pgtrickle.pgt_dependencies AS d USING (pgt_id)"
        " WHERE d.source_relid = %s AND t.effective_mode <> 'FULL' ORDER BY t.pgt_id",
        (source_oid,),
    ).fetchall()
    return combine(consumers, settings.cdc_mode)


def limits(settings: Settings) -> Limits:
    return Limits(
        critical=settings.wal_backpressure_critical_bytes if settings.enforce_backpressure else None,
        resume=settings.wal_backpressure_resume_bytes,
        timeout=timedelta(seconds=settings.wal_transition_timeout),
    )


def _refusal(error: psycopg.Error) -> StateError:
    """What PostgreSQL said to one source's step, which must not keep the others from theirs."""
    said = error.diag.message_primary or str(error)
    return StateError(f"PostgreSQL refused: {said}", code="PT340", hint=error.diag.message_hint)


def _decoder_state(status: str | None, current: Slot) -> DecoderState:
    """As recorded; but one that was killed could not record it, and then no one reads the slot."""
    state = _DECODER_STATES.get(status or "", DecoderState.STOPPED)
    if state is DecoderState.RUNNING and (current.state is not SlotState.ALIVE or current.active_pid is None):
        return DecoderState.STOPPED
    return state


def _note(conn: psycopg.Connection[Any], source_oid: int, wanted: Asked, decision: Decision) -> None:
    """Show to whoever looks what is asked for and why the source is captured as it is."""
    conn.execute(
        "UPDATE pgtrickle.pgt_change_tracking SET requested = %(mode)s, note = %(note)s WHERE source_relid = %(oid)s"
        " AND (requested, note) IS DISTINCT FROM (%(mode)s, %(note)s)",
        {"mode": wanted.mode, "note": decision.reason, "oid": source_oid},
    )
