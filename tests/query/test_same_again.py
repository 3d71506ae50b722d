"""The same query gives the same tree in every process: state is kept under the names of its columns."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg

COMPILE = """
import hashlib, sys
from pathlib import Path
import psycopg
from pgtrickle.query.compile import compile_query
with psycopg.connect(sys.argv[1], autocommit=True) as conn:
    for name in ("equal.sql", "correlated.sql"):
        for query in (Path(sys.argv[2]) / name).read_text().split("\\n\\n")[1:]:
            print(hashlib.md5(repr(compile_query(conn, query).tree).encode()).hexdigest(), query.replace("\\n", " "))
"""


def compiled(dsn: str, seed: int) -> list[str]:
    command = [sys.executable, "-c", COMPILE, dsn, str(Path(__file__).parent)]
    environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_trees_do_not_depend_on_the_order_of_sets(shop: psycopg.Connection[Any], database: str) -> None:
    first, second = compiled(database, 1), compiled(database, 2)
    assert len(first) > 200
    assert first == second
