"""Has all that Spark can join, filter and group be done by Spark: for tests, whose tables are small."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame

from pgtrickle.physical import lower_delta, table_facts
from pgtrickle.physical.flow import Native
from pgtrickle.physical.lower_full import FullLowering
from pgtrickle.refresh import plan
from pgtrickle.spark import frames


def force(monkeypatch: pytest.MonkeyPatch) -> list[Native]:
    """Nothing counts as small, no lookup as cheap, and no join under a group is left to PostgreSQL. The flows that
    Spark evaluates are noted in the list."""
    monkeypatch.setattr(plan, "SMALL_CHANGES", -1)
    monkeypatch.setattr(lower_delta, "LARGE_WINDOW", -1)
    monkeypatch.setattr(table_facts, "_LOOKUP_SECONDS", 1e9)
    monkeypatch.setattr(table_facts, "_SCAN_IN_SERVER_SECONDS", 1e9)
    monkeypatch.setattr(FullLowering, "_splits", lambda *_: False)
    found: list[Native] = []
    native = frames._native

    def noted(frame: DataFrame, flow: Native) -> DataFrame:
        found.append(flow)
        return native(frame, flow)

    monkeypatch.setattr(frames, "_native", noted)
    return found
