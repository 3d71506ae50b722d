"""`python -m pgtrickle.demo [--seconds 60] [--dsn DSN]`: exit 0 only if every stream table equals its query."""

from __future__ import annotations

import argparse
import signal
import sys
from types import FrameType

import psycopg
from rich.console import Console

from pgtrickle.demo.place import database_of, embedded_server
from pgtrickle.demo.show import show
from pgtrickle.errors import EnvironmentProblem, Error, ServerError


def main(arguments: list[str] | None = None) -> int:
    asked = _options().parse_args(arguments)
    console = Console()
    signal.signal(signal.SIGTERM, _interrupt)  # as Ctrl-C: leave nothing behind
    try:
        with database_of(asked.dsn) if asked.dsn else embedded_server() as dsn:
            return 0 if show(dsn, asked.seconds, console) else 1
    except KeyboardInterrupt:
        print("interrupted; everything was removed", file=sys.stderr)
        return 130
    except (Error, psycopg.Error) as error:
        print(f"error: {error}", file=sys.stderr)
        hint = getattr(error, "hint", None)
        if hint:
            print(f"hint: {hint}", file=sys.stderr)
        return 3 if isinstance(error, ServerError | EnvironmentProblem | psycopg.OperationalError) else 1


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pgtrickle.demo", description="Stream tables that follow a shop.")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the shop is open (default: 60)")
    parser.add_argument("--dsn", help="a server of your own; the demo makes a database on it and drops it afterwards")
    return parser


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
