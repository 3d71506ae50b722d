"""The entry point of the package: `cli.main`, once what it is made of is known to be there."""

from __future__ import annotations

import json
import sys

from pgtrickle.errors import EnvironmentProblem
from pgtrickle.libpq import explained

UNREACHABLE = 3


def main() -> None:
    try:
        with explained():
            from pgtrickle.cli.main import main as begin
    except EnvironmentProblem as error:
        if "--json" in sys.argv:
            facts = {"code": error.code, "message": error.message, "at": None, "hint": error.hint}
            print(json.dumps({"error": facts}), file=sys.stderr)
        else:
            print(f"error: {error}\nhint: {error.hint}", file=sys.stderr)
        raise SystemExit(UNREACHABLE) from error
    begin()
