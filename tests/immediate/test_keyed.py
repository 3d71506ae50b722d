"""A write of one row costs the keys it touches: by what EXPLAIN (ANALYZE, BUFFERS) says of our statements, and by the
rows that PostgreSQL counts, whatever way they were read."""

from __future__ import annotations

import pytest

from tests.immediate.explained import explain_from_now_on, told
from tests.immediate.telling import Told

ROWS, KEYS = 8_000, 2_000
MOST_ROWS, MOST_PAGES = 600, 1_500
"""For one statement, of tables of 8,000 rows: far less than any of them."""
QUERIES = {
    "rows_of": "SELECT id, k FROM t WHERE v > 1",
    "joined": "SELECT t.id, r.v FROM t JOIN r ON r.k = t.k",
    "left_joined": "SELECT t.id, r.v FROM t LEFT JOIN r ON r.k = t.k",
    "full_joined": "SELECT t.id, r.v FROM t FULL JOIN r ON r.k = t.k",
    "three": "SELECT t.id, r.v, s.v AS w FROM t JOIN r ON r.k = t.k LEFT JOIN s ON s.k = r.k",
    "itself": "SELECT a.id, b.id AS other FROM t a JOIN t b ON a.k = b.k",
    "met": "SELECT id FROM t WHERE EXISTS (SELECT FROM r WHERE r.k = t.k AND r.v > 2)",
    "lonely": "SELECT id FROM t WHERE NOT EXISTS (SELECT FROM r WHERE r.k = t.k)",
    "listed": "SELECT id FROM t WHERE k IN (SELECT k FROM r)",
    "totals": "SELECT k, count(*) AS n, sum(v) AS total, avg(v) AS mean FROM t GROUP BY k",
    "mosts": "SELECT k, max(v) AS most, min(id) AS least FROM t GROUP BY k",
    "lists": "SELECT k, string_agg(v::text, ',' ORDER BY v) AS list FROM t GROUP BY k",
    "distinct_counts": "SELECT k, count(DISTINCT v) AS n FROM t GROUP BY k",
    "all_of_it": "SELECT count(*) AS n, sum(v) AS total FROM t",
    "large": "SELECT k, count(*) AS n FROM t GROUP BY k HAVING count(*) > 4",
    "sums": "SELECT t.k, sum(r.v) AS total FROM t JOIN r ON r.k = t.k GROUP BY t.k",
    "most_of_pairs": "SELECT t.k, max(r.v) AS most FROM t LEFT JOIN r ON r.k = t.k GROUP BY t.k",
    "over_sums": "SELECT n, count(*) AS m FROM (SELECT k, count(*) AS n FROM t GROUP BY k) AS g GROUP BY n",
    "sets": "SELECT k, v, count(*) AS n FROM t GROUP BY GROUPING SETS ((k), (k, v))",
    "kinds": "SELECT DISTINCT k FROM t",
    "either": "SELECT k FROM t UNION SELECT k FROM r",
    "common": "SELECT k FROM t INTERSECT SELECT k FROM r",
    "beyond": "SELECT k FROM t EXCEPT ALL SELECT k FROM r",
    "beside": "SELECT k, v FROM t UNION ALL SELECT k, v FROM r",
    "places": "SELECT id, row_number() OVER (PARTITION BY k ORDER BY v, id) AS place FROM t",
    "shares": "SELECT id, v, sum(v) OVER (PARTITION BY k) AS total FROM t",
    "first": "SELECT id, v FROM t ORDER BY id LIMIT 3",
    "first_each": "SELECT DISTINCT ON (k) k, v FROM t ORDER BY k, v DESC, id",
    "scalar": "SELECT t.id, (SELECT sum(r.v) FROM r WHERE r.k = t.k) AS total FROM t",
    "beside_each": "SELECT t.id, q.most FROM t, LATERAL (SELECT max(v) AS most FROM r WHERE r.k = t.k) AS q",
    "used_twice": "WITH g AS (SELECT k, count(*) AS n FROM r GROUP BY k)"
    " SELECT t.id, a.n, b.n AS more FROM t JOIN g a ON a.k = t.k LEFT JOIN g b ON b.k = t.id",
}
REACHED = (
    "WITH RECURSIVE up AS (SELECT id, up, 0 AS depth FROM tree WHERE up IS NULL"
    " UNION ALL SELECT t.id, t.up, depth + 1 FROM tree t JOIN up ON t.up = up.id) SELECT id, depth FROM up"
)
WRITES = (
    "INSERT INTO t VALUES (-1, 77, 3)",
    "UPDATE t SET v = v + 1 WHERE id = 78",
    "UPDATE t SET k = 80 WHERE id = 79",
    "DELETE FROM t WHERE id = 81",
    "INSERT INTO r VALUES (-1, 123, 1)",
    "UPDATE r SET v = v + 1 WHERE id = 124",
    "DELETE FROM r WHERE id = 125",
    "DELETE FROM t WHERE id = -1",
    "INSERT INTO t VALUES (81, 81, 4)",
    "DELETE FROM r WHERE id = -1",
    "INSERT INTO r VALUES (125, 125, 6)",
)
OF_TREES = (
    "INSERT INTO tree VALUES (-1, 7999)",
    "UPDATE tree SET up = 5 WHERE id = -1",
    "DELETE FROM tree WHERE id = -1",
)


@pytest.fixture
def tables(story18: Told) -> Told:
    story18.run("CREATE TABLE tree (id int PRIMARY KEY, up int)", "CREATE INDEX ON tree (up)")
    story18.run(f"INSERT INTO tree SELECT g, nullif(g / 4, 0) FROM generate_series(1, {ROWS}) AS g")
    for table in ("t", "r", "s"):
        rows = f"SELECT g, g % {KEYS}, g % 7 FROM generate_series(1, {ROWS}) AS g"
        story18.run(
            f"CREATE TABLE {table} (id int PRIMARY KEY, k int, v int)",
            f"INSERT INTO {table} {rows}",
            f"CREATE INDEX ON {table} (k)",
        )
    story18.run("VACUUM ANALYZE")
    return story18


def test_no_step_reads_a_table(tables: Told) -> None:
    """Each of the statements that our functions run, as PostgreSQL has run it."""
    for name, query in QUERIES.items():
        tables.trickle.create_stream_table(name, query, refresh_mode="IMMEDIATE")
        tables.queries[name] = query
    tables.run("VACUUM ANALYZE")
    names = {tables.stream(name).pgt_id: name for name in QUERIES}
    assert explain_from_now_on(tables.connection) >= 3 * len(QUERIES)
    seen, wrong = set[str](), list[object]()
    for write in WRITES:
        tables.run(write)
        for pgt_id, found in told(tables.connection):
            seen.add(names[pgt_id])
            wrong += [(names[pgt_id], write, read) for read in found.reads if read.rows > MOST_ROWS]
            if found.pages > MOST_PAGES:
                wrong += [(names[pgt_id], write, found.pages)]
    assert not wrong, "\n".join(map(str, wrong))
    assert seen == set(QUERIES)
    tables.right()


ONE_GROUP = ("totals", "mosts", "large", "kinds", "lists")


@pytest.mark.parametrize("name", ONE_GROUP)
def test_one_group_reads_by_key(tables: Told, name: str) -> None:
    """It takes several small statements, unless its groups are always computed again: here the rows that PostgreSQL
    counts."""
    tables.trickle.create_stream_table(name, QUERIES[name], refresh_mode="IMMEDIATE")
    tables.queries[name] = QUERIES[name]
    tables.run("VACUUM ANALYZE")
    own = "SELECT proname FROM pg_proc WHERE proname LIKE 'i\\_%\\_on\\_%' AND prosrc LIKE '%IF how_many = 1 THEN%'"
    assert tables.value(f"SELECT count(*) FROM ({own}) AS f") == (0 if name == "lists" else 1)
    for write in WRITES:
        before = _rows_read(tables)
        tables.run(write)
        assert _rows_read(tables) - before < MOST_ROWS, write
    tables.right()


def test_a_recursion_reads_by_key(tables: Told) -> None:
    """It takes several statements: here the rows that PostgreSQL counts."""
    tables.trickle.create_stream_table("reached", REACHED, refresh_mode="IMMEDIATE")
    tables.queries["reached"] = REACHED
    tables.run("VACUUM ANALYZE")
    for write in OF_TREES:
        before = _rows_read(tables)
        tables.run(write)
        assert 0 < _rows_read(tables) - before < MOST_ROWS, write
    tables.right()


def _rows_read(tables: Told) -> int:
    tables.run("SELECT pg_stat_force_next_flush()")
    read = "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_user_tables"
    return int(str(tables.value(read)))


@pytest.mark.parametrize(
    ("query", "index"),
    [
        ("SELECT a.id FROM a JOIN b ON b.k = a.k", 'CREATE INDEX ON "public"."b" ("k")'),
        ("SELECT a.id FROM a LEFT JOIN b ON b.k = a.id", 'CREATE INDEX ON "public"."b" ("k")'),
        ("SELECT id FROM b WHERE NOT EXISTS (SELECT FROM a WHERE a.k = b.k)", 'CREATE INDEX ON "public"."a" ("k")'),
        ("SELECT k, max(v) AS most FROM a GROUP BY k", 'CREATE INDEX ON "public"."a" ("k")'),
        (
            "SELECT a.v, string_agg(b.v::text, ',' ORDER BY b.v) AS s FROM a JOIN b ON b.id = a.id GROUP BY a.v",
            'CREATE INDEX ON "public"."a" ("v")',
        ),
        ("SELECT id, v FROM a ORDER BY v DESC, id LIMIT 3", 'CREATE INDEX ON "public"."a" ("v" DESC'),
        ("SELECT k, sum(v) AS total FROM a GROUP BY k", None),
        ("SELECT a.id, b.v FROM a JOIN b ON b.id = a.id", None),
        ("SELECT id, sum(v) OVER (PARTITION BY k) AS s FROM a", None),
    ],
)
def test_explain_names_the_indexes_that_are_missing(story18: Told, query: str, index: str | None) -> None:
    """And no more, once they are there."""
    for table in ("a", "b"):
        story18.run(f"CREATE TABLE {table} (id int PRIMARY KEY, k int, v int)")
        story18.run(f"INSERT INTO {table} SELECT g, g % 9, g % 5 FROM generate_series(1, 50) AS g")
    story18.create("view", query)
    _, _, told_of_it = story18.trickle.explain("view").partition("missing indexes\n")
    assert told_of_it
    if index is not None:
        assert index in told_of_it
        made = [line.strip() for line in told_of_it.splitlines() if line.strip().startswith("CREATE INDEX")]
        story18.run(*made)
        story18.trickle.refresh_stream_table("view")
        _, _, told_of_it = story18.trickle.explain("view").partition("missing indexes\n")
    assert told_of_it.splitlines()[0].strip() == "none"
