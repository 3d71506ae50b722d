"""Spans of refreshes, as OpenTelemetry's own SDK exports them; without it, nothing of it is loaded."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from pgtrickle import db
from pgtrickle.api import Trickle
from pgtrickle.db import Connection, statement
from pgtrickle.errors import Error

STEPS = {"window", "decide", "plan", "evaluate", "land", "merge", "apply", "commit"}


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    found, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(found))
    trace.set_tracer_provider(provider)
    return found


@pytest.fixture
def conn(database18: str) -> Iterator[Connection]:
    with db.open_session(database18) as connection:
        connection.execute(statement("CREATE TABLE t AS SELECT i AS id, i % 3 AS k FROM generate_series(1, 9) AS i"))
        yield connection


@pytest.fixture
def trickle(conn: Connection, database18: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trickle]:
    monkeypatch.setenv("PGTRICKLE_POSTGRES_ROWS", "100000")
    with Trickle(database18) as found:
        yield found


def spans(exporter: InMemorySpanExporter) -> tuple[ReadableSpan, list[ReadableSpan]]:
    """The refresh, and its steps in the order in which they began; forgotten after that."""
    finished = exporter.get_finished_spans()
    exporter.clear()
    (refresh,) = (each for each in finished if each.name == "pgtrickle.refresh")
    return refresh, sorted((each for each in finished if each is not refresh), key=lambda each: each.start_time or 0)


def test_a_refresh_and_its_steps(trickle: Trickle, conn: Connection, exporter: InMemorySpanExporter) -> None:
    trickle.create_stream_table("s", "SELECT k, count(*) AS n FROM t GROUP BY k")
    exporter.clear()
    conn.execute("DELETE FROM t WHERE id = 1")
    result = trickle.refresh_stream_table("s")
    refresh, steps = spans(exporter)
    assert refresh.attributes is not None
    told = {name.removeprefix("pgtrickle."): value for name, value in refresh.attributes.items()}
    assert told.pop("pgt_id")
    assert told == {
        "table": "public.s",
        "action": "DIFFERENTIAL",
        "reason": result.reason,
        "initiated_by": "MANUAL",
        "rows_inserted": 1,
        "rows_deleted": 1,
        "changes_read": 1,
    }
    assert {each.name.removeprefix("pgtrickle.") for each in steps} == STEPS
    above = {each.context.span_id: each for each in (refresh, *steps) if each.context is not None}
    for each in steps:
        assert each.parent is not None
        parent = above[each.parent.span_id]
        assert parent.name == ("pgtrickle.evaluate" if each.name == "pgtrickle.land" else "pgtrickle.refresh")
        assert (parent.start_time or 0) <= (each.start_time or 0) <= (each.end_time or 0) <= (parent.end_time or 0)
    one_by_one = [each for each in steps if each.name != "pgtrickle.land"]
    for before, after in pairwise(one_by_one):
        assert (before.end_time or 0) <= (after.start_time or 0), (before.name, after.name)


def test_an_error_is_recorded_and_nothing_to_do_is_none(
    trickle: Trickle, conn: Connection, exporter: InMemorySpanExporter
) -> None:
    trickle.create_stream_table("s", "SELECT id, 10 / (id - 100) AS q FROM t", refresh_mode="DIFFERENTIAL")
    exporter.clear()
    trickle.refresh_stream_table("s")
    refresh, _ = spans(exporter)
    assert refresh.attributes is not None
    assert refresh.attributes["pgtrickle.action"] == "NO_DATA"
    assert refresh.status.is_ok
    conn.execute("INSERT INTO t VALUES (100, 1)")
    with pytest.raises(Error, match="PT343"):
        trickle.refresh_stream_table("s")
    refresh, _ = spans(exporter)
    assert refresh.attributes is not None
    assert not refresh.status.is_ok
    assert refresh.attributes["pgtrickle.error_code"] == "PT343"
    assert refresh.attributes["pgtrickle.action"] == "DIFFERENTIAL"
    assert [event.name for event in refresh.events] == ["exception"]


def test_without_opentelemetry_nothing_of_it_is_loaded() -> None:
    code = (
        "import sys; from pgtrickle.refresh import table_refresh; from pgtrickle import tracing\n"
        "with tracing.span('refresh') as span: span.note(a=1)\n"
        "tracing.step('plan', 0); print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
