"""Refreshes of sources that are captured from the WAL: what is waited for, what is skipped, what is computed anew."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from pgtrickle.api import Trickle
from pgtrickle.capture import slot
from pgtrickle.capture.modes import CaptureMode
from pgtrickle.errors import Unsupported, UsageError
from pgtrickle.refresh import plan
from tests.stories.telling import Story, telling
from tests.wal.moving import moving

NAMES = "SELECT o.id, o.amount, r.name FROM orders o JOIN regions r ON r.id = o.region"
TOTALS = "SELECT region, count(*) AS n, sum(amount) AS total FROM orders GROUP BY region"


@pytest.fixture
def shop(story18: Story) -> Story:
    """A shop on triggers; a test that wants the WAL moves it."""
    story18.run(
        "CREATE TABLE regions (id int PRIMARY KEY, name text)",
        "CREATE TABLE orders (id int PRIMARY KEY, region int, amount numeric)",
        "ALTER TABLE regions REPLICA IDENTITY FULL",
        "ALTER TABLE orders REPLICA IDENTITY FULL",
        "INSERT INTO regions SELECT g, 'r' || g FROM generate_series(0, 3) g",
        "INSERT INTO orders SELECT g, g % 3, g FROM generate_series(1, 200) g",
    )
    story18.create("names", NAMES)
    story18.create("totals", TOTALS)
    return story18


@pytest.fixture
def in_wal(shop: Story) -> Iterator[Story]:
    with moving(shop.dsn) as shop.mover:
        shop.to_wal("names")
        yield shop


def test_a_dry_run_has_what_was_still_to_be_decoded(in_wal: Story) -> None:
    in_wal.run("INSERT INTO orders VALUES (1000, 1, 5), (1001, 2, 6)", "DELETE FROM orders WHERE id = 3")
    told = in_wal.trickle.explain("names", analyze=True)
    assert "read changes of public.orders (about 6 rows, really 3 in " in told
    assert "2 rows to insert, 1 to delete" in told
    in_wal.check("names")


def test_a_long_transaction_spans_both_handovers(shop: Story) -> None:
    orders = shop.oid("orders")
    with moving(shop.dsn) as mover, shop.session() as early, shop.session() as late:
        mover.to(shop.oid("regions"), CaptureMode.WAL)  # there is a slot then: making one waits for all transactions
        with early.transaction():  # has its id before the move, writes to the source after it
            early.execute("SELECT pg_current_xact_id()")
            mover.to(orders, CaptureMode.WAL)
            early.execute("INSERT INTO orders VALUES (1000, 1, 5)")
            shop.check("names", "NO_DATA")
        shop.follow()
        with late.transaction():
            late.execute("SELECT pg_current_xact_id()")
            mover.to(orders, CaptureMode.TRIGGER)
            late.execute("UPDATE orders SET amount = 6 WHERE id = 1000")
            shop.run("DELETE FROM orders WHERE id = 3")
            shop.follow()
        shop.follow()
    assert shop.rows("SELECT amount FROM names WHERE id = 1000") == [(6,)]


def test_one_source_in_the_wal_and_one_on_triggers_changed_in_one_window(shop: Story) -> None:
    with moving(shop.dsn) as mover:
        mover.to(shop.oid("regions"), CaptureMode.WAL)
        shop.run("UPDATE regions SET name = name || '!'", "INSERT INTO orders VALUES (1000, 2, 1)")
        shop.follow()
        shop.together("DELETE FROM orders WHERE id < 10", "DELETE FROM regions WHERE id = 1")
        shop.follow()


def test_after_a_full_refresh_one_row_is_differential_again(in_wal: Story) -> None:
    trickle, name = in_wal.trickle, "totals"
    trickle.alter_stream_table(name, refresh_mode="AUTO")
    assert trickle.refresh_stream_table(name, full=True).action == "FULL"
    in_wal.run("UPDATE orders SET amount = amount + 1")
    in_wal.check(name, "FULL")
    in_wal.run("INSERT INTO orders VALUES (1000, 1, 5)")
    in_wal.check(name, "DIFFERENTIAL")
    in_wal.check(name, "NO_DATA")


def test_truncate_in_wal_mode_computes_anew_and_goes_on(in_wal: Story) -> None:
    in_wal.together("TRUNCATE orders", "INSERT INTO orders VALUES (1, 1, 1)")
    in_wal.check("totals", "REINITIALIZE")
    in_wal.check("names", "REINITIALIZE")
    in_wal.run("INSERT INTO orders VALUES (2, 1, 1)")
    in_wal.follow()


def test_without_a_decoder_a_refresh_is_skipped_and_nothing_is_lost(shop: Story) -> None:
    orders = shop.oid("orders")
    with moving(shop.dsn) as mover:
        mover.to(orders, CaptureMode.WAL)
    shop.run("INSERT INTO orders VALUES (1000, 1, 5)")
    skipped = shop.trickle.refresh_stream_table("names")
    assert (skipped.action, skipped.reason) == ("SKIP", "no decoder reads the slot: is the service (pgtrickle run) up?")
    assert shop.last("names").status == "SKIPPED"
    assert shop.trickle.refresh_stream_table("totals", full=True).action == "FULL"
    shop.equal("totals")
    with moving(shop.dsn):
        shop.follow()
        shop.check("totals", "NO_DATA")


def test_a_decoder_that_cannot_go_on_is_waited_for_no_longer_than_set(
    shop: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGTRICKLE_DECODER_WAIT_TIMEOUT", "1")
    orders = shop.oid("orders")
    with moving(shop.dsn) as mover, Trickle(shop.dsn) as impatient, shop.session() as blocker:
        mover.to(orders, CaptureMode.WAL)
        with blocker.transaction():  # the decoder waits for the buffer, with its connection to the slot open
            blocker.execute(f"LOCK TABLE pgtrickle_changes.changes_{orders} IN SHARE ROW EXCLUSIVE MODE")
            shop.run("INSERT INTO orders VALUES (1000, 1, 5)")
            skipped = impatient.refresh_stream_table("names")
        assert skipped.action == "SKIP"
        assert "bytes of WAL behind after 1 s" in skipped.reason
        shop.follow()


def test_a_slot_dropped_by_hand_is_noticed_by_the_next_refresh(in_wal: Story) -> None:
    in_wal.run("INSERT INTO orders VALUES (1000, 1, 5)")
    assert in_wal.mover is not None
    in_wal.mover.stop()
    in_wal.run(
        f"SELECT pg_drop_replication_slot('{slot.name(in_wal.connection)}')", "INSERT INTO orders VALUES (1001, 1, 5)"
    )
    in_wal.check("names", "REINITIALIZE")
    assert "changes of a source were lost" in str(in_wal.last("names").reason)
    in_wal.check("totals", "REINITIALIZE")
    assert in_wal.value("SELECT string_agg(DISTINCT cdc_mode, ',') FROM pgtrickle.pgt_change_tracking") == "TRIGGER"
    in_wal.run("INSERT INTO orders VALUES (1002, 1, 5)")
    in_wal.follow()


def test_a_publication_dropped_by_hand_is_noticed_by_the_next_refresh(in_wal: Story) -> None:
    in_wal.run(f"DROP PUBLICATION {slot.name(in_wal.connection)}", "INSERT INTO orders VALUES (1000, 1, 5)")
    in_wal.check("names", "REINITIALIZE")
    in_wal.check("totals", "REINITIALIZE")
    in_wal.run("INSERT INTO orders VALUES (1002, 1, 5)")
    in_wal.follow()


def test_a_large_window_is_read_by_tasks_at_the_later_snapshot(in_wal: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "SMALL_CHANGES", 100)
    in_wal.run(
        "INSERT INTO orders SELECT g, g % 4, g FROM generate_series(1000, 4000) g",
        "UPDATE regions SET name = name || '?'",
        "DELETE FROM orders WHERE id % 3 = 0",
    )
    in_wal.follow()


def test_a_second_table_that_needs_more_columns(in_wal: Story) -> None:
    in_wal.run("ALTER TABLE orders ADD COLUMN note text", "UPDATE orders SET note = 'n' WHERE id < 5")
    in_wal.follow()
    in_wal.run("INSERT INTO orders VALUES (1000, 1, 5, 'x')")
    in_wal.create("notes", "SELECT id, note FROM orders")
    in_wal.run("UPDATE orders SET note = note || '!', amount = amount + 1")
    in_wal.follow()
    assert in_wal.mover is not None
    assert in_wal.mover.mode(in_wal.oid("orders")) is CaptureMode.WAL


def test_an_unused_column_added_and_dropped_changes_nothing(in_wal: Story) -> None:
    in_wal.run("ALTER TABLE orders ADD COLUMN unused int DEFAULT 7", "INSERT INTO orders VALUES (1000, 1, 5, 1)")
    in_wal.follow()
    in_wal.run("UPDATE orders SET unused = 9 WHERE id < 20", "ALTER TABLE orders DROP COLUMN unused")
    in_wal.run("INSERT INTO orders VALUES (1001, 1, 5)")
    in_wal.follow()


def test_the_last_consumer_takes_everything_with_it(in_wal: Story) -> None:
    in_wal.trickle.drop_stream_table("names")
    assert in_wal.value("SELECT count(*) FROM pgtrickle_internal.pgt_slot") == 1
    in_wal.trickle.drop_stream_table("totals")
    assert in_wal.value("SELECT count(*) FROM pgtrickle_internal.pgt_slot") == 0
    assert in_wal.value("SELECT count(*) FROM pg_publication") == 0
    assert in_wal.ours() == []


def test_verify_compares_at_the_snapshot_of_the_table(in_wal: Story) -> None:
    in_wal.run("INSERT INTO orders VALUES (1000, 1, 5)", "UPDATE orders SET amount = 0 WHERE id = 1")
    assert [(found.equal, found.compared_with) for found in in_wal.trickle.verify("names", "totals")] == [
        (True, "its snapshot"),
        (True, "its snapshot"),
    ]
    in_wal.run("DELETE FROM names WHERE id = 2")
    (found,) = in_wal.trickle.verify("names")
    assert (found.missing, found.extra) == (1, 0)


def test_wal_asked_for_where_it_cannot_be_is_refused_with_the_reason(story18: Story) -> None:
    story18.run("CREATE TABLE plain (id int PRIMARY KEY, v int)")
    with pytest.raises(Unsupported) as refused:
        story18.trickle.create_stream_table("copy", "SELECT id, v FROM plain", cdc_mode="wal")
    assert (refused.value.code, "replica identity of public.plain" in refused.value.message) == ("PT270", True)
    assert refused.value.hint is not None
    assert story18.trickle.status() == ()
    story18.create("copy", "SELECT id, v FROM plain")
    with pytest.raises(Unsupported):
        story18.trickle.alter_stream_table("copy", cdc_mode="wal")
    story18.run("ALTER TABLE plain REPLICA IDENTITY FULL")
    story18.trickle.alter_stream_table("copy", cdc_mode="wal")
    assert story18.stream("copy").requested_cdc_mode == "wal"
    with pytest.raises(UsageError, match="no capture mode"):
        story18.trickle.alter_stream_table("copy", cdc_mode="magic")
    with pytest.raises(UsageError, match="IMMEDIATE"):
        story18.trickle.create_stream_table("now", "SELECT v FROM plain", refresh_mode="IMMEDIATE", cdc_mode="wal")


def test_replica_identity_is_set_where_we_may(
    story18: Story, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGTRICKLE_AUTO_REPLICA_IDENTITY", "on")
    story18.run("CREATE TABLE plain (id int PRIMARY KEY, v int)")
    with telling(story18.dsn, spark) as allowed:
        allowed.trickle.create_stream_table("copy", "SELECT id, v FROM plain", cdc_mode="wal")
        assert allowed.stream("copy").requested_cdc_mode == "wal"
