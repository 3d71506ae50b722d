"""Every step file on the real thing: trigger capture, differential refresh on Spark, PostgreSQL's answer as the oracle.

Small windows take the short path; `distributed` forces the same files through tasks, staging and Spark's joins.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgtrickle import embedded
from pgtrickle.physical import lower_delta, table_facts
from pgtrickle.refresh import plan
from tests.conftest import fresh_database
from tests.steps.parser import read
from tests.steps.runner import name, paths, run, run_at_once
from tests.steps.stream_table import AtOnce, OnTable
from tests.steps.test_sql import JOINS, USED_OFTEN


def tell(path: Path, dsn: str, spark: SparkSession) -> None:
    """The story of a file, with all of it undone in one window (each step by itself is for a long run)."""
    run(read(path), OnTable(dsn, spark), undo_at_once=True)


@pytest.fixture(scope="module")
def database16_of_steps(server16: embedded.Server) -> Iterator[str]:
    with fresh_database(server16) as dsn:
        yield dsn


DISTRIBUTED = {
    "aggregates/min_max_lose_the_extreme",
    "identity/one_of_identical_deleted",
    "joins/aggregate_with_table",
    "joins/both_sides_in_one_window",
    "joins/left_both_sides_in_one_window",
    "joins/three_way",
    "sets/except_all",
    "subqueries/cte_joined_twice",
    "subqueries/cte_of_joins_and_groups_used_twice",
    "subqueries/exists_union",
    "subqueries/having_over_nothing",
    "subqueries/lateral_limit",
    "subqueries/left_lateral_limit_by_range",
    "subqueries/not_in",
    "subqueries/two_levels_out",
    "unions/duplicates_across_branches",
    "windows/below_a_join",
    "windows/over_a_join",
    "windows/over_aggregates",
    "windows/used_twice",
}
STEP_BY_STEP = [path for place, path in enumerate(paths()) if place % 4 == 0 or name(path) in DISTRIBUTED]


@pytest.mark.parametrize("path", STEP_BY_STEP, ids=name)
def test_short_path(path: Path, database_of_steps: str, spark: SparkSession) -> None:
    tell(path, database_of_steps, spark)


@pytest.mark.parametrize("path", [path for path in paths() if path not in STEP_BY_STEP], ids=name)
def test_short_path_at_once(path: Path, database_of_steps: str, spark: SparkSession) -> None:
    """All steps in one window, all in full, and all undone in one; step by step they are told by plain SQL
    (`test_sql.py`), which evaluates the same plans, and in a long run."""
    backend = AtOnce(database_of_steps, spark)
    run_at_once(read(path), backend, between=backend.refresh_in_full)


@pytest.mark.long
@pytest.mark.parametrize("path", paths(), ids=name)
def test_each_step_undone(path: Path, database_of_steps: str, spark: SparkSession) -> None:
    run(read(path), OnTable(database_of_steps, spark))


@pytest.mark.long
@pytest.mark.parametrize("path", paths()[::5], ids=name)
def test_short_path_on_16(path: Path, database16_of_steps: str, spark: SparkSession) -> None:
    run(read(path), OnTable(database16_of_steps, spark))


@pytest.mark.parametrize("path", [path for path in paths() if name(path) in DISTRIBUTED], ids=name)
def test_distributed(path: Path, database_of_steps: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing counts as small, and no lookup as cheap: tasks read, Spark joins where it can, tasks land."""
    monkeypatch.setattr(plan, "SMALL_CHANGES", -1)
    monkeypatch.setattr(lower_delta, "LARGE_WINDOW", -1)
    monkeypatch.setattr(table_facts, "_LOOKUP_SECONDS", 1e9)
    monkeypatch.setattr(table_facts, "_SCAN_IN_SERVER_SECONDS", 1e9)
    tell(path, database_of_steps, spark)


@pytest.mark.long
@pytest.mark.parametrize("path", USED_OFTEN, ids=name)
def test_unshared(path: Path, database_of_steps: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in `test_sql.py`, with the rows sent to and from Spark's tasks."""
    monkeypatch.setattr(lower_delta, "SHARED_ROWS", 0)
    tell(path, database_of_steps, spark)


@pytest.mark.long
@pytest.mark.parametrize("path", JOINS, ids=name)
def test_by_key(path: Path, database_of_steps: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in `test_sql.py`, with the rows sent to and from Spark's tasks."""
    monkeypatch.setattr(table_facts, "_SCAN_IN_SERVER_SECONDS", 1e9)
    monkeypatch.setattr(lower_delta, "AT_ONCE", 1)
    tell(path, database_of_steps, spark)
