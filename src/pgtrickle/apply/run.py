"""Runs scripts (`postgres/statements/`) on a connection: the one place that does. Called by `merge.py`, and by
`refresh/evaluate/stages.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import psycopg

from pgtrickle.db import Connection, execute, scalar
from pgtrickle.errors import StateError
from pgtrickle.postgres.copy import pipe
from pgtrickle.postgres.statements.script import (
    Command,
    Expected,
    FromTables,
    Require,
    Rounds,
    Run,
    Script,
    There,
    UnlessConflict,
    When,
    empty_temporary,
)

Tables = Callable[[], Connection]
"""Asked for where the user's tables are read as after the window, once something is to be read there."""


def run(connection: Connection, script: Script, tables: Tables | None = None) -> Counter[str]:
    """Runs it in the transaction that is open; returns what was counted. StateError if something must hold that does
    not."""
    runner = _Runner(connection, tables or (lambda: connection))
    runner.run(script)
    return runner.counted


class _Runner:
    def __init__(self, connection: Connection, tables: Tables) -> None:
        self.connection = connection
        self.tables = tables
        self.counted = Counter[str]()
        self.changed = 0

    def run(self, script: Script) -> None:
        for command in script:
            self._command(command)

    def _command(self, command: Command) -> None:
        match command:
            case Run():
                self._statement(command)
            case Require(condition=condition, problem=problem):
                if not scalar(self.connection, f"SELECT {condition}"):
                    raise StateError(problem.message, code=problem.code, hint=problem.hint)
            case When(condition=condition, then=then, otherwise=otherwise):
                self.run(then if scalar(self.connection, f"SELECT {condition}") else otherwise)
            case UnlessConflict(statement=statement, otherwise=otherwise):
                self._attempt(statement, otherwise)
            case FromTables():
                self._from_tables(command)
            case There(script=script):
                _Runner(self.tables(), self.tables).run(script)
            case Rounds():
                self._rounds(command)

    def _rounds(self, command: Rounds) -> None:
        for _ in range(command.most + 1):
            before = self.changed
            self.run(command.script)
            if self.changed == before:
                return
        raise StateError(command.problem.message, code=command.problem.code, hint=command.problem.hint)

    def _statement(self, statement: Run) -> None:
        if statement.expected is None:
            self._count(statement, execute(self.connection, statement.sql))
        elif wanted := self._wanted(statement.expected):
            self._change(statement, statement.expected, wanted)

    def _attempt(self, statement: Run, otherwise: Script) -> None:
        assert statement.expected is not None
        wanted = self._wanted(statement.expected)
        if not wanted:
            return
        try:
            with self.connection.transaction():
                self._change(statement, statement.expected, wanted)
        except (psycopg.errors.UniqueViolation, psycopg.errors.ExclusionViolation):
            self.run(otherwise)

    def _wanted(self, expected: Expected) -> int:
        return int(str(scalar(self.connection, expected.rows)))

    def _change(self, statement: Run, expected: Expected, wanted: int) -> None:
        changed = execute(self.connection, statement.sql)
        if changed != wanted:
            problem = expected.problem
            told = f"{wanted} {problem.message}, but only {changed} are there"
            raise StateError(told, code=problem.code, hint=problem.hint)
        self._count(statement, changed)

    def _count(self, statement: Run, changed: int) -> None:
        self.changed += max(changed, 0)
        self.counted.update(dict.fromkeys(statement.counts, changed))

    def _from_tables(self, command: FromTables) -> None:
        """What is sent goes there, and the answer comes here, unless that is one session."""
        there, sent = self.tables(), command.sent
        if sent is not None:
            execute(there, empty_temporary(sent.table, sent.columns).sql)
            _copy(self.connection, sent.rows, there, sent.table)
            execute(there, f"ANALYZE {sent.table}")  # few, mostly: they are to be found by index
        execute(self.connection, empty_temporary(command.table, command.columns).sql)
        _copy(there, command.query, self.connection, command.table)


def _copy(source: Connection, query: str, target: Connection, table: str) -> None:
    """Puts the rows of a query on one connection into a table of another's, column by place."""
    if source is target:
        execute(target, f"INSERT INTO {table} {query}")
    else:
        pipe(source, query, target, table)
