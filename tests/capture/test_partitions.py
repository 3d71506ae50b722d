"""Partitioned sources: written through the parent or a partition, and losing or gaining partitions."""

from __future__ import annotations

import pytest

from pgtrickle.capture import triggers
from pgtrickle.db import Connection

from .conftest import Follow, Ledger, buffered, run, table_of


@pytest.fixture
def events(conn: Connection) -> None:
    """Two levels; one partition has its columns in another order, with a hole."""
    run(
        conn,
        "CREATE TABLE events (id int, day int, v text) PARTITION BY RANGE (day)",
        "CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE events_2 (gone int, v text, day int, id int)",
        "ALTER TABLE events_2 DROP COLUMN gone",
        "ALTER TABLE events ATTACH PARTITION events_2 FOR VALUES FROM (10) TO (20)",
        "CREATE TABLE events_3 PARTITION OF events FOR VALUES FROM (20) TO (30) PARTITION BY LIST (id)",
        "CREATE TABLE events_3_rest PARTITION OF events_3 DEFAULT",
        "INSERT INTO events SELECT g, g, 'v' || g FROM generate_series(0, 29) g",
    )


def test_both_routes_and_all_levels(conn: Connection, events: None, follow: Follow) -> None:
    ledger = follow("events", "id", "v")
    run(conn, "INSERT INTO events VALUES (100, 5, 'a'), (101, 15, 'b'), (102, 25, 'c')")
    assert ledger.check().changes == 3
    run(
        conn,
        "INSERT INTO events_1 VALUES (110, 5, 'a')",
        "INSERT INTO events_2 (id, day, v) VALUES (111, 15, 'b')",
        "INSERT INTO events_3 VALUES (112, 25, 'c')",
        "INSERT INTO events_3_rest VALUES (113, 25, 'd')",
        "UPDATE events_2 SET v = 'direct' WHERE id = 111",
        "DELETE FROM events_3_rest WHERE id = 20",
    )
    assert ledger.check().changes == 6
    run(conn, "UPDATE events SET v = v || '!' WHERE id % 10 = 1", "DELETE FROM events WHERE id % 10 = 2")
    ledger.check()


def test_a_row_moves_partition(conn: Connection, events: None, follow: Follow) -> None:
    ledger = follow("events", "id", "day", "v")
    run(conn, "UPDATE events SET day = (day + 10) % 30, v = 'moved' WHERE id < 15")
    assert ledger.check().changes == 15
    unused = follow("events", "id")
    run(conn, "UPDATE events SET day = (day + 10) % 30")
    unused.check()


def test_a_moved_row_that_a_trigger_drops(conn: Connection, events: None, follow: Follow) -> None:
    """It has an old image and no new one: transition tables of different sizes."""
    ledger = follow("events", "id", "v")
    run(
        conn,
        "CREATE FUNCTION swallow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        "CREATE TRIGGER swallow BEFORE INSERT ON events_2 FOR EACH ROW EXECUTE FUNCTION swallow()",
        "UPDATE events SET day = day + 10 WHERE day BETWEEN 3 AND 6",
        "UPDATE events SET v = 'kept', day = 25 WHERE day = 2",
    )
    ledger.check()
    assert sum(ledger.content.values()) == 26


@pytest.mark.parametrize("table", ["events", "events_1", "events_3", "events_3_rest"])
def test_truncate_of_any_table(conn: Connection, events: None, follow: Follow, table: str) -> None:
    ledger = follow("events", "id")
    run(conn, f"TRUNCATE {table}")
    assert ledger.check().truncated


def test_new_partition_written_before_it_is_known(conn: Connection, events: None, follow: Follow) -> None:
    """A row through the parent is marked, even if its partition is dropped again before anyone looks."""
    ledger = follow("events", "id")
    run(conn, "CREATE TABLE events_4 PARTITION OF events FOR VALUES FROM (30) TO (40)")
    run(conn, "INSERT INTO events VALUES (300, 35, 'new')")
    run(conn, "DROP TABLE events_4")
    assert ledger.check().truncated


def test_attach_again_covers_a_new_partition(conn: Connection, events: None, follow: Follow) -> None:
    ledger = follow("events", "id")
    run(conn, "CREATE TABLE events_4 PARTITION OF events FOR VALUES FROM (30) TO (40)")
    assert triggers.attach(conn, ledger.source, ["id"])
    ledger.reset()
    run(conn, "INSERT INTO events_4 VALUES (300, 35, 'direct')", "INSERT INTO events VALUES (301, 36, 'parent')")
    pending = ledger.check()
    assert (pending.changes, pending.truncated) == (2, False)


def test_detached_changed_and_attached_again(conn: Connection, events: None, follow: Follow) -> None:
    """The set of partitions is the same before and after, the content is not."""
    ledger = follow("events", "id")
    run(conn, "ALTER TABLE events DETACH PARTITION events_1")
    run(conn, "DELETE FROM events_1 WHERE id < 5")
    run(conn, "ALTER TABLE events ATTACH PARTITION events_1 FOR VALUES FROM (0) TO (10)")
    assert ledger.check().truncated


def test_a_partition_as_a_source_of_its_own(conn: Connection, events: None, follow: Follow) -> None:
    parent, leaf = follow("events", "id", "day", "v"), follow("events_2", "id", "v")
    run(
        conn,
        "INSERT INTO events VALUES (1, 1, 'elsewhere'), (2, 12, 'here')",
        "INSERT INTO events_2 (id, day, v) VALUES (3, 13, 'direct')",
        "UPDATE events SET day = 14 WHERE day = 1",
        "UPDATE events SET v = 'w' WHERE day = 15",
    )
    leaf.check()
    parent.check()
    run(conn, "TRUNCATE events")
    assert leaf.check().truncated
    assert parent.check().truncated


def test_detach_of_one_leaves_the_other(conn: Connection, events: None, follow: Follow) -> None:
    parent, leaf = follow("events", "id"), follow("events_2", "id", "v")
    assert triggers.detach(conn, parent.source.oid)
    run(conn, "INSERT INTO events VALUES (2, 12, 'here')")
    assert leaf.check().changes == 1
    assert triggers.detach(conn, leaf.source.oid)
    assert conn.execute("SELECT FROM pg_trigger WHERE tgname LIKE 'pgtrickle%'").rowcount == 0


def test_empty_hierarchy(conn: Connection, follow: Follow) -> None:
    run(conn, "CREATE TABLE p (id int) PARTITION BY LIST (id)")
    ledger: Ledger = follow("p", "id")
    run(conn, "TRUNCATE p")
    assert buffered(conn, table_of(conn, "p")) == ["T"]
    assert ledger.check().truncated
