"""Locks that strangers can hold stop nothing, and those that we hold are not for strangers."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from tests.service.serving import served

import pgtrickle
from pgtrickle import db

OF_OLD = """
SELECT pg_advisory_lock(hashtextextended(name, 0))
FROM unnest(ARRAY['pgtrickle service', 'pgtrickle requests', 'pgtrickle slot']) AS name;
SELECT pg_advisory_lock(x'7067747269636B6C'::bigint);
SELECT pg_advisory_lock(x'70677472'::integer, pgt_id) FROM generate_series(0, 100) AS pgt_id;
SELECT pg_advisory_lock(hashtextextended(name, c.oid::bigint))
FROM pg_class AS c, unnest(ARRAY['pgtrickle capture', 'pgtrickle clean']) AS name WHERE c.relname = 't';
"""
"""All advisory locks that versions before leases used."""
ROWS = (
    *(("pgtrickle_internal", name) for name in ("pgt_refresh_locks", "pgt_locks")),
    *(("pgtrickle", name) for name in ("pgt_leases", "pgt_stream_tables", "pgt_change_tracking", "pgt_decoder")),
)
TABLES = (("pgtrickle_internal", "pgt_slot_lock"), ("pgtrickle", "pgt_migrations"), *ROWS)


def test_locks_of_strangers_stop_nothing(database18: str, tmp_path: Path) -> None:
    """All that a service does, from the installation to a dropped table, while one holds all advisory locks."""
    with db.open_session(database18) as stranger:
        stranger.execute("CREATE TABLE t (id int PRIMARY KEY)")
        stranger.execute(db.statement(OF_OLD))
        with served(database18, tmp_path) as here:
            here.create("s", "SELECT id FROM t")
            here.until(lambda: here.one("SELECT cdc_mode FROM pgtrickle.pgt_change_tracking") == "WAL", "WAL")
            here.run("INSERT INTO t VALUES (1)")
            here.await_equal("s")
            (leads,) = here.rows("SELECT severity, detail FROM pgtrickle.health_check() WHERE check_name = 'service'")
            assert leads[0] == "OK"
            assert "a service leads as postgres, in session" in str(leads[1])
            assert "heartbeat" in str(leads[1])
            _not_for_strangers(database18)
            here.ask("drop_stream_table('s')")
            assert here.rows("SELECT pgt_id FROM pgtrickle_internal.pgt_refresh_locks") == []
            assert here.rows("SELECT name FROM pgtrickle_internal.pgt_locks WHERE name LIKE 'capture %'") == []


def _not_for_strangers(dsn: str) -> None:
    """What reads our catalog can lock none of it, but against being dropped."""
    with db.open_session(dsn) as plain:
        plain.execute("SET ROLE pgtrickle_user")
        for name in ROWS:
            table = sql.Identifier(*name)
            plain.execute(sql.SQL("SELECT FROM {}").format(table))
            for strength in ("KEY SHARE", "SHARE", "NO KEY UPDATE", "UPDATE"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    plain.execute(sql.SQL("SELECT FROM {} FOR {}").format(table, sql.SQL(strength)))
        for name in TABLES:
            with pytest.raises(psycopg.errors.InsufficientPrivilege), plain.transaction():
                plain.execute(sql.SQL("LOCK TABLE {} IN ROW SHARE MODE").format(sql.Identifier(*name)))


def test_no_lock_of_ours_is_advisory() -> None:
    """Migrations of before stay as they are; the one that replaced the locks ends who still holds one."""
    root = Path(pgtrickle.__file__).parent
    found = [path.name for path in [*root.rglob("*.py"), *root.rglob("*.sql")] if "advisory_" in path.read_text()]
    assert found == []
