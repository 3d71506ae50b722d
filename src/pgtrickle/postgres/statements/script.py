"""Statements as values: what to run, what to count, what must hold between. Pure.

A script says what is done to tables that are in PostgreSQL already, by name: one plan for whoever runs it.
`apply/run.py` does, on a connection; a trigger function can have it as its body. All of its names come from outside:
those of temporary tables by `Scratch`, whose suffix tells the uses apart that one transaction has for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pgtrickle.model import Column, quote
from pgtrickle.postgres.wire import definition


@dataclass(frozen=True, slots=True)
class Scratch:
    """The names of temporary tables of one use."""

    suffix: str

    def table(self, what: str) -> str:
        return f"pg_temp.{quote(f'pgt_{what}_{self.suffix}')}"

    def part(self, number: int) -> Scratch:
        """Those of a part of it: a stage, say."""
        return Scratch(f"{self.suffix}_{number}")


@dataclass(frozen=True, slots=True)
class Problem:
    """The error to raise."""

    message: str
    code: str
    hint: str


@dataclass(frozen=True, slots=True)
class Expected:
    """How many rows a statement must change: the answer to the query `rows`. If none, the statement is left out. If it
    changes fewer, that is the problem, told as "3 rows were to be deleted from t, but only 2 are there"."""

    rows: str
    problem: Problem


@dataclass(frozen=True, slots=True)
class Filled:
    """What a statement does to a temporary table: puts the rows of a query into it, beside those that are there, or,
    with `instead`, leaves these alone in it; without a query, none."""

    table: str
    query: str | None = None
    instead: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """One statement. The number of rows that it changes is added to the `counts` of these names."""

    sql: str
    counts: tuple[str, ...] = ()
    expected: Expected | None = None
    filled: Filled | None = None


@dataclass(frozen=True, slots=True)
class Require:
    """A condition must hold, or else that is the problem."""

    condition: str
    problem: Problem


@dataclass(frozen=True, slots=True)
class When:
    """One script or the other."""

    condition: str
    then: Script
    otherwise: Script = ()


@dataclass(frozen=True, slots=True)
class UnlessConflict:
    """A statement that is undone if a unique or exclusion constraint is in its way; then something else is done."""

    statement: Run
    otherwise: Script


@dataclass(frozen=True, slots=True)
class Sent:
    """Rows that a query over the user's tables needs beside these: a temporary table, and what is in it."""

    table: str
    columns: tuple[Column, ...]
    rows: str


@dataclass(frozen=True, slots=True)
class FromTables:
    """Makes a temporary table of a query's rows over the user's tables: run where these are as after the window, which
    may be another session than that which the table is for."""

    table: str
    columns: tuple[Column, ...]
    query: str
    sent: Sent | None = None


@dataclass(frozen=True, slots=True)
class There:
    """A script that is run where the user's tables are as after the window."""

    script: Script


@dataclass(frozen=True, slots=True)
class Rounds:
    """A script that is run again and again, until none of its statements changes a row; more often than `most` times is
    the problem."""

    script: Script
    most: int
    problem: Problem


Command: TypeAlias = Run | Require | When | UnlessConflict | FromTables | There | Rounds
Script: TypeAlias = tuple[Command, ...]


def temporary(table: str, query: str) -> Run:
    """A temporary table of a query's rows."""
    return Run(f"CREATE TEMPORARY TABLE {table} ON COMMIT DROP AS {query}", filled=Filled(table, query))


def empty_temporary(table: str, columns: Sequence[Column]) -> Run:
    """A temporary table without rows."""
    definitions = ", ".join(definition(column) for column in columns)
    return Run(f"CREATE TEMPORARY TABLE {table} ({definitions}) ON COMMIT DROP", filled=Filled(table))


def added(table: str, query: str) -> Run:
    """The rows of a query, into a temporary table that is there."""
    return Run(f"INSERT INTO {table} {query}", filled=Filled(table, query))


def without(table: str, alias: str, others: str, condition: str) -> Run:
    """A temporary table, without the rows for which there are others that meet a condition."""
    left = f"SELECT * FROM {table} AS {alias} WHERE NOT EXISTS (SELECT FROM {others} WHERE {condition})"
    return Run(f"DELETE FROM {table} AS {alias} USING {others} WHERE {condition}", filled=Filled(table, left, True))


def emptied(table: str) -> Run:
    """A temporary table, without its rows."""
    return Run(f"TRUNCATE {table}", filled=Filled(table))


def drop(*tables: str) -> Script:
    return tuple(Run(f"DROP TABLE {table}") for table in tables)
