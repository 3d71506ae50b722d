"""Random transactions of several sessions, interleaved statement by statement, at random isolation levels: in the end
the stream table is what its query answers. A match that two writers both missed, or both found, would show."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import IsolationLevel

from pgtrickle import embedded
from pgtrickle.refresh.immediate import functions
from tests.conftest import fresh_database
from tests.immediate.interleaving import Interleaving, Transaction
from tests.immediate.telling import Told, told

SESSIONS = 3
TABLES = (
    "CREATE TABLE l (id int PRIMARY KEY, k int, v int)",
    "CREATE TABLE r (id int PRIMARY KEY, k int, w int)",
    "CREATE TABLE c (id int PRIMARY KEY, up int REFERENCES l ON DELETE CASCADE ON UPDATE CASCADE, x int)",
    "CREATE INDEX ON l (k)",
    "CREATE INDEX ON r (k)",
    "CREATE INDEX ON c (up)",
)
AT_FIRST = (
    "TRUNCATE l, r, c",
    "INSERT INTO l VALUES (1, 0, 0), (2, 1, 1), (3, 1, 1), (4, NULL, 2)",
    "INSERT INTO r VALUES (1, 0, 0), (2, 1, 0), (3, 2, 1)",
    "INSERT INTO c VALUES (1, 1, 0), (2, 2, 1), (3, NULL, 1)",
)
QUERIES = {
    "rows_of": "SELECT k, v FROM l WHERE v < 3",
    "pairs": "SELECT l.k, v, w FROM l JOIN r ON l.k = r.k",
    "unkeyed": "SELECT v, w FROM l JOIN r ON l.k = r.k",
    "left_pairs": "SELECT l.k, v, w FROM l LEFT JOIN r ON l.k = r.k",
    "full_pairs": "SELECT l.k, r.k AS other, v, w FROM l FULL JOIN r ON l.k = r.k AND v <= w",
    "met": "SELECT l.k, v FROM l WHERE EXISTS (SELECT FROM r WHERE r.k = l.k)",
    "lonely": "SELECT k, v FROM l WHERE NOT EXISTS (SELECT FROM r WHERE r.k = l.k)",
    "not_in": "SELECT l.* FROM l WHERE k NOT IN (SELECT k FROM r)",
    "itself": "SELECT a.k, a.v, b.v AS other FROM l a JOIN l b ON a.k = b.k",
    "three": "SELECT l.k, v, w, x FROM l JOIN r ON l.k = r.k LEFT JOIN c ON c.up = l.id",
    "children": "SELECT l.id, v, x FROM l JOIN c ON c.up = l.id",
    "totals": "SELECT k, count(*) AS n, sum(v) AS total, avg(v) AS mean FROM l GROUP BY k",
    "mosts": "SELECT k, max(v) AS most, min(id) AS least FROM l GROUP BY k",
    "lists": "SELECT k, string_agg(v::text, ',' ORDER BY v) AS list, count(DISTINCT v) AS n FROM l GROUP BY k",
    "large": "SELECT k FROM l GROUP BY k HAVING count(*) > 1",
    "all_of_it": "SELECT count(*) AS n, sum(v) AS total, max(v) AS most FROM l",
    "sums": "SELECT l.k, count(*) AS n, sum(w) AS total FROM l JOIN r ON l.k = r.k GROUP BY l.k",
    "sums_of_all": "SELECT r.k, count(l.id) AS n, max(v) AS most FROM r LEFT JOIN l ON l.k = r.k GROUP BY r.k",
    "over_sums": "SELECT n, count(*) AS m FROM (SELECT k, count(*) AS n FROM l GROUP BY k) AS s GROUP BY n",
    "kinds": "SELECT DISTINCT v FROM l",
    "either": "SELECT k FROM l UNION SELECT k FROM r",
    "beyond": "SELECT k FROM l EXCEPT ALL SELECT k FROM r",
    "common": "SELECT k FROM l INTERSECT SELECT k FROM r",
    "beside": "SELECT k, v FROM l UNION ALL SELECT k, w FROM r",
    "places": "SELECT k, v, row_number() OVER (PARTITION BY k ORDER BY v, id) AS place FROM l",
    "sliding": "SELECT id, sum(v) OVER (ORDER BY id ROWS 1 PRECEDING) AS s, lag(v) OVER (ORDER BY id) AS before FROM l",
    "first": "SELECT k, v FROM l ORDER BY v DESC, id LIMIT 2",
    "first_each": "SELECT DISTINCT ON (k) k, v FROM l ORDER BY k, v DESC, id",
    "scalar": "SELECT r.k, (SELECT sum(v) FROM l WHERE l.k = r.k) AS total FROM r",
    "reached": "WITH RECURSIVE up AS (SELECT k, 0 AS n FROM r UNION SELECT l.v, n + 1 FROM l JOIN up ON l.k = up.k"
    " WHERE n < 3) SELECT k, count(*) AS n FROM up GROUP BY k",
}
"""Each by itself, as the turns of another would put the writers in order; and one over another."""
OVER = {"pairs": "SELECT k, count(*) AS n FROM pairs GROUP BY k", "totals": "SELECT n, k FROM totals JOIN r USING (k)"}
"""Stream tables over these stream tables."""

_few = st.integers(0, 2)
_ids = st.integers(1, 4)
_new = st.integers(5, 60)
_keys = st.sampled_from(("1", "1", "0", "2", "NULL"))
_tables = st.sampled_from((("l", "v"), ("r", "w")))


@st.composite
def _changes(draw: st.DrawFn) -> tuple[str, ...]:
    """One statement, or one that is taken back to a savepoint."""
    text = draw(st.one_of(_meetings(), _meetings(), _statements()))
    if draw(st.integers(0, 6)) == 0:
        return ("SAVEPOINT s", text, draw(st.sampled_from(("ROLLBACK TO s", "RELEASE s"))))
    return (text,)


@st.composite
def _meetings(draw: st.DrawFn) -> str:
    """What meets with what others do: changes of rows of one key, of either table."""
    (table, value), id, new = draw(_tables), draw(_ids), draw(_new)
    kinds = (
        f"INSERT INTO {table} VALUES ({new}, 1, {id})",
        f"UPDATE {table} SET k = 1 WHERE id = {id}",
        f"UPDATE {table} SET {value} = {value} + 1 WHERE k = 1",
        f"DELETE FROM {table} WHERE id = {id}",
        f"DELETE FROM {table} WHERE k = 1",
    )
    return draw(st.sampled_from(kinds))


@st.composite
def _statements(draw: st.DrawFn) -> str:
    (table, value), id, new, key, number = draw(_tables), draw(_ids), draw(_new), draw(_keys), draw(_few)
    kinds = {
        "insert": f"INSERT INTO {table} VALUES ({new}, {key}, {number}) ON CONFLICT DO NOTHING",
        "several": f"INSERT INTO {table} SELECT g, {key}, {number} FROM generate_series({new}, {new} + 2) AS g"
        " ON CONFLICT DO NOTHING",
        "upsert": f"INSERT INTO {table} VALUES ({id}, {key}, {number})"
        f" ON CONFLICT (id) DO UPDATE SET k = excluded.k, {value} = excluded.{value}",
        "may fail": f"INSERT INTO {table} VALUES ({id}, {key}, {number})",
        "value": f"UPDATE {table} SET {value} = {number} WHERE id = {id}",
        "values": f"UPDATE {table} SET {value} = {value} + 1 WHERE k = {number}",
        "key": f"UPDATE {table} SET k = {key} WHERE id = {id}",
        "keys": f"UPDATE {table} SET k = (k + 1) % 3",
        "id": f"UPDATE {table} SET id = id + 10 WHERE id = {id}",
        "delete": f"DELETE FROM {table} WHERE id = {id}",
        "deletes": f"DELETE FROM {table} WHERE k = {number}",
        "both": f"WITH gone AS (DELETE FROM l WHERE id = {id} RETURNING *)"
        f" INSERT INTO r SELECT id + 20, k, v FROM gone ON CONFLICT DO NOTHING",
        "merge": f"MERGE INTO {table} AS t USING (VALUES ({id}, {key}), ({id + 1}, {number})) AS s (id, k)"
        " ON t.id = s.id WHEN MATCHED AND t.k IS NULL THEN DELETE WHEN MATCHED THEN UPDATE SET k = s.k"
        f" WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.k, {number})",
        "child": f"INSERT INTO c VALUES ({id}, {id % 4 + 1}, {number})"
        " ON CONFLICT (id) DO UPDATE SET up = excluded.up, x = excluded.x",
        "children": f"UPDATE c SET x = x + 1, up = nullif({id}, 5) WHERE x = {number}",
        "truncate": "TRUNCATE r",
        "look": "SELECT count(*) FROM l",
    }
    return draw(st.sampled_from(list(kinds.values())))


_levels = st.sampled_from(
    (
        IsolationLevel.READ_COMMITTED,
        IsolationLevel.READ_COMMITTED,
        IsolationLevel.REPEATABLE_READ,
        IsolationLevel.SERIALIZABLE,
    )
)
_transactions = st.builds(
    lambda level, changes, rolled_back: Transaction(
        level, tuple(text for each in changes for text in each), rolled_back
    ),
    _levels,
    st.lists(_changes(), min_size=1, max_size=2),
    st.integers(0, 9).map(lambda chance: chance == 0),
)
_work = st.lists(st.lists(_transactions, min_size=1, max_size=2), min_size=SESSIONS, max_size=SESSIONS)
_orders = st.lists(st.integers(0, SESSIONS - 1), max_size=25)


@pytest.fixture(scope="module")
def dsn(server18: embedded.Server) -> Iterator[str]:
    with fresh_database(server18) as dsn, told(dsn) as story:
        story.run(*TABLES)
        yield dsn


@contextmanager
def _of_query(dsn: str, name: str) -> Iterator[tuple[Told, Interleaving]]:
    with told(dsn) as story:
        story.create(name, QUERIES[name])
        if name in OVER:
            story.create("over", OVER[name])
        sessions = Interleaving(dsn, SESSIONS)
        try:
            yield story, sessions
        finally:
            sessions.close()
            story.trickle.drop_stream_table(name, cascade=True)


def _play(dsn: str, name: str, examples: int) -> None:
    with _of_query(dsn, name) as (story, sessions):

        @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))
        @given(_work, _orders)
        def ends_right(work: list[list[Transaction]], order: list[int]) -> None:
            sessions.forget()
            story.run(*AT_FIRST)
            sessions.run(work, order)
            story.right()

        ends_right()
        assert all(found.equal for found in story.trickle.verify())


@pytest.mark.parametrize("name", QUERIES)
def test_transactions_of_several_sessions(dsn: str, name: str) -> None:
    _play(dsn, name, 12)


@pytest.mark.long
@pytest.mark.parametrize("few", [500, 1])
@pytest.mark.parametrize("name", QUERIES)
def test_many_transactions(dsn: str, name: str, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one row for few, statements take both ways, side by side."""
    monkeypatch.setattr(functions, "FEW", few)
    _play(dsn, name, 150)
