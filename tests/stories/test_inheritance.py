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


def family(story: Story) -> None:
    """Three levels; an heir that has its columns in another order, and one of its own between them."""
    story.run(
        "CREATE TABLE top (id int, v numeric, kind text)",
        "CREATE TABLE left_heir (own text) INHERITS (top)",
        "CREATE TABLE right_heir (kind text, own int, id int, v numeric)",
        "ALTER TABLE right_heir INHERIT top",
        "CREATE TABLE last_heir () INHERITS (left_heir)",
        "INSERT INTO top SELECT g, g, 'k' || g % 3 FROM generate_series(1, 20) g",
        "INSERT INTO left_heir SELECT g, g, 'k' || g % 3, 'mine' FROM generate_series(15, 30) g",
        "INSERT INTO right_heir SELECT 'k' || g % 3, 7, g, g FROM generate_series(10, 40) g",
        "INSERT INTO last_heir SELECT g, g, NULL, 'x' FROM generate_series(1, 5) g",
    )


def test_a_table_that_others_inherit(story: Story) -> None:
    """Each way to write to its rows, each window compared; the WAL tells heirs apart, so it stays with triggers."""
    family(story)
    story.create("totals", "SELECT kind, count(*) AS n, sum(v) AS total FROM top GROUP BY kind")
    story.create("rows_of_all", "SELECT id, v, kind FROM top WHERE v > 2")
    assert story.value("SELECT cdc_mode FROM pgtrickle.pgt_cdc_status WHERE source_table = 'public.top'") == "TRIGGER"
    assert (
        story.value(
            "SELECT pgtrickle_internal.wal_eligibility('top'::regclass, '{id}', 10, false)::text LIKE '(PT640,%'"
        )
        is True
    )
    windows = (
        ["UPDATE top SET v = v + 1.0 WHERE id % 4 = 0"],
        ["UPDATE ONLY top SET kind = NULL WHERE id = 3", "DELETE FROM ONLY top WHERE id = 4"],
        ["INSERT INTO last_heir VALUES (100, 1.00, 'k1', 'x')", "UPDATE left_heir SET v = 1.0 WHERE id = 100"],
        ["DELETE FROM top WHERE id = 15", "INSERT INTO right_heir VALUES ('k9', 1, 15, 15), ('k9', 1, 15, 15)"],
        ["UPDATE right_heir SET own = 8", "UPDATE left_heir SET id = id + 1", "DELETE FROM last_heir WHERE id = 2"],
        ["UPDATE top SET v = NULL WHERE kind = 'k9'", "DELETE FROM right_heir WHERE v IS NULL"],
    )
    for each in windows:
        story.together(*each)
        story.follow()
    story.run("TRUNCATE left_heir")
    story.check("totals", "REINITIALIZE")


def test_an_heir_that_another_table_changes(told: Story) -> None:
    """It inherits from two: a statement on the other one changes rows of ours, which only row triggers see."""
    family(told)
    told.run("CREATE TABLE other_top (own int)", "ALTER TABLE right_heir INHERIT other_top")
    told.create("totals", "SELECT kind, count(*) AS n, sum(v) AS total FROM top GROUP BY kind")
    told.run("DELETE FROM other_top WHERE own = 7", "INSERT INTO right_heir VALUES ('k9', 1, 15, 15)")
    told.check("totals")


def test_heirs_come_and_go(told: Story) -> None:
    family(told)
    told.create("totals", "SELECT kind, count(*) AS n, sum(v) AS total FROM top GROUP BY kind")
    told.run("CREATE TABLE new_heir () INHERITS (top)", "INSERT INTO new_heir VALUES (1, 1, 'new')")
    told.check("totals", "REINITIALIZE")
    told.run("UPDATE new_heir SET v = 2", "UPDATE top SET v = v + 1 WHERE id = 1")
    told.check("totals")
    told.run("ALTER TABLE new_heir NO INHERIT top", "UPDATE new_heir SET v = 2")
    told.check("totals", "REINITIALIZE")
    assert told.value("SELECT count(*) FROM pg_trigger WHERE tgrelid = 'new_heir'::regclass") == 0
    told.run("DROP TABLE right_heir", "UPDATE top SET v = 7 WHERE id = 1")
    told.check("totals", "REINITIALIZE")
    told.trickle.drop_stream_table("totals")
    assert told.ours() == []


def test_an_heir_that_was_there_between_two_refreshes(told: Story) -> None:
    """Its rows were changed through the table above, and went with it: what that statement wrote says nothing."""
    told.create("totals", "SELECT kind, count(*) AS n, sum(v) AS total FROM t GROUP BY kind")
    told.run(
        "CREATE TABLE passing () INHERITS (t)",
        "INSERT INTO passing VALUES (1, 'k1', 1000)",
        "UPDATE t SET v = v + 1 WHERE v = 1000",
        "DROP TABLE passing",
    )
    told.check("totals", "REINITIALIZE")


def test_a_partitioned_table_below_another(told: Story) -> None:
    """A statement on the table above fires none of the triggers of the one below."""
    told.run(
        "CREATE TABLE above (a int, b int) PARTITION BY LIST (a)",
        "CREATE TABLE below PARTITION OF above FOR VALUES IN (1, 2) PARTITION BY LIST (b)",
        "CREATE TABLE leaf PARTITION OF below DEFAULT",
        "CREATE TABLE beside PARTITION OF above DEFAULT",
        "INSERT INTO above SELECT g % 4, g FROM generate_series(1, 20) g",
    )
    told.create("sums", "SELECT a, count(*) AS n, sum(b) AS total FROM below GROUP BY a")
    told.run(
        "UPDATE above SET b = b + 1 WHERE b = 5", "INSERT INTO above VALUES (1, 100)", "DELETE FROM below WHERE b = 9"
    )
    told.follow("sums")
    told.run("UPDATE above SET a = 2 WHERE a = 3")
    told.follow("sums")
