"""Step files where Spark joins, matches, and evaluates what its list has: `NATIVE` are some in which it does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.steps.native import force, spending_little
from tests.steps.parser import read
from tests.steps.runner import name, paths, run, run_at_once
from tests.steps.stream_table import AtOnce, OnTable

BY_TASKS = {
    "aggregates/sum_over_a_join",
    "joins/left_both_sides_in_one_window",
    "sets/union_under_aggregate",
    "subqueries/with_reads_around",
}
NATIVE = BY_TASKS | {
    "joins/both_sides_in_one_window",
    "joins/full_using",
    "joins/left_compound_condition",
    "joins/left_of_left_joined_pair",
    "joins/left_self",
    "joins/null_keys",
    "joins/partner_replaced_in_one_window",
    "joins/right",
    "joins/self_join_of_duplicates",
    "subqueries/cte_of_joins_and_groups_used_twice",
    "subqueries/in_except",
    "subqueries/totals_two_levels_out",
}


@pytest.mark.parametrize("path", [path for path in paths() if name(path) in BY_TASKS], ids=name)
def test_by_tasks(path: Path, database_of_steps: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    found = force(monkeypatch)
    run(read(path), OnTable(database_of_steps, spark), undo_at_once=True)
    assert found


@pytest.fixture
def plain(spark: SparkSession) -> Iterator[SparkSession]:
    with spending_little(spark):
        yield spark


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=() if name(path) in NATIVE else pytest.mark.long, id=name(path)) for path in paths()],
)
def test_at_once(path: Path, database_of_steps: str, plain: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file in three refreshes: a window there, all in full, a window back."""
    found = force(monkeypatch, by_tasks=False)
    backend = AtOnce(database_of_steps, plain)
    run_at_once(read(path), backend, between=backend.refresh_in_full)
    assert found or name(path) not in NATIVE
