"""Explores: the random tests again and again with fresh seeds, PostgreSQL as the oracle, until the time is up.

python -m tests.fuzz --minutes 60        (make fuzz FUZZ_MINUTES=60)
python -m tests.fuzz --seed 123          (make fuzz FUZZ_SEED=123) repeats one round

Each round prints its seed. The first failure, made as small as it gets, ends the run: it becomes a step file.
"""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
RANDOM = (
    "tests/delta",
    "tests/refresh/test_circles.py::test_reachability_is_what_postgresql_says",
    "tests/refresh/test_moments.py::test_the_digits_are_postgresqls",
    "tests/refresh/test_random.py",
    "tests/refresh/test_random_looks.py",
    "tests/refresh/test_random_trees.py",
    "tests/refresh/test_ticks.py::test_stacks_are_of_one_snapshot",
    "tests/steps/test_random_recursions.py",
    "tests/steps/test_random_subqueries.py",
    "tests/steps/test_random_windows.py",
    "tests/steps/test_specification.py",
)
EXAMPLES = "20"
"""Of each test in a round, unless PGTRICKLE_RANDOM_EXAMPLES says otherwise: many short rounds see more than a long."""


def main() -> int:
    parser = argparse.ArgumentParser(description="random tests with fresh seeds")
    parser.add_argument("--minutes", type=float, default=30.0, help="no round begins after that")
    parser.add_argument("--seed", type=int, help="repeat the round that printed this")
    asked = parser.parse_args()
    deadline = time.monotonic() + 60 * asked.minutes
    rounds = 0
    while rounds == 0 or (asked.seed is None and time.monotonic() < deadline):
        seed = secrets.randbelow(2**32) if asked.seed is None else asked.seed
        rounds += 1
        print(f"round {rounds}: seed {seed}", flush=True)
        if failed := play(seed):
            print(f"failed with seed {seed}; again with: python -m tests.fuzz --seed {seed}", flush=True)
            return failed
    return 0


def play(seed: int) -> int:
    """One round. Python's own hashes go by the seed too: the order of sets is part of what is tried."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-x"),
            *("--hypothesis-profile=fuzz", f"--hypothesis-seed={seed}"),
            *RANDOM,
        ],
        cwd=ROOT,
        env={"PGTRICKLE_RANDOM_EXAMPLES": EXAMPLES, **os.environ, "PYTHONHASHSEED": str(seed)},
        check=False,
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
