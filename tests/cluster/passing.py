"""Runs tests in a process of its own, whose Spark is the one named: one process has one Spark."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
STEPS = "tests/steps/test_spark.py"


def both_ways(*steps: str) -> list[str]:
    """The tests of these step files: by one job for a small window, and by tasks that read, join and land."""
    return [f"{STEPS}::{way}[{name}]" for way in ("test_short_path", "test_distributed") for name in steps]


def passed_on(master: str, settings: str, *tests: str, more: Mapping[str, str] | None = None) -> int:
    """How many tests passed with that master; none failed."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        cwd=ROOT,
        env={**os.environ, "PGTRICKLE_SPARK_MASTER": master, "PGTRICKLE_SPARK_CONF": settings, **(more or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    found = re.search(r"(\d+) passed", done.stdout)
    assert found is not None, done.stdout
    return int(found.group(1))
