"""What a stream table of `*` makes of new columns, without computing anything: its sources are empty."""

from __future__ import annotations

import pytest

from pgtrickle.api import Trickle
from pgtrickle.errors import Error, StateError
from tests.ddl.place import NO_SPARK, Place

STAR = "SELECT * FROM t"


def test_the_text_stays_and_so_does_its_meaning(made18: Place) -> None:
    made18.create("star", STAR)
    made18.run("ALTER TABLE t ADD COLUMN more int")
    with Trickle(made18.dsn, master=NO_SPARK) as anew:
        assert anew.refresh_stream_table("star").action == "NO_DATA"
        assert "more" not in anew.explain("star")
        anew.alter_stream_table("star", refresh_mode="DIFFERENTIAL")  # defined again, to mean the same
        stream = made18.stream("star")
        assert (stream.defining_query, stream.search_path) == (STAR, '"$user", public')
        assert columns(made18, "star") == ["id", "v", "w"]
    made18.run("ALTER TABLE t RENAME TO t2")
    with Trickle(made18.dsn, master=NO_SPARK) as anew:
        assert "more" not in anew.explain("star"), "under another name of the table too"


def test_a_renamed_column_is_an_error_as_before(made18: Place) -> None:
    made18.create("star", STAR)
    made18.run("ALTER TABLE t ADD COLUMN more int", "ALTER TABLE t RENAME w TO words")
    with Trickle(made18.dsn, master=NO_SPARK) as anew, pytest.raises(StateError) as caught:
        anew.refresh_stream_table("star")
    assert caught.value.code == "PT324"


class Computed(Error):
    """Spark was asked for."""

    def __init__(self) -> None:
        super().__init__("Spark was asked for", hint="see what has changed")


def test_a_view_that_gains_a_column(made18: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is computed, unless the view answers otherwise."""

    def session(*_: object) -> None:
        raise Computed

    monkeypatch.setattr("pgtrickle.spark.session.session", session)
    made18.create("star", "SELECT s.*, count(*) AS n FROM seen AS s GROUP BY s.id, s.v")
    refresh = made18.trickle.refresh_stream_table
    assert refresh("star").action == "NO_DATA"
    shown = "id, v"
    for more in ("v * 2 AS twice", "w", "upper(w) AS loud"):  # of columns that it reads, and of others
        shown = f"{shown}, {more}"
        made18.run(f"CREATE OR REPLACE VIEW seen AS SELECT {shown} FROM t WHERE v > 0")
        assert made18.marked("star") == "view public.seen was redefined"
        assert refresh("star").action == "NO_DATA", more
        assert (made18.marked("star"), made18.stream("star").status) == (None, "ACTIVE")
        assert columns(made18, "star") == ["id", "v", "n"]
    with Trickle(made18.dsn, master=NO_SPARK) as anew:
        assert anew.refresh_stream_table("star").action == "NO_DATA"
    made18.run(f"CREATE OR REPLACE VIEW seen AS SELECT {shown} FROM t WHERE v > 1")
    with pytest.raises(Computed):
        refresh("star")


WHOLE = {
    "rows": "SELECT id, to_jsonb(t) AS j, t::text AS r FROM t",
    "padded": "SELECT s.id, count(t) AS n, json_agg(t ORDER BY t.id)::text AS ts FROM seen s"
    " LEFT JOIN t ON t.id = s.id + 1 GROUP BY s.id",
    "of_view": "SELECT row_to_json(s)::text AS j FROM seen s",
}


def test_a_row_as_a_whole_has_the_columns_that_there_are(computing: Place) -> None:
    """Unlike a list of columns, it gains those that the table or view gains, as in a view."""
    made = computing
    made.run("INSERT INTO t VALUES (1, 1, 'a'), (2, 2, NULL), (3, NULL, 'c')")
    for name, query in WHOLE.items():
        made.trickle.create_stream_table(name, query, refresh_mode="DIFFERENTIAL")
    for statements in (
        ["ALTER TABLE t ADD COLUMN more int DEFAULT 7"],
        ["UPDATE t SET more = id WHERE id > 1", "INSERT INTO t VALUES (4, 4, 'd', NULL)"],
        ["ALTER TABLE t RENAME w TO words", "CREATE OR REPLACE VIEW seen AS SELECT id, v, words FROM t WHERE v > 0"],
        ["ALTER TABLE t DROP COLUMN more", "UPDATE t SET words = 'z'"],
    ):
        made.run(*statements)
        for name, query in WHOLE.items():
            done = made.trickle.refresh_stream_table(name)
            assert made.equal(name, query), (name, statements)
            altered = any("ALTER" in each or "VIEW" in each for each in statements)
            assert altered or done.action in ("DIFFERENTIAL", "NO_DATA"), (name, done)


def columns(place: Place, table: str) -> list[str]:
    rows = place.connection.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped"
        " ORDER BY attnum",
        (table,),
    )
    return [str(name) for (name,) in rows]
