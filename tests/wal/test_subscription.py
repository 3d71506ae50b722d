"""Rows that a subscription applies are in the WAL as any others are."""

from __future__ import annotations

from tests.capture.conftest import run
from tests.capture.test_every_writer import arrive, subscribed

from pgtrickle import embedded

from .captured import Wal


def test_replicated_rows_are_decoded(server18: embedded.Server, wal18: Wal) -> None:
    oid = wal18.table("CREATE TABLE t (id int PRIMARY KEY, v text)", "id", "v")
    wal18.start()
    with subscribed(server18, wal18.conn, "t") as publisher:
        run(publisher, "INSERT INTO t VALUES (1, 'a'), (2, 'b')", "UPDATE t SET v = 'c' WHERE id = 1")
        arrive(wal18.conn, "SELECT count(*) = 2 FROM t")
        run(wal18.conn, "INSERT INTO t VALUES (3, 'mine')")
        wal18.check(oid, "id", "v")
    assert wal18.actions(oid) == "IIUI"
