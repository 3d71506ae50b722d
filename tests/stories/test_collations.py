"""Columns of each kind of collation in every place where their order or their equality counts: of C, of libc, of
PostgreSQL's own, and of ICU, deterministic or not. What a query says by COLLATE counts too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pgtrickle import db, embedded
from tests.conftest import fresh_database
from tests.stories.telling import Story, telling

VALUES = ("a", "A", "b", "B", "ä", "Ä", "z", "_a", "a b", "", "É", "e", "é", "10", "9", "ß", "ss")
BUILT_IN = {"c": '"C"', "libc": '"C.utf8"', "fast": "pg_unicode_fast"}
ICU = {
    "german": "provider = icu, locale = 'de-u-kn-true'",
    "folded": "provider = icu, locale = 'und-u-ks-level2', deterministic = false",
    "bare": "provider = icu, locale = 'und-u-ks-level1', deterministic = false",
}

COUNTED = {
    "grouped": "SELECT '{n}' AS of, count(*) AS n, sum(id) AS s FROM t GROUP BY {k}",
    "joined": "SELECT '{n}' AS of, t.id, u.id AS uid FROM t LEFT JOIN u ON t.{k} = u.{j} AND t.g = u.g",
    "asked": "SELECT '{n}' AS of, id FROM t WHERE {k} NOT IN (SELECT {j} FROM u WHERE {j} IS NOT NULL) OR {k} < 'b'",
    "first": "(SELECT '{n}' AS of, id FROM t ORDER BY {k} DESC, id LIMIT 5)",
    "of_each": "(SELECT DISTINCT ON (g) '{n}' AS of, id FROM t ORDER BY g, {k}, id)",
    "ordered": "SELECT '{n}' AS of, id, rank() OVER (ORDER BY {k}) AS r,"
    " lag(id) OVER (PARTITION BY g ORDER BY {k}, id) AS l FROM t",
    "parted": "SELECT '{n}' AS of, id, count(*) OVER (PARTITION BY {k}) AS n,"
    " row_number() OVER (PARTITION BY {k} ORDER BY id) AS r FROM t",
    "minus": "SELECT '{n}' AS of, count(*) AS n FROM (SELECT {k} FROM t EXCEPT SELECT {j} FROM u) AS q",
}
"""Over all columns at once: these show numbers."""
SHOWN = {
    "extremes": "SELECT g, min({k}) AS l, max({k}) AS m, count(DISTINCT {k}) AS n FROM t GROUP BY g",
    "distinct": "SELECT DISTINCT g, {k} AS k FROM t",
    "last": "SELECT id, {k} AS k, last_value({k}) OVER (PARTITION BY g ORDER BY {k}) AS l,"
    " max({k}) OVER (PARTITION BY {k}) AS m FROM t",
    "below": "SELECT u.id, q.m, q.n FROM u JOIN (SELECT g, max({k}) AS m, mode() WITHIN GROUP (ORDER BY {k}) AS n"
    " FROM t GROUP BY g) AS q ON q.g = u.g",
}
"""Of a column: these show its values."""


def test_each_collation_in_every_place(story18: Story) -> None:
    _play(story18, BUILT_IN, shown=())


@pytest.fixture
def story_with_icu(server15: embedded.Server) -> Iterator[Story]:
    with fresh_database(server15) as dsn:
        with db.open_session(dsn) as connection:
            for name, how in ICU.items():
                connection.execute(db.statement(f"CREATE COLLATION public.{name} ({how})"))
        with telling(dsn, None) as story:
            yield story


@pytest.mark.long
def test_collations_of_icu(story_with_icu: Story) -> None:
    """The servers that wheels bring have no ICU."""
    collations = {**{name: f"public.{name}" for name in ICU}, "c": '"C"'}
    _play(story_with_icu, collations, shown=tuple(ICU))


def _play(story: Story, collations: dict[str, str], shown: tuple[str, ...]) -> None:
    story.trickle._refresher.without_spark = True
    columns = ", ".join(f"k_{name} text COLLATE {collation}" for name, collation in collations.items())
    story.run(f"CREATE TABLE t (id int, g int, {columns})", f"CREATE TABLE u (id int, g int, {columns})")
    for id, value in enumerate(VALUES):
        _insert(story, "t", id, value, collations)
        if id % 3:
            _insert(story, "u", id, VALUES[-id], collations)
    # of t, of u: a column, and the column of another collation with this one
    last = list(collations)[-1]
    written = {name: (f"k_{name}", f"k_{name}") for name in collations}
    mixed = {f"as {n}": (f"k_{last} COLLATE {c}", f"k_{n} COLLATE {c}") for n, c in collations.items() if n != last}
    for place, query in COUNTED.items():
        found = [query.format(n=n, k=k, j=j) for n, (k, j) in (written | mixed).items()]
        story.create(place, " UNION ALL ".join(found))
    for place, query in SHOWN.items():
        for name in shown:
            story.looks.add(f"{place}_{name}")
            story.create(f"{place}_{name}", query.format(k=f"k_{name}"))
    story.run("UPDATE t SET g = g + 1 WHERE id % 5 = 2", "DELETE FROM t WHERE id IN (1, 4, 6)")
    added: tuple[tuple[int, str | None], ...] = ((20, "a"), (21, "É"), (22, "SS"), (23, None))
    for id, newer in added:
        _insert(story, "t", id, newer, collations)
        _insert(story, "u", id, newer, collations)
    story.follow()
    swapped = ", ".join(f"k_{name} = upper(k_{name})" for name in collations)
    story.run(
        f"UPDATE t SET {swapped} WHERE id % 2 = 0", "DELETE FROM u WHERE id % 4 = 1", "DELETE FROM t WHERE id = 0"
    )
    story.follow()


def _insert(story: Story, table: str, id: int, value: str | None, collations: dict[str, str]) -> None:
    marks = ", ".join(["%s"] * len(collations))
    story.connection.execute(
        db.statement(f"INSERT INTO {table} VALUES (%s, %s, {marks})"), (id, id % 2, *[value] * len(collations))
    )
