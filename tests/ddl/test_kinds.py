"""Whatever an answer depends on is changed between two refreshes: the table equals its query after the next one.

With event triggers, which note some of it at once, and without: what decides is the fingerprint.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.ddl.conftest import owned
from tests.ddl.place import Place, place
from tests.stories.telling import texts

KINDS = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE DOMAIN level AS int;
CREATE FUNCTION deep(a int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT a + 1';
CREATE FUNCTION outside(a int) RETURNS int LANGUAGE sql IMMUTABLE RETURN deep(a);
CREATE FUNCTION near(a int, b int) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT a = b';
CREATE OPERATOR ~= (FUNCTION = near, LEFTARG = int, RIGHTARG = int);
CREATE FUNCTION add_up(s int, a int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT s + a';
CREATE AGGREGATE total (int) (SFUNC = add_up, STYPE = int, INITCOND = '0');
CREATE TEXT SEARCH CONFIGURATION words (PARSER = default);
ALTER TEXT SEARCH CONFIGURATION words ADD MAPPING FOR asciiword WITH simple;
CREATE TYPE pair AS (a int, b int);
CREATE FUNCTION as_int(p pair) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT (p).a';
CREATE CAST (pair AS int) WITH FUNCTION as_int(pair);
CREATE TABLE k (id int PRIMARY KEY, m mood, n int, p pair, doc text);
INSERT INTO k VALUES (1, 'sad', 1, (1, 10), 'the cats run'), (2, 'ok', 2, (2, 20), 'a dog ran');
INSERT INTO k VALUES (3, 'ok', 3, NULL, NULL);
"""
QUERIES = {
    "moods": "SELECT m::text AS m, count(*) AS n FROM k GROUP BY m",
    "ordered": "SELECT max(m) AS worst, min(m) AS best FROM k",
    "levels": "SELECT id, n::level AS n FROM k",
    "outer_ones": "SELECT id, outside(n) AS o FROM k",
    "nearby": "SELECT id, n ~= 2 AS near FROM k",
    "totals": "SELECT m, total(n) AS t FROM k GROUP BY m",
    "found": "SELECT id, to_tsvector('words', doc) AS v FROM k",
    "casts": "SELECT id, p::int AS p FROM k",
}
CHANGES = (
    "ALTER TYPE mood RENAME VALUE 'ok' TO 'fine'",
    "CREATE OR REPLACE FUNCTION deep(a int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT a + 100'",
    "CREATE OR REPLACE FUNCTION near(a int, b int) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT abs(a - b) < 2'",
    "CREATE OR REPLACE FUNCTION add_up(s int, a int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT s + 2 * a'",
    "ALTER TEXT SEARCH CONFIGURATION words ALTER MAPPING FOR asciiword WITH english_stem",
    "CREATE OR REPLACE FUNCTION as_int(p pair) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT (p).b'",
    "ALTER DOMAIN level ADD CHECK (VALUE < 1000)",
    "UPDATE k SET n = 2 WHERE id = 3",
)
HARMLESS = (
    "VACUUM FULL k",
    "ALTER TABLE k ALTER n SET NOT NULL",
    "ALTER TABLE k ALTER n SET STATISTICS 10",
    "ALTER TABLE k ADD CHECK (n < 1000)",
    "CREATE FUNCTION deep(a text) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1'",
)


@pytest.fixture(params=["events", "fingerprint"])
def computing18(database18: str, request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[Place]:
    if request.param == "events":
        with place(database18, spark) as found:
            yield found
    else:
        with owned(database18) as dsn, place(dsn, spark) as found:
            yield found


def test_equal_after_each_kind_of_change(computing18: Place) -> None:
    trickle = computing18.trickle
    computing18.run(KINDS)
    for name, query in QUERIES.items():
        trickle.create_stream_table(name, query, refresh_mode="DIFFERENTIAL")
    for harmless in HARMLESS:
        computing18.run(harmless)
        assert trickle.refresh_stream_table("outer_ones").action == "NO_DATA", harmless
    computing18.run(*CHANGES)
    actions = {name: str(trickle.refresh_stream_table(name).action) for name in QUERIES}
    computing18.run("INSERT INTO k VALUES (4, 'fine', 1, (7, 70), 'more cats')")
    actions["again"] = str(trickle.refresh_stream_table("outer_ones").action)
    for name in QUERIES:
        trickle.refresh_stream_table(name)
        found = texts(computing18.connection, f"SELECT * FROM {name}")
        assert found == texts(computing18.connection, QUERIES[name]), name
    assert actions == {**dict.fromkeys(QUERIES, "REINITIALIZE"), "again": "DIFFERENTIAL"}
    assert [str(each) for each in trickle.verify() if not each.equal] == []
