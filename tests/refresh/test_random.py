"""Random schemas, queries and windows: after each window every stream table equals PostgreSQL's own answer.

Between their changes the sources are moved from triggers to the WAL and back, step by step, at random, and the clock
goes on, stands still or is set back. Each window is refreshed by a way of its own: by changes or in full, on Spark or
by PostgreSQL alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession

from pgtrickle import db, embedded
from pgtrickle.api import Trickle
from pgtrickle.errors import Unsupported
from pgtrickle.refresh.ways import Way
from tests.clock import at_time
from tests.conftest import fresh_database
from tests.refresh import maintained
from tests.refresh.oracle import differing
from tests.refresh.random_queries import (
    LISTED,
    PASSES,
    START,
    TableDefinition,
    queries,
    queries_in_time,
    schemas,
    statements,
)
from tests.steps.native import force, spending_little
from tests.wal.moving import moving

EXAMPLES = int(os.environ.get("PGTRICKLE_RANDOM_EXAMPLES", "6"))


MOVE = "move "
"""Before a table's name, in a window: it is taken one step further between triggers and WAL."""

Window = tuple[int, list[str], Way | None]
"""Minutes that pass before it, its statements, and the way that it is refreshed by; None: the usual one."""
Story = tuple[list[TableDefinition], list[str], list[str], list[Window]]


@dataclass
class Told:
    """The stream tables of a story: how each is maintained, and when it is."""

    connection: db.Connection
    trickle: Trickle
    at: datetime = START
    queries: dict[str, str] = field(default_factory=dict)
    modes: dict[str, str] = field(default_factory=dict)

    def create(self, name: str, query: str) -> None:
        """Incremental if it can be: counted."""
        refusal, mode = None, "DIFFERENTIAL"
        try:
            self.trickle.create_stream_table(name, query, refresh_mode=mode)
        except Unsupported as refused:
            refusal, mode = refused, "FULL"
            self.trickle.create_stream_table(name, query, refresh_mode=mode)
        maintained.count(refusal)
        self.queries[name], self.modes[name] = query, mode

    def refresh(self) -> None:
        """All of them; each must be refreshed as it is maintained, and equal its query."""
        for name, query in self.queries.items():
            result = self.trickle.refresh_stream_table(name)
            note(f"{name} at {self.at}: {query}")
            way = self.trickle._refresher.way
            assert result.action in {"FULL" if way is not None and way.whole else self.modes[name], "NO_DATA"}
            assert differing(self.connection, name, at_time(query, self.at)) == []


@st.composite
def stories(draw: st.DrawFn, *, in_time: bool = False, by_spark: bool = False) -> Story:
    """Tables with rows, queries over them, and windows of statements. `by_spark`: numerics have the digits of a type,
    as Spark's own have."""
    tables = draw(schemas("numeric(30,3)" if by_spark else "numeric", heirs=True))
    query = queries_in_time(tables) if in_time else queries(tables, timed=True)
    asked = draw(st.lists(query, min_size=2, max_size=3, unique=True))
    changes = statements(tables)
    movable = [MOVE + table.name for table in tables if not table.inherited]
    steps = (
        changes if in_time else st.one_of(changes, changes, changes, *([st.sampled_from(movable)] if movable else []))
    )
    taken = [way for way in Way if not (in_time and not way.on_postgres) and not (by_spark and way.on_postgres)]
    ways = st.sampled_from([None, *taken])
    window = st.tuples(st.sampled_from(PASSES), st.lists(steps, min_size=0 if in_time else 1, max_size=6), ways)
    windows = draw(st.lists(window, min_size=2, max_size=4))
    before = draw(st.lists(statements(tables), min_size=2 if in_time else 0, max_size=6))
    return tables, before, asked, windows


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(story=stories())
def test_equals_postgres(story: Story, playground: str, spark: SparkSession) -> None:
    play(story, playground, spark)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(story=stories(in_time=True))
def test_as_the_clock_moves(story: Story, playground18: str) -> None:
    play(story, playground18, None)


@settings(max_examples=max(2, EXAMPLES // 2), deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(story=stories(by_spark=True))
def test_evaluated_by_spark(story: Story, playground18: str, spark: SparkSession) -> None:
    """Spark joins, matches, filters and groups whatever it can."""
    with pytest.MonkeyPatch.context() as patched, spending_little(spark):
        force(patched, by_tasks=False)
        play(story, playground18, spark)


def play(story: Story, playground: str, spark: SparkSession | None) -> None:
    """On Spark, or on PostgreSQL alone."""
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
            told = Told(connection, trickle)
            trickle._refresher.clock = lambda: told.at
            trickle._refresher.without_spark = spark is None
            for position, query in enumerate(asked):
                told.create(f"s{position}", query)
            try:
                _copy(connection, tables, len(asked))
                for minutes, window, way in windows:
                    told.at += timedelta(minutes=minutes)
                    trickle._refresher.way = way
                    for statement in window:
                        if statement.startswith(MOVE):
                            source = statement.removeprefix(MOVE)
                            mover.step(int(str(db.scalar(connection, f"SELECT '{source}'::regclass::oid"))))
                        else:
                            connection.execute(statement)
                    told.refresh()
                _undo(connection, tables)
                told.at = START
                told.refresh()
                for position in range(len(asked)):
                    assert differing(connection, f"s{position}", f"TABLE s{position}_before") == []
            finally:
                for name in told.queries:
                    trickle.drop_stream_table(name)
        connection.execute(f"DROP SCHEMA {schema} CASCADE")


def _copy(connection: db.Connection, tables: list[TableDefinition], streams: int) -> None:
    """Keeps what the tables and the stream tables hold before the windows."""
    kept = [name for table in tables for name in table.names]
    for name in [*kept, *(f"s{position}" for position in range(streams))]:
        connection.execute(f"CREATE TABLE {name}_before AS SELECT * FROM ONLY {name}")


def _undo(connection: db.Connection, tables: list[TableDefinition]) -> None:
    for table in tables:
        connection.execute(f"DELETE FROM {table.name}")
        for name in table.names:
            connection.execute(f"INSERT INTO {name} ({LISTED}) SELECT {LISTED} FROM {name}_before")


@pytest.fixture(scope="module", params=[18, 16], ids=["pg18", "pg16"])
def playground(request: pytest.FixtureRequest) -> object:
    server = request.getfixturevalue(f"server{request.param}")
    assert isinstance(server, embedded.Server)
    with fresh_database(server) as dsn:
        yield dsn


@pytest.fixture(scope="module")
def playground18(server18: embedded.Server) -> Iterator[str]:
    with fresh_database(server18) as dsn:
        yield dsn
