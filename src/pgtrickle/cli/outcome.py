"""How a command ends: errors as one line of what and one of what to do, and the exit codes of the contract."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from pgtrickle.errors import EnvironmentProblem, Error, ServerError, UsageError

NO = 1  # the answer is no
USAGE = 2
UNREACHABLE = 3  # cannot reach or use the server


def exit_code(error: Error) -> int:
    if isinstance(error, UsageError):
        return USAGE
    if isinstance(error, ServerError | EnvironmentProblem):
        return UNREACHABLE
    return NO


@contextmanager
def reported() -> Iterator[None]:
    """Print an `Error` raised inside to stderr and leave with its exit code."""
    try:
        yield
    except Error as error:
        typer.echo(f"error: {error}", err=True)
        if error.hint:
            typer.echo(f"hint: {error.hint}", err=True)
        raise typer.Exit(exit_code(error)) from error
