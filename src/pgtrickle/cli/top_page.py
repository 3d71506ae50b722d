"""The page of `pgtrickle top`: an overview as a table and some lines, fitted to a width and a height. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from pgtrickle.cli.output import duration
from pgtrickle.monitor.overview import Overview, TableNow

_COLOURS: Final = {
    "fresh": "green",
    "refreshing": "cyan",
    "stale": "yellow",
    "suspended": "yellow",
    "failing": "red",
    "failed": "bold red",
    "DIFFERENTIAL": "green",
    "FULL": "yellow",
    "REINITIALIZE": "yellow",
    "NO_DATA": "dim",
    "FAILED": "red",
    "WARN": "yellow",
    "ERROR": "bold red",
}
_FIRST: Final = ("failed", "failing", "stale")
"""What is wrong stands above. All else is by name, so that nothing jumps."""
_MOST_PROBLEMS: Final = 4
_FIXED_LINES: Final = 7
"""Of a page: title, heading and its rule, capture, changes, an empty line, the last line of the terminal."""

_GAP: Final = 2
_LEAST_NAME: Final = 16


@dataclass(frozen=True, slots=True)
class _Column:
    """`from_width`: the least width of the page on which it is shown."""

    title: str
    cell: Callable[[TableNow], str]
    from_width: int = 0
    right: bool = False


def page(seen: Overview | None, problem: str | None, every: float, width: int, height: int) -> Group:
    """What the terminal shows. `problem` says why nothing newer than `seen` could be read."""
    hint = Text(f"every {every:g} s, q ends", style="dim")
    if seen is None:
        return Group(Text(problem or "", style="red"), hint)
    above = [Text(_title(seen), style="bold", no_wrap=True, overflow="ellipsis")]
    if problem is not None:
        age = duration((datetime.now().astimezone() - seen.at).total_seconds())
        above.append(Text(f"this was {age} ago: {problem}", style="red", no_wrap=True, overflow="ellipsis"))
    below = [_coloured(line) for line in _fitted(_below(seen), width, 2 * height // 3 - 2)]
    room = max(height - _FIXED_LINES - len(above) - len(below) + 3, 3)
    return Group(*above, _table(seen, width, room), *below, hint)


def plain(seen: Overview, width: int) -> list[str]:
    """The same for a pipe: all stream tables, each on a line."""
    columns = [each for each in _COLUMNS if width >= each.from_width]
    rows = [[each.title for each in columns], *([each.cell(table) for each in columns] for table in _ordered(seen))]
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        each = zip(row, widths, columns, strict=True)
        cells = (text.rjust(size) if column.right else text.ljust(size) for text, size, column in each)
        lines.append("  ".join(cells).rstrip())
    return [_title(seen), *(lines if seen.tables else [_NO_TABLES]), *_below(seen)]


def _table(seen: Overview, width: int, room: int) -> Table | Text:
    if not seen.tables:
        return Text(f"\n{_NO_TABLES}\n")
    columns = [each for each in _COLUMNS if width >= each.from_width]
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", show_edge=False, pad_edge=False, collapse_padding=True)
    shown, left = _ordered(seen), 0
    if len(shown) > room:
        shown, left = shown[: room - 1], len(shown) - room + 1
    widths = [max(len(column.title), *(len(column.cell(each)) for each in shown)) for column in columns]
    widths[0] = max(min(widths[0], width - sum(widths[1:]) - _GAP * (len(columns) - 1)), _LEAST_NAME)
    for column, size in zip(columns, widths, strict=True):  # a long name gives way, and nothing else
        justify = "right" if column.right else "left"
        table.add_column(column.title, justify=justify, no_wrap=True, overflow="ellipsis", width=size)  # type: ignore[arg-type]
    for each in shown:
        cells = [column.cell(each) for column in columns]
        table.add_row(*(Text(cell, style=_COLOURS.get(cell, "")) for cell in cells))
    if left:
        table.add_row(Text(f"… and {left} more", style="dim"))
    return table


_NO_TABLES: Final = "there are no stream tables; `pgtrickle create` makes one"


def _ordered(seen: Overview) -> list[TableNow]:
    def place(table: TableNow) -> tuple[int, str]:
        return (_FIRST.index(table.state) if table.state in _FIRST else len(_FIRST), table.name)

    return sorted(seen.tables, key=place)


def _title(seen: Overview) -> str:
    alive = [f"{each.role_name} (beat {duration(each.heartbeat_s)} ago)" for each in seen.leaders if each.alive]
    silent = [f"{each.role_name} is silent" for each in seen.leaders if not each.alive]
    service = ", ".join([*alive, *silent]) or "none runs"
    whose = f"{seen.database} as {seen.login}, {len(seen.tables)} stream tables"
    return f"{seen.at.astimezone():%H:%M:%S}  {whose}; service: {service}"


def _below(seen: Overview) -> list[str]:
    """How sources are captured, what waits, and what is wrong, with what to do."""
    modes: dict[str, list[str]] = {}
    for each in seen.captured:
        modes.setdefault(each.cdc_mode, []).append(each.source_table.removeprefix("public."))
    capture = "; ".join(f"{mode} {', '.join(sorted(names))}" for mode, names in sorted(modes.items())) or "nothing"
    lag = f"; slot lag {compact(seen.slot.lag_bytes)}B" if seen.slot and seen.slot.lag_bytes is not None else ""
    lines = ["", f"capture: {capture}{lag}", f"waiting: {compact(sum(seen.waiting.values()))} changes"]
    problems = _problems(seen)
    left = len(problems) - _MOST_PROBLEMS
    more = [f"… and {left} more; see `pgtrickle health`"] if left > 0 else []
    return [*lines, *(line for each in problems[:_MOST_PROBLEMS] for line in each), *more]


def _problems(seen: Overview) -> list[list[str]]:
    """The lines of each problem that health finds, the worst first: what is wrong, and what to do."""
    found = []
    for severity in ("ERROR", "WARN"):
        for check in seen.checks:
            if check.severity == severity:
                about = "" if check.check_name == "stream_tables" else f"{check.check_name}: "
                cure = [f"      → {_one_line(check.hint)}"] if check.hint else []
                found.append([f"{severity} {about}{_one_line(check.detail)}", *cure])
    return found


def _fitted(lines: Sequence[str], width: int, most: int) -> Sequence[str]:
    """In full where there is room for it, else each cut off at the width."""
    whole = [part for line in lines for part in textwrap.wrap(line, width, subsequent_indent="        ") or [""]]
    return whole if len(whole) <= most else lines


def _coloured(line: str) -> Text:
    text = Text(line, no_wrap=True, overflow="ellipsis")
    word = line.partition(" ")[0]
    if word in _COLOURS:
        text.stylize(_COLOURS[word], 0, len(word))
    return text


def _name(table: TableNow) -> str:
    return table.name.removeprefix("public.")


def _mode(table: TableNow) -> str:
    same = table.refresh_mode == table.effective_mode
    return table.refresh_mode if same else f"{table.refresh_mode} ({table.effective_mode})"


def _last(table: TableNow) -> str:
    """What the last refresh did; of one that is under way, how far it is."""
    if table.running_since is not None:
        took = duration((datetime.now(table.running_since.tzinfo) - table.running_since).total_seconds())
        return f"{compact(table.running_rows)} rows, {took}" if table.running_rows else took
    if table.last_status in {None, "COMPLETED"}:
        return table.last_action or "-"
    return table.last_status or "-"


def _changed(table: TableNow) -> str:
    if table.rows_inserted is None and table.rows_deleted is None:
        return "-"
    return f"+{compact(table.rows_inserted or 0)} -{compact(table.rows_deleted or 0)}"


def _next(table: TableNow) -> str:
    return "-" if table.next_run is None else f"{table.next_run.astimezone():%H:%M:%S}"


def compact(number: int | None) -> str:
    """`9999`, `12k`, `3.4M`."""
    if number is None:
        return "-"
    if abs(number) < 10_000:
        return str(number)
    amount = float(number)
    for unit in ("k", "M", "G"):
        amount /= 1000
        if abs(amount) < 999.5:
            return f"{amount:.1f}{unit}" if abs(amount) < 99.95 else f"{amount:.0f}{unit}"
    return f"{amount / 1000:.1f}T"


def _one_line(text: str) -> str:
    return " ".join(text.split())


_COLUMNS: Final[Sequence[_Column]] = (
    _Column("stream table", _name),
    _Column("state", lambda table: table.state),
    _Column("mode", _mode, from_width=105),
    _Column("last action", _last),
    _Column("rows", lambda table: compact(table.rows), from_width=115, right=True),
    _Column("changed", _changed, right=True),
    _Column("staleness", lambda table: duration(table.staleness_s), right=True),
    _Column("ms", lambda table: "-" if table.last_ms is None else compact(round(table.last_ms)), right=True),
    _Column("next run", _next, from_width=125, right=True),
)
