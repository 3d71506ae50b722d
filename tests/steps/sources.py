"""The source tables of a step file in PostgreSQL: in a schema of their own, changed by real DML, asked for the answer.

Every backend holds one, so that all of them see the same INSERT, UPDATE and DELETE.
"""

from __future__ import annotations

from collections import Counter
from typing import Any
from uuid import uuid4

import psycopg
from psycopg import sql

from tests.clock import at_time
from tests.steps.parser import Change, Row, Step, StepFile


class Sources:
    """One step file's tables, in a fresh schema that comes first on the connection's search path."""

    def __init__(self, connection: psycopg.Connection[Any], file: StepFile) -> None:
        self.connection = connection
        self.file = file
        self.schema = f"steps_{uuid4().hex[:12]}"
        with connection.transaction():
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(self.schema)))
            connection.execute(sql.SQL("SET search_path = {}, public").format(sql.Identifier(self.schema)))
            for statement in (*(table.ddl for table in file.tables), *file.given):
                connection.execute(statement)
        self.at = file.clock
        self.attributes = {table.name: self._attributes(table.name) for table in file.tables}

    def _attributes(self, table: str) -> tuple[str, ...]:
        rows = self.connection.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped"
            " ORDER BY attnum",
            (f"{self.schema}.{table}",),
        )
        return tuple(name for (name,) in rows)

    def oid(self, table: str) -> int:
        row = self.connection.execute("SELECT %s::regclass::oid", (f"{self.schema}.{table}",)).fetchone()
        assert row is not None
        return int(row[0])

    def apply(self, step: Step) -> None:
        """The step's changes in their order, as one transaction; and the time that it is then."""
        self.at = step.at
        with self.connection.transaction():
            for change in step.changes:
                self._apply(change)

    def _apply(self, change: Change) -> None:
        table = sql.Identifier(self.schema, change.table)
        names = [sql.Identifier(name) for name in self.attributes[change.table]]
        columns = sql.SQL(", ").join(names)
        if change.old is None:
            assert change.new is not None
            statement = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(table, columns, _places(change.new))
            done = self.connection.execute(statement, change.new)
        else:
            same = sql.SQL(" AND ").join(sql.SQL("{} IS NOT DISTINCT FROM %s").format(name) for name in names)
            one = sql.SQL("ctid = (SELECT ctid FROM {} WHERE {} LIMIT 1)").format(table, same)
            if change.new is None:
                done = self.connection.execute(sql.SQL("DELETE FROM {} WHERE {}").format(table, one), change.old)
            else:
                template = sql.SQL("UPDATE {} SET ({}) = ROW({}) WHERE {}")
                statement = template.format(table, columns, _places(change.new), one)
                done = self.connection.execute(statement, change.new + change.old)
        if done.rowcount != 1:
            raise AssertionError(f"{change} changed {done.rowcount} rows")

    def answer(self) -> Counter[tuple[Any, ...]]:
        """PostgreSQL's own answer to the view's query."""
        query = self.file.view if self.at is None else at_time(self.file.view, self.at)
        return Counter(self.connection.execute(query).fetchall())

    def drop(self) -> None:
        self.connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(self.schema)))
        self.connection.execute("RESET search_path")


def _places(row: Row) -> sql.Composed:
    return sql.SQL(", ").join(sql.SQL("%s") for _ in row)
