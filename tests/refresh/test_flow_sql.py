"""A stage as one statement over relations with names: what has changed may stand in any table, not in buffers alone."""

from __future__ import annotations

from pgtrickle import Trickle, db
from pgtrickle.apply.staging_tables import create_landing
from pgtrickle.config import Settings
from pgtrickle.physical.flow import Flow, LandResult, Read
from pgtrickle.physical.flow_sql import count_sql, flow_sql, in_order
from pgtrickle.physical.window_parts import Changed
from pgtrickle.postgres.statements.script import Scratch
from pgtrickle.refresh import gather_facts as ask
from pgtrickle.refresh.connections import Connections
from pgtrickle.refresh.definition.define import rehearse
from pgtrickle.refresh.plan import plan_delta
from pgtrickle.refresh.window import Span, Window

OUTER = "SELECT o.id, c.region FROM o LEFT JOIN c ON c.id = o.customer WHERE o.id > 0"
ANY = "1:1:"


def result_flow(conn: db.Connection, query: str) -> Flow:
    """What lands as the result when every source has a change."""
    prepared, _ = rehearse(conn, query, Settings())
    oids = [table.oid for table in prepared.sources]
    window = Window(ANY, Connections.single(conn), {oid: Span(ANY, ANY) for oid in oids})
    facts = ask.gather(conn, oids, dict.fromkeys(oids, 1))
    last = plan_delta(prepared, facts, window, Changed(frozenset(oids)), Scratch("use")).stages[-1]
    assert isinstance(last, LandResult)
    return last.input


def test_changes_stand_in_tables_of_any_name(database18: str) -> None:
    with Trickle(database18), db.open_session(database18) as conn:
        conn.execute("CREATE TABLE c (id int PRIMARY KEY, region text)")
        conn.execute("CREATE TABLE o (id int PRIMARY KEY, customer int)")
        conn.execute("INSERT INTO c VALUES (1, 'north'), (2, 'east')")  # as they are after the changes
        conn.execute("INSERT INTO o VALUES (7, 1), (8, 2), (9, NULL), (-1, 1)")
        flow = result_flow(conn, OUTER)
        reads = [each for each in in_order([flow], {}) if isinstance(each, Read)]
        assert [read.what for read in reads] == ["changes of public.o", "changes of public.c"]
        names: dict[Flow, str] = {read: f"pg_temp.moved_{number}" for number, read in enumerate(reads)}
        with conn.transaction():
            for read, table in zip(reads, names.values(), strict=True):
                create_landing(conn, table, read.columns)
            conn.execute("INSERT INTO pg_temp.moved_0 VALUES (8, 2, 1), (9, NULL, 1)")
            conn.execute("INSERT INTO pg_temp.moved_1 VALUES (1, 'south', -1), (1, 'north', 1)")
            statement = flow_sql(flow, names)
            assert "pgtrickle_changes" not in statement
            found = sorted(conn.execute(db.statement(statement)).fetchall(), key=repr)
            assert found == [(7, "north", 1), (7, "south", -1), (8, "east", 1), (9, None, 1)]
            assert conn.execute(db.statement(count_sql([flow, *reads], names))).fetchone() == (4, 2, 2)
