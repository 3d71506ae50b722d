"""`pgtrickle top`: what goes on in a database, looked at again and again. `cli.main` adds this verb.

On a terminal a live page, which is gone when it ends; in a pipe a block of plain lines a look; with --json an object a
line. It only reads. A connection that is lost is opened again: who watches is not to be left alone when it matters.
"""

from __future__ import annotations

import json
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated

import psycopg
import typer
from rich.console import Console
from rich.live import Live

from pgtrickle import db
from pgtrickle.catalog import install
from pgtrickle.cli import top_page
from pgtrickle.cli.outcome import reported
from pgtrickle.cli.target import AsJson, target
from pgtrickle.db import Connection
from pgtrickle.errors import ServerError
from pgtrickle.monitor import overview
from pgtrickle.monitor.overview import Overview

_RECENT = 1
_CONNECT_S = 3
PIPE_WIDTH = 132


class _Looks:
    """Reads over one connection, and over another when that is lost."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection: Connection | None = self._open()

    def next(self) -> Overview | str:
        """What there is now, or why it cannot be read now."""
        try:
            if self._connection is None or self._connection.closed:
                self._connection = self._open()
            return overview.read(self._connection, _RECENT)
        except (ServerError, psycopg.OperationalError, psycopg.InterfaceError) as error:
            self.close()
            return " ".join(str(error).split())

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _open(self) -> Connection:
        opened = db.connect(self._dsn, application_name="pgtrickle top", connect_timeout=_CONNECT_S)
        try:
            install.require(opened)
        except BaseException:
            opened.close()
            raise
        return opened


def top(
    context: typer.Context,
    every: Annotated[float, typer.Option("--every", min=0.1, metavar="SECONDS", help="Time between two looks.")] = 2.0,
    count: Annotated[
        int | None, typer.Option("--count", min=1, metavar="N", help="Looks after which it ends. Default: none.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Watch the stream tables, live. What is wrong stands above.

    q or Ctrl-C ends it. In a pipe it prints plain lines, with --json an object a line.
    """
    with reported():
        looks = _Looks(target(context).dsn())
        try:
            if sys.stdout.isatty() and not as_json:
                _live(looks, every, count)
            else:
                _plain(looks, every, count, as_json=as_json)
        except KeyboardInterrupt:
            return
        finally:
            looks.close()


def _live(looks: _Looks, every: float, count: int | None) -> None:
    console = Console()
    last: Overview | None = None
    with _keys() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
        for _ in _times(count):
            found = looks.next()
            last = last if isinstance(found, str) else found
            problem = found if isinstance(found, str) else None
            live.update(top_page.page(last, problem, every, console.width, console.height), refresh=True)
            if _pressed_q(keys, every):
                return


def _plain(looks: _Looks, every: float, count: int | None, *, as_json: bool) -> None:
    for place in _times(count):
        if place:
            time.sleep(every)
        found = looks.next()
        if as_json:
            typer.echo(json.dumps({"problem": found} if isinstance(found, str) else _facts(found), ensure_ascii=False))
        else:
            now = f"{datetime.now().astimezone():%H:%M:%S}"
            told = [f"{now}  {found}"] if isinstance(found, str) else top_page.plain(found, PIPE_WIDTH)
            typer.echo("\n".join([*told, ""]))
        sys.stdout.flush()


def _facts(found: Overview) -> dict[str, object]:
    return found.to_dict() | {"tables": [each.to_dict() | {"state": each.state} for each in found.tables]}


def _times(count: int | None) -> Iterator[int]:
    place = 0
    while count is None or place < count:
        yield place
        place += 1


@contextmanager
def _keys() -> Iterator[int | None]:
    """The terminal's input, key by key and unseen; None if there is none."""
    if not sys.stdin.isatty():
        yield None
        return
    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    try:
        tty.setcbreak(number)
        yield number
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


def _pressed_q(keys: int | None, seconds: float) -> bool:
    """Waits, and ends the wait early for a key; whether that is to end it all."""
    if keys is None:
        time.sleep(seconds)
        return False
    return bool(select.select([keys], [], [], seconds)[0]) and sys.stdin.read(1) in {"q", "Q"}
