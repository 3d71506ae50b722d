"""A story of stream tables in IMMEDIATE mode: after each statement they are what their queries answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
import pytest

from pgtrickle import db
from pgtrickle.api import Trickle
from pgtrickle.db import Connection, statement
from pgtrickle.refresh.result import RefreshResult
from tests.refresh.oracle import differing
from tests.stories.telling import Story, texts


@dataclass
class Told(Story):
    """Writes in the session of a user, whose transactions are its own."""

    def create(self, name: str, query: str, mode: str = "IMMEDIATE") -> RefreshResult:
        result = super().create(name, query, mode)
        assert mode != "IMMEDIATE" or self.stream(name).effective_mode == mode, self.stream(name)
        return result

    def write(self, *statements: str) -> None:
        """The statements, each followed by a look at all stream tables in IMMEDIATE mode, in the session that wrote."""
        for each in statements:
            self.connection.execute(statement(each))
            self.right(after=each)

    def together(self, *statements: str) -> None:
        with self.connection.transaction():
            self.write(*statements)

    def _run_together(self, statements: Sequence[str]) -> None:
        with self.connection.transaction():
            for each in statements:
                self.connection.execute(statement(each))

    def right(self, connection: Connection | None = None, after: str = "") -> None:
        """All stream tables hold what their queries answer, as the session sees both."""
        session = connection or self.connection
        for name, query in self.queries.items():
            assert texts(session, f"TABLE {name}") == texts(session, query), (name, after)
            assert differing(session, name, query) == [], (name, after)

    def fails(self, error: type[psycopg.Error], *statements: str) -> psycopg.Error:
        """The statements, in one transaction, fail; nothing has changed then."""
        before = {name: self.content(name) for name in self.queries}
        with pytest.raises(error) as raised:
            self._run_together(statements)
        assert {name: self.content(name) for name in self.queries} == before
        self.right()
        return raised.value


@contextmanager
def told(dsn: str) -> Iterator[Told]:
    with db.open_session(dsn) as connection, Trickle(dsn) as trickle:
        trickle._refresher.without_spark = True
        yield Told(dsn, connection, trickle)
