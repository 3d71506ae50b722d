"""Queries of a thousand terms, maintained or computed in full, and right either way."""

from __future__ import annotations

from tests.stories.telling import Story


def test_long_sums_and_conditions(story18: Story) -> None:
    story18.run("CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t SELECT g, g FROM generate_series(1, 20) g")
    story18.create("summed", f"SELECT id, {'+'.join(['a'] * 1000)} AS x FROM t")
    story18.create("filtered", f"SELECT id FROM t WHERE {' AND '.join(f'a <> {n}' for n in range(300))}")
    story18.create("too_deep", f"SELECT id, {'+'.join(['a'] * 4000)} AS x FROM t", mode="AUTO")
    assert story18.stream("too_deep").effective_mode == "FULL"
    story18.run("UPDATE t SET a = 1000 WHERE id < 5", "DELETE FROM t WHERE id = 20")
    story18.follow("summed", "filtered")
    assert story18.trickle.refresh_stream_table("too_deep").action == "FULL"
    story18.equal("too_deep")
