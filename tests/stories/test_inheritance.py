"""Tables that inherit: statements on the table above change their rows too."""

from __future__ import annotations

from tests.stories.telling import Story


def test_a_table_that_inherits(story: Story) -> None:
    story.run(
        "CREATE TABLE above (id int, v int)",
        "CREATE TABLE kid (more text) INHERITS (above)",
        "INSERT INTO kid SELECT g, g, 'k' || g FROM generate_series(1, 20) g",
        "INSERT INTO above SELECT g, g FROM generate_series(1, 20) g",
    )
    story.create("only_kid", "SELECT k.more, count(*) AS n, sum(k.v) AS total FROM ONLY kid k GROUP BY k.more")
    story.run("UPDATE above SET v = v + 1 WHERE id = 2", "DELETE FROM above WHERE id = 3")
    story.check("only_kid")
    story.run(
        "INSERT INTO kid VALUES (21, 1, 'k1')", "UPDATE kid SET more = 'k7' WHERE id = 5", "DELETE FROM ONLY above"
    )
    story.check("only_kid")
    story.run("TRUNCATE above", "INSERT INTO kid VALUES (1, 2, 'k1')")
    story.trickle.refresh_stream_table("only_kid")
    story.equal("only_kid")


def test_a_source_that_comes_to_inherit(told: Story) -> None:
    """From then on a statement on the table above changes it: the triggers it had do not see that."""
    told.create("totals", "SELECT kind, count(*) AS n, sum(v) AS total FROM t GROUP BY kind")
    told.run("CREATE TABLE above (id int NOT NULL, v int)", "ALTER TABLE t INHERIT above", "UPDATE above SET v = v + 1")
    told.trickle.refresh_stream_table("totals")
    told.equal("totals")
    told.run("UPDATE above SET v = v + 1 WHERE id = 3")
    told.check("totals")
    told.run("ALTER TABLE t NO INHERIT above", "UPDATE t SET v = 0 WHERE id = 4")
    told.trickle.refresh_stream_table("totals")
    told.equal("totals")
