"""Which way a source should be captured next. Pure: `decide` maps what is known of a source to one step.

`supervise.py` gathers the facts for every source in turn and has `handover.py` carry the step out.

                    START                     COMPLETE
      TRIGGER ────────────────▶ TRANSITIONING ────────────────▶ WAL
         ▲  ▲        ABANDON          │                          │
         │  └─────────────────────────┘                          │
         └────────────── FALL_BACK, FALL_BACK_LOSSY ─────────────┘

Triggers are complete by themselves until COMPLETE, so leaving TRANSITIONING never loses anything. FALL_BACK is exact:
the slot still holds all that was written before it. FALL_BACK_LOSSY is not, and the dependents compute anew. From
every mode LET_GO leads to TRIGGER, for a table that does not exist any more: it must not hold the slot.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from pgtrickle.capture.eligibility import GONE, IDENTITY, Eligibility

FIRST_PAUSE: Final = timedelta(seconds=30)
LONGEST_PAUSE: Final = timedelta(hours=1)
_MOST_NAMED: Final = 3


class CaptureMode(StrEnum):
    """How a source is captured at present."""

    TRIGGER = "TRIGGER"
    TRANSITIONING = "TRANSITIONING"
    WAL = "WAL"


class Step(StrEnum):
    """What to do with a source."""

    STAY = "stay"
    START = "start transition"
    COMPLETE = "complete transition"
    ABANDON = "abandon transition"
    FALL_BACK = "fall back"
    FALL_BACK_LOSSY = "fall back, changes are lost"
    LET_GO = "let go"


class SlotState(StrEnum):
    """The database's slot: not there, usable, or there but no longer able to give all changes."""

    ABSENT = "absent"
    ALIVE = "alive"
    LOST = "lost"


class DecoderState(StrEnum):
    """The decoder as it reports itself; FAILED means that it does not go on by itself."""

    STOPPED = "stopped"
    RUNNING = "running"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RequestedMode:
    """What all consumers of a source ask for together; `reason` says whose word it is."""

    mode: str
    reason: str


@dataclass(frozen=True, slots=True)
class ModeLimits:
    """The settings that bound WAL capture. `critical` None: no backpressure."""

    critical: int | None
    resume: int
    timeout: timedelta


@dataclass(frozen=True, slots=True)
class Situation:
    """All that a decision about one source depends on.

    `draining_since`: it went back to triggers, and decoded rows that count are still to come. `caught_up`: the decoder
    has passed the point where the transition began. `triggers_stand`: all are there and were never disabled.
    `decoder_moved_at`: when the decoder last began, or came further.
    """

    mode: CaptureMode
    asked: RequestedMode
    eligibility: Eligibility
    slot: SlotState
    published: bool
    decoder: DecoderState
    caught_up: bool
    held_bytes: int
    limits: ModeLimits
    now: datetime
    triggers_stand: bool = True
    draining_since: datetime | None = None
    transition_started_at: datetime | None = None
    next_try_at: datetime | None = None
    decoder_error: str | None = None
    decoder_moved_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class ModeDecision:
    """One step and why. `failed`: the step answers a failure, so the next try comes after a pause."""

    step: Step
    reason: str
    failed: bool = False


def combine(requested: Iterable[tuple[str, str | None]], setting: str) -> RequestedMode:
    """The mode for a source whose consumers are (name, requested mode or None for the setting's); the safer wins."""
    safety = ("trigger", "auto", "wal")
    asked = sorted(
        ((mode or setting, mode is None, name) for name, mode in requested), key=lambda each: safety.index(each[0])
    )
    if not asked:
        return RequestedMode("trigger", "no stream table reads it")
    mode, by_setting, name = asked[0]
    whose = "by the setting cdc_mode" if by_setting else f"by {name}"
    others = [f"{other} by {its_name}" for other, _, its_name in asked if other != mode]
    return RequestedMode(mode, f"{mode} is asked for {whose}" + (f", which wins over {_few(others)}" if others else ""))


def _few(names: list[str]) -> str:
    """The first of them, and how many more there are."""
    more = len(names) - _MOST_NAMED
    return ", ".join(names) if more <= 1 else f"{', '.join(names[:_MOST_NAMED])} and {more} others"


def pause_after(failures: int) -> timedelta:
    """How long to wait before WAL is tried again: twice as long after each failure, up to an hour."""
    pause: timedelta = FIRST_PAUSE * (1 << min(max(failures, 1) - 1, 20))
    return min(pause, LONGEST_PAUSE)


def decide(at: Situation) -> ModeDecision:
    """The next step for a source."""
    if at.eligibility.code == GONE:
        counts_on_slot = at.mode is not CaptureMode.TRIGGER or at.draining_since is not None
        return ModeDecision(Step.LET_GO if counts_on_slot else Step.STAY, "the table does not exist")
    return {CaptureMode.TRIGGER: _on_triggers, CaptureMode.TRANSITIONING: _in_transition, CaptureMode.WAL: _on_wal}[
        at.mode
    ](at)


def _on_triggers(at: Situation) -> ModeDecision:
    if at.draining_since is not None:
        if (lost := _lost(at)) is not None:
            return ModeDecision(Step.FALL_BACK_LOSSY, f"{lost} before all of its changes were decoded", failed=True)
        if _is_stuck(at, at.draining_since):
            return ModeDecision(
                Step.FALL_BACK_LOSSY, "its last changes in the WAL were not decoded in time", failed=True
            )
    if at.asked.mode == "trigger":
        return ModeDecision(Step.STAY, at.asked.reason)
    if not at.eligibility.eligible:
        return ModeDecision(Step.STAY, at.eligibility.reason or "it is not eligible")
    if at.next_try_at is not None and at.now < at.next_try_at:
        return ModeDecision(Step.STAY, f"WAL is tried again at {at.next_try_at:%Y-%m-%d %H:%M:%S %Z}".rstrip())
    if at.limits.critical is not None and at.held_bytes > at.limits.resume:
        held, mark = at.held_bytes, at.limits.resume
        return ModeDecision(Step.STAY, f"the slot holds back {held} bytes of WAL, more than the {mark} to resume at")
    if not at.triggers_stand:
        return ModeDecision(Step.STAY, "a trigger is missing or disabled: the next refresh puts it back")
    return ModeDecision(Step.START, at.asked.reason)


def _in_transition(at: Situation) -> ModeDecision:
    """No step from here loses anything: until COMPLETE the triggers' rows are those that count."""
    if at.asked.mode == "trigger":
        return ModeDecision(Step.ABANDON, at.asked.reason)
    for problem in (
        _lost(at),
        _unpublished(at),
        _unidentified(at),
        _ineligible(at),
        _decoder_failed(at),
        _lags(at),
    ):
        if problem is not None:
            return ModeDecision(Step.ABANDON, problem, failed=True)
    if at.decoder is DecoderState.RUNNING and at.caught_up and at.triggers_stand:
        return ModeDecision(Step.COMPLETE, "the decoder has caught up")
    if at.transition_started_at is not None and at.now - at.transition_started_at > at.limits.timeout:
        return ModeDecision(
            Step.ABANDON, f"the transition took longer than {at.limits.timeout.total_seconds():g} s", failed=True
        )
    if not at.triggers_stand:
        return ModeDecision(Step.STAY, "a trigger is missing or disabled: the next refresh puts it back")
    return ModeDecision(Step.STAY, "waiting for the decoder")


def _on_wal(at: Situation) -> ModeDecision:
    for loss in (_lost(at), _unpublished(at)):
        if loss is not None:
            return ModeDecision(Step.FALL_BACK_LOSSY, loss, failed=True)
    if (unidentified := _unidentified(at)) is not None:
        # Changes since then tell no old values. That there were none cannot be known.
        return ModeDecision(Step.FALL_BACK_LOSSY, unidentified, failed=True)
    if at.asked.mode == "trigger":
        return ModeDecision(Step.FALL_BACK, at.asked.reason)
    for problem in (_ineligible(at), _decoder_failed(at), _lags(at)):
        if problem is not None:
            return ModeDecision(Step.FALL_BACK, problem, failed=True)
    return ModeDecision(Step.STAY, "captured from the WAL")


def _is_stuck(at: Situation, since: datetime) -> bool:
    """Whether the decoder had its chance and did not use it; time in which none ran does not count."""
    if at.decoder is DecoderState.STOPPED:
        return False
    if at.decoder is DecoderState.RUNNING and at.decoder_moved_at is not None:
        since = max(since, at.decoder_moved_at)
    return at.now - since > at.limits.timeout


def _lost(at: Situation) -> str | None:
    if at.slot is SlotState.ALIVE:
        return None
    return "the replication slot was dropped" if at.slot is SlotState.ABSENT else "the replication slot was invalidated"


def _unpublished(at: Situation) -> str | None:
    return None if at.published else "it was removed from the publication, or the publication was dropped"


def _unidentified(at: Situation) -> str | None:
    """Also where we may set the identity ourselves: that is done when a transition starts, and then stays done."""
    if at.eligibility.code != IDENTITY and not at.eligibility.unidentified:
        return None
    return at.eligibility.reason or "its replica identity no longer covers the columns used"


def _ineligible(at: Situation) -> str | None:
    return None if at.eligibility.eligible else at.eligibility.reason or "it is no longer eligible"


def _decoder_failed(at: Situation) -> str | None:
    if at.decoder is not DecoderState.FAILED:
        return None
    return f"the decoder failed: {at.decoder_error}" if at.decoder_error else "the decoder failed"


def _lags(at: Situation) -> str | None:
    """Backpressure. Hysteresis lies in the two marks: back at `critical`, on to WAL again only below `resume`."""
    if at.limits.critical is None or at.held_bytes < at.limits.critical:
        return None
    return f"backpressure: the slot holds back {at.held_bytes} bytes of WAL, the limit is {at.limits.critical}"
