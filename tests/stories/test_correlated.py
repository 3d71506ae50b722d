"""Correlated subqueries that step files cannot tell: arrays, looks of numbers, several sets side by side."""

from __future__ import annotations

import pytest

from tests.stories.telling import Story

QUERIES = {
    "ordered": "SELECT t.id, ARRAY(SELECT r.x FROM r WHERE r.k = t.k ORDER BY r.x DESC) AS xs FROM t",
    "below": "SELECT t.id, ARRAY(SELECT r.x FROM r WHERE r.x < t.n ORDER BY r.x) AS xs FROM t",
    "unpivoted": "SELECT t.id, v.k, v.v FROM t CROSS JOIN LATERAL (VALUES ('k', t.k), ('n', t.n)) v (k, v)",
    "computed": "SELECT t.id, s.d FROM t CROSS JOIN LATERAL (SELECT t.k * t.n AS d WHERE t.k > 0) s",
    "sets": "SELECT t.id, unnest(t.tags) AS tag, generate_series(1, t.k) AS i FROM t",
    "looks": "SELECT t.id, s.x, s.n FROM t, LATERAL (SELECT r.x, t.n::text AS n FROM r WHERE r.x > t.n"
    " ORDER BY r.x LIMIT 1) s",
    "firsts": "SELECT t.id, s.k, s.x FROM t, LATERAL (SELECT DISTINCT ON (r.k) r.k, r.x FROM r WHERE r.k >= t.k"
    " ORDER BY r.k, r.x DESC) s",
    "short": "SELECT t.id, s.name FROM t LEFT JOIN LATERAL (SELECT r.name FROM r WHERE r.k = t.k"
    ' ORDER BY r.name COLLATE "C" LIMIT 2) s ON true',
    "different": "SELECT t.id, ARRAY(SELECT DISTINCT r.k FROM r WHERE r.x >= t.n ORDER BY r.k DESC LIMIT 2) AS ks"
    " FROM t",
    "counted": "SELECT t.id, ARRAY(SELECT r.k FROM r WHERE r.k >= t.k GROUP BY r.k ORDER BY count(*) DESC, r.k) AS ks"
    " FROM t",
    "united": "SELECT t.id, ARRAY(SELECT r.name FROM r WHERE r.k = t.k UNION SELECT u.v FROM unnest(t.tags) u (v)"
    " ORDER BY 1) AS names FROM t",
    "arrays": "SELECT t.id, s.tags FROM t LEFT JOIN LATERAL (SELECT o.tags FROM t o WHERE o.k = t.k"
    " ORDER BY o.tags, o.id LIMIT 1) s ON true",
    "one_array": "SELECT r.name, (SELECT t.tags FROM t WHERE t.id = r.k) AS tags FROM r",
    "nested": "SELECT t.id, generate_series(1, generate_series(1, t.k)) AS i, unnest(t.tags) AS tag FROM t",
    "tagged": "SELECT t.id FROM t WHERE EXISTS (SELECT FROM unnest(t.tags) u (v), r WHERE r.name = u.v)",
    "padded": "SELECT t.id, u.v, u.n FROM t LEFT JOIN LATERAL unnest(t.tags) WITH ORDINALITY u (v, n) ON u.n > 1",
    "looks_united": "SELECT t.id, s.n FROM t, LATERAL (SELECT t.n UNION SELECT r.x FROM r WHERE r.k = t.k EXCEPT"
    " SELECT r.x FROM r WHERE r.x > t.n + 5) s",
}


ELSEWHERE = {
    "grouped": "SELECT (SELECT max(r.x) FROM r WHERE r.k = t.k) AS m, count(*) AS n FROM t GROUP BY 1",
    "named": "SELECT (SELECT min(r.name) FROM r WHERE r.k >= t.k) AS m, string_agg(t.tags::text, ',' ORDER BY t.id)"
    " AS tags FROM t GROUP BY 1 HAVING count(*) > (SELECT min(r.k) FROM r)",
    "cubed": "SELECT t.k, t.n, count(*) AS c, (SELECT count(*) FROM r WHERE r.k IS NOT DISTINCT FROM t.k) AS m,"
    " (SELECT max(r.name) FROM r WHERE r.x = t.n) AS name FROM t GROUP BY CUBE (t.k, t.n)",
    "less": "SELECT t.id, (t.n, t.k) < (SELECT max(r.x), min(r.k) FROM r WHERE r.k >= t.k) AS less FROM t",
    "same": "SELECT t.id, (t.k, t.tags) = (SELECT o.k, o.tags FROM t o WHERE o.id = t.k) AS same FROM t",
    "taken": "SELECT t.id, u.v, u.n FROM t, unnest((SELECT array_agg(r.name ORDER BY r.x, r.name) FROM r WHERE"
    " r.k = t.k)) WITH ORDINALITY u (v, n)",
    "above": "SELECT t.k, (SELECT count(*) FROM r WHERE r.x > sum(t.n)) AS n FROM t GROUP BY t.k",
    "padded_if": "SELECT t.id, u.v FROM t LEFT JOIN LATERAL unnest(t.tags) u (v) ON u.v IN (SELECT r.name FROM r WHERE"
    " r.k >= t.k)",
    "first_by": "SELECT t.id, t.n FROM t ORDER BY (SELECT sum(r.x) FROM r WHERE r.k = t.k) DESC NULLS LAST, t.id"
    " LIMIT 2",
    "alone": "SELECT (SELECT sum(r.x) FROM r) AS s, ARRAY(SELECT t.tags[1] FROM t ORDER BY t.id) AS tags",
}


@pytest.mark.parametrize(
    ("queries", "looks", "seven", "moved"),
    [
        (QUERIES, {"ordered", "below", "looks", "firsts", "looks_united"}, "7", "1.000"),
        (ELSEWHERE, {"grouped", "cubed"}, "2.500", "2.5"),
    ],
    ids=["of any shape", "in any place"],
)
def test_correlated_subqueries_follow(
    story18: Story, queries: dict[str, str], looks: set[str], seven: str, moved: str
) -> None:
    story18.run(
        "CREATE TABLE t (id int PRIMARY KEY, k int, n numeric, tags text[])",
        "CREATE TABLE r (k int, x numeric, name varchar(3))",
        "CREATE INDEX ON r (k)",
        "INSERT INTO t VALUES (1, 1, 1.0, '{a,b}'), (2, 1, 1.00, NULL), (3, NULL, NULL, '{}'), (4, 2, 5, '{c}')",
        f"INSERT INTO r VALUES (1, 0.5, 'ab'), (1, 2.50, 'B'), (1, 2.5, 'a'), (2, {seven}, NULL), (NULL, 3, 'z')",
    )
    story18.looks.update(looks)  # of 2.5 and 2.50 PostgreSQL may take either
    for name, query in queries.items():
        story18.create(name, query)
    story18.run(
        "DELETE FROM r WHERE name = 'a'", "INSERT INTO r VALUES (2, 1.5, 'b')", "UPDATE t SET k = 2 WHERE id = 1"
    )
    story18.follow()
    story18.together(f"UPDATE t SET n = {moved} WHERE id = 1", "UPDATE r SET x = x + 1", "DELETE FROM t WHERE id = 4")
    story18.follow()
    story18.run("DELETE FROM r", "INSERT INTO t VALUES (5, 3, 0, '{d,e,f}')")
    story18.follow()
    story18.run("DELETE FROM t", "INSERT INTO r VALUES (3, 1, 'd')")
    story18.follow()


def test_rows_that_a_moved_limit_passes_keep_their_looks(story18: Story) -> None:
    """−old +new of the limit meet every row; what cancels out must be the very same row."""
    story18.run(
        "CREATE TABLE account (id int, amount numeric, name char(4))",
        "CREATE TABLE closed (id int)",
        "CREATE TABLE bound (v numeric)",
        "INSERT INTO account VALUES (1, 1.0, 'a'), (1, 1.00, 'a'), (1, 1.0, 'a '), (2, 3, NULL), (NULL, 3.0, 'n')",
        "INSERT INTO bound VALUES (2)",
    )
    above = (
        "FROM account AS a WHERE a.amount > (SELECT max(v) FROM bound)"
        " AND NOT EXISTS (SELECT FROM closed WHERE closed.id = a.id)"
    )
    story18.create("rows", f"SELECT a.amount, a.name {above}")
    story18.create("counted", f"SELECT count(*) AS n {above}")
    story18.create("looks", f"SELECT a.amount::text AS amount, count(*) AS n {above} GROUP BY a.amount::text")
    for changes in (
        ["UPDATE bound SET v = 0.5"],
        ["UPDATE bound SET v = 0.75", "UPDATE account SET amount = 1.000 WHERE amount = 1.0"],
        ["INSERT INTO bound VALUES (2)", "INSERT INTO closed VALUES (NULL)"],
        ["DELETE FROM bound WHERE v = 2", "INSERT INTO closed VALUES (1)"],
        ["DELETE FROM bound", "DELETE FROM closed"],
        ["INSERT INTO bound VALUES (0)"],
    ):
        story18.together(*changes)
        story18.follow()
