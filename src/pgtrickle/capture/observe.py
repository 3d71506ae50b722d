"""What is known of the sources: all that the decisions about their modes depend on. Called by `supervise.py`.

All sources are looked at together, in a few statements: the service does it every second, however many there are.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import psycopg

from pgtrickle.capture import eligibility, slot
from pgtrickle.capture.modes import CaptureMode, DecoderState, ModeLimits, RequestedMode, Situation, SlotState, combine
from pgtrickle.capture.slot import Slot
from pgtrickle.config import Settings

_DECODER_STATES: Final = {"STREAMING": DecoderState.RUNNING, "ERROR": DecoderState.FAILED}


@dataclass(frozen=True, slots=True)
class Observed:
    """A source, its situation, and what is noted of it: what is asked for, and why it is captured as it is."""

    source_oid: int
    situation: Situation
    noted: tuple[str | None, str | None]


def observe(
    conn: psycopg.Connection[Any],
    settings: Settings,
    *,
    decoder: DecoderState | None = None,
    source_oid: int | None = None,
) -> tuple[Observed, ...]:
    """Every captured source as it is now, or the one that is named. `decoder` as for `steer`."""
    asked = asked_of(conn, settings)
    verdicts = eligibility.verdicts(conn, set_identity=settings.auto_replica_identity, source_oid=source_oid)
    current = slot.inspect(conn)
    rows = conn.execute(
        "SELECT k.source_relid, k.cdc_mode, k.transition_started_at, k.next_try_at, clock_timestamp(), g.since,"
        " d.status, d.error, d.updated_at, coalesce(p.lsn >= k.transition_lsn, false),"
        " k.source_relid IN (SELECT r.source_relid FROM pgtrickle_internal.pgt_published AS r),"
        " coalesce(w.standing, 0) = k.trigger_count, k.requested, k.note"
        " FROM pgtrickle.pgt_change_tracking AS k CROSS JOIN pgtrickle_internal.pgt_decoded AS p"
        " LEFT JOIN pgtrickle_internal.pgt_draining AS g USING (source_relid)"
        " LEFT JOIN pgtrickle.pgt_decoder AS d ON d.slot_name = pgtrickle_internal.slot_name()"
        " LEFT JOIN (SELECT tgfoid, count(*) AS standing FROM pg_trigger WHERE tgenabled = 'A' GROUP BY tgfoid) AS w"
        " ON w.tgfoid = to_regproc('pgtrickle_changes.capture_' || k.source_relid)"
        " WHERE %(only)s::oid IS NULL OR k.source_relid = %(only)s::oid ORDER BY k.source_relid",
        {"only": source_oid},
    ).fetchall()
    found = []
    for oid, mode, started, next_try, now, draining, status, error, moved, caught_up, published, stand, *noted in rows:
        if oid not in verdicts:
            continue  # captured since we asked
        situation = Situation(
            mode=CaptureMode(mode),
            asked=asked.get(oid) or combine((), settings.cdc_mode),
            eligibility=verdicts[oid],
            slot=current.state,
            published=published,
            decoder=decoder or _decoder_state(status, current),
            caught_up=caught_up,
            held_bytes=current.held_bytes,
            limits=_limits(settings),
            now=now,
            triggers_stand=stand,
            draining_since=draining,
            transition_started_at=started,
            next_try_at=next_try,
            decoder_error=error,
            decoder_moved_at=moved,
        )
        found.append(Observed(oid, situation, (noted[0], noted[1])))
    return tuple(found)


def asked_of(conn: psycopg.Connection[Any], settings: Settings) -> dict[int, RequestedMode]:
    """What each source's consumers ask for together."""
    consumers: defaultdict[int, list[tuple[str, str | None]]] = defaultdict(list)
    for oid, name, requested in conn.execute(
        "SELECT d.source_relid, pg_catalog.format('%I.%I', t.pgt_schema, t.pgt_name), t.requested_cdc_mode"
        " FROM pgtrickle.pgt_stream_tables AS t JOIN pgtrickle.pgt_dependencies AS d USING (pgt_id)"
        " WHERE t.effective_mode = 'DIFFERENTIAL' ORDER BY t.pgt_id"
    ):
        consumers[oid].append((name, requested))
    return {oid: combine(each, settings.cdc_mode) for oid, each in consumers.items()}


def _limits(settings: Settings) -> ModeLimits:
    return ModeLimits(
        critical=settings.wal_backpressure_critical_bytes if settings.enforce_backpressure else None,
        resume=settings.wal_backpressure_resume_bytes,
        timeout=timedelta(seconds=settings.wal_transition_timeout),
    )


def _decoder_state(status: str | None, current: Slot) -> DecoderState:
    """As recorded; but one that was killed could not record it, and then no one reads the slot."""
    state = _DECODER_STATES.get(status or "", DecoderState.STOPPED)
    if state is DecoderState.RUNNING and (current.state is not SlotState.ALIVE or current.active_pid is None):
        return DecoderState.STOPPED
    return state
