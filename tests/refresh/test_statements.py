"""What is done to state and result, as scripts: twice in one transaction, under names given from outside."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pgtrickle import db
from pgtrickle.api import Trickle
from pgtrickle.apply import indexes, merge
from pgtrickle.apply import state as state_tables
from pgtrickle.apply.run import run
from pgtrickle.config import Settings
from pgtrickle.db import Connection
from pgtrickle.errors import StateError
from pgtrickle.model import Column, PgType
from pgtrickle.postgres.statements import result, state
from pgtrickle.postgres.statements.result import Storage
from pgtrickle.postgres.statements.script import Scratch
from pgtrickle.postgres.statements.state import StateTable
from pgtrickle.postgres.weighted import GroupStep, run_steps
from pgtrickle.query.operators import Aggregate
from pgtrickle.refresh.definition.define import rehearse

INT = PgType(23, "integer")
STORAGE = Storage("public", "st", (Column("k", INT), Column("v", INT)), frozenset({0, 1}))
COLUMNS = (Column("c1", INT), Column("c2", INT))


@pytest.fixture
def conn(database18: str) -> Iterator[Connection]:
    with Trickle(database18), db.open_session(database18) as found, found.transaction():
        yield found


def content(conn: Connection, query: str) -> list[tuple[object, ...]]:
    return conn.execute(db.statement(query)).fetchall()


def test_two_results_are_applied_in_one_transaction(conn: Connection) -> None:
    merge.create(conn, STORAGE)
    key = frozenset({0})
    for number, rows in enumerate(("(1, 1, 1), (2, 2, 1)", "(1, 1, -1), (1, 5, 1), (2, 2, -1)")):
        delta = f"SELECT * FROM (VALUES {rows}) AS d(c1, c2, w)"
        counted = run(conn, result.apply_delta(STORAGE, delta, COLUMNS, Scratch(f"use_{number}"), key))
        assert (counted["inserted"], counted["deleted"]) == ((2, 0), (1, 2))[number]
    assert content(conn, "SELECT k, v FROM st") == [(1, 5)]


def summed(conn: Connection) -> StateTable:
    """The state of `sum` and `max` by key, made and empty."""
    conn.execute("CREATE TABLE t (k int, v int)")
    prepared, _ = rehearse(conn, "SELECT k, sum(v) AS s, max(v) AS m FROM t GROUP BY k", Settings())
    (kept,) = prepared.states.values()
    assert isinstance(kept, StateTable)
    named = StateTable("pg_temp.kept", kept.aggregate, kept.hashable)
    state_tables.create(conn, named, looked_up=False)
    return named


def contributed(aggregate: Aggregate, rows: str) -> str:
    names = ", ".join(aggregate.input.names)
    return run_steps(f"SELECT * FROM (VALUES {rows}) AS d({names}, w)", (GroupStep.of(aggregate),))


def test_state_is_merged_twice_in_one_transaction_and_written_last(conn: Connection) -> None:
    """A group that loses its greatest value is recomputed from the table, as that is by now."""
    kept = summed(conn)
    changed, seen = [], []
    for number, (then, rows) in enumerate(
        (
            ("INSERT INTO t VALUES (1, 1), (1, 7), (2, 3)", "(1, 1, 1), (1, 7, 1), (2, 3, 1)"),
            ("DELETE FROM t WHERE v IN (7, 3)", "(1, 7, -1), (2, 3, -1)"),
        )
    ):
        conn.execute(db.statement(then))
        scratch = Scratch(f"use_{number}")
        merged = state.merge(kept, scratch, contributed(kept.aggregate, rows), None, lambda _: None)
        run(conn, merged.compute)
        changed.append(sorted(content(conn, state.changes(scratch)), key=str))
        seen.append(len(content(conn, "SELECT FROM pg_temp.kept")))
        new = content(conn, f"SELECT n FROM {state.merged_rows(kept, scratch)} ORDER BY n")
        run(conn, merged.write)
        assert content(conn, "SELECT n FROM pg_temp.kept ORDER BY n") == new
    assert changed == [[(1, 8, 7, 1), (2, 3, 3, 1)], [(1, 1, 1, 1), (1, 8, 7, -1), (2, 3, 3, -1)]]
    assert seen == [0, 2], "what is computed writes nothing"


def test_what_must_hold_and_does_not_is_an_error(conn: Connection) -> None:
    kept = summed(conn)
    rows = contributed(kept.aggregate, "(1, 7, -1)")
    with pytest.raises(StateError, match="fewer rows in a group") as raised:
        run(conn, state.merge(kept, Scratch("use"), rows, None, lambda _: None).compute)
    assert raised.value.code == "PT331"


def index_texts(conn: Connection, table: str) -> list[str]:
    """Those that are valid and ready, by name and definition."""
    found = conn.execute(
        "SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = %s::regclass AND indisvalid AND indisready"
        " ORDER BY 1",
        (table,),
    )
    return [str(text) for (text,) in found.fetchall()]


def test_state_is_looked_up_by_trees_where_values_are_small(conn: Connection) -> None:
    conn.execute("CREATE TABLE t (a int, b text, c numeric(9, 2), d numeric, e char(400))")
    prepared, _ = rehearse(conn, "SELECT a, b, c, d, e, count(*) AS n FROM t GROUP BY a, b, c, d, e", Settings())
    (kept,) = prepared.states.values()
    assert isinstance(kept, StateTable)
    named = StateTable("pg_temp.kept", kept.aggregate, kept.hashable)
    state_tables.create(conn, named, looked_up=True)
    columns = {text.partition(" USING ")[2] for text in index_texts(conn, "pg_temp.kept")}
    a, b, c, d, e = kept.aggregate.keys
    assert columns == {
        "btree (h)",
        f"btree ({a})",
        f"btree ({c})",
        *(f"hash ({key})" for key in (b, d, e)),
        *(f"btree (h) WHERE ({key} IS NULL)" for key in (b, d, e)),
    }


def test_indexes_made_after_a_load_are_those_that_were_there(conn: Connection) -> None:
    kept = summed(conn)
    conn.execute('CREATE INDEX "with space" ON pg_temp.kept USING hash (n) WHERE n > 0')
    before = index_texts(conn, kept.name)
    with indexes.made_after(conn, kept.name):
        assert index_texts(conn, kept.name) == []
        run(conn, state.rebuild(kept, "SELECT 1 AS c1, 2 AS a0_n, 3::numeric AS a0_s, 4 AS a1_v, 0 AS a1_lost, 1 AS w"))
    assert index_texts(conn, kept.name) == before
    assert len(before) == 2


def test_indexes_stay_where_a_load_fails(conn: Connection) -> None:
    kept = summed(conn)
    before = index_texts(conn, kept.name)
    with pytest.raises(StateError), conn.transaction(), indexes.made_after(conn, kept.name):
        raise StateError("a row is not right", code="PT331", hint="")
    assert index_texts(conn, kept.name) == before
