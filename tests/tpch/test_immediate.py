"""TPC-H in IMMEDIATE mode: after each window over all eight tables every stream table equals its query. One window is
changes of one transaction, the next each by itself."""

from __future__ import annotations

import pytest

from pgtrickle import db
from pgtrickle.api import Trickle
from tests.refresh.oracle import differing
from tests.tpch.test_tpch import QUERIES, ROWS
from tests.tpch.test_tpch import loaded as loaded
from tests.tpch.test_tpch import schema as schema
from tests.tpch.windows import window


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
        for name in names:
            trickle.drop_stream_table(name)
