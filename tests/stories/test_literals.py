"""A literal is what the user wrote, wherever it stands: text that a template, a driver or we ourselves might read as
more than text is in the rows and in each place of a query, on the short path and by tasks."""

from __future__ import annotations

import pytest

from pgtrickle.physical import lower_delta, table_facts
from pgtrickle.refresh import plan
from tests.stories.telling import Story

TEXTS = (
    "{}", "{0}", "{x}", "{{", "}}", "%", "%s", "%(x)s", "%%", "\\", "\\'", "it''s", '"', '"c1"', "c1", "$1", "$$", "--",
    "/* */", ";", "IS UNKNOWN", "IS NOT UNKNOWN", "/* pgtrickle: ctid range */ true", "pgt_own", "OPERATOR(+)",
    "a <<= b", "ß…\u202e", "\t\n", "\\1", "\\g<0>",
)  # fmt: skip
"""Braces, percent signs, backslashes, quotes, dollars, comment marks, and what our own SQL holds."""
MANGLED = ("{", "}", "", "1", "0", "x", "'", "its", "c", "IS NULL", "IS NOT NULL", "true", "ctid >= '(0,0)'::tid", "+")
"""What replacing, formatting or unescaping would make of some of these: rows that no literal means."""


def literal(text: str) -> str:
    quoted = "".join({"'": "''", "\\": "\\\\"}.get(letter, letter) for letter in text)
    return f"E'{quoted}'" if "\\" in text else f"'{quoted}'"


LISTED = ", ".join(map(literal, TEXTS))
ALL = literal("".join(TEXTS))

QUERIES = {
    "listed": f"SELECT a, s, s || {ALL} AS j, CASE WHEN s IN ({LISTED}) THEN '%s{{}}' ELSE '{{{{' END AS c FROM t",
    "kept": f"SELECT a, s FROM t WHERE s IN ({LISTED})",
    "joined": f"SELECT t.a, u.s FROM t JOIN u ON t.a = u.a AND u.s IN ({LISTED})",
    "lefts": f"SELECT t.a, t.s, u.s AS other FROM t LEFT JOIN u ON t.a = u.a AND u.s IN ({LISTED})",
    "fulls": f"SELECT t.s, u.s AS other FROM t FULL JOIN u ON t.s || {ALL} = u.s || {ALL}",
    "semi": f"SELECT a, s FROM t WHERE EXISTS (SELECT FROM u WHERE u.a = t.a AND u.s IN ({LISTED}))",
    "anti": f"SELECT a, s FROM t WHERE NOT EXISTS (SELECT FROM u WHERE u.a = t.a AND u.s IN ({LISTED}))",
    "marked": f"SELECT a, s = '{{}}' OR s IN (SELECT u.s FROM u WHERE u.a < t.a AND u.s IN ({LISTED})) AS m FROM t",
    "grouped": f"SELECT s IN ({LISTED}) AS k, s || '{{}}%s' AS k2, count(*) FILTER (WHERE s IN ({LISTED})) AS n,"
    f" max(s || {ALL}) AS m FROM t GROUP BY 1, 2 HAVING min(s || '%') IN ('{{%', {LISTED}, '%%%', '{{{{%', '$1%')",
    "firsts": f"SELECT a, s FROM t ORDER BY s IN ({LISTED}) DESC, s || '{{}}%s' COLLATE \"C\", a LIMIT 7",
    "laterals": "SELECT t.a, x.s FROM t CROSS JOIN LATERAL (SELECT u.s FROM u WHERE u.a = t.a"
    f" AND u.s IN ({LISTED}) ORDER BY u.s COLLATE \"C\" LIMIT 2) AS x",
    "united": f"SELECT s, '{{{{' AS l FROM t WHERE s IN ({LISTED})"
    f" UNION SELECT s, '%%' FROM u WHERE s NOT IN ({LISTED})",
    "viewed": f"SELECT o.a, o.s, o.j FROM outer_view AS o LEFT JOIN u ON u.a = o.a AND u.s IN ({LISTED})",
}  # fmt: skip


BY_TASKS = ("kept", "joined", "lefts", "anti", "grouped")
"""Those that tasks read and join by other code."""


def rows(numbers: range) -> str:
    """Every text as a row, mangled or not; `a` is shared by some."""
    texts = (*TEXTS, *MANGLED)
    return ", ".join(f"({number % 7}, {literal(texts[number % len(texts)])})" for number in numbers)


def by_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing counts as small, and no lookup as cheap: tasks read shares of tables and buffers."""
    monkeypatch.setattr(plan, "SMALL_CHANGES", -1)
    monkeypatch.setattr(lower_delta, "LARGE_WINDOW", -1)
    monkeypatch.setattr(table_facts, "_LOOKUP_SECONDS", 1e9)
    monkeypatch.setattr(table_facts, "_SCAN_IN_SERVER_SECONDS", 1e9)


@pytest.mark.parametrize("path", ["short", "tasks"])
def test_every_text_in_every_place(story18: Story, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if path == "tasks":
        by_tasks(monkeypatch)
    number = len(TEXTS) + len(MANGLED)
    story18.run(
        "CREATE TABLE t (a int, s text)",
        "CREATE TABLE u (a int, s text)",
        f"CREATE VIEW inner_view AS SELECT a, s, s || {ALL} AS j FROM t WHERE s <> '{{'",
        f"CREATE VIEW outer_view AS SELECT a, s, j || '%s{{}}' AS j FROM inner_view WHERE s NOT IN ('%', {ALL})",
        f"INSERT INTO t VALUES {rows(range(number))}",
        f"INSERT INTO u VALUES {rows(range(0, number, 2))}",
    )
    for name in QUERIES if path == "short" else BY_TASKS:
        story18.create(name, QUERIES[name])
    story18.run(
        f"INSERT INTO u VALUES {rows(range(1, number, 2))}",
        f"DELETE FROM t WHERE s IN ({', '.join(map(literal, (*TEXTS, *MANGLED)[::3]))})",
    )
    story18.follow()
    if path == "tasks":
        return
    story18.run(
        "DELETE FROM u WHERE a % 2 = 0", "UPDATE u SET a = a + 1", f"INSERT INTO t VALUES {rows(range(0, number, 3))}"
    )
    story18.follow()
