"""A standalone cluster runs what local Spark runs: the same tests, told to use it. Its workers' Python lacks pgtrickle.

Each run is a process of its own, with a session on the cluster: one process has one Spark.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cluster.passing import STEPS, both_ways, passed_on
from tests.cluster.standalone import JAVA_OPTIONS, Cluster

SAMPLE = (
    "joins/three_way",
    "joins/left_both_sides_in_one_window",
    "windows/over_a_join",
    "subqueries/not_in",
)


def conf(cluster: Cluster, **given: str) -> str:
    """Spark's settings for a driver on this machine, and small executors."""
    chosen = {
        "spark.pyspark.python": str(cluster.python),
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": JAVA_OPTIONS,
        **given,
    }
    return "; ".join(f"{name}={value}" for name, value in chosen.items())


def test_on_the_cluster(cluster: Cluster, tmp_path: Path) -> None:
    """Step files by both ways, large windows, and what only a cluster shows (`on_cluster.py`)."""
    steps = both_ways(*SAMPLE)
    failpoint = tmp_path / "failpoint"
    failpoint.touch()
    events = tmp_path / "events"
    events.mkdir()
    settings = conf(
        cluster,
        **{
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": events.as_uri(),
            "spark.eventLog.compress": "false",
            "spark.ui.enabled": "true",
            "spark.ui.port": "0",
            "spark.speculation": "true",
            "spark.speculation.interval": "100ms",
            "spark.speculation.quantile": "0.5",
            "spark.executorEnv.PGTRICKLE_FAILPOINT": f"@{failpoint}",
        },
    )
    told = {
        "TEST_CLUSTER": str(cluster.directory),
        "TEST_EVENT_LOG": str(events),
        "TEST_FAILPOINT": str(failpoint),
        "TEST_WORKERS": ",".join(str(worker.pid) for worker in cluster.workers),
    }
    tests = [*steps, "tests/refresh/test_large.py", "tests/cluster/on_cluster.py"]
    assert passed_on(cluster.url, settings, *tests, more=told) == len(steps) + 1 + 6


@pytest.mark.long
def test_all_step_files_and_tpch(cluster: Cluster) -> None:
    tests = (STEPS, "tests/tpch/test_tpch.py::test_all_queries_follow_all_tables", "tests/refresh/test_random.py")
    assert passed_on(cluster.url, conf(cluster), *tests) > 300
