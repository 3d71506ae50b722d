"""Step files: a view over a few tables, and windows of changes with the weighted rows each must give.

    # title: losing its only match retracts the joined row
    table  orders(id int primary key, customer int)
    table  customers(id int primary key, name text)
    given  CREATE VIEW …                      any other SQL to run before the view, none or several
    view   SELECT o.id, c.name FROM orders o JOIN customers c ON c.id = o.customer
    step   +orders(1, 7)  +customers(7, 'ann')
    expect +1 (1, 'ann')
    step   ~customers(7, 'ann') -> (7, 'eve')  -orders(1, 7)
    expect -1 (1, 'ann')

One step is one window: + inserts a row, - deletes one such row, ~ updates one. `expect nothing` is an empty delta.
`clock 2026-01-01 12:00` (UTC) says what time it is at first, and `step at 2026-01-01 12:30  +orders(1, 7)` that it is
another then, whether or not there are changes.
Lines that begin with a blank continue the line above; other # lines are comments.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

Value = int | Decimal | str | bool | None
Row = tuple[Value, ...]


class MalformedStepFileError(ValueError):
    """A step file says something the format has no meaning for; the message begins with file and line."""


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """A source table; `definition` is what stands between the parentheses of CREATE TABLE."""

    name: str
    definition: str

    @property
    def ddl(self) -> str:
        return f"CREATE TABLE {self.name} ({self.definition})"


@dataclass(frozen=True, slots=True)
class Change:
    """One row of one table: inserted (no `old`), deleted (no `new`) or updated."""

    table: str
    old: Row | None
    new: Row | None

    def undone(self) -> Change:
        return Change(self.table, self.new, self.old)


@dataclass(frozen=True, slots=True)
class Step:
    """The changes of one window, in the order they are made, and the delta they must give; the clock at its end, and at
    its start, if the file has one."""

    line: int
    changes: tuple[Change, ...]
    expect: Counter[Row]
    at: datetime | None = None
    since: datetime | None = None

    def undone(self) -> Step:
        expect = Counter({row: -weight for row, weight in self.expect.items()})
        changes = tuple(change.undone() for change in reversed(self.changes))
        return Step(self.line, changes, expect, self.since, self.at)

    def then(self, after: Step) -> Step:
        """Both in one window."""
        expect = Counter(self.expect)
        expect.update(after.expect)
        return Step(self.line, self.changes + after.changes, expect, after.at, self.since)


@dataclass(frozen=True, slots=True)
class StepFile:
    """A parsed step file."""

    path: str
    title: str
    tables: tuple[TableDefinition, ...]
    given: tuple[str, ...]
    view: str
    steps: tuple[Step, ...]
    clock: datetime | None = None


def read(path: Path) -> StepFile:
    return parse(path.read_text(encoding="utf-8"), str(path))


def parse(text: str, path: str = "<steps>") -> StepFile:
    return _Parser(path).parse(text)


class _Parser:
    """One file; `line` is where we are, for messages."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.line = 0

    def parse(self, text: str) -> StepFile:
        title: str | None = None
        tables: list[TableDefinition] = []
        given: list[str] = []
        view: str | None = None
        steps: list[Step] = []
        clock: datetime | None = None
        since: datetime | None = None
        at: datetime | None = None
        open_step: tuple[int, tuple[Change, ...]] | None = None
        for line, keyword, rest in self._sentences(text):
            self.line = line
            if keyword == "title":
                title = rest
            elif keyword == "table":
                tables.append(self._table(rest))
            elif keyword == "given":
                given.append(rest)
            elif keyword == "clock":
                self._check(view is None, "the clock is set before the view")
                clock = since = self._time(rest)
            elif keyword == "view":
                self._check(view is None, "a file has one view")
                view = rest
            elif keyword == "step":
                self._check(open_step is None, "the step above has no expect")
                self._check(view is not None, "a step before the view")
                moved = re.match(r"at\s+(\d\S*\s+[\d:.]+)\s*", rest)
                self._check(moved is None or clock is not None, "a file without a clock")
                at, rest = (self._time(moved[1]), rest[moved.end() :]) if moved else (since, rest)
                open_step = (self.line, self._changes(rest, {table.name for table in tables}))
            elif open_step is not None:
                steps.append(Step(*open_step, self._weighted(rest), at, since))
                open_step, since = None, at
            else:
                raise self._error("expect without a step")
        self._check(open_step is None, "the last step has no expect")
        if title is None or view is None or not steps:
            raise self._error("a file has a '# title:', a view and at least one step")
        return StepFile(self.path, title, tuple(tables), tuple(given), view, tuple(steps), clock)

    def _sentences(self, text: str) -> list[tuple[int, str, str]]:
        """(line, keyword, rest) with continuation lines joined on."""
        sentences: list[tuple[int, str, str]] = []
        for number, line in enumerate(text.splitlines(), start=1):
            self.line = number
            title = re.match(r"#\s*title:\s*(.+)", line)
            if title:
                sentences.append((self.line, "title", title[1].strip()))
            elif not line.strip() or line.lstrip().startswith("#"):
                continue
            elif line[0].isspace():
                self._check(bool(sentences) and sentences[-1][1] != "title", "a continuation of nothing")
                at, keyword, rest = sentences[-1]
                sentences[-1] = (at, keyword, f"{rest}\n{line.strip()}")
            else:
                keyword, _, rest = line.partition(" ")
                known = keyword in {"table", "given", "clock", "view", "step", "expect"}
                self._check(known and bool(rest.strip()), f"expected table, given, clock, view, step, expect: {line!r}")
                sentences.append((self.line, keyword, rest.strip()))
        return sentences

    def _time(self, text: str) -> datetime:
        try:
            return datetime.fromisoformat(text).replace(tzinfo=UTC)
        except ValueError as error:
            raise self._error(f"a time is 2026-01-01 12:00, not {text!r}") from error

    def _table(self, text: str) -> TableDefinition:
        match = re.fullmatch(r"(\w+)\s*\((.*)\)", text, re.DOTALL)
        if match is None:
            raise self._error(f"a table is name(column type, …), not {text!r}")
        return TableDefinition(match[1], match[2])

    def _changes(self, text: str, tables: set[str]) -> tuple[Change, ...]:
        changes = []
        while text:
            match = re.match(r"([-+~])(\w+)\s*(?=\()", text)
            if match is None:
                raise self._error(f"a change is +table(…), -table(…) or ~table(…) -> (…), not {text!r}")
            self._check(match[2] in tables, f"no table {match[2]}")
            row, text = self._row(text[match.end() :])
            if match[1] == "~":
                arrow = re.match(r"->\s*", text)
                if arrow is None:
                    raise self._error(f"an update is ~table(…) -> (…), not {text!r}")
                new, text = self._row(text[arrow.end() :])
                changes.append(Change(match[2], row, new))
            else:
                changes.append(Change(match[2], None, row) if match[1] == "+" else Change(match[2], row, None))
        return tuple(changes)

    def _weighted(self, text: str) -> Counter[Row]:
        rows: Counter[Row] = Counter()
        if text == "nothing":
            return rows
        while text:
            match = re.match(r"([-+]\d+)\s*(?=\()", text)
            if match is None:
                raise self._error(f"expect says nothing, or rows like +1 (…) -2 (…), not {text!r}")
            row, text = self._row(text[match.end() :])
            self._check(int(match[1]) != 0 and row not in rows, f"weight zero, or a row twice: {match[0]}{row}")
            rows[row] = int(match[1])
        return rows

    def _row(self, text: str) -> tuple[Row, str]:
        """The row in parentheses that `text` begins with, and what follows it."""
        values: list[Value] = []
        text = text[1:].lstrip() if text.startswith("(") else text
        if text.startswith(")"):
            return (), text[1:].lstrip()
        while True:
            match = re.match(r"('(?:[^']|'')*'|[^\s,()']+)\s*([,)])\s*", text)
            if match is None:
                raise self._error(f"a row is (1, 2.5, 'text', true, NULL), not {text!r}")
            values.append(self._value(match[1]))
            text = text[match.end() :]
            if match[2] == ")":
                return tuple(values), text

    def _value(self, text: str) -> Value:
        if text.startswith("'"):
            return text[1:-1].replace("''", "'")
        if re.fullmatch(r"[-+]?\d+", text):
            return int(text)
        if re.fullmatch(r"[-+]?\d+\.\d+", text):
            return Decimal(text)
        words: dict[str, bool | None] = {"null": None, "true": True, "false": False}
        self._check(text.lower() in words, f"no value: {text!r}")
        return words[text.lower()]

    def _check(self, condition: bool, problem: str) -> None:
        if not condition:
            raise self._error(problem)

    def _error(self, problem: str) -> MalformedStepFileError:
        return MalformedStepFileError(f"{self.path}:{self.line}: {problem}")
