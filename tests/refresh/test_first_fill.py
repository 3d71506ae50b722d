"""What a first fill leaves, and in which order."""

from __future__ import annotations

import pytest

from pgtrickle import db
from pgtrickle.api import Trickle
from pgtrickle.apply import merge
from pgtrickle.postgres.statements.result import Storage
from tests.refresh.oracle import differing

DOUBLED = "SELECT id, 2 * v AS w FROM source"


def test_the_index_of_rows_is_made_after_them(database18: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And before anything else has use for it: of a table that is filled later, at once."""
    made: dict[str, object] = {}
    index = merge.index

    def noted(connection: db.Connection, storage: Storage) -> None:
        assert storage.name not in made
        made[storage.name] = db.scalar(connection, f"SELECT count(*) FROM {storage.qualified}")
        index(connection, storage)

    monkeypatch.setattr(merge, "index", noted)
    with db.open_session(database18) as connection, Trickle(database18) as trickle:
        trickle._refresher.without_spark = True
        connection.execute("CREATE TABLE source (id int PRIMARY KEY, v int)")
        connection.execute("INSERT INTO source SELECT g, g FROM generate_series(1, 30) AS g")
        trickle.create_stream_table("now", DOUBLED, refresh_mode="DIFFERENTIAL")
        trickle.create_stream_table("later", DOUBLED, refresh_mode="DIFFERENTIAL", initialize=False)
        assert made == {"now": 30, "later": 0}
        connection.execute("UPDATE source SET v = 0 WHERE id < 10")
        for name, full in (("now", False), ("now", True), ("later", True)):
            trickle.refresh_stream_table(name, full=full)
            assert differing(connection, name, DOUBLED) == []
        assert [each.done for each in trickle.repair()] == [(), ()]
