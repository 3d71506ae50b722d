"""Random queries over random rows: the tree gives what the query gives, as PostgreSQL answers both. No Spark."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from pgtrickle import db, embedded
from pgtrickle.answers import NOW
from pgtrickle.delta.differentiate import differentiate
from pgtrickle.delta.tree_text import plan
from pgtrickle.query import render
from pgtrickle.query.compile import compile_query
from tests.clock import at_time
from tests.conftest import fresh_database
from tests.refresh import maintained
from tests.refresh.oracle import differing
from tests.refresh.random_queries import START, TableDefinition, queries, statements

EXAMPLES = 10 * int(os.environ.get("PGTRICKLE_RANDOM_EXAMPLES", "6"))
GOAL = 0.97
TABLES = [TableDefinition("t0", keyed=True, indexed=True), TableDefinition("t1", keyed=False, indexed=False)]


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(query=queries(TABLES, timed=True), before=st.lists(statements(TABLES), min_size=2, max_size=6))
def test_the_tree_gives_what_the_query_gives(query: str, before: list[str], tables: db.Connection) -> None:
    note(query)
    with tables.transaction(force_rollback=True):
        for statement in before:
            tables.execute(statement)
        compiled = compile_query(tables, query)
        maintained.count(compiled.refusal)
        if compiled.tree is None:
            return
        note(plan(differentiate(compiled.tree)))
        names = ", ".join(column.label for column in compiled.tree.columns)
        tables.execute("SELECT set_config(%s, %s, true)", (NOW, START.isoformat()))
        tables.execute(f"CREATE TEMPORARY TABLE ours ({names}) AS {render.select(compiled.tree)}")
        assert differing(tables, "ours", at_time(query, START)) == []


def test_nearly_all_are_maintained(tables: db.Connection) -> None:
    found: Counter[str] = Counter()

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    @given(query=queries(TABLES, timed=True))
    def compiles(query: str) -> None:
        compiled = compile_query(tables, query)
        maintained.count(compiled.refusal, found)

    compiles()
    assert maintained.share(found) >= GOAL, maintained.summary(found)


@pytest.fixture(scope="module")
def tables(server18: embedded.Server) -> Iterator[db.Connection]:
    with fresh_database(server18) as dsn, db.open_session(dsn) as connection:
        for table in TABLES:
            connection.execute(table.ddl)
        yield connection
