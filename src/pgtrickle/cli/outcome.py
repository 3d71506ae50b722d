"""How a command ends: errors as one line of what and one of what to do, and the exit codes of the contract."""

from __future__ import annotations

import json
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Final

import psycopg
import typer

from pgtrickle.directories import errors_log
from pgtrickle.errors import (
    ColumnsWarning,
    EnvironmentProblem,
    Error,
    Fault,
    QueryError,
    ServerError,
    SessionWarning,
    Unsupported,
    UsageError,
)
from pgtrickle.refresh.failure import from_server

NO = 1  # the answer is no
USAGE = 2
UNREACHABLE = 3  # cannot reach or use the server
INTERRUPTED = 130  # as shells have it


class Interrupted(Error):
    """The user has stopped waiting for what goes on elsewhere."""

    code = "PT450"


for_programs: Final[ContextVar[bool]] = ContextVar("for_programs", default=False)
"""Whether `--json` was given, for errors as well."""


def exit_code(error: Error) -> int:
    if isinstance(error, Interrupted):
        return INTERRUPTED
    if isinstance(error, UsageError | QueryError | Unsupported):
        return USAGE
    if isinstance(error, ServerError | EnvironmentProblem):
        return UNREACHABLE
    return NO


@contextmanager
def reported() -> Iterator[None]:
    """Print an `Error`, or one of PostgreSQL's, raised inside to stderr and leave with its exit code."""
    with warnings.catch_warnings(), told(_print):
        warnings.showwarning = _show_warning
        yield


@contextmanager
def told(tell: Callable[[Error, str], None]) -> Iterator[None]:
    """Have `tell` say what is raised inside, and what to do, and leave with its exit code."""
    try:
        yield
    except (Error, psycopg.Error) as raised:
        error = raised if isinstance(raised, Error) else from_server(raised)
        if isinstance(error, Fault):
            error.hint = _kept(error)
        tell(error, _one_line(error.hint or _what_to_do(error)))
        raise typer.Exit(exit_code(error)) from error


def _print(error: Error, hint: str) -> None:
    """On stderr: two lines for people; under `--json` one line for programs."""
    if for_programs.get():
        facts = {"code": error.code, "message": error.message, "at": error.at, "hint": hint}
        typer.echo(json.dumps({"error": facts}, ensure_ascii=False), err=True)
        return
    typer.echo(f"error: {_one_line(str(error))}", err=True)
    typer.echo(f"hint: {hint}", err=True)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: object = None,
    line: object = None,
) -> None:
    """What is worth knowing, as a line for people; what only developers want stays as it is."""
    if issubclass(category, SessionWarning | ColumnsWarning):
        typer.echo(f"note: {_one_line(str(message))}", err=True)
    else:
        typer.echo(warnings.formatwarning(message, category, filename, lineno), err=True, nl=False)


def _kept(fault: Fault) -> str:
    """Writes the traceback of what no one foresaw where it can be found; says where."""
    log = errors_log()
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as file:
            file.write(f"{datetime.now(UTC).isoformat()} {' '.join(sys.argv[:2])}\n")
            traceback.print_exception(fault, file=file)
    except OSError as error:
        return f"this is a fault of pgtrickle: report it (its traceback could not be kept: {error})"
    return f"this is a fault of pgtrickle: report it with the traceback in {log}"


def _what_to_do(error: Error) -> str:
    """For errors that bring no hint of their own."""
    if isinstance(error, QueryError):
        return "Correct the query until PostgreSQL accepts it."
    if isinstance(error, UsageError | Unsupported):
        return "See pgtrickle --help, and the README for what is supported."
    return "See `pgtrickle history` of the stream table, and the server's log."


def _one_line(text: str) -> str:
    return " ".join(text.split())
