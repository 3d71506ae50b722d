"""Step files where Spark joins, and evaluates what its list has: `NATIVE` are some of those in which it does."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.steps.native import force
from tests.steps.parser import read
from tests.steps.runner import name, paths, run
from tests.steps.stream_table import OnTable

NATIVE = {
    "aggregates/sum_over_a_join",
    "joins/both_sides_in_one_window",
    "joins/null_keys",
    "joins/partner_replaced_in_one_window",
    "joins/self_join_of_duplicates",
    "sets/union_under_aggregate",
    "subqueries/cte_of_joins_and_groups_used_twice",
    "subqueries/in_except",
    "subqueries/totals_two_levels_out",
    "subqueries/with_reads_around",
}


@pytest.mark.parametrize("path", [path for path in paths() if name(path) in NATIVE], ids=name)
def test_by_spark(path: Path, database_of_steps: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    found = force(monkeypatch)
    run(read(path), OnTable(database_of_steps, spark), undo_at_once=True)
    assert found


@pytest.mark.long
@pytest.mark.parametrize("path", [path for path in paths() if name(path) not in NATIVE], ids=name)
def test_all_others(path: Path, database_of_steps: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    force(monkeypatch)
    run(read(path), OnTable(database_of_steps, spark), undo_at_once=True)
