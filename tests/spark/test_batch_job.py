"""What is asked twice is asked once: terms that have a question in common are one task."""

from __future__ import annotations

import pyarrow as pa

from pgtrickle.spark.batch_job import ConcatOf, FlowTask, QueryOverRows, RowsAtHand, TaskPlan, by_shared_queries

SCHEMA = pa.schema([("w", pa.int64())])
ROWS = RowsAtHand(SCHEMA.empty_table())


def ask(sql: str, *inputs: TaskPlan) -> QueryOverRows:
    return QueryOverRows(sql, inputs or (ROWS,), SCHEMA)


def terms(*plans: TaskPlan) -> tuple[FlowTask, ...]:
    """A term of a flow of its own for each."""
    return tuple(FlowTask(flow, plan) for flow, plan in enumerate(plans))


def test_terms_that_ask_the_same_go_together() -> None:
    shared = ask("shared")
    first, other, second = terms(ask("first", shared, shared), ask("other"), ask("second", ConcatOf((shared,), SCHEMA)))
    assert by_shared_queries((first, other, second)) == ((other,), (first, second))


def test_a_term_may_bring_others_together() -> None:
    one, two = ask("one"), ask("two")
    first, second, third = terms(ask("first", one), ask("second", two), ask("third", one, two))
    assert by_shared_queries((first, second, third)) == ((first, second, third),)


def test_rows_at_hand_are_no_question() -> None:
    first, second = terms(ask("first"), ask("second"))
    assert by_shared_queries((first, second)) == ((first,), (second,))
