"""One look at every source: what is known of it, what is decided, and the step taken. Called by the service in turn."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from pgtrickle.capture import handover, mode_change, slot
from pgtrickle.capture.modes import DecoderState, ModeDecision, Step, decide
from pgtrickle.capture.observe import Observed, observe
from pgtrickle.config import Settings
from pgtrickle.errors import Error, StateError
from pgtrickle.fence import Fence, LeaseLost

PATIENCE_S: Final = 2.0
"""How long a step tries to lock its source. Each try holds up the source's writers: better again after a pause."""
_FIRST_REST_S: Final = 1.0
_LONGEST_REST_S: Final = 60.0


class Rests:
    """The sources whose last steps failed: each is left alone for a time, longer after each failure. In memory: who
    forgets it tries once too often."""

    def __init__(self) -> None:
        self._failures: dict[int, tuple[int, float]] = {}

    def rests(self, source_oid: int) -> bool:
        """Whether the source is still to be left alone."""
        return time.monotonic() < self._failures.get(source_oid, (0, 0.0))[1]

    def note(self, steered: Supervised) -> None:
        """Remember how a step went."""
        failures, _ = self._failures.pop(steered.source_oid, (0, 0.0))
        if steered.error is not None:
            rest = min(_FIRST_REST_S * 2 ** min(failures, 10), _LONGEST_REST_S)
            self._failures[steered.source_oid] = failures + 1, time.monotonic() + rest


@dataclass(frozen=True, slots=True)
class Supervised:
    """What became of one source: the decision, and the error that kept its step from being taken, if one did."""

    source_oid: int
    decision: ModeDecision
    error: Error | None = None


def supervise(
    conn: psycopg.Connection[Any],
    settings: Settings,
    *,
    decoder: DecoderState | None = None,
    rests: Rests | None = None,
    fence: Fence | None = None,
) -> tuple[Supervised, ...]:
    """Take one step for each source, then drop the slot if nothing needs it and no one reads it. `conn` must be in no
    transaction. Who runs the decoder asks `slot.is_used` whether to go on.

    `decoder` is its state if the caller runs it and knows better than what it last recorded of itself: that it is
    FAILED for good, say, and not about to be started again. `rests` goes from round to round: a step that failed is
    not tried again at once.
    """
    rests = rests or Rests()
    steered = []
    for each in observe(conn, settings, decoder=decoder):
        decision = decide(each.situation)
        if decision.step is not Step.STAY and rests.rests(each.source_oid):
            steered.append(Supervised(each.source_oid, ModeDecision(Step.STAY, f"after a pause: {decision.reason}")))
            continue
        if decision.step is Step.STAY:
            steered.append(_step(conn, each, settings, fence))
            continue
        # The steps before this one may have taken their time: look again, at this one only.
        for again in observe(conn, settings, decoder=decoder, source_oid=each.source_oid):
            steered.append(_step(conn, again, settings, fence))
            rests.note(steered[-1])
    if slot.inspect(conn).active_pid is None:
        slot.drop_if_unused(conn)
    return tuple(steered)


def _step(conn: psycopg.Connection[Any], source: Observed, settings: Settings, fence: Fence | None) -> Supervised:
    """Decide, and do it. What goes wrong with one source must not keep the others from their steps."""
    decision = decide(source.situation)
    _note(conn, source, decision)
    try:
        handover.carry_out(
            conn,
            source.source_oid,
            decision,
            set_identity=settings.auto_replica_identity,
            give_up_after_s=PATIENCE_S,
            fence=fence,
        )
    except (Error, psycopg.Error) as raised:
        if conn.broken or isinstance(raised, LeaseLost):
            raise
        error = raised if isinstance(raised, Error) else _refusal(raised)
        if decision.step is Step.START:
            mode_change.postpone(conn, source.source_oid, str(error))
        return Supervised(source.source_oid, decision, error)
    return Supervised(source.source_oid, decision)


def _note(conn: psycopg.Connection[Any], source: Observed, decision: ModeDecision) -> None:
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
