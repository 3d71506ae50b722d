"""`ONLY` of tables that others inherit: rows of the table itself are told from those of its heirs."""

from __future__ import annotations

import pytest

from pgtrickle.errors import Unsupported
from pgtrickle.refresh.verification.verify import AT_ITS_SNAPSHOT
from tests.stories.telling import Story
from tests.stories.test_inheritance import family

QUERIES = {
    "own": "SELECT id, v, kind FROM ONLY top WHERE v IS DISTINCT FROM 7",
    "totals": "SELECT kind, count(*) AS n, sum(v) AS total, max(id) AS last FROM ONLY top GROUP BY kind",
    "beside_all": "SELECT o.id, o.v, a.kind FROM ONLY top o JOIN top a ON a.id = o.id",
    "not_in_heirs": "SELECT o.id FROM ONLY top o WHERE NOT EXISTS (SELECT FROM left_heir h WHERE h.id = o.id)",
    "shares": "SELECT a.kind, count(*) AS n, (SELECT count(*) FROM ONLY top o WHERE o.kind = a.kind) AS own "
    "FROM top a GROUP BY a.kind",
    "of_heir": "SELECT h.id, h.own, t.v FROM ONLY left_heir h LEFT JOIN ONLY top t ON t.id = h.id",
    "placed": "SELECT id, v, rank() OVER (PARTITION BY kind ORDER BY v, id) AS place FROM ONLY top",
    "all_and_own": "SELECT id, v FROM top UNION ALL SELECT -id, v FROM ONLY top",
}
"""Alone, grouped, and beside the same table with its heirs, or one of these."""


def created(story: Story, *names: str) -> None:
    for name in names or QUERIES:
        story.create(name, QUERIES[name])


def verified(story: Story) -> None:
    found = story.trickle.verify()
    assert len(found) == len(story.queries)
    assert [each for each in found if not each.equal or each.compared_with != AT_ITS_SNAPSHOT] == []


def test_only_of_a_table_that_others_inherit(story: Story) -> None:
    """Each way to write to its rows and to those of its heirs, each window compared."""
    family(story)
    created(story)
    windows = (
        ["UPDATE top SET v = v + 1.0 WHERE id % 4 = 0"],
        ["UPDATE ONLY top SET kind = NULL WHERE id = 3", "DELETE FROM ONLY top WHERE id = 4"],
        ["INSERT INTO last_heir VALUES (100, 1.00, 'k1', 'x')", "UPDATE left_heir SET v = 1.0 WHERE id = 100"],
        ["DELETE FROM top WHERE id = 15", "INSERT INTO right_heir VALUES ('k9', 1, 15, 15), ('k9', 1, 15, 15)"],
        ["INSERT INTO top VALUES (15, 15, 'k9'), (15, 15, 'k9'), (NULL, NULL, NULL)", "UPDATE top SET id = id + 1"],
        [
            "WITH gone AS (DELETE FROM ONLY top WHERE id < 8 RETURNING *) INSERT INTO left_heir SELECT * FROM gone",
            "WITH gone AS (DELETE FROM right_heir WHERE id > 35 RETURNING *) INSERT INTO top SELECT id, v FROM gone",
        ],
        ["UPDATE top SET v = v", "UPDATE right_heir SET own = 8", "DELETE FROM last_heir WHERE id = 3"],
        ["UPDATE top SET v = NULL WHERE kind = 'k9'", "DELETE FROM top WHERE v IS NULL"],
    )
    for each in windows:
        story.together(*each)
        story.follow()
    story.run("UPDATE left_heir SET v = 0", "INSERT INTO right_heir VALUES ('k1', 1, 1, 1)")
    assert story.check("own").rows_inserted == 0
    story.run("DELETE FROM top WHERE id % 2 = 0")
    verified(story)


@pytest.mark.parametrize("truncate", ["top", "ONLY top", "left_heir", "ONLY right_heir"])
def test_truncate(told: Story, truncate: str) -> None:
    family(told)
    created(told, "own", "beside_all")
    told.run("UPDATE top SET v = v + 1", f"TRUNCATE {truncate}", "INSERT INTO top VALUES (1, 2, 'k1')")
    for name in ("own", "beside_all"):
        told.check(name, "REINITIALIZE")
    told.run("UPDATE top SET v = v + 1")
    told.follow()


def test_heirs_come_and_go(told: Story) -> None:
    """The table has none when it is defined, gains two, and has none again: its triggers follow."""
    told.run(
        "CREATE TABLE top (id int, v numeric, kind text)",
        "INSERT INTO top SELECT g, g, 'k' || g % 3 FROM generate_series(1, 20) g",
    )
    created(told, "own", "totals", "all_and_own", "beside_all")

    def level() -> object:
        return told.value(
            "SELECT trigger_level FROM pgtrickle.pgt_change_tracking WHERE source_relid = 'top'::regclass"
        )

    def follow(*names: str) -> None:
        told.run("UPDATE top SET v = v + 1 WHERE id % 3 = 0", "DELETE FROM top WHERE id IN (5, 40)")
        for name in names or told.queries:
            told.trickle.refresh_stream_table(name)
            told.equal(name)

    assert level() == "STATEMENT"
    told.run(
        "CREATE TABLE heir (own int) INHERITS (top)", "INSERT INTO heir SELECT g, g, 'k1' FROM generate_series(1, 5) g"
    )
    follow()
    assert level() == "ROW"
    told.run(
        "UPDATE top SET v = v + 1", "INSERT INTO heir VALUES (30, 1, 'k2')", "INSERT INTO top VALUES (30, 1, 'k2')"
    )
    told.follow()
    told.run(
        "CREATE TABLE later (id int, v numeric, kind text)", "INSERT INTO later VALUES (40, 1, 'k1'), (41, 2, 'k2')"
    )
    told.run("ALTER TABLE later INHERIT top")
    follow("all_and_own")
    follow()
    told.run("UPDATE top SET v = v + 1", "UPDATE later SET kind = 'k0'")
    told.follow()
    told.run("ALTER TABLE later NO INHERIT top", "UPDATE later SET v = 9", "UPDATE ONLY top SET v = v + 1")
    follow("own")
    follow()
    told.run("DROP TABLE heir")
    follow("totals")
    follow()
    assert level() == "STATEMENT"
    told.run("UPDATE top SET v = v + 1")
    told.follow()


def test_a_reader_of_all_rows_comes_to_one_of_only_its_own(told: Story) -> None:
    """The buffer was there, of statement triggers that do not tell which table a row is of."""
    family(told)
    told.create("all_rows", "SELECT id, v FROM top")
    told.run("UPDATE top SET v = v + 1")
    created(told, "own")
    told.run("UPDATE top SET v = v + 1", "DELETE FROM left_heir WHERE id = 20")
    told.follow()
    told.trickle.drop_stream_table("own")
    told.run("UPDATE top SET v = v + 1")
    told.follow("all_rows")
    told.trickle.drop_stream_table("all_rows")
    assert told.ours() == []


def test_a_large_window(told: Story) -> None:
    """Its flows go through Spark, which tasks read by parts of the buffer and of the table."""
    family(told)
    created(told, "totals", "beside_all", "of_heir")
    told.run(
        "INSERT INTO top SELECT g, g, 'k' || g % 50 FROM generate_series(1000, 9000) g",
        "INSERT INTO left_heir SELECT g, g, 'k' || g % 50, 'x' FROM generate_series(5000, 12000) g",
        "UPDATE top SET v = v + 1 WHERE id % 2 = 0",
    )
    told.follow()


def test_only_of_a_partitioned_table_has_no_rows(told: Story) -> None:
    told.run(
        "CREATE TABLE parts (a int, b int) PARTITION BY LIST (a)",
        "CREATE TABLE part PARTITION OF parts DEFAULT",
        "INSERT INTO parts SELECT g % 4, g FROM generate_series(1, 20) g",
    )
    told.create("none", "SELECT a, b FROM ONLY parts")
    told.create("none_of_it", "SELECT count(*) AS n, sum(b) AS total FROM ONLY parts")
    told.create("beside", "SELECT p.a, p.b, o.b AS own FROM parts p LEFT JOIN ONLY parts o ON o.a = p.a")
    told.create("of_part", "SELECT a, count(*) AS n FROM ONLY part GROUP BY a")
    told.run(
        "UPDATE parts SET b = b + 1 WHERE a = 1", "INSERT INTO part VALUES (3, 100)", "DELETE FROM parts WHERE b = 8"
    )
    told.follow()
    verified(told)
    told.run("CREATE TABLE more PARTITION OF parts FOR VALUES IN (9)", "INSERT INTO parts VALUES (9, 9), (1, 9)")
    for name in told.queries:
        told.trickle.refresh_stream_table(name)
        told.equal(name)


def test_only_of_a_stream_table_that_is_inherited(told: Story) -> None:
    told.create("first", "SELECT id, v FROM t WHERE v > 3")
    told.run("CREATE TABLE heir () INHERITS (first)", "INSERT INTO heir VALUES (1, 100), (5, 5)")
    told.create("second", "SELECT o.id, o.v, t.kind FROM ONLY first o JOIN t USING (id)")
    told.create("third", "SELECT id, v FROM first UNION ALL SELECT -id, v FROM ONLY first")
    told.run("UPDATE t SET v = v + 1", "UPDATE heir SET v = v + 1", "DELETE FROM t WHERE id = 9")
    told.trickle.refresh_stream_table("first")
    told.follow("second", "third")


def test_a_copy_of_an_earlier_state_has_heirs(told: Story) -> None:
    """`verify` compares with the query over the sources as they were at the last refresh."""
    family(told)
    created(told, "own", "all_and_own", "beside_all")
    told.run(
        "UPDATE top SET v = v + 1 WHERE id % 2 = 0", "DELETE FROM top WHERE id = 16", "INSERT INTO top VALUES (1, 1)"
    )
    verified(told)


def test_a_key_that_heirs_repeat_groups_nothing(told: Story) -> None:
    """PostgreSQL takes `v` for that of the key, whichever row of the tree it comes from."""
    told.run("CREATE TABLE heir () INHERITS (t)", "INSERT INTO heir VALUES (6, 'k1', 100), (30, 'k1', 1)")
    told.trickle.create_stream_table("open", "SELECT id, v, count(*) AS n FROM t GROUP BY id")
    assert "PT243" in str(told.stream("open").mode_reason)
    told.create("definite", "SELECT id, v, count(*) AS n FROM ONLY t GROUP BY id")
    told.run("UPDATE t SET v = v + 1", "DELETE FROM heir")
    told.check("definite")
    told.run("DROP TABLE heir", "UPDATE t SET v = v + 1")
    told.trickle.refresh_stream_table("definite")
    told.equal("definite")


def test_only_in_immediate_mode(told: Story) -> None:
    """A statement's trigger does not see whose rows they are: refused while there are heirs. A table without any may
    gain them, and is then left as it is until the next refresh, which says so."""
    told.run("CREATE TABLE lone (id int, v int)", "CREATE TABLE with_heir (id int)")
    told.run("CREATE TABLE its_heir () INHERITS (with_heir)")
    with pytest.raises(Unsupported, match="PT702"):
        told.create("refused", "SELECT id FROM ONLY with_heir", "IMMEDIATE")
    told.create("kept", "SELECT id, sum(v) AS v FROM ONLY lone GROUP BY id", "IMMEDIATE")
    told.run("INSERT INTO lone VALUES (1, 1), (1, 2), (2, 3)")
    told.equal("kept")
    told.run(
        "CREATE TABLE heir () INHERITS (lone)", "INSERT INTO heir VALUES (1, 100)", "INSERT INTO lone VALUES (3, 3)"
    )
    told.equal("kept")
    with pytest.raises(Unsupported, match="PT702"):
        told.trickle.refresh_stream_table("kept")
    told.run("DROP TABLE heir")
    told.trickle.refresh_stream_table("kept")
    told.run("UPDATE lone SET v = v + 1")
    told.equal("kept")
