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


def test_a_row_as_a_whole_is_computed_in_full(made18: Place) -> None:
    """A new column is part of it, as in a view; so each refresh asks PostgreSQL."""
    for query in (
        "SELECT id, to_jsonb(t) AS j FROM t",
        "SELECT t FROM t",
        "SELECT id FROM t WHERE t IS NOT NULL",
        "SELECT count(t) FROM t",
        "SELECT a.id FROM t AS a JOIN t AS b ON a = b",
    ):
        assert made18.trickle.explain(query=query).startswith("refresh mode\n  FULL"), query


def columns(place: Place, table: str) -> list[str]:
    rows = place.connection.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped"
        " ORDER BY attnum",
        (table,),
    )
    return [str(name) for (name,) in rows]
