"""`explain` against the real thing: which index finds what, which is missing, and the rows there really are."""

from __future__ import annotations

from tests.stories.telling import telling


def test_explain_says_how_each_table_is_read_and_how_many_rows_there_are(database18: str) -> None:
    with telling(database18, None) as story:  # no refresh, so no Spark
        story.run(
            "CREATE TABLE big (id int PRIMARY KEY, k int, v numeric)",
            "CREATE TABLE small (k int PRIMARY KEY, name text)",
            "INSERT INTO small SELECT g, 'n' || g FROM generate_series(0, 999) g",
            "INSERT INTO big SELECT g, g % 1000, g FROM generate_series(1, 500000) g",
            "ANALYZE big, small",
        )
        query = "SELECT s.name, b.v FROM big b JOIN small s ON s.k = b.k"
        story.trickle.create_stream_table("joined", query, refresh_mode="DIFFERENTIAL", initialize=False)
        supposed = story.trickle.explain(query=query)
        assert "lookup public.small: index on public.small(k)" in supposed
        assert 'lookup public.big: no index on the key (CREATE INDEX ON "public"."big" ("k") would help)' in supposed
        story.run('CREATE INDEX ON "public"."big" ("k")', "ANALYZE big", "UPDATE small SET name = 'one' WHERE k = 1")
        story.run("UPDATE big SET v = 0 WHERE id IN (7, 8)")
        waiting = story.trickle.explain("joined")
        assert "lookup public.big: index on public.big(k)" in waiting
        assert "would help" not in waiting
        assert "read changes of public.small (about 2 rows, really 2)" in waiting
        assert "rows, really 1000)" in waiting  # one name before and after, beside 500 rows each
        assert "read changes of public.big (about 4 rows, really 4)" in waiting


def test_a_with_query_of_a_join_has_one_delta_for_all_its_uses(database18: str) -> None:
    query = (
        "WITH j AS (SELECT a.id, b.v FROM a JOIN b ON b.k = a.k)"
        " SELECT x.id, y.id AS other, x.v, y.v AS larger FROM j AS x JOIN j AS y ON y.v > x.v"
    )
    with telling(database18, None) as story:
        story.run("CREATE TABLE a (id int, k int)", "CREATE TABLE b (k int, v int)")
        story.trickle.create_stream_table("s", query, refresh_mode="DIFFERENTIAL", initialize=False)
        reads = story.trickle.explain("s").split("reads when only ")[1]
    assert reads.startswith("public.a changed")
    assert reads.count("read changes of public.a") == 1
    assert reads.count("the same rows as above") == 2
