"""Sources and views gain columns: what a `*`, NATURAL or a bare name meant when the table was defined is what it means.

Each query has its meaning beside it, with every column named: that is what PostgreSQL is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from pyspark.sql import SparkSession

from pgtrickle.api import Trickle
from pgtrickle.refresh.verification.verify import Verification
from tests.stories.telling import Story, telling
from tests.wal.moving import moving

TABLES = """
CREATE TABLE a (id int PRIMARY KEY, k int, v int);
CREATE TABLE b (k int, note text);
CREATE TABLE c (id int, k int, v int);
INSERT INTO a SELECT g, g % 5, g FROM generate_series(1, 40) g;
INSERT INTO b SELECT g % 7, 'n' || g FROM generate_series(1, 40) g;
INSERT INTO c SELECT g, g % 5, g FROM generate_series(20, 60) g;
CREATE VIEW seen AS SELECT id, k FROM c WHERE id % 2 = 0;
"""
MEANT = {
    "star": ("SELECT * FROM a", "SELECT id, k, v FROM a"),
    "of_one": ("SELECT b.*, a.id FROM a JOIN b ON b.k = a.k", "SELECT b.k, b.note, a.id FROM a JOIN b ON b.k = a.k"),
    "using_k": ("SELECT * FROM a JOIN b USING (k)", "SELECT a.k, a.id, a.v, b.note FROM a JOIN b ON b.k = a.k"),
    "common": ("SELECT * FROM a NATURAL JOIN b", "SELECT a.k, a.id, a.v, b.note FROM a JOIN b ON b.k = a.k"),
    "hidden": ("SELECT a.id, b.note FROM a NATURAL JOIN b", "SELECT a.id, b.note FROM a JOIN b ON b.k = a.k"),
    "bare": ("SELECT id, note FROM a JOIN b ON b.k = a.k", "SELECT a.id, b.note FROM a JOIN b ON b.k = a.k"),
    "counted": ("SELECT k, count(*) AS n FROM a GROUP BY k",) * 2,
    "below": ("SELECT * FROM seen", "SELECT id, k FROM c WHERE id % 2 = 0"),
    "inside": (
        "WITH x AS (SELECT * FROM a) SELECT s.* FROM (SELECT * FROM x) AS s WHERE s.v > 3",
        "SELECT id, k, v FROM a WHERE v > 3",
    ),
    "unioned": (
        "SELECT * FROM a UNION ALL SELECT * FROM c",
        "SELECT id, k, v FROM a UNION ALL SELECT id, k, v FROM c",
    ),
    "distinct_ones": ("SELECT DISTINCT b.* FROM b", "SELECT DISTINCT k, note FROM b"),
    "in_full": ("SELECT *, lag(v) OVER (ORDER BY id) AS l FROM a", "SELECT id, k, v, lag(v) OVER (ORDER BY id) FROM a"),
}
GAINED = ("ALTER TABLE a ADD COLUMN note text DEFAULT 'new'", "ALTER TABLE b ADD COLUMN v int DEFAULT 7")


IN_WAL = ("star", "common", "unioned")


@pytest.fixture(params=["trigger", "wal"])
def gaining(database18: str, request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[Story]:
    """All of them captured by triggers, some from the WAL, filled before anything is altered."""
    with ExitStack() as stack:
        told = stack.enter_context(telling(database18, spark))
        told.run(TABLES)
        if request.param == "wal":
            told.mover = stack.enter_context(moving(database18))
        for name in MEANT if told.mover is None else IN_WAL:
            query, told.queries[name] = MEANT[name]
            mode = "FULL" if name == "in_full" else "DIFFERENTIAL"
            told.trickle.create_stream_table(name, query, refresh_mode=mode)
            if told.mover is not None:
                told.to_wal(name)
        yield told


def test_a_new_column_changes_nothing(gaining: Story, spark: SparkSession) -> None:
    gaining.run(*GAINED)
    gaining.run(
        "INSERT INTO a VALUES (100, 2, 8, 'n2'), (101, 2, 8, NULL)",
        "INSERT INTO b VALUES (2, 'x', 8), (NULL, 'y', NULL)",
        "UPDATE a SET v = v + 2 WHERE id < 5",
        "DELETE FROM b WHERE k = 3",
        "INSERT INTO c VALUES (100, 1, 1)",
    )
    assert verified(gaining.trickle) == [], "at the snapshot of before"
    gaining.run("CREATE OR REPLACE VIEW seen AS SELECT id, k, v FROM c WHERE id % 2 = 0")  # v was not captured for it
    for name in gaining.queries:  # by one who knows the tables
        gaining.check(name, "FULL" if name == "in_full" else "DIFFERENTIAL")
    gaining.run(
        "UPDATE a SET note = 'other', v = 0 WHERE id < 3",
        "UPDATE b SET v = k, note = note || '!'",
        "DELETE FROM c WHERE k = 2",
        "UPDATE c SET v = v + 1 WHERE id < 30",
        "UPDATE c SET k = 4 WHERE id = 100",
        "ALTER TABLE a DROP COLUMN note",
        "INSERT INTO a VALUES (102, 2, 8)",
    )
    with Trickle(gaining.dsn, spark=spark) as gaining.trickle:  # by one who has to read their definitions
        for name in gaining.queries:
            gaining.check(name, "FULL" if name == "in_full" else "DIFFERENTIAL")
        assert verified(gaining.trickle) == []
        gaining.run("ALTER TABLE b DROP COLUMN v")
        assert {str(gaining.trickle.refresh_stream_table(name).action) for name in gaining.queries} <= {
            "NO_DATA",
            "FULL",
        }
        assert {stream.status for stream in gaining.trickle.status()} == {"ACTIVE"}


def verified(trickle: Trickle) -> list[Verification]:
    """Those that differ; a table that is only computed in full is compared with the present, and may."""
    return [each for each in trickle.verify() if not (each.equal or each.table.endswith("in_full"))]
