"""What Prometheus is told: read from the catalog at each scrape."""

from __future__ import annotations

import json
import socket
import time
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession
from tests.scheduler.conftest import leading
from tests.stories.telling import telling

from pgtrickle import db
from pgtrickle.catalog.install import install
from pgtrickle.errors import EnvironmentProblem
from pgtrickle.monitor import endpoint, metrics


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def scrape(port: int) -> dict[tuple[str, frozenset[str]], float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        (sample.name, frozenset(value for label, value in sample.labels.items() if label != "database")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def answer(port: int, path: str) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as found:
            return int(found.status)
    except urllib.error.HTTPError as refused:
        return refused.code


def test_refreshes_and_capture_are_told(database18: str, spark: SparkSession) -> None:
    port = free_port()
    with telling(database18, spark) as story:
        story.run("CREATE TABLE t (v int)")
        story.create("st", "SELECT v FROM t")
        story.run("INSERT INTO t VALUES (1), (2)")
        story.check("st")
        endpoint.serve([database18], port)
        found = scrape(port)
        table = frozenset({"public.st"})
        assert found["pgtrickle_refreshes_total", table] == 2
        assert found["pgtrickle_differential_refreshes_total", table] == 1
        assert found["pgtrickle_rows_inserted_total", table] == 2
        assert found["pgtrickle_staleness_seconds", table] >= 0
        assert found["pgtrickle_refresh_duration_seconds_count", table] == 2
        assert found["pgtrickle_refresh_duration_seconds_bucket", table | {"+Inf"}] == 2
        assert (
            0 < found["pgtrickle_last_refresh_seconds", table] < found["pgtrickle_refresh_duration_seconds_sum", table]
        )
        assert found["pgtrickle_requests", frozenset({"PENDING"})] == 0
        assert found["pgtrickle_up", frozenset()] == 1
        assert [answer(port, path) for path in ("/healthz", "/readyz", "/")] == [200, 200, 404]
        assert found["pgtrickle_table_status", frozenset({"public.st", "ACTIVE"})] == 1
        assert found["pgtrickle_table_status", frozenset({"public.st", "ERROR"})] == 0
        assert found["pgtrickle_source_mode", frozenset({"public.t", "TRIGGER"})] == 1
        story.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgtrickle metrics'")
        assert scrape(port)["pgtrickle_refreshes_total", table] == 2, "it connects again"
        with pytest.raises(EnvironmentProblem) as taken:
            endpoint.serve([database18], port)
        assert taken.value.code == "PT521"


def test_a_database_that_is_down_is_told() -> None:
    port, nowhere = free_port(), "host=127.0.0.1 port=1"
    assert metrics.CatalogMetrics(nowhere).describe() == [], "being registered asks nothing"
    endpoint.serve([nowhere], port)
    assert scrape(port) == {("pgtrickle_up", frozenset()): 0}
    assert [answer(port, path) for path in ("/healthz", "/readyz")] == [200, 503]


def test_only_this_machine_is_answered() -> None:
    port = free_port()
    endpoint.serve(["host=127.0.0.1 port=1"], port)
    with socket.socket() as other, pytest.raises(ConnectionRefusedError):
        other.connect(("127.0.0.2", port))  # also this machine, but another address than the one it listens at


def test_leaders_loops_and_waiting_requests_are_told(database18: str) -> None:
    with db.open_session(database18) as conn:
        install(conn)
        conn.execute("CREATE TABLE t (v int)")
        with leading(database18):
            loops = [
                {"loop": "refreshes", "woken_s": 5, "interval_s": 1, "busy_with": "a.b", "busy_s": 4, "paused": False}
            ]
            conn.execute("UPDATE pgtrickle.pgt_leases SET loops = %s WHERE purpose = 'service'", (json.dumps(loops),))
            conn.execute("SELECT pgtrickle.create_stream_table('st', 'SELECT v FROM t')")
            conn.execute("UPDATE pgtrickle.pgt_requests SET created_at = now() - interval '1 min'")
            port = free_port()
            endpoint.serve([database18], port)
            found = scrape(port)
            loop = frozenset({"postgres", "refreshes"})
            assert found["pgtrickle_leader", frozenset({"postgres"})] == 1
            assert 0 <= found["pgtrickle_heartbeat_age_seconds", frozenset({"postgres"})] < 60
            assert 5 <= time.time() - found["pgtrickle_loop_last_wake_timestamp_seconds", loop] < 60
            assert found["pgtrickle_loop_busy_seconds", loop] == 4
            assert found["pgtrickle_requests_waiting", frozenset()] == 1
            assert found["pgtrickle_oldest_request_seconds", frozenset()] >= 60
        assert ("pgtrickle_leader", frozenset({"postgres"})) not in scrape(port), "no one leads"
