"""When a table that failed is tried again, and when it counts as stale."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtrickle.catalog.reader import StreamTable
from pgtrickle.scheduler.attempts import Attempts
from pgtrickle.scheduler.backoff import LONGEST_OF_A_TABLE_S, pause_of_a_table
from pgtrickle.scheduler.staleness import alert, is_stale

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


@given(st.integers(1, 200), st.floats(0, 1))
def test_pauses_grow_to_a_limit_and_jitter_only_shortens(failures: int, jitter: float) -> None:
    longest = pause_of_a_table(failures, 0)
    assert longest <= LONGEST_OF_A_TABLE_S
    assert longest <= pause_of_a_table(failures + 1, 0)
    assert longest / 2 <= pause_of_a_table(failures, jitter) <= longest
    assert pause_of_a_table(0, jitter) == 0


def test_pauses() -> None:
    assert [pause_of_a_table(failures, 0) for failures in (0, 1, 2, 3, 50)] == [0, 0.5, 1, 2, 300]
    assert pause_of_a_table(3, 1) == 1


def test_what_passes_waits_longer_each_time_and_stays_due() -> None:
    attempts = Attempts(jitter=lambda: 0.0)
    attempts.failed([1, 2], NOW, passing=True)
    assert attempts.waiting(later(0.4)) == {1, 2}
    assert attempts.waiting(later(0.5)) == set()
    attempts.failed([1], later(0.5), passing=True)
    assert attempts.waiting(later(1.4)) == {1}
    assert attempts.since(1, later(-60)) == later(-60)
    attempts.succeeded([1])
    attempts.failed([1], later(2), passing=True)
    assert attempts.waiting(later(2.6)) == set(), "the pauses begin anew"
    assert attempts.waiting(later(-5)) == set(), "the clock was set back"


def test_what_does_not_pass_is_tried_when_it_is_next_due() -> None:
    attempts = Attempts(jitter=lambda: 0.0)
    attempts.failed([1], NOW, passing=False)
    assert attempts.waiting(later(0.1)) == set()
    assert attempts.since(1, later(-60)) == NOW
    assert attempts.since(1, None) == NOW
    assert attempts.since(1, later(5)) == later(5), "someone refreshed it by hand"
    assert attempts.since(2, None) is None
    attempts.succeeded([1])
    assert attempts.since(1, later(-60)) == later(-60)


STREAM = StreamTable(
    pgt_id=1,
    pgt_relid=1,
    pgt_schema="public",
    pgt_name="s",
    defining_query="",
    normalized_query="",
    schedule="5s",
    refresh_mode="AUTO",
    effective_mode="DIFFERENTIAL",
    mode_reason=None,
    status="ACTIVE",
    requested_cdc_mode=None,
    is_populated=True,
    needs_reinit=False,
    reinit_reason=None,
    frontier="1:1:",
    upstream_frontier=None,
    data_timestamp=NOW,
    last_refresh_at=NOW,
    last_full_ms=None,
    consecutive_errors=0,
    last_error=None,
    source_fingerprint=None,
    search_path="",
    created_at=NOW,
    updated_at=NOW,
)


@pytest.mark.parametrize(
    ("stream", "stale"),
    [
        (STREAM, True),
        (replace(STREAM, data_timestamp=later(1)), False),
        (replace(STREAM, schedule="1h"), False),
        (replace(STREAM, schedule=None), False),
        (replace(STREAM, schedule="* * * * *"), False),
        (replace(STREAM, status="SUSPENDED"), False),
        (replace(STREAM, is_populated=False, data_timestamp=None), False),
    ],
    ids=["late", "within twice its schedule", "longer schedule", "calculated", "cron", "suspended", "not populated"],
)
def test_stale(stream: StreamTable, stale: bool) -> None:
    assert is_stale(stream, later(20.5)) is stale


def test_the_alert() -> None:
    assert alert(STREAM, later(21)) == {
        "event": "stale",
        "table": "public.s",
        "schedule": "5s",
        "staleness_seconds": 21.0,
    }
