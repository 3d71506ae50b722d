"""Identity: rows are told apart by what they are, not by a key, and never by their hash alone."""

from __future__ import annotations

import pytest

from pgtrickle.errors import StateError
from pgtrickle.postgres import aggregate
from pgtrickle.postgres.statements.result import Storage
from tests.stories.telling import Story


def test_identical_rows_in_a_keyless_table(story: Story) -> None:
    story.run("CREATE TABLE t (a int, b text)", "INSERT INTO t SELECT 1, 'x' FROM generate_series(1, 5)")
    story.run("INSERT INTO t SELECT NULL, NULL FROM generate_series(1, 3)")
    story.create("copies", "SELECT a, b FROM t")
    story.create("numbers", "SELECT a, count(*) AS n FROM t GROUP BY a")
    story.run("DELETE FROM t WHERE ctid = (SELECT min(ctid) FROM t WHERE a = 1)")
    story.follow()
    assert story.value("SELECT count(*) FROM copies WHERE a = 1") == 4
    story.run("UPDATE t SET b = 'y' WHERE ctid = (SELECT max(ctid) FROM t WHERE a = 1)")
    story.follow()
    story.run("DELETE FROM t WHERE ctid = (SELECT min(ctid) FROM t WHERE a IS NULL)", "INSERT INTO t VALUES (1, 'x')")
    story.follow()
    story.run("DELETE FROM t WHERE a = 1")
    story.follow()


def test_rows_that_are_equal_but_look_different(story18: Story) -> None:
    story18.run("CREATE TABLE t (v numeric, f float8)", "INSERT INTO t VALUES (1.0, 0), (1.00, '-0'), (1.000, 0)")
    story18.create("copies", "SELECT v, f FROM t")
    story18.run("DELETE FROM t WHERE v::text = '1.00'")
    story18.follow()
    story18.run("UPDATE t SET v = 1, f = '-0' WHERE v::text = '1.000'")
    story18.follow()
    assert story18.content("copies") == {"(1.0,0)": 1, "(1,-0)": 1}


def test_different_rows_with_equal_hash(story18: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row of the stream table, and every group of the state, has the same hash: only the comparison is left."""
    monkeypatch.setattr(Storage, "row_hash", lambda self, names, alias="": "(0 * hashint8extended(1, 0))")
    monkeypatch.setattr(aggregate, "hash_keys", lambda keys, hashable, alias="": "0::bigint")
    story18.run("CREATE TABLE t (a int, b text)", "INSERT INTO t SELECT g % 4, 'b' || g FROM generate_series(1, 12) g")
    story18.create("copies", "SELECT a, b FROM t")
    story18.create("groups", "SELECT a, count(*) AS n, max(b) AS most FROM t GROUP BY a")
    assert story18.value("SELECT count(DISTINCT h) FROM pgtrickle_state.s_2_1") == 1
    story18.run("DELETE FROM t WHERE b = 'b3'", "UPDATE t SET b = 'new' WHERE a = 1", "INSERT INTO t VALUES (9, NULL)")
    story18.follow()
    story18.run("DELETE FROM t WHERE a = 2", "UPDATE t SET a = 0 WHERE a = 9")
    story18.follow()


@pytest.mark.parametrize(
    "by_hand", ["DELETE FROM copies WHERE a = 1", "UPDATE copies SET b = 'mine' WHERE a = 1", "TRUNCATE copies"]
)
def test_a_stream_table_changed_by_hand_is_an_error_that_a_full_refresh_repairs(story18: Story, by_hand: str) -> None:
    story18.run("CREATE TABLE t (a int, b text)", "INSERT INTO t VALUES (1, 'x'), (2, 'y')")
    story18.create("copies", "SELECT a, b FROM t")
    story18.run(by_hand, "INSERT INTO copies VALUES (77, 'mine')", "DELETE FROM t WHERE a = 1")
    with pytest.raises(StateError, match="are there") as caught:
        story18.trickle.refresh_stream_table("copies")
    assert caught.value.code == "PT330"
    assert caught.value.hint is not None
    assert "computes it again" in caught.value.hint
    assert not story18.trickle.verify("copies")[0].equal
    story18.trickle.refresh_stream_table("copies", full=True)
    story18.equal("copies")
    story18.run("INSERT INTO t VALUES (3, 'z')")
    story18.check("copies")
