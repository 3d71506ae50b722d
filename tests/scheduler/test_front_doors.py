"""All tables paused and resumed by one call, a query that is tried without making a table, and lineage."""

from __future__ import annotations

import psycopg
import pytest

from pgtrickle import db
from pgtrickle.api import Trickle
from pgtrickle.db import Connection
from pgtrickle.scheduler.request_executor import carry_out
from tests.scheduler.conftest import World, leading

pytestmark = pytest.mark.parametrize("server", [18], indirect=True, ids=["pg18"])


def rows(conn: Connection, query: str) -> list[tuple[object, ...]]:
    return conn.execute(db.statement(query)).fetchall()


def asked(conn: Connection, call: str) -> list[object]:
    """The names of the stream tables that the call made requests for."""
    made = [number for (number,) in rows(conn, f"SELECT pgtrickle.{call}()")]
    names = conn.execute("SELECT args ->> 'name' FROM pgtrickle.pgt_requests WHERE id = ANY(%s) ORDER BY id", (made,))
    return [name for (name,) in names]


def test_all_that_one_may_steer_is_paused_and_resumed(world: World) -> None:
    with Trickle(world.dsn) as service, leading(world.dsn):
        for name in ("sales", "hidden", "kept"):
            service.create_stream_table(name, "SELECT id FROM orders", initialize=False)
        world.run("ALTER TABLE sales OWNER TO {ann}", "ALTER TABLE hidden OWNER TO {eve}")
        with world.session(world.ann) as ann, world.session(world.eve) as eve:
            assert asked(ann, "pause_all") == ["public.sales"]
            assert asked(ann, "pause_all") == [], "it will be paused: no service of hers has done it yet"
            assert asked(ann, "resume_all") == ["public.sales"]
            assert asked(ann, "resume_all") == []
            world.run("GRANT pgtrickle_admin TO {eve}")
            assert asked(eve, "pause_all") == ["public.sales", "public.hidden", "public.kept"]
        assert carry_out(service.connection, service) == 1, "the service's own: kept"
        assert [str(each) for each in service.status() if each.status == "SUSPENDED"] == ["public.kept"]
        assert asked(world.admin, "pause_all") == [], "they are paused, or will be"
        assert asked(world.admin, "resume_all") == ["public.sales", "public.hidden", "public.kept"]
        assert carry_out(service.connection, service) == 1
        assert service.status("kept")[0].status == "ACTIVE"


def test_a_query_is_tried_and_nothing_is_made(world: World) -> None:
    world.run("CREATE MATERIALIZED VIEW stored AS SELECT id FROM secret", "GRANT SELECT ON secret, stored TO {ann}")

    def said(conn: Connection, query: str) -> list[tuple[object, ...]]:
        return conn.execute("SELECT * FROM pgtrickle.validate_query(%s)", (query,)).fetchall()

    with world.session(world.ann) as ann:
        accepted = ("query", "OK", "PostgreSQL accepts it, and this role may read all that it reads")
        assert said(ann, "SELECT id FROM orders") == [
            accepted,
            ("source", "OK", "orders: its changes can be captured"),
        ]
        found = said(ann, "SELECT o.id FROM orders AS o JOIN secret USING (id) JOIN stored USING (id)")
        assert found[0] == accepted
        assert sorted(row[1] for row in found[1:]) == ["OK", "OK", "WARN"]  # type: ignore[type-var]
        assert {str(row[2])[:5] for row in found[1:] if row[1] == "WARN"} == {"PT251"}
        for wrong, code in (
            ("SELECT nothing FROM orders", "PT106"),
            ("DELETE FROM orders", "PT102"),
            ("SELECT id FROM pgtrickle.pgt_requests", "PT315"),
            ("", "PT100"),
        ):
            ((check, severity, detail),) = said(ann, wrong)
            assert (check, severity) == ("query", "ERROR")
            assert code in str(detail)
        ann.execute("SET lock_timeout = '100ms'")
        with world.admin.transaction():
            world.run("LOCK TABLE orders")
            with pytest.raises(psycopg.errors.LockNotAvailable):  # of the server, not of the query: it is raised
                said(ann, "SELECT id FROM orders")
    assert world.requests() == []
    assert rows(world.admin, "SELECT * FROM pgtrickle.pgt_status()") == []


def test_lineage_goes_through_stream_tables_and_ends_in_a_circle(world: World) -> None:
    world.run(
        "ALTER DATABASE {} SET pg_trickle.allow_circular = on".format(
            db.scalar(world.admin, "SELECT current_database()")
        )
    )
    with Trickle(world.dsn) as trickle:
        trickle.create_stream_table("low", "SELECT id, amount FROM orders", initialize=False)
        trickle.create_stream_table("other", "SELECT id FROM secret", initialize=False)
        trickle.create_stream_table("high", "SELECT l.id FROM low AS l JOIN other AS o USING (id)", initialize=False)
        trickle.create_stream_table("ring", "SELECT DISTINCT id FROM orders", initialize=False)
        trickle.create_stream_table("back", "SELECT DISTINCT id FROM ring", initialize=False)
        trickle.alter_stream_table("ring", query="SELECT id FROM orders UNION SELECT id FROM back")
    lineage = "SELECT source_name, source_type, is_direct FROM pgtrickle.pgt_lineage WHERE pgt_name = '{}' ORDER BY 1"
    assert rows(world.admin, lineage.format("high")) == [
        ("low", "STREAM_TABLE", True),
        ("orders", "TABLE", False),
        ("other", "STREAM_TABLE", True),
        ("secret", "TABLE", False),
    ]
    assert rows(world.admin, lineage.format("ring")) == [
        ("back", "STREAM_TABLE", True),
        ("orders", "TABLE", True),
        ("ring", "STREAM_TABLE", False),
    ]
    feeds = "SELECT pgt_name FROM pgtrickle.pgt_lineage WHERE source_name = 'secret' ORDER BY 1"
    assert rows(world.admin, feeds) == [("high",), ("other",)]
