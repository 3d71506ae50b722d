"""Recursions: what explain and the history say of them, their limit, and circles."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pgtrickle import Trickle, db
from pgtrickle.db import Connection
from pgtrickle.errors import StateError

BELOW = (
    "WITH RECURSIVE r(id) AS (SELECT id FROM node WHERE parent IS NULL"
    " UNION SELECT n.id FROM r JOIN node n ON n.parent = r.id) SELECT id FROM r"
)
OPEN = (
    "WITH RECURSIVE r(id) AS (SELECT id FROM node WHERE parent IS NULL UNION SELECT n.id FROM r JOIN node n"
    " ON n.parent = r.id WHERE NOT EXISTS (SELECT FROM closed c WHERE c.id = n.id)) SELECT id FROM r"
)
PATHS = (
    "WITH RECURSIVE r(id) AS (SELECT id FROM node WHERE parent IS NULL"
    " UNION ALL SELECT n.id FROM r JOIN node n ON n.parent = r.id) SELECT id FROM r"
)


@pytest.fixture
def conn(database18: str) -> Iterator[Connection]:
    with db.open_session(database18) as found:
        found.execute("CREATE TABLE node (id int, parent int)")
        found.execute("CREATE TABLE closed (id int)")
        found.execute("INSERT INTO node SELECT g, nullif(g / 3, 0) FROM generate_series(1, 30) AS g")
        yield found


@pytest.fixture
def trickle(conn: Connection, database18: str) -> Iterator[Trickle]:
    with Trickle(database18) as found:
        found._refresher.without_spark = True
        yield found


def _equal(trickle: Trickle) -> bool:
    return all(found.equal for found in trickle.verify())


def test_explain_and_history_say_how(conn: Connection, trickle: Trickle) -> None:
    trickle.create_stream_table("open", OPEN, refresh_mode="DIFFERENTIAL")
    told = trickle.explain("open")
    assert "evaluated again, and compared with the rows kept: it is not monotone in what changed: anti join" in told
    conn.execute("DELETE FROM node WHERE id = 4")
    assert "deletion and rederivation of what was removed" in trickle.explain("open")
    trickle.refresh_stream_table("open")
    assert trickle.history("open", 1)[0].reason == "1 change"
    conn.execute("INSERT INTO closed VALUES (3)")
    trickle.refresh_stream_table("open")
    last = trickle.history("open", 1)[0]
    assert last.action == "DIFFERENTIAL"
    assert last.reason == "1 change; a recursion is evaluated again: it is not monotone in what changed: anti join"
    assert _equal(trickle)


@pytest.mark.parametrize("query", [BELOW, PATHS])
def test_a_recursion_that_is_too_deep_is_an_error(
    conn: Connection, database18: str, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    monkeypatch.setenv("PGTRICKLE_IVM_RECURSIVE_MAX_DEPTH", "6")
    with Trickle(database18) as trickle:
        trickle._refresher.without_spark = True
        trickle.create_stream_table("rows", query, refresh_mode="DIFFERENTIAL")
        conn.execute("INSERT INTO node SELECT g, nullif(g - 1, 100) FROM generate_series(101, 110) AS g")
        with pytest.raises(StateError, match="deeper than ivm_recursive_max_depth") as error:
            trickle.refresh_stream_table("rows")
        assert error.value.code == "PT620"
        conn.execute("DELETE FROM node WHERE id = 104")
        trickle.refresh_stream_table("rows")
        assert _equal(trickle)


def test_paths_without_an_end_are_an_error_and_not_endless(conn: Connection, trickle: Trickle) -> None:
    trickle.create_stream_table("paths", PATHS, refresh_mode="DIFFERENTIAL")
    conn.execute("INSERT INTO node VALUES (1, 9)")
    with pytest.raises(StateError, match="deeper than ivm_recursive_max_depth"):
        trickle.refresh_stream_table("paths")
    conn.execute("DELETE FROM node WHERE id = 1 AND parent = 9")
    trickle.refresh_stream_table("paths")
    assert _equal(trickle)


def test_downstream_of_another_stream_table(conn: Connection, trickle: Trickle) -> None:
    trickle.create_stream_table("open_nodes", "SELECT id, parent FROM node WHERE id <> 5", refresh_mode="DIFFERENTIAL")
    trickle.create_stream_table("below", BELOW.replace("node", "open_nodes"), refresh_mode="DIFFERENTIAL")
    for change in ("UPDATE node SET parent = 2 WHERE id = 3", "DELETE FROM node WHERE id IN (2, 7)", "TRUNCATE node"):
        conn.execute(change)
        trickle.refresh_stream_table("open_nodes")
        trickle.refresh_stream_table("below")
        assert _equal(trickle)
