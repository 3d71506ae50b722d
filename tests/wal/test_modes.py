"""What is decided for a source: a table of cases, and what holds in all of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtrickle.capture.eligibility import GONE, IDENTITY, WAL_LEVEL, Eligibility
from pgtrickle.capture.modes import (
    LONGEST_PAUSE,
    CaptureMode,
    DecoderState,
    ModeLimits,
    RequestedMode,
    Situation,
    SlotState,
    Step,
    combine,
    decide,
    pause_after,
)

NOW = datetime(2024, 5, 1, 12, 0, tzinfo=UTC)
YES = Eligibility(True)
NO = Eligibility(False, "wal_level is replica", "set it", WAL_LEVEL)
NO_IDENTITY = Eligibility(False, "the replica identity of t does not cover the columns used", "set it", IDENTITY, (7,))
IS_GONE = Eligibility(False, "gone", "", GONE)
TO_BE_IDENTIFIED = Eligibility(True, unidentified=(7,))
LIMITS = ModeLimits(critical=1000, resume=500, timeout=timedelta(seconds=300))
WELL = Situation(
    mode=CaptureMode.TRIGGER,
    asked=RequestedMode("auto", "auto is asked for by the setting cdc_mode"),
    eligibility=YES,
    slot=SlotState.ALIVE,
    published=True,
    decoder=DecoderState.RUNNING,
    caught_up=True,
    held_bytes=0,
    limits=LIMITS,
    now=NOW,
    transition_started_at=NOW,
)
TRIGGER = RequestedMode("trigger", "trigger is asked for by public.a")
TRANSITIONING, WAL = replace(WELL, mode=CaptureMode.TRANSITIONING), replace(WELL, mode=CaptureMode.WAL)
LATE = NOW - timedelta(seconds=301)
IN_VAIN = {"draining_since": LATE, "decoder_moved_at": NOW, "asked": TRIGGER}


@pytest.mark.parametrize(
    ("at", "changed", "step", "failed", "reason"),
    [
        # on triggers
        (WELL, {}, Step.START, False, "asked for"),
        (WELL, {"slot": SlotState.ABSENT, "decoder": DecoderState.STOPPED, "published": False}, Step.START, False, ""),
        (WELL, {"slot": SlotState.LOST}, Step.START, False, ""),
        (WELL, {"asked": RequestedMode("wal", "wal is asked for by a")}, Step.START, False, ""),
        (WELL, {"asked": TRIGGER}, Step.STAY, False, "public.a"),
        (WELL, {"eligibility": NO}, Step.STAY, False, "wal_level is replica"),
        (WELL, {"eligibility": NO_IDENTITY}, Step.STAY, False, "replica identity"),
        (WELL, {"eligibility": TO_BE_IDENTIFIED}, Step.START, False, ""),
        (WELL, {"next_try_at": NOW + timedelta(seconds=1)}, Step.STAY, False, "tried again at 2024-05-01 12:00:01"),
        (WELL, {"next_try_at": NOW}, Step.START, False, ""),
        (WELL, {"held_bytes": 501}, Step.STAY, False, "holds back 501 bytes"),
        (WELL, {"held_bytes": 500}, Step.START, False, ""),
        (WELL, {"held_bytes": 5000, "limits": replace(LIMITS, critical=None)}, Step.START, False, ""),
        (WELL, {"triggers_stand": False}, Step.STAY, False, "missing or disabled"),
        (WELL, {"eligibility": IS_GONE}, Step.STAY, False, "does not exist"),
        # on triggers, while rows from the WAL are still to come
        (WELL, {"draining_since": NOW, "asked": TRIGGER}, Step.STAY, False, "public.a"),
        (WELL, {"draining_since": NOW, "slot": SlotState.ABSENT}, Step.FALL_BACK_LOSSY, True, "dropped before all"),
        (WELL, {"draining_since": NOW, "slot": SlotState.LOST}, Step.FALL_BACK_LOSSY, True, "invalidated before all"),
        (WELL, {"draining_since": LATE}, Step.FALL_BACK_LOSSY, True, "not decoded in time"),
        (WELL, {**IN_VAIN, "decoder_moved_at": LATE}, Step.FALL_BACK_LOSSY, True, "not decoded in time"),
        (WELL, {**IN_VAIN, "decoder": DecoderState.FAILED}, Step.FALL_BACK_LOSSY, True, "not decoded in time"),
        (WELL, {**IN_VAIN, "decoder": DecoderState.STOPPED}, Step.STAY, False, "public.a"),  # it had no chance
        (WELL, IN_VAIN, Step.STAY, False, "public.a"),
        # in transition
        (TRANSITIONING, {}, Step.COMPLETE, False, "caught up"),
        (TRANSITIONING, {"caught_up": False}, Step.STAY, False, "waiting for the decoder"),
        (TRANSITIONING, {"decoder": DecoderState.STOPPED}, Step.STAY, False, "waiting for the decoder"),
        (TRANSITIONING, {"triggers_stand": False}, Step.STAY, False, "missing or disabled"),
        (TRANSITIONING, {"caught_up": False, "transition_started_at": LATE}, Step.ABANDON, True, "longer than 300 s"),
        (TRANSITIONING, {"transition_started_at": LATE}, Step.COMPLETE, False, ""),
        (TRANSITIONING, {"asked": TRIGGER}, Step.ABANDON, False, "public.a"),
        (TRANSITIONING, {"slot": SlotState.ABSENT}, Step.ABANDON, True, "dropped"),
        (TRANSITIONING, {"slot": SlotState.LOST}, Step.ABANDON, True, "invalidated"),
        (TRANSITIONING, {"published": False}, Step.ABANDON, True, "publication"),
        (TRANSITIONING, {"eligibility": NO}, Step.ABANDON, True, "wal_level"),
        (TRANSITIONING, {"eligibility": NO_IDENTITY}, Step.ABANDON, True, "replica identity"),
        (TRANSITIONING, {"eligibility": TO_BE_IDENTIFIED}, Step.ABANDON, True, "replica identity"),
        (TRANSITIONING, {"decoder": DecoderState.FAILED, "decoder_error": "boom"}, Step.ABANDON, True, "failed: boom"),
        (TRANSITIONING, {"held_bytes": 1000}, Step.ABANDON, True, "backpressure"),
        # on WAL
        (WAL, {}, Step.STAY, False, "from the WAL"),
        (WAL, {"decoder": DecoderState.STOPPED, "caught_up": False}, Step.STAY, False, ""),
        (WAL, {"triggers_stand": False}, Step.STAY, False, ""),
        (WAL, {"asked": TRIGGER}, Step.FALL_BACK, False, "public.a"),
        (WAL, {"eligibility": NO}, Step.FALL_BACK, True, "wal_level"),
        (WAL, {"decoder": DecoderState.FAILED}, Step.FALL_BACK, True, "the decoder failed"),
        (WAL, {"held_bytes": 1000}, Step.FALL_BACK, True, "backpressure: the slot holds back 1000 bytes"),
        (WAL, {"held_bytes": 999}, Step.STAY, False, ""),
        (WAL, {"held_bytes": 5000, "limits": replace(LIMITS, critical=None)}, Step.STAY, False, ""),
        (WAL, {"slot": SlotState.ABSENT}, Step.FALL_BACK_LOSSY, True, "dropped"),
        (WAL, {"slot": SlotState.LOST, "asked": TRIGGER}, Step.FALL_BACK_LOSSY, True, "invalidated"),
        (WAL, {"published": False}, Step.FALL_BACK_LOSSY, True, "publication"),
        (WAL, {"eligibility": NO_IDENTITY}, Step.FALL_BACK_LOSSY, True, "replica identity"),
        (WAL, {"eligibility": TO_BE_IDENTIFIED}, Step.FALL_BACK_LOSSY, True, "replica identity"),
        # in any mode, of a table that is gone
        (WAL, {"eligibility": IS_GONE}, Step.LET_GO, False, "does not exist"),
        (TRANSITIONING, {"eligibility": IS_GONE, "slot": SlotState.LOST}, Step.LET_GO, False, "does not exist"),
        (WELL, {"eligibility": IS_GONE, "draining_since": NOW}, Step.LET_GO, False, "does not exist"),
    ],
)
def test_cases(at: Situation, changed: dict[str, Any], step: Step, failed: bool, reason: str) -> None:
    decision = decide(replace(at, **changed))
    assert (decision.step, decision.failed) == (step, failed)
    assert reason in decision.reason
    assert decision.reason


TIMES = st.one_of(st.none(), st.integers(-1000, 1000).map(lambda seconds: NOW + timedelta(seconds=seconds)))
SITUATIONS = st.builds(
    Situation,
    mode=st.sampled_from(CaptureMode),
    asked=st.sampled_from([RequestedMode("auto", "a"), RequestedMode("wal", "w"), TRIGGER]),
    eligibility=st.sampled_from([YES, NO, NO_IDENTITY, TO_BE_IDENTIFIED]),
    slot=st.sampled_from(SlotState),
    published=st.booleans(),
    decoder=st.sampled_from(DecoderState),
    caught_up=st.booleans(),
    held_bytes=st.sampled_from([0, 500, 501, 999, 1000, 5000]),
    limits=st.sampled_from([LIMITS, replace(LIMITS, critical=None)]),
    now=st.just(NOW),
    triggers_stand=st.booleans(),
    draining_since=TIMES,
    transition_started_at=TIMES,
    next_try_at=TIMES,
    decoder_error=st.sampled_from([None, "boom"]),
    decoder_moved_at=TIMES,
)
POSSIBLE = {
    CaptureMode.TRIGGER: {Step.STAY, Step.START, Step.FALL_BACK_LOSSY},
    CaptureMode.TRANSITIONING: {Step.STAY, Step.COMPLETE, Step.ABANDON},
    CaptureMode.WAL: {Step.STAY, Step.FALL_BACK, Step.FALL_BACK_LOSSY},
}


@given(SITUATIONS)
def test_what_always_holds(at: Situation) -> None:
    decision = decide(at)
    complete_slot = at.slot is SlotState.ALIVE and at.published
    identified = not at.eligibility.unidentified
    assert decision.step in POSSIBLE[at.mode]
    if decision.step is Step.FALL_BACK:
        assert complete_slot
        assert identified
    if decision.step is Step.COMPLETE:
        assert complete_slot
        assert at.eligibility == YES
        assert at.decoder is DecoderState.RUNNING
        assert at.caught_up
        assert at.triggers_stand
    if decision.step is Step.FALL_BACK_LOSSY:
        assert not complete_slot or not identified or at.draining_since is not None
    if at.mode is CaptureMode.WAL and decision.step is Step.STAY:
        assert complete_slot
        assert identified
    if at.asked.mode == "trigger":
        assert decision.step not in (Step.START, Step.COMPLETE)
        assert at.mode is CaptureMode.TRIGGER or decision.step is not Step.STAY
    if decision.step in (Step.START, Step.COMPLETE, Step.STAY):
        assert not decision.failed
    if at.limits.critical is not None and decision.step is Step.START:
        assert at.held_bytes <= at.limits.resume


@given(SITUATIONS, st.sampled_from([501, 999]))
def test_between_the_marks_lag_moves_nothing(at: Situation, lag: int) -> None:
    """Hysteresis: there a source on WAL stays as without lag, and one on triggers does not start."""
    at = replace(at, held_bytes=lag, limits=LIMITS)
    if at.mode is CaptureMode.TRIGGER:
        assert decide(at).step is not Step.START
    else:
        assert decide(at) == decide(replace(at, held_bytes=0))


@pytest.mark.parametrize(
    ("requested", "setting", "mode", "reason"),
    [
        ([], "auto", "trigger", "no stream table reads it"),
        ([("a", None)], "auto", "auto", "auto is asked for by the setting cdc_mode"),
        ([("a", None)], "trigger", "trigger", "trigger is asked for by the setting cdc_mode"),
        ([("a", "wal")], "trigger", "wal", "wal is asked for by a"),
        ([("a", "wal"), ("b", "auto")], "auto", "auto", "auto is asked for by b, which wins over wal by a"),
        ([("a", "wal"), ("b", "trigger"), ("c", None)], "auto", "trigger", "by b, which wins over auto by c, wal by a"),
        ([("a", "wal"), ("b", "wal")], "trigger", "wal", "wal is asked for by a"),
        ([("t", "trigger"), *((x, "wal") for x in "abcd")], "auto", "trigger", "wal by b, wal by c, wal by d"),
        ([("t", "trigger"), *((x, "wal") for x in "abcde")], "auto", "trigger", "wal by b, wal by c and 2 others"),
    ],
)
def test_the_safer_wins_and_it_is_said(
    requested: list[tuple[str, str | None]], setting: str, mode: str, reason: str
) -> None:
    asked = combine(requested, setting)
    assert asked.mode == mode
    assert asked.reason.endswith(reason)


def test_pauses_grow_up_to_an_hour() -> None:
    pauses = [pause_after(failures).total_seconds() for failures in range(1, 12)]
    assert pauses[:4] == [30, 60, 120, 240]
    assert pauses == sorted(pauses)
    assert pause_after(1000) == LONGEST_PAUSE
