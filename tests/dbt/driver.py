"""Runs dbt by its own interface, in the environment of `requirements-dbt.lock`: each line that comes in has the
arguments of a command in JSON, each line that goes out says what became of it. To load dbt takes longer than most
commands."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from typing import Any

from dbt.cli.main import dbtRunner


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            found = dbtRunner().invoke(json.loads(line))
        answers.write(json.dumps(told(found, said.getvalue())) + "\n")
        answers.flush()


def told(found: Any, said: str) -> dict[str, object]:
    results = getattr(found.result, "results", None) or []
    return {
        "success": found.success,
        "said": said + (str(found.exception) if found.exception else ""),
        "results": {each.node.name: [str(each.status), str(each.message)] for each in results if hasattr(each, "node")},
    }


if __name__ == "__main__":
    main()
