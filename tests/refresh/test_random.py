"""Random schemas, queries and windows: after each window every stream table equals PostgreSQL's own answer.

Between their changes the sources are moved from triggers to the WAL and back, step by step, at random.
"""

from __future__ import annotations

import os
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession

from pgtrickle import db, embedded
from pgtrickle.api import Trickle
from tests.conftest import fresh_database
from tests.refresh.oracle import differing
from tests.refresh.random_queries import TableDefinition, queries, schemas, statements
from tests.wal.moving import moving

EXAMPLES = int(os.environ.get("PGTRICKLE_RANDOM_EXAMPLES", "6"))


MOVE = "move "
"""Before a table's name, in a window: it is taken one step further between triggers and WAL."""

Story = tuple[list[TableDefinition], list[str], list[str], list[list[str]]]


@st.composite
def stories(draw: st.DrawFn) -> Story:
    """Tables with rows, queries over them, and windows of statements."""
    tables = draw(schemas())
    asked = draw(st.lists(queries(tables), min_size=2, max_size=3, unique=True))
    moves = st.sampled_from([MOVE + table.name for table in tables])
    changes = statements(tables)
    steps = st.one_of(changes, changes, changes, moves)
    windows = draw(st.lists(st.lists(steps, min_size=1, max_size=6), min_size=2, max_size=4))
    before = draw(st.lists(statements(tables), max_size=6))
    return tables, before, asked, windows


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(story=stories())
def test_equals_postgres(story: Story, playground: str, spark: SparkSession) -> None:
    tables, before, asked, windows = story
    schema = f"r_{uuid4().hex[:10]}"
    dsn = make_conninfo(playground, options=f"-csearch_path={schema}")
    with db.open_session(dsn) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
        for table in tables:
            connection.execute(table.ddl)
        for statement in before:
            connection.execute(statement)
        with Trickle(dsn, spark=spark) as trickle, moving(dsn) as mover:
            for position, query in enumerate(asked):
                trickle.create_stream_table(f"s{position}", query, refresh_mode="DIFFERENTIAL")
            try:
                _copy(connection, [table.name for table in tables], len(asked))
                for window in windows:
                    for statement in window:
                        if statement.startswith(MOVE):
                            source = statement.removeprefix(MOVE)
                            mover.step(int(str(db.scalar(connection, f"SELECT '{source}'::regclass::oid"))))
                        else:
                            connection.execute(statement)
                    _refresh(trickle, connection, asked)
                _undo(connection, tables)
                _refresh(trickle, connection, asked)
                for position in range(len(asked)):
                    assert differing(connection, f"s{position}", f"TABLE s{position}_before") == []
            finally:
                for position in range(len(asked)):
                    trickle.drop_stream_table(f"s{position}")
        connection.execute(f"DROP SCHEMA {schema} CASCADE")


def _refresh(trickle: Trickle, connection: db.Connection, asked: list[str]) -> None:
    """Refreshes all; each must be differential, and equal to its query."""
    for position, query in enumerate(asked):
        result = trickle.refresh_stream_table(f"s{position}")
        assert result.action in {"DIFFERENTIAL", "NO_DATA"}
        note(f"s{position}: {query}")
        assert differing(connection, f"s{position}", query) == []


def _copy(connection: db.Connection, tables: list[str], streams: int) -> None:
    """Keeps what the tables and the stream tables hold before the windows."""
    for name in [*tables, *(f"s{position}" for position in range(streams))]:
        connection.execute(f"CREATE TABLE {name}_before AS TABLE {name}")


def _undo(connection: db.Connection, tables: list[TableDefinition]) -> None:
    for table in tables:
        connection.execute(f"DELETE FROM {table.name}")
        connection.execute(f"INSERT INTO {table.name} (i, g, n, s) SELECT i, g, n, s FROM {table.name}_before")


@pytest.fixture(scope="module", params=[18, 16], ids=["pg18", "pg16"])
def playground(request: pytest.FixtureRequest) -> object:
    server = request.getfixturevalue(f"server{request.param}")
    assert isinstance(server, embedded.Server)
    with fresh_database(server) as dsn:
        yield dsn
