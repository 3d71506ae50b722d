"""No operator, function, type or relation of another is ever called by our own SQL, whatever the search path."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession

from pgtrickle import db
from pgtrickle.api import Trickle
from pgtrickle.capture.modes import CaptureMode
from pgtrickle.catalog.install import install, uninstall
from pgtrickle.config import Settings
from pgtrickle.scheduler import request_executor
from pgtrickle.scheduler.capture_loop import CaptureLoop
from tests.sessions.traps import set_traps, sprung
from tests.wal.moving import moving

# A user who has to live with such a path names what is PostgreSQL's by its schema.
QUERIES = {
    "totals": "SELECT c.region, pg_catalog.sum(o.amount) AS total, pg_catalog.count(*) AS n FROM shop.orders AS o"
    " JOIN shop.customers AS c ON c.id OPERATOR(pg_catalog.=) o.customer GROUP BY c.region",
    "kinds": "SELECT DISTINCT kind FROM shop.orders",
    "largest": "SELECT id, amount FROM shop.orders ORDER BY amount DESC, id LIMIT 2",
    "everyone": "SELECT c.id, c.region, o.amount FROM shop.customers AS c"
    " LEFT JOIN shop.orders AS o ON o.customer OPERATOR(pg_catalog.=) c.id",
    "highest": "SELECT kind, pg_catalog.max(amount) AS most, pg_catalog.string_agg(note, ',' ORDER BY id) AS notes"
    " FROM shop.orders GROUP BY kind",
}


@pytest.fixture
def trapped(database18: str) -> Iterator[str]:
    """A database whose search path begins with a schema in which a role without rights has set its traps."""
    with db.connect(database18) as admin:
        name = sql.Identifier(admin.info.dbname)
        admin.execute("CREATE ROLE mallory LOGIN PASSWORD 'm'")
        admin.execute("GRANT CREATE, USAGE ON SCHEMA public TO mallory")
        with db.connect(make_conninfo(database18, user="mallory", password="m")) as mallory:
            known = set_traps(mallory)
        assert {"smallint & integer", "name = text", "oid = smallint", "unnest()", "current_setting()"} <= known
        assert {"pg_class", "pg_settings", "type text", "type oid"} <= known
        admin.execute(
            "CREATE SCHEMA shop; CREATE TABLE shop.customers (id int PRIMARY KEY, region text);"
            "CREATE TABLE shop.orders (id int PRIMARY KEY, customer int, amount numeric, kind text, note text);"
            "ALTER TABLE shop.orders REPLICA IDENTITY FULL"
        )
        admin.execute(sql.SQL("ALTER DATABASE {} SET search_path = public, pg_catalog").format(name))
        yield database18
        admin.execute("DROP OWNED BY mallory CASCADE; DROP ROLE mallory")


def test_our_sql_calls_nothing_of_others(trapped: str, spark: SparkSession) -> None:
    user = psycopg.connect(trapped, autocommit=True)
    with user, db.connect(trapped) as admin, Trickle(trapped, spark=spark) as trickle:
        with pytest.raises(psycopg.errors.RaiseException):  # the path is what it should be here
            user.execute("SELECT 1 & 2::pg_catalog.int2")
        admin.execute("ALTER SEQUENCE public.sprung RESTART")

        user.execute("INSERT INTO shop.customers VALUES (1, 'n'), (2, 's'), (3, NULL)")
        user.execute(
            "INSERT INTO shop.orders VALUES (1, 1, 10, 'a', 'x'), (2, 1, 20, 'b', NULL), (3, 9, 1.50, 'a', 'y')"
        )
        for name, query in QUERIES.items():
            trickle.create_stream_table(f"shop.{name}", query, refresh_mode="DIFFERENTIAL", cdc_mode="trigger")
        _change(user, 10)
        _refreshed(trickle)
        assert [found for found in trickle.verify() if not found.equal] == []
        for name in QUERIES:
            trickle.explain(f"shop.{name}")
            trickle.history(f"shop.{name}")
        trickle.explain(query=QUERIES["totals"])
        assert trickle.status()
        assert trickle.health()
        assert trickle.cdc_status()
        trickle.cdc_history()

        _by_request(user, admin, trickle)
        _by_wal(user, trickle)
        trickle.refresh_stream_table("shop.everyone", full=True)
        assert [found for found in trickle.verify() if not found.equal] == []
        for name in QUERIES:
            trickle.drop_stream_table(f"shop.{name}")
        uninstall(admin, drop_stream_tables=True)
        install(admin)
        assert not sprung(admin)


def _change(user: psycopg.Connection, id: int) -> None:
    """A window of every kind of change."""
    user.execute(f"INSERT INTO shop.orders VALUES ({id}, 2, 5, 'c', 'z'), ({id + 1}, 3, 30, 'a', 'w')")
    user.execute("UPDATE shop.orders SET amount = 12.25, kind = 'd' WHERE id OPERATOR(pg_catalog.=) 1")
    user.execute("UPDATE shop.customers SET region = 'w' WHERE id OPERATOR(pg_catalog.=) 2")
    user.execute(f"DELETE FROM shop.orders WHERE id OPERATOR(pg_catalog.=) {id}")


def _refreshed(trickle: Trickle) -> None:
    for name in QUERIES:
        assert trickle.refresh_stream_table(f"shop.{name}").action in {"DIFFERENTIAL", "NO_DATA"}


def _by_request(user: psycopg.Connection, admin: db.Connection, trickle: Trickle) -> None:
    """What SQL callers do, under their path, and the service for them."""
    user.execute("SELECT pgtrickle.create_stream_table('shop.asked', 'SELECT id FROM shop.orders')")
    assert request_executor.carry_out(trickle.connection, trickle) == 1
    user.execute("CALL pgtrickle.wait_for(1)")
    for call in (
        "alter_stream_table('shop.asked', query => 'SELECT id, kind FROM shop.orders', schedule => '5m')",
        "refresh_stream_table('shop.asked')",
    ):
        user.execute(f"SELECT pgtrickle.{call}")
    for call in (
        "pgt_status()",
        "st_refresh_stats()",
        "get_refresh_history('shop.asked', 5)",
        "get_staleness('shop.asked')",
        "explain_st('shop.asked')",
        "slot_health()",
        "check_cdc_health()",
        "health_check()",
        "diamond_groups()",
        "dependency_tree()",
        "stream_tables_info",
        "pg_stat_stream_tables",
        "pgt_cdc_status",
        "pgt_stream_table_sources",
        "pgt_ddl_tracking",
    ):
        user.execute(f"SELECT * FROM pgtrickle.{call}")
    user.execute("ALTER TABLE shop.orders ADD COLUMN more pg_catalog.int4")  # the event triggers
    user.execute("SELECT pgtrickle.drop_stream_table('shop.asked')")
    assert request_executor.carry_out(trickle.connection, trickle) == 3
    states = admin.execute("SELECT state, error FROM pgtrickle.pgt_requests").fetchall()
    assert {state for state, _ in states} == {"DONE"}, states


def _by_wal(user: psycopg.Connection, trickle: Trickle) -> None:
    """Capture from the WAL, and back: decoder, handover and steering."""
    with moving(trickle.dsn) as mover:
        oid = int(str(db.scalar(mover.conn, "SELECT 'shop.orders'::regclass::oid")))
        mover.to(oid, CaptureMode.WAL)
        _change(user, 20)
        _refreshed(trickle)
        mover.to(oid, CaptureMode.TRIGGER)
        _change(user, 30)
        _refreshed(trickle)
        assert mover.failures == []
    steering = CaptureLoop(trickle.dsn)
    try:
        steering.round(Settings(cdc_mode="trigger"))
    finally:
        steering.close()
