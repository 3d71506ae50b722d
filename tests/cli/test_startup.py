"""Verbs that need no Spark must not load it: it costs a user seconds at every call."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from tests.cli.conftest import Call

PROBE = """
import json, sys
from pgtrickle.cli.main import app
code = app(json.loads(sys.argv[1]), standalone_mode=False)
loaded = sorted({name.split(".")[0] for name in sys.modules} & {"pyspark", "py4j", "pandas"})
print("LOADED", json.dumps([code or 0, loaded]))
"""


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["status"], 0),
        (["history", "big"], 0),
        (["verify"], 1),
        (["explain", "big"], 0),
        (["explain", "big", "--analyze"], 0),
        (["config"], 0),
        (["cdc"], 0),
        (["health"], 1),  # no service runs
        (["doctor"], 0),
        (["pause", "big"], 0),
        (["create", "other", "--query", "SELECT id FROM orders", "--no-initialize"], 0),
        (["drop", "big"], 0),
        (["alter", "big", "--schedule", "3m"], 0),
        (["postgres", "status", "--data-dir", "/nonexistent/pgtrickle"], 1),
        (["--help"], 0),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_reading_verb_loads_no_spark(call: Call, shop: str, arguments: list[str], code: int) -> None:
    call("create", "big", "--query", "SELECT id FROM orders", "--no-initialize")
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(arguments)],
        env={**os.environ, "PGTRICKLE_DSN": shop},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = done.stdout.splitlines()[-1]
    assert json.loads(answer.removeprefix("LOADED ")) == [code, []]
