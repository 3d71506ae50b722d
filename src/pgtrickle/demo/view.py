"""What the demo shows while it runs: a live table on a terminal, a plain line now and then in a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pgtrickle.demo.shop import STREAMS, Stream
from pgtrickle.demo.writers import Writers
from pgtrickle.refresh.result import RefreshResult

_LINE_EVERY = 5.0
_COLOURS = {"DIFFERENTIAL": "green", "FULL": "yellow", "REINITIALIZE": "yellow", "NO_DATA": "dim"}


@dataclass(slots=True)
class Seen:
    """The last refresh of one stream table, and all of them together. `fresh_at` is when its snapshot was taken."""

    result: RefreshResult | None = None
    fresh_at: float = 0.0
    refreshes: int = 0
    changed: int = 0
    rows: int = 0

    def take(self, result: RefreshResult, began: float) -> None:
        self.result = result
        self.fresh_at = began
        self.refreshes += 1
        self.changed += result.rows_inserted + result.rows_deleted
        self.rows += result.rows_inserted - result.rows_deleted


@dataclass(slots=True)
class View:
    """The state on display; `show` fills it, `live` draws it."""

    console: Console
    seconds: float
    seen: dict[str, Seen] = field(default_factory=lambda: {stream.name: Seen() for stream in STREAMS})
    modes: dict[str, str] = field(default_factory=dict)
    busy: str | None = None
    began: float = field(default_factory=time.monotonic)

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    @contextmanager
    def working(self, text: str) -> Iterator[None]:
        """One step of the set-up: a spinner on a terminal, a line in a pipe."""
        if not self.console.is_terminal:
            self.say(f"{text} …")
            yield
            return
        began = time.monotonic()
        with self.console.status(f"{text} …"):
            yield
        self.say(f"{text}: {time.monotonic() - began:.1f} s")

    @contextmanager
    def live(self, writers: Writers) -> Iterator[Callable[[], None]]:
        """Draws until left. Call what it yields after each refresh: in a pipe, that prints a line now and then."""
        self.began = time.monotonic()
        if self.console.is_terminal:
            with Live(
                get_renderable=lambda: self._drawn(writers), console=self.console, refresh_per_second=4, transient=False
            ):
                yield lambda: None
            return
        last = self.began

        def line() -> None:
            nonlocal last
            if time.monotonic() - last >= _LINE_EVERY:
                last = time.monotonic()
                self.say(self._line(writers))

        yield line

    def _drawn(self, writers: Writers) -> Group:
        table = Table(box=box.SIMPLE_HEAD, header_style="bold", show_edge=False, pad_edge=False, collapse_padding=True)
        for title in ("stream table", "mode", "last action"):
            table.add_column(title, no_wrap=True)
        for title in ("rows", "changed", "staleness", "ms"):
            table.add_column(title, justify="right", no_wrap=True)
        for stream in STREAMS:
            table.add_row(*self._row(stream))
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(writers.written.items()))
        left = max(self.seconds - (time.monotonic() - self.began), 0.0)
        lines = (f"\ncapture: {self._capture()}", f"{writers.transactions} transactions: {kinds}", f"{left:.0f} s left")
        return Group(table, *map(Text, lines))

    def _capture(self) -> str:
        """How each source is captured at present."""
        return ", ".join(f"{source.removeprefix('public.')} {mode}" for source, mode in sorted(self.modes.items()))

    def _row(self, stream: Stream) -> list[Text]:
        seen = self.seen[stream.name]
        plain = [Text(stream.name, style="reverse" if self.busy == stream.name else ""), Text(stream.mode)]
        if seen.result is None:
            return plain
        result = seen.result
        figures = [
            str(seen.rows),
            f"+{result.rows_inserted} -{result.rows_deleted}",
            f"{time.monotonic() - seen.fresh_at:.1f} s",
            f"{result.duration_ms:.0f}",
        ]
        return [*plain, Text(result.action, style=_COLOURS.get(result.action, "")), *map(Text, figures)]

    def _line(self, writers: Writers) -> str:
        parts = []
        for stream in STREAMS:
            seen = self.seen[stream.name]
            if seen.result is not None:
                parts.append(f"{stream.name} {seen.result.action} {seen.rows} rows {seen.result.duration_ms:.0f} ms")
        elapsed = time.monotonic() - self.began
        captured = f"capture: {self._capture()}"
        return f"{elapsed:3.0f} s  {writers.transactions} transactions | " + " | ".join([*parts, captured])
