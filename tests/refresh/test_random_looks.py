"""Random queries over values that are equal but look different: every refresh is right, and shows what a full one
would."""

from __future__ import annotations

import os
from collections.abc import Iterator
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from psycopg.conninfo import make_conninfo

from pgtrickle import db, embedded
from pgtrickle.api import Trickle
from pgtrickle.db import Connection
from tests.conftest import fresh_database
from tests.refresh.oracle import differing
from tests.refresh.random_looks import FOLDED, TABLES, VALUES, queries, statements

EXAMPLES = int(os.environ.get("PGTRICKLE_RANDOM_EXAMPLES", "6"))


Story = tuple[str, list[str], list[str], list[list[str]]]


@st.composite
def stories(draw: st.DrawFn, *, folded: bool = False) -> Story:
    """The type of the keys, what is there at first, queries, and windows."""
    kind = "folded" if folded else draw(st.sampled_from(sorted(VALUES)))
    changes = statements(FOLDED if folded else VALUES[kind])
    before = draw(st.lists(changes, max_size=6))
    asked = draw(st.lists(queries(kind), min_size=3, max_size=3, unique=True))
    return kind, before, asked, draw(st.lists(st.lists(changes, min_size=1, max_size=4), min_size=3, max_size=4))


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(story=stories())
def test_equals_postgres(story: Story, database_of_looks: str) -> None:
    play(database_of_looks, *story)


@pytest.mark.long
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(story=stories(folded=True))
def test_cases_that_a_collation_does_not_tell_apart(story: Story, database_with_icu: str) -> None:
    play(database_with_icu, *story)


def play(database: str, kind: str, before: list[str], asked: list[str], windows: list[list[str]]) -> None:
    schema = f"r_{uuid4().hex[:10]}"
    dsn = make_conninfo(database, options=f"-csearch_path={schema},public")
    with db.open_session(dsn) as connection, Trickle(dsn) as trickle:
        trickle._refresher.without_spark = True
        connection.execute(f"CREATE SCHEMA {schema}")
        for table in TABLES:
            type_ = "text COLLATE public.folded" if kind == "folded" else kind
            connection.execute(f"CREATE TABLE {table} (id int GENERATED ALWAYS AS IDENTITY, k {type_}, v int)")
        for statement in before:
            connection.execute(statement)
        names = [f"s{position}" for position in range(len(asked))]
        made: list[str] = []
        try:
            for name, query in zip(names, asked, strict=True):
                note(f"{name}: {query}")
                trickle.create_stream_table(name, query, refresh_mode="DIFFERENTIAL")
                made.append(name)
            for window in windows:
                with connection.transaction():
                    for statement in window:
                        connection.execute(statement)
                for name, query in zip(names, asked, strict=True):
                    _follow(connection, trickle, name, query)
            for name in names:
                _again(trickle, name)
        finally:
            for name in made:
                trickle.drop_stream_table(name)
            connection.execute(f"DROP SCHEMA {schema} CASCADE")


def _follow(connection: Connection, trickle: Trickle, name: str, query: str) -> None:
    note(f"{name} is refreshed")
    assert trickle.refresh_stream_table(name).action in {"DIFFERENTIAL", "NO_DATA"}
    assert differing(connection, name, query) == []
    looks = " UNION ALL ".join(f'SELECT k::text COLLATE "C" AS k FROM {table} WHERE k IS NOT NULL' for table in TABLES)
    assert (
        connection.execute(
            f'SELECT k::text FROM {name} WHERE k IS NOT NULL AND k::text COLLATE "C" NOT IN ({looks})'
        ).fetchall()
        == []
    )


def _again(trickle: Trickle, name: str) -> None:
    """A full refresh shows the same looks."""
    again = trickle.refresh_stream_table(name, full=True)
    assert (again.rows_inserted, again.rows_deleted) == (0, 0), name


@pytest.fixture(scope="module")
def database_of_looks(server18: embedded.Server) -> Iterator[str]:
    with fresh_database(server18) as dsn:
        yield dsn


@pytest.fixture(scope="module")
def database_with_icu(server15: embedded.Server) -> Iterator[str]:
    with fresh_database(server15) as dsn:
        with db.open_session(dsn) as connection:
            connection.execute(
                "CREATE COLLATION public.folded (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
            )
        yield dsn
