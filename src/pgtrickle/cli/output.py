"""What a command prints: JSON for programs, a table for people (drawn on a terminal, plain aligned text in a pipe).

A table that is wider than the terminal is shown a row at a time, a line for each value, as psql's `\\x auto` does.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Literal

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text


def print_json(value: object) -> None:
    """`value` on stdout; times as ISO 8601."""
    typer.echo(json.dumps(value, indent=2, default=_as_text, ensure_ascii=False))


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], numbers: Sequence[str] = (), *, folded: str | None = None
) -> None:
    """Rows under a heading; the columns named in `numbers` stand to the right. One whose text is `folded` gets the
    width that the others leave."""
    cells = [[_cell(value) for value in row] for row in rows]
    console = Console()
    widths = [max(len(text) for text in column) for column in zip(columns, *cells, strict=True)]
    fixed = [width for width, column in zip(widths, columns, strict=True) if column != folded]
    least = sum(fixed) + 3 * len(widths) + (_LEAST_FOLDED if folded is not None else 0)
    if sys.stdout.isatty() and least > console.width:
        _print_rows(console, columns, cells)
        return
    if sys.stdout.isatty():
        table = Table(box=box.SIMPLE_HEAD, header_style="bold")
        for column in columns:
            justify: Literal["left", "right"] = "right" if column in numbers else "left"
            whole = folded is not None and column != folded
            table.add_column(column, justify=justify, overflow="fold", no_wrap=whole)
        for line in cells:
            table.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in line))
        console.print(table)
        return
    for line in [list(columns), *cells]:
        padded = (
            text.rjust(width) if column in numbers else text.ljust(width)
            for text, width, column in zip(line, widths, columns, strict=True)
        )
        typer.echo("  ".join(padded).rstrip())


def _print_rows(console: Console, columns: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """A block a row, what is not known left out."""
    widest = max(len(column) for column in columns)
    for line in cells:
        table = Table(box=None, show_header=False, pad_edge=False)
        table.add_column(style="bold", width=widest, no_wrap=True)
        table.add_column(overflow="fold")
        for column, cell in zip(columns, line, strict=True):
            if cell != _NOTHING:
                table.add_row(column, Text(cell, style=_STYLES.get(cell, "")))
        console.print(table)
        console.print()


def watched(show: Callable[[], None], seconds: float) -> None:
    """Shows something again and again until Ctrl-C: a terminal in place of what it showed, a pipe one after another."""
    try:
        while True:
            if sys.stdout.isatty():
                Console().clear()
                typer.echo(f"{datetime.now().astimezone():%H:%M:%S}, every {seconds:g} s, Ctrl-C ends\n")
            show()
            sys.stdout.flush()
            time.sleep(seconds)
    except KeyboardInterrupt:
        return


def age(moment: datetime | None) -> float | None:
    """Seconds since `moment`; clocks may differ a little, but nothing comes from the future."""
    return None if moment is None else max((datetime.now(UTC) - moment).total_seconds(), 0.0)


def duration(seconds: float | None) -> str:
    """`12s`, `3m 20s`, `2d 4h`: two units at most."""
    if seconds is None:
        return "-"
    left = int(seconds)
    parts = []
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if amount := left // length:
            parts.append(f"{amount}{unit}")
        left %= length
    return " ".join(parts[:2]) or "0s"


_STYLES = {
    "ACTIVE": "green",
    "equal": "green",
    "COMPLETED": "green",
    "OK": "green",
    "ERROR": "red",
    "FAILED": "red",
    "DIFFERENT": "red",
    "SUSPENDED": "yellow",
    "WARN": "yellow",
    "SKIPPED": "yellow",
}


_NOTHING = "-"
_LEAST_FOLDED = 24


def _cell(value: object) -> str:
    if value is None:
        return _NOTHING
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return " ".join(str(value).split())


def _as_text(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
