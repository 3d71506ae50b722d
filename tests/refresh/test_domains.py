"""A correlated subquery that is built for the values of the rows around it is built for those that WHERE keeps: counted
by the rows of its state, which pairs of FROM that no condition joins would multiply."""

from __future__ import annotations

import pytest

from pgtrickle import db
from pgtrickle.api import Trickle
from tests.refresh.oracle import differing

ROWS, GROUPS = 300, 20
NESTED = "SELECT 1 FROM t c WHERE b.h = c.h AND NOT EXISTS (SELECT 1 FROM t d WHERE a.k = d.k AND d.h > c.h)"
QUERIES = {
    "in_where": "SELECT a.k FROM t a, t b WHERE a.k = b.k AND EXISTS (SELECT 1 FROM t c WHERE b.h = c.h"
    " AND NOT EXISTS (SELECT 1 FROM t d WHERE a.k = d.k))",
    "not_exists": f"SELECT a.k FROM t a, t b WHERE a.k = b.k AND NOT EXISTS ({NESTED})",
    "under_or": f"SELECT a.k FROM t a, t b WHERE a.k = b.k AND (a.h = 3 OR EXISTS ({NESTED}))",
    "in_the_list": f"SELECT a.k, EXISTS ({NESTED}) AS e FROM t a, t b WHERE a.k = b.k",
    "a_value": "SELECT a.k, (SELECT count(*) FROM t c WHERE c.h > a.h AND c.k < b.k) AS n FROM t a, t b"
    " WHERE a.k = b.k AND a.k < 40",
    "two_levels": "SELECT o.k FROM t o WHERE EXISTS (SELECT FROM t a, t b WHERE a.k = b.k AND b.k = o.k"
    f" AND EXISTS ({NESTED}))",
}
CHANGES = (
    "UPDATE t SET h = h + 1 WHERE k < 9",
    "DELETE FROM t WHERE h = 4",
    "INSERT INTO t VALUES (3, 4), (NULL, 4), (1000, NULL)",
)


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_no_more_values_than_rows_around(database18: str, query: str) -> None:
    with db.open_session(database18) as connection, Trickle(database18) as trickle:
        trickle._refresher.without_spark = True
        connection.execute("CREATE TABLE t (k int, h int)")
        connection.execute(db.statement(f"INSERT INTO t SELECT i, i % {GROUPS} FROM generate_series(1, {ROWS}) AS i"))
        trickle.create_stream_table("st", query, refresh_mode="DIFFERENTIAL")
        assert max(_kept(connection)) <= ROWS
        for change in CHANGES:
            connection.execute(change)
            assert trickle.refresh_stream_table("st").action == "DIFFERENTIAL"
            assert differing(connection, "st", query) == []


def _kept(connection: db.Connection) -> list[int]:
    """The rows of each state table."""
    names = connection.execute(
        "SELECT c.oid::regclass::text FROM pg_class AS c WHERE relkind = 'r'"
        " AND relnamespace = 'pgtrickle_state'::regnamespace"
    ).fetchall()
    return [0, *(int(str(db.scalar(connection, f"SELECT count(*) FROM {name}"))) for (name,) in names)]
