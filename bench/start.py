"""A cold start of Spark for one command: where the time goes, with the archive of classes and without, by turns."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping

from bench.harness import Figure
from pgtrickle.spark import archive, java

ROUNDS = 3
STORY = """
import json, os, time
at = [time.perf_counter()]
from pgtrickle.spark import session, training
at.append(time.perf_counter())
spark = session.session()
at.append(time.perf_counter())
spark.range(10).mapInArrow(training._same, "id bigint").toArrow()
at.append(time.perf_counter())
from pyspark import SparkContext
ticks = open(f"/proc/{SparkContext._gateway.proc.pid}/stat").read().rsplit(")", 1)[1].split()[11:15]
print(json.dumps([*(b - a for a, b in zip(at, at[1:])), sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")]))
"""
PHASES = ("imports of Python", "Java and its SparkContext", "first job, with a Python worker", "CPU time of Java")
VARIANTS: Mapping[str, Mapping[str, str]] = {
    "as it was": {archive.VARIABLE: "off"},
    "archive": {archive.VARIABLE: "use"},
    "archive, one command": {archive.VARIABLE: "use", "SPARK_SUBMIT_OPTS": java.QUICK},
}


def run(_dsn: str) -> Iterator[Figure]:
    """Medians of each phase in seconds; the machine should be quiet, or only the ratios mean anything."""
    with tempfile.TemporaryDirectory(prefix="pgtrickle-bench-") as home:
        environment = {**os.environ, "PGTRICKLE_HOME": home}
        since = time.perf_counter()
        subprocess.run([sys.executable, "-m", "pgtrickle.spark.archive"], env=environment, check=True)
        yield Figure("making the archive, once", time.perf_counter() - since, "s")
        told: dict[str, list[list[float]]] = {name: [] for name in VARIANTS}
        for _ in range(ROUNDS):
            for name, given in VARIANTS.items():
                command = [sys.executable, "-c", STORY]
                done = subprocess.run(command, env={**environment, **given}, capture_output=True, text=True, check=True)
                told[name].append(json.loads(done.stdout))
    for name, rounds in told.items():
        for phase, values in zip(PHASES, zip(*rounds, strict=True), strict=True):
            yield Figure(f"{name}: {phase}", statistics.median(values), "s")
        yield Figure(f"{name}: in all", statistics.median(sum(each[:3]) for each in rounds), "s", "5 s on two cores")
