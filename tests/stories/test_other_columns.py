"""A stream table gets other columns: by `alter`, or since a column of its source has another type. It is the same table
for all who use it, and shows its old rows until the new ones are there."""

from __future__ import annotations

import pytest

from pgtrickle import failpoints
from pgtrickle.errors import ColumnsWarning, StateError
from tests.stories.telling import TOTALS, Story

MORE = "SELECT kind, max(v) AS most, sum(v) AS total FROM t GROUP BY kind"
KEPT = (
    "SELECT c.oid, c.relowner, c.relacl::text, c.reloptions, obj_description(c.oid),"
    " col_description(c.oid, (SELECT attnum FROM pg_attribute WHERE attrelid = c.oid AND attname = 'total')),"
    " (SELECT attacl::text FROM pg_attribute WHERE attrelid = c.oid AND attname = 'total'),"
    " (SELECT array_agg(indexrelid::regclass::text ORDER BY indexrelid::regclass::text) FROM pg_index"
    "  WHERE indrelid = c.oid AND indexrelid::regclass::text IN ('by_total', 'one_of_a_kind')),"
    " (SELECT array_agg(conname::text ORDER BY conname) FROM pg_constraint WHERE conrelid = c.oid)"
    " FROM pg_class AS c WHERE c.relname = 'totals'"
)


def used(story: Story, name: str = "totals") -> None:
    """What people put on a table of theirs."""
    story.run(
        "DROP ROLE IF EXISTS reads_totals",
        "CREATE ROLE reads_totals",
        f"GRANT SELECT ON {name} TO PUBLIC",
        f"GRANT SELECT (total), UPDATE (total) ON {name} TO reads_totals",
        f"COMMENT ON TABLE {name} IS 'sums by kind'",
        f"COMMENT ON COLUMN {name}.total IS 'the sum'",
        f"CREATE INDEX by_total ON {name} (total)",
        f"ALTER TABLE {name} ADD CONSTRAINT one_of_a_kind PRIMARY KEY (kind)",
        f"ALTER TABLE {name} SET (fillfactor = 70)",
    )


def let_go(story: Story) -> None:
    story.run("DROP OWNED BY reads_totals", "DROP ROLE reads_totals")


def test_alter_keeps_what_still_fits(told: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    told.create("totals", TOTALS)
    used(told)
    told.run("CREATE VIEW sums AS SELECT kind, total FROM totals", "CREATE INDEX by_n ON totals (n)")
    kept, rows = told.rows(KEPT), told.content("totals")
    seen = []

    def reach(place: str) -> None:
        if place == "window-read":  # defined anew, and its new rows are not there yet
            with told.session() as other:
                seen.append([str(each) for (each,) in other.execute("SELECT t::text FROM totals AS t")])

    monkeypatch.setattr(failpoints, "reach", reach)
    with pytest.warns(ColumnsWarning, match=r"index public\.by_n") as notes:
        told.trickle.alter_stream_table("totals", query=MORE)
    monkeypatch.undo()
    assert [sorted(each) for each in seen] == [sorted(rows.elements())]
    assert len(notes) == 1
    assert told.rows("SELECT to_regclass('by_n')") == [(None,)]
    assert told.rows(KEPT) == kept
    # `total` has an index: it stays where it is, and the new column comes after it
    told.queries["totals"] = "SELECT kind, sum(v) AS total, max(v) AS most FROM t GROUP BY kind"
    told.equal("totals")
    told.run("INSERT INTO t VALUES (30, 'k1', 100)", "DELETE FROM t WHERE kind = 'k2'", "UPDATE t SET v = v + 1")
    assert told.trickle.verify("totals")[0].equal, "by name, at its snapshot"
    told.check("totals")
    assert told.rows("SELECT * FROM sums EXCEPT ALL SELECT kind, total FROM totals") == []
    let_go(told)


def test_what_is_in_the_way_is_named_and_nothing_is_done(told: Story) -> None:
    told.create("totals", TOTALS)
    told.run(
        "CREATE VIEW counts AS SELECT kind, n FROM totals",
        "CREATE MATERIALIZED VIEW frozen AS SELECT n FROM totals",
        "CREATE FUNCTION most() RETURNS bigint LANGUAGE sql BEGIN ATOMIC SELECT max(n) FROM totals; END",
    )
    stream, rows = told.stream("totals"), told.content("totals")
    for query in (MORE, TOTALS.replace("count(*)", "count(*)::text")):  # dropped, retyped
        with pytest.raises(StateError) as refused:
            told.trickle.alter_stream_table("totals", query=query)
        assert refused.value.code == "PT440"
        for each in ("view public.counts", "materialized view public.frozen", "function public.most()"):
            assert each in refused.value.message
    assert (told.stream("totals"), told.content("totals")) == (stream, rows)
    told.run("INSERT INTO t VALUES (30, 'k1', 1)")
    told.check("totals")


def test_a_query_that_fails_leaves_the_old_rows(told: Story) -> None:
    told.create("totals", TOTALS)
    rows = told.content("totals")
    told.run("INSERT INTO t VALUES (30, 'zero', 0)")
    wrong = "SELECT kind, sum(100 / v) AS hundredths FROM t GROUP BY kind"
    with pytest.raises(StateError, match="division by zero"):
        told.trickle.alter_stream_table("totals", query=wrong)
    assert told.content("totals") == rows
    told.run("DELETE FROM t WHERE id = 30")
    told.queries["totals"] = wrong
    told.trickle.refresh_stream_table("totals")
    told.equal("totals")
    told.run("INSERT INTO t VALUES (31, 'k9', 3)")
    told.check("totals")


def test_a_source_column_retyped(told: Story) -> None:
    """Each table takes the new type with its next refresh, and so do those that read it."""
    told.create("totals", TOTALS)
    told.create("amounts", "SELECT id, v FROM t WHERE kind <> 'k2'")
    told.create("sums", "SELECT id % 2 AS odd, sum(v) AS s FROM amounts GROUP BY id % 2")
    told.create("signs", "SELECT id, v > 0 AS positive FROM t")
    told.create("halves", "SELECT id, v / 2.0 AS h, v / 2 AS i FROM t")
    used(told)
    kept = told.rows(KEPT)
    told.run("ALTER TABLE t ALTER v TYPE numeric USING v + 0.25", "INSERT INTO t VALUES (30, 'k1', 1.25)")
    for name in told.queries:
        result = told.check(name, "REINITIALIZE")
        assert name == "sums" or result.reason == "column v of table public.t now has the type numeric"
    assert told.rows(KEPT) == kept
    assert {str(each.status) for each in told.trickle.status()} == {"ACTIVE"}
    told.run("UPDATE t SET v = v * 1.10 WHERE id < 9", "DELETE FROM t WHERE id = 12", "INSERT INTO t VALUES (31, 'k7')")
    told.follow()
    assert [each for each in told.trickle.verify() if not each.equal] == []
    told.run("ALTER TABLE t ALTER v TYPE double precision", "UPDATE t SET v = v / 3 WHERE id = 1")
    for name in told.queries:
        told.check(name, "REINITIALIZE")
    told.run("DELETE FROM t WHERE id = 2")
    told.looks.update({"totals", "sums"})  # sums of floats depend on the order
    told.follow("amounts", "signs", "halves")
    let_go(told)


def test_a_view_in_the_way_of_another_type(told: Story) -> None:
    """The table says so, keeps its rows, and goes on once the view has made room."""
    told.create("amounts", "SELECT id, v FROM t")
    rows = told.content("amounts")
    told.run("CREATE VIEW shown AS SELECT v FROM amounts", "ALTER TABLE t ALTER v TYPE numeric")
    for _ in range(2):
        with pytest.raises(StateError, match=r"view public\.shown depends on v") as refused:
            told.trickle.refresh_stream_table("amounts")
        assert refused.value.code == "PT440"
        assert "view public.shown" in (refused.value.hint or "")
        assert (told.stream("amounts").status, told.content("amounts")) == ("ERROR", rows)
    told.run("DROP VIEW shown", "UPDATE t SET v = 0.5 WHERE id = 1")
    told.check("amounts", "REINITIALIZE")
    told.run("CREATE VIEW shown AS SELECT v FROM amounts", "DELETE FROM t WHERE id = 3")
    told.check("amounts")
