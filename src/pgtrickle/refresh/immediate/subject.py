"""What is maintained in IMMEDIATE mode, how all that belongs to it is called, and the rows that a statement has
changed. Pure; `install.py` says what it is of a stream table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pgtrickle.apply.staging_tables import STATE_SCHEMA
from pgtrickle.capture.source import Source, SourceColumn
from pgtrickle.model import Column, quote
from pgtrickle.postgres.wire import WEIGHT
from pgtrickle.query.operators import Scan
from pgtrickle.refresh.immediate.one_group import OneGroup
from pgtrickle.refresh.immediate.one_statement import OneStatement

EVENTS: Final = ("insert", "update", "delete", "truncate")
_MOST_BYTES: Final = 63
"""Of a name."""


@dataclass(frozen=True, slots=True)
class Captured:
    """A source, and its columns that the query uses, with their types where changes are kept."""

    number: int
    source: Source
    columns: tuple[SourceColumn, ...]
    types: tuple[Column, ...]
    intact: str
    same_columns: str


@dataclass(frozen=True, slots=True)
class Names:
    """What belongs to one stream table in IMMEDIATE mode."""

    pgt_id: int
    stream: str

    def of(self, what: str) -> str:
        return f"{STATE_SCHEMA}.{quote(f'i_{self.pgt_id}_{what}')}"

    def prefix(self, what: str) -> str:
        """What the name of a function begins with, whatever the stream table is called."""
        return f"i_{self.pgt_id}_{what} of "

    def bare_function(self, what: str) -> str:
        name = " ".join(f"{self.prefix(what)}{self.stream}".split())
        return name.encode()[:_MOST_BYTES].decode(errors="ignore")

    def function(self, what: str) -> str:
        return f"{STATE_SCHEMA}.{quote(self.bare_function(what))}"

    @property
    def turn(self) -> str:
        return self.of("turn")

    @property
    def open(self) -> str:
        return self.of("open")

    def changes(self, number: int) -> str:
        return self.of(f"changes_{number}")

    def on(self, number: int) -> str:
        return self.function(f"on_{number}")


@dataclass(frozen=True, slots=True)
class Subject:
    """The stream table that is maintained, as long as it has this owner."""

    names: Names
    relid: int
    name: str
    qualified: str
    owner: int
    settings: Mapping[str, str]
    sources: Sequence[Captured]
    may_at_once: str
    """Whether rows are deleted and inserted, so that one statement can do it, as a condition."""
    plan: str
    slots: int
    """How many turns there are; with one, writers follow one another."""


@dataclass(frozen=True, slots=True)
class FewChanges:
    """How few changes of one event are applied: the statement, and the query of the slots whose turns it takes; before
    that, what does for one group."""

    statement: OneStatement
    slots: str | None
    one_group: OneGroup | None = None


@dataclass(frozen=True, slots=True)
class Function:
    """One function: what CREATE FUNCTION says before its body, and that."""

    what: str
    name: str
    head: str
    body: str

    @property
    def create(self) -> str:
        return f"{self.head} AS {_outer(self.body)}"


def weighted(captured: Captured, event: str) -> str:
    """The rows that a statement has written, and those that it has replaced or deleted."""
    sides = {"insert": ((1, "new_rows"),), "delete": ((-1, "old_rows"),)}
    parts = [
        f"SELECT {_values(captured)}{sign}::bigint AS {WEIGHT} FROM {rows} AS r"
        for sign, rows in sides.get(event, ((1, "new_rows"), (-1, "old_rows")))
    ]
    return " UNION ALL ".join(parts)


def changes_of_scan(captured: Captured, scan: Scan, event: str) -> str:
    """The same, of the columns of one scan, under their names."""
    slots = {column.name: quote(slot.name) for column, slot in zip(captured.columns, captured.types, strict=True)}
    values = [
        f"{slots[attribute]} AS {quote(name)}" for attribute, name in zip(scan.attributes, scan.names, strict=True)
    ]
    return f"SELECT {', '.join([*values, WEIGHT])} FROM ({weighted(captured, event)}) AS changes"


def _values(captured: Captured) -> str:
    """The columns of a transition row `r`; a virtual generated column is NULL there, so it is computed."""
    values = [
        f"({column.expression})" if column.expression is not None else f"r.{quote(column.name)}"
        for column in captured.columns
    ]
    return "".join(f"{value} AS {quote(column.name)}, " for value, column in zip(values, captured.types, strict=True))


def quoted(value: str) -> str:
    """A value as a string constant, where backslashes are as they are."""
    return "'" + value.replace("'", "''") + "'"


def _outer(text: str) -> str:
    tag = "$pgtrickle$"
    while tag in text:
        tag = f"{tag[:-1]}_$"
    return f"{tag}{text}{tag}"
