"""What is asked twice is asked once: terms that have a question in common are one task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from pgtrickle.errors import EnvironmentProblem
from pgtrickle.refresh.failure import ValueProblem, as_ours, is_known
from pgtrickle.refresh.retry import Kind, classify
from pgtrickle.spark.batch_job import (
    ConcatOf,
    FlowTask,
    QueryOverRows,
    RowsAtHand,
    TaskPlan,
    Told,
    by_shared_queries,
    tell_by_frame,
    tell_by_rdd,
    whole,
)

Tell: TypeAlias = Callable[[SparkSession, Callable[[Iterable[int]], Iterator[Told]], int], list[Told]]
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


def squares(numbers: Iterable[int]) -> Iterator[Told]:
    for number in numbers:
        yield from ((number, bytes([number * number])) for _ in range(number))


def refused(numbers: Iterable[int]) -> Iterator[Told]:
    for number in numbers:
        if number:
            raise RuntimeError("ERROR: division by zero SQLSTATE: 22012")
        yield number, b""


@pytest.mark.parametrize("tell", [tell_by_rdd, tell_by_frame])
def test_tasks_tell_all_they_have(spark: SparkSession, tell: Tell) -> None:
    assert sorted(tell(spark, squares, 4)) == [
        (1, b"\1"),
        (2, b"\4"),
        (2, b"\4"),
        (3, b"\11"),
        (3, b"\11"),
        (3, b"\11"),
    ]


@pytest.mark.parametrize("tell", [tell_by_rdd, tell_by_frame])
def test_what_postgresql_says_in_a_task_is_known(spark: SparkSession, tell: Tell) -> None:
    with pytest.raises((PySparkException, Py4JError)) as raised:
        tell(spark, refused, 2)
    assert is_known(raised.value)
    found = as_ours(raised.value)
    assert isinstance(found, ValueProblem)
    assert found.message.startswith("PostgreSQL refused: division by zero")


def test_a_stream_that_breaks_off_is_no_answer() -> None:
    end = (-1, b"")
    told: list[Told] = [(0, b"first"), end, (1, b"second"), end]
    assert whole(told, 2) == [(0, b"first"), (1, b"second")]
    for length in range(len(told)):
        with pytest.raises(EnvironmentProblem) as raised:
            whole(told[:length], 2)
        assert classify(raised.value) is Kind.RETRY
