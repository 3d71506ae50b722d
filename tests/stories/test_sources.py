"""Sources that change under a stream table: columns, names, functions, views, and those that go."""

from __future__ import annotations

import pytest

from pgtrickle.errors import Error
from tests.stories.telling import TOTALS, Story


def test_a_source_column_that_is_not_used_comes_and_goes(told: Story) -> None:
    told.create("totals", TOTALS)
    told.run("ALTER TABLE t ADD COLUMN extra int DEFAULT 5", "INSERT INTO t VALUES (30, 'k1', 1, 1)")
    told.check("totals")
    told.run("ALTER TABLE t DROP COLUMN extra", "INSERT INTO t VALUES (31, 'k1', 1)")
    told.check("totals")


def test_a_source_column_renamed(told: Story) -> None:
    """The query names it, so it no longer holds; the stream table says so and recovers with a new query."""
    told.create("totals", TOTALS)
    told.run("ALTER TABLE t RENAME v TO amount", "INSERT INTO t VALUES (30, 'k1', 1)")
    with pytest.raises(Error, match='"v"') as caught:
        told.trickle.refresh_stream_table("totals")
    assert caught.value.hint
    assert told.last("totals").status == "FAILED"
    told.queries["totals"] = TOTALS.replace("sum(v)", "sum(amount)")
    told.trickle.alter_stream_table("totals", query=told.queries["totals"])
    told.equal("totals")
    told.run("INSERT INTO t VALUES (31, 'k1', 1)")
    told.check("totals")


def test_a_source_column_dropped(told: Story) -> None:
    told.create("totals", TOTALS)
    told.run("ALTER TABLE t DROP COLUMN v", "INSERT INTO t VALUES (30, 'k1')")
    with pytest.raises(Error, match='"v"'):
        told.trickle.refresh_stream_table("totals")
    assert told.last("totals").status == "FAILED"
    told.queries["totals"] = "SELECT kind, count(*) AS n FROM t GROUP BY kind"
    told.trickle.alter_stream_table("totals", query=told.queries["totals"])
    told.run("INSERT INTO t VALUES (31, 'k1')")
    told.check("totals")


def test_a_source_dropped(told: Story) -> None:
    told.create("totals", TOTALS)
    told.run("DROP TABLE t")
    with pytest.raises(Error) as caught:
        told.trickle.refresh_stream_table("totals")
    assert caught.value.code.startswith("PT")
    assert caught.value.hint
    assert told.last("totals").status == "FAILED"
    assert told.value("SELECT count(*) FROM totals") == 3, "what was there stays"
    told.trickle.drop_stream_table("totals")
    assert told.ours() == []


def test_a_function_redefined(told: Story) -> None:
    told.run("CREATE FUNCTION twice(a int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 2 * a'")
    told.create("doubled", "SELECT id, twice(v) AS v FROM t")
    told.run("CREATE OR REPLACE FUNCTION twice(a int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 3 * a'")
    assert told.check("doubled", "REINITIALIZE").reason == "function public.twice(integer) was redefined"
    told.run("UPDATE t SET v = 50 WHERE id = 1")
    told.check("doubled")


def test_a_view_redefined(told: Story) -> None:
    told.run("CREATE VIEW w AS SELECT kind, v FROM t WHERE v > 5")
    told.create("totals", "SELECT kind, sum(v) AS total FROM w GROUP BY kind")
    told.run("INSERT INTO t VALUES (30, 'k1', 30)")
    told.check("totals")
    told.run("CREATE OR REPLACE VIEW w AS SELECT kind, v FROM t WHERE v < 5")
    assert told.check("totals", "REINITIALIZE").reason == "view public.w was redefined"
    told.run("INSERT INTO t VALUES (31, 'k1', 1)")
    told.check("totals")
