"""What Prometheus is told: read from the catalog at each scrape."""

from __future__ import annotations

import socket
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession
from tests.stories.telling import telling

from pgtrickle.errors import EnvironmentProblem, ServerError
from pgtrickle.monitor import metrics


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def scrape(port: int) -> dict[tuple[str, frozenset[str]], float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        (sample.name, frozenset(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_refreshes_and_capture_are_told(database18: str, spark: SparkSession) -> None:
    port = free_port()
    with telling(database18, spark) as story:
        story.run("CREATE TABLE t (v int)")
        story.create("st", "SELECT v FROM t")
        story.run("INSERT INTO t VALUES (1), (2)")
        story.check("st")
        metrics.serve(database18, port)
        found = scrape(port)
        table = frozenset({"public.st"})
        assert found["pgtrickle_refreshes_total", table] == 2
        assert found["pgtrickle_differential_refreshes_total", table] == 1
        assert found["pgtrickle_rows_inserted_total", table] == 2
        assert found["pgtrickle_staleness_seconds", table] >= 0
        assert found["pgtrickle_table_status", frozenset({"public.st", "ACTIVE"})] == 1
        assert found["pgtrickle_table_status", frozenset({"public.st", "ERROR"})] == 0
        assert found["pgtrickle_source_mode", frozenset({"public.t", "TRIGGER"})] == 1
        story.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgtrickle metrics'")
        assert scrape(port)["pgtrickle_refreshes_total", table] == 2, "it connects again"
        with pytest.raises(EnvironmentProblem) as taken:
            metrics.serve(database18, port)
        assert taken.value.code == "PT521"


def test_registering_asks_nothing() -> None:
    assert metrics.CatalogMetrics("host=127.0.0.1 port=1").describe() == []
    with pytest.raises(ServerError, match="cannot connect"):
        list(metrics.CatalogMetrics("host=127.0.0.1 port=1").collect())
