"""Joins that step files cannot tell: a stream table as a side, and a row that changes many times in one window."""

from __future__ import annotations

from tests.stories.telling import Story


def test_a_stream_table_joined_with_a_base_table_both_changed_in_one_window(story18: Story) -> None:
    story18.run(
        "CREATE TABLE names (kind int PRIMARY KEY, name text)",
        "CREATE TABLE t (id int PRIMARY KEY, kind int, v int)",
        "INSERT INTO names VALUES (0, 'zero'), (1, 'one'), (2, 'two')",
        "INSERT INTO t SELECT g, g % 3, g FROM generate_series(1, 12) g",
    )
    story18.create("totals", "SELECT kind, sum(v) AS total FROM t GROUP BY kind")
    story18.create("named", "SELECT n.name, s.total FROM totals s JOIN names n ON n.kind = s.kind")
    story18.create("pairs", "SELECT a.kind, b.total FROM totals a JOIN totals b ON b.total > a.total")
    story18.run("UPDATE t SET v = v + 1 WHERE kind = 1", "UPDATE names SET name = upper(name) WHERE kind < 2")
    story18.follow()
    story18.together(
        "DELETE FROM t WHERE kind = 2", "UPDATE names SET kind = 9 WHERE kind = 0", "UPDATE t SET kind = 9"
    )
    story18.follow()
    story18.run("INSERT INTO t VALUES (20, 0, 5)", "INSERT INTO names VALUES (0, 'zero again')")
    story18.follow()


def test_a_row_changed_many_times_in_one_window_is_joined_once(story18: Story) -> None:
    """Only what the window comes to meets the other side: 300 updates of one row are one old and one new."""
    story18.run(
        "CREATE TABLE names (kind int PRIMARY KEY, name text)",
        "CREATE TABLE t (id int, kind int)",
        "INSERT INTO names VALUES (0, 'zero'), (1, 'one')",
        "INSERT INTO t SELECT g, g % 2 FROM generate_series(1, 400) g",
    )
    story18.create("named", "SELECT t.id, n.name FROM t JOIN names n ON n.kind = t.kind")
    for turn in range(300):
        story18.run(f"UPDATE names SET name = 'turn {turn}' WHERE kind = 0")
    result = story18.check("named")
    assert result.changes_read == 300
    assert (result.rows_inserted, result.rows_deleted) == (200, 200)
    story18.run("UPDATE names SET name = 'x' WHERE kind = 1", "UPDATE names SET name = 'one' WHERE kind = 1")
    result = story18.check("named")
    assert (result.rows_inserted, result.rows_deleted) == (0, 0)
