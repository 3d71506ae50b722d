"""Has all that Spark can join, match, filter and group be done by Spark: for tests, whose tables are small."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from pyspark.sql import DataFrame, SparkSession

from pgtrickle.physical import lower_delta, table_facts
from pgtrickle.physical.flow import Computed, Flow, HashMatch
from pgtrickle.physical.lower_full import FullLowering
from pgtrickle.refresh import plan
from pgtrickle.spark.frames import Frames

_FOR_FEW_ROWS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
}
"""Settings by which Spark spends little on a query of a few rows: it writes no Java for it, and divides nothing."""


@contextmanager
def spending_little(spark: SparkSession) -> Iterator[None]:
    """A session under such settings, for as long as that."""
    before = {setting: spark.conf.get(setting, None) for setting in _FOR_FEW_ROWS}
    for setting, chosen in _FOR_FEW_ROWS.items():
        spark.conf.set(setting, chosen)
    try:
        yield
    finally:
        for setting, value in before.items():
            spark.conf.unset(setting) if value is None else spark.conf.set(setting, value)


def force(monkeypatch: pytest.MonkeyPatch, *, by_tasks: bool = True) -> list[Computed | HashMatch]:
    """No lookup counts as cheap, and no join is left to PostgreSQL. The flows that Spark evaluates are noted in the
    list. `by_tasks`: nothing counts as small, so that tasks read and land; or else the driver does, for less."""
    if by_tasks:
        monkeypatch.setattr(plan, "SMALL_CHANGES", -1)
    monkeypatch.setattr(lower_delta, "LARGE_WINDOW", -1)
    monkeypatch.setattr(table_facts, "_LOOKUP_SECONDS", 1e9)
    monkeypatch.setattr(table_facts, "_SCAN_IN_SERVER_SECONDS", 1e9)
    monkeypatch.setattr(table_facts, "_JOIN_IN_SERVER_SECONDS", 1e9)
    monkeypatch.setattr(FullLowering, "_splits", lambda *_: False)
    found: list[Computed | HashMatch] = []
    build: Callable[[Frames, Flow], DataFrame] = Frames._build

    def noted(frames: Frames, flow: Flow) -> DataFrame:
        if isinstance(flow, Computed | HashMatch):
            found.append(flow)
        return build(frames, flow)

    monkeypatch.setattr(Frames, "_build", noted)
    return found
