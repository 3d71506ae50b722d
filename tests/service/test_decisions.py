"""What the service decides: pauses, what a decoder's end means, when an alert is due, how an event is written."""

from __future__ import annotations

import json
import logging

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgtrickle.capture.pgoutput import ProtocolError
from pgtrickle.capture.replication import PublicationMissing, SlotBusy, SlotInvalid, SlotMissing, StreamError
from pgtrickle.capture.sink import TakenOver
from pgtrickle.config import Settings
from pgtrickle.errors import ServerError
from pgtrickle.scheduler.alerts import CALM, Levels, Measures, alerts, past
from pgtrickle.scheduler.backoff import LONGEST_S, pause_after
from pgtrickle.scheduler.decoding import LIMITS, STEADY_S, DecodingRecord, Failure, classify
from pgtrickle.scheduler.events import JsonLines

MB = 1 << 20


def test_pauses_grow_to_a_limit() -> None:
    assert [pause_after(failures) for failures in range(9)] == [0, 0.5, 1, 2, 4, 8, 16, 30, 30]
    assert pause_after(10_000) == LONGEST_S
    assert pause_after(10, longest_s=5) == 5


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (SlotBusy("in use", sqlstate="55006"), Failure.ELSEWHERE),
        (TakenOver("another decoder has taken over the slot"), Failure.ELSEWHERE),
        (StreamError("the connection was lost"), Failure.PASSING),
        (StreamError("terminating connection", sqlstate="57P01"), Failure.PASSING),
        (StreamError("too many connections", sqlstate="53300"), Failure.PASSING),
        (ServerError("cannot connect"), Failure.PASSING),
        (psycopg.OperationalError("server closed the connection"), Failure.PASSING),
        (psycopg.InterfaceError("the connection is closed"), Failure.PASSING),
        (psycopg.errors.AdminShutdown(), Failure.PASSING),
        (psycopg.errors.DiskFull(), Failure.PASSING),
        (psycopg.errors.LockNotAvailable(), Failure.PASSING),
        (psycopg.errors.DeadlockDetected(), Failure.PASSING),
        (SlotMissing("no slot", sqlstate="42704"), Failure.LASTING),
        (SlotInvalid("invalidated", sqlstate="55000"), Failure.LASTING),
        (PublicationMissing("no publication", sqlstate="42704"), Failure.LASTING),
        (StreamError("cannot decode", sqlstate="XX000"), Failure.LASTING),
        (ProtocolError("not a message"), Failure.LASTING),
        (ServerError("too old", code="PT401"), Failure.LASTING),
        (psycopg.errors.CheckViolation(), Failure.LASTING),
        (psycopg.errors.UndefinedTable(), Failure.LASTING),
        (psycopg.DataError("a value"), Failure.LASTING),
        (AssertionError("a bug"), Failure.LASTING),
        (MemoryError(), Failure.LASTING),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_what_an_end_of_the_decoder_means(error: BaseException, meaning: Failure) -> None:
    assert classify(error) is meaning


@given(st.lists(st.sampled_from(Failure), max_size=60))
def test_a_decoder_fails_for_good_by_repeats_of_a_kind(ends: list[Failure]) -> None:
    record = DecodingRecord()
    for end in ends:
        record = record.after(end, lasted_s=0.1)
    assert record.failed == any(ends.count(kind) >= limit for kind, limit in LIMITS.items())
    assert record.pause_s == pause_after(len(ends))


def test_a_run_that_lasted_makes_failures_before_it_forgotten() -> None:
    record = DecodingRecord().after(Failure.LASTING, 0).after(Failure.LASTING, 0)
    assert record.after(Failure.LASTING, 0).failed
    assert record.after(Failure.LASTING, STEADY_S) == DecodingRecord(lasting=1)


def lag(megabytes: float, rows: int = 0) -> Measures:
    return Measures("slot", round(megabytes * MB), {"public.t": rows})


def test_each_mark_is_told_once_until_it_was_well_left() -> None:
    settings = Settings(slot_lag_warning_threshold_mb=100, slot_lag_critical_threshold_mb=1000)
    levels, told = Levels(), []
    for megabytes in (50, 101, 150, 99, 101, 1001, 900, 1100, 70, 101, 2000, 0):
        levels, due = alerts(levels, lag(megabytes), settings)
        told += [(megabytes, alert["event"]) for alert in due]
    assert told == [
        (101, "slot_lag_warning"),
        (1001, "slot_lag_critical"),
        (101, "slot_lag_warning"),
        (2000, "slot_lag_critical"),
    ]
    assert levels == Levels()
    _, due = alerts(Levels(), lag(2000), settings)
    assert [alert["event"] for alert in due] == ["slot_lag_warning", "slot_lag_critical"]
    assert due[0] == {
        "event": "slot_lag_warning",
        "slot_name": "slot",
        "lag_bytes": 2000 * MB,
        "threshold_bytes": 100 * MB,
    }


def test_a_buffer_that_grows_is_told_by_its_source() -> None:
    settings = Settings(buffer_growth_warning_rows=1000)
    levels, due = alerts(Levels(), lag(0, rows=1001), settings)
    assert due == (
        {"event": "buffer_growth_warning", "source_table": "public.t", "rows": 1001, "threshold_rows": 1000},
    )
    assert alerts(levels, lag(0, rows=900), settings) == (levels, ())
    assert alerts(levels, Measures("slot", None, {}), settings) == (Levels(), ())  # no slot, the source is gone


@given(st.lists(st.floats(0, 200)), st.booleans())
def test_a_mark_changes_only_when_its_band_is_left(values: list[float], before: bool) -> None:
    for value in values:
        now = past(before, value, 100)
        assert now if value > 100 else not now if value <= 100 * CALM else now is before
        before = now


def test_an_event_is_one_line_of_json() -> None:
    record = logging.LogRecord("pgtrickle.service", logging.WARNING, "", 0, "decoder_failed", None, None)
    record.facts = {"slot": "s", "error": "a\nb"}
    line = JsonLines().format(record)
    assert "\n" not in line
    read = json.loads(line)
    assert (read["level"], read["event"], read["slot"]) == ("warning", "decoder_failed", "s")
