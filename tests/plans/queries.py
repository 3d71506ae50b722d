"""The queries whose plans are kept: all of TPC-H, and the views of some forty step files.

Of the step files, those by which operators, deltas and ways to read differ; each rewrite has one in which it acts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.steps.parser import read

TESTS = Path(__file__).parent.parent
STEPS = (
    "aggregates/aggregate_over_aggregate",
    "aggregates/filter_clause",
    "aggregates/grouping_sets",
    "aggregates/having_crossed",
    "aggregates/min_max_lose_the_extreme",
    "aggregates/no_group_by_with_having",
    "aggregates/sum_over_a_join",
    "joins/aggregate_of_the_joined_table",
    "joins/bushy",
    "joins/constant_side",
    "joins/cross",
    "joins/expanded_above_left_joins",
    "joins/four_way",
    "joins/full_using",
    "joins/left_between_aggregates",
    "joins/left_chain",
    "joins/left_filter_above",
    "joins/left_non_equi",
    "joins/null_safe_keys",
    "joins/self_join",
    "joins/sum_whose_order_matters",
    "joins/two_aggregates",
    "recursion/anti_join_in_the_term",
    "recursion/bill_of_material",
    "rows/expressions",
    "sets/distinct_on_join",
    "sets/except_all",
    "sets/intersect",
    "sets/union_under_aggregate",
    "subqueries/any_all",
    "subqueries/cte_of_joins_and_groups_used_twice",
    "subqueries/cte_used_twice",
    "subqueries/exists_in_or",
    "subqueries/exists_non_equi",
    "subqueries/in_grouped",
    "subqueries/lateral_function",
    "subqueries/lateral_limit",
    "subqueries/lateral_values",
    "subqueries/not_in",
    "subqueries/scalar_by_range",
    "subqueries/scalar_correlated",
    "subqueries/two_levels_out",
    "subqueries/view_used_twice",
    "time/groups",
    "time/joins",
    "time/matches",
    "time/sliding",
    "time/unbounded",
    "top/joined",
    "top/over_aggregate",
    "top/with_ties",
    "unions/aggregates_below",
    "windows/below_a_left_join",
    "windows/over_a_join",
    "windows/over_aggregates",
    "windows/top_of_each_group",
    "windows/two_partitionings",
)


@dataclass(frozen=True, slots=True)
class Planned:
    """A query, and the statements that make what it reads."""

    name: str
    given: tuple[str, ...]
    query: str


def all_queries() -> Iterator[Planned]:
    tpch = TESTS / "tpch"
    schema = (tpch / "schema.sql").read_text(), (tpch / "indexes.sql").read_text()
    for path in sorted((tpch / "queries").glob("q*.sql")):
        yield Planned(f"tpch/{path.stem}", schema, path.read_text())
    for name in STEPS:
        file = read(TESTS / "steps" / f"{name}.steps")
        yield Planned(name, (*(table.ddl for table in file.tables), *file.given), file.view)
