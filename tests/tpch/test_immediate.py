"""TPC-H in IMMEDIATE mode: after each window over all eight tables every stream table equals its query. One window is
changes of one transaction, the next each by itself. And a row of one reads no table, by what EXPLAIN says."""

from __future__ import annotations

import pytest

from pgtrickle import db
from pgtrickle.api import Trickle
from pgtrickle.db import Connection
from tests.immediate.explained import explain_from_now_on, told
from tests.refresh.oracle import differing
from tests.tpch.test_tpch import QUERIES, ROWS
from tests.tpch.test_tpch import loaded as loaded
from tests.tpch.test_tpch import schema as schema
from tests.tpch.windows import window

MOST_ROWS = 4_000
"""That one statement may read of a table, and far less than there are in lineitem, orders and partsupp."""
ANOTHER = "SELECT (jsonb_populate_record(l, '{\"l_linenumber\": 901}')).* FROM lineitem AS l ORDER BY 1, 4 LIMIT 1"
ONE_ROW = (
    f"INSERT INTO lineitem {ANOTHER}",
    "UPDATE lineitem SET l_quantity = l_quantity + 1 WHERE l_linenumber = 901",
    "DELETE FROM lineitem WHERE l_linenumber = 901",
)


@pytest.mark.parametrize("windows", [range(20, 22), pytest.param(range(22, 34), marks=pytest.mark.long)], ids=str)
def test_all_queries_follow_the_writers(loaded: str, windows: range) -> None:
    _kept(loaded, tuple(QUERIES), windows)


def _kept(dsn: str, names: tuple[str, ...], windows: range) -> None:
    with Trickle(dsn) as trickle, db.open_session(dsn) as connection:
        trickle._refresher.without_spark = True
        for name in names:
            trickle.create_stream_table(name, QUERIES[name], refresh_mode="IMMEDIATE")
            assert trickle.status(name)[0].is_immediate
        for number in windows:
            changes = window(number, ROWS)
            if number % 2:
                with connection.transaction():
                    for statement in changes:
                        connection.execute(db.statement(statement))
            else:
                for statement in changes:
                    connection.execute(db.statement(statement))
            for name in names:
                assert differing(connection, name, QUERIES[name]) == [], (number, name)
        _read_by_key(connection)
        for name in names:
            trickle.drop_stream_table(name)


def _read_by_key(connection: Connection) -> None:
    connection.execute("ANALYZE")
    assert explain_from_now_on(connection) > len(QUERIES)
    for statement in ONE_ROW:
        connection.execute(db.statement(statement))
        found = told(connection)
        assert len(found) >= 5
        assert [read for _, each in found for read in each.reads if read.rows > MOST_ROWS] == [], statement
    connection.execute("DROP TABLE told")
