"""Runs all benchmarks, or those named; prints the figures and keeps them in `bench/results/`."""

from __future__ import annotations

import json
import platform
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from bench import (
    capture,
    choice,
    fill,
    groups,
    immediate,
    jdbc,
    recursion,
    refresh,
    sliding,
    start,
    ticks,
    tpch,
    wal,
    windows,
)
from bench.harness import Figure, server

BENCHMARKS = {
    "capture": capture.run,
    "choice": choice.run,
    "fill": fill.run,
    "groups": groups.run,
    "immediate": immediate.run,
    "jdbc": jdbc.run,
    "recursion": recursion.run,
    "refresh": refresh.run,
    "sliding": sliding.run,
    "start": start.run,
    "ticks": ticks.run,
    "tpch": tpch.run,
    "wal": wal.run,
    "windows": windows.run,
}
RESULTS = Path(__file__).parent / "results"


def main(names: list[str]) -> None:
    unknown = set(names) - set(BENCHMARKS)
    if unknown:
        sys.exit(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")
    for name in names or BENCHMARKS:
        print(f"== {name}")
        figures: list[Figure] = []
        with server() as dsn:
            for figure in BENCHMARKS[name](dsn):
                figures.append(figure)
                print(figure, flush=True)
        keep(name, figures)


def keep(name: str, figures: list[Figure]) -> None:
    RESULTS.mkdir(exist_ok=True)
    when = datetime.now(UTC)
    content = {
        "at": when.isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "figures": [asdict(f) for f in figures],
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
