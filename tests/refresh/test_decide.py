"""What a refresh does, and the reason it gives: the rules in their order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pgtrickle.errors import Refused
from pgtrickle.refresh.decide import Action, Circumstances, SourceChanges, decide

USUAL = Circumstances(
    table="public.totals",
    refresh_mode="AUTO",
    effective_mode="DIFFERENTIAL",
    mode_reason=None,
    suspended=False,
    populated=True,
    reinitialize=None,
    initial=False,
    full=None,
    max_change_ratio=0.15,
    sources={1: SourceChanges("public.orders", 1000.0, 10, False)},
)
MANY = {1: SourceChanges("public.orders", 1000.0, 151, False)}
NONE = {1: SourceChanges("public.orders", 1000.0, 0, False)}
TRUNCATED = {1: SourceChanges("public.orders", 0.0, 1, True)}


@pytest.mark.parametrize(
    ("given", "action", "reason"),
    [
        (USUAL, Action.DIFFERENTIAL, "10 changes"),
        (replace(USUAL, sources=NONE), Action.NO_DATA, "no changes"),
        (replace(USUAL, sources=MANY), Action.FULL, "above the ratio 0.15"),
        (replace(USUAL, sources=MANY, refresh_mode="DIFFERENTIAL"), Action.DIFFERENTIAL, "151 changes"),
        (replace(USUAL, sources=TRUNCATED), Action.REINITIALIZE, "public.orders was truncated"),
        (
            replace(USUAL, sources=TRUNCATED, refresh_mode="DIFFERENTIAL"),
            Action.REINITIALIZE,
            "public.orders was truncated",
        ),
        (replace(USUAL, reinitialize="the query was altered"), Action.REINITIALIZE, "the query was altered"),
        (replace(USUAL, full="full refresh asked for", sources=NONE), Action.FULL, "asked for"),
        (replace(USUAL, initial=True, populated=False), Action.FULL, "first population"),
        (replace(USUAL, populated=False), Action.FULL, "not populated yet"),
        (replace(USUAL, effective_mode="FULL", mode_reason="PT224: window"), Action.FULL, "PT224: window"),
        (replace(USUAL, suspended=True, full="asked for"), Action.SKIP, "suspended"),
    ],
)
def test_rules(given: Circumstances, action: Action, reason: str) -> None:
    decision = decide(given)
    assert decision.action is action
    assert reason in decision.reason


def test_what_reads_a_table_that_was_never_filled_waits() -> None:
    early = replace(USUAL, unfilled=("public.up",), initial=True, full="asked for", populated=False)
    skipped = decide(replace(early, by_service=True))
    assert (skipped.action, skipped.reason) == (Action.SKIP, "public.up, which it reads, was never filled")
    with pytest.raises(Refused, match=r"public\.up, which it reads, was never filled") as caught:
        decide(early)
    assert caught.value.code == "PT453"
    assert "refresh public.up --full" in str(caught.value.hint)


def test_differential_without_a_baseline_is_refused() -> None:
    with pytest.raises(Refused, match="no baseline") as caught:
        decide(replace(USUAL, refresh_mode="DIFFERENTIAL", populated=False))
    assert caught.value.code == "PT310"
    assert caught.value.hint
