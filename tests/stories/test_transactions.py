"""Transactions: what a refresh sees is what was committed, each change once, however long a writer takes."""

from __future__ import annotations

import threading
import time

import psycopg
import pytest

from tests.stories.telling import Story

TOTALS = "SELECT region, count(*) AS n, sum(amount) AS total FROM orders GROUP BY region"
NAMES = "SELECT o.id, o.amount, r.name FROM orders o JOIN regions r ON r.id = o.region"


@pytest.fixture
def shop(story: Story) -> Story:
    story.run(
        "CREATE TABLE regions (id int PRIMARY KEY, name text)",
        "CREATE TABLE orders (id int PRIMARY KEY, region int, amount numeric)",
        "INSERT INTO regions SELECT g, 'r' || g FROM generate_series(0, 3) g",
        "INSERT INTO orders SELECT g, g % 3, g FROM generate_series(1, 30) g",
    )
    story.create("totals", TOTALS)
    story.create("names", NAMES)
    return story


def test_a_transaction_held_open_across_three_refreshes_arrives_once_when_it_commits(shop: Story) -> None:
    with shop.session() as writer:
        with writer.transaction():
            writer.execute("INSERT INTO orders VALUES (100, 1, 5), (101, 3, 7)")
            for id in (200, 201, 202):
                shop.run(f"INSERT INTO orders VALUES ({id}, 2, 1)")
                shop.check("totals")
                shop.check("names")
                writer.execute("UPDATE orders SET amount = amount + 1 WHERE id = 100")
        assert shop.check("names").rows_inserted == 2
        shop.check("totals")
    shop.check("totals", "NO_DATA")
    assert shop.rows("SELECT amount FROM names WHERE id = 100") == [(8,)]
    assert shop.buffered("orders") == 0


def test_savepoints_rolled_back_in_a_long_transaction_leave_nothing(shop: Story) -> None:
    with shop.session() as writer, writer.transaction():
        writer.execute("INSERT INTO orders VALUES (100, 1, 5)")
        for position in range(3):
            writer.execute("SAVEPOINT here")
            writer.execute(f"INSERT INTO orders VALUES ({300 + position}, 1, 5)")
            writer.execute("DELETE FROM orders WHERE region = 0")
            if position == 1:
                writer.execute("RELEASE SAVEPOINT here")
            else:
                writer.execute("ROLLBACK TO SAVEPOINT here")
            shop.check("totals", "NO_DATA")
            shop.check("names", "NO_DATA")
    shop.follow()
    assert shop.rows("SELECT id FROM names WHERE id >= 100 ORDER BY 1") == [(100,), (301,)]


def test_a_transaction_rolled_back_after_refreshes_leaves_nothing(shop: Story) -> None:
    with shop.session() as writer, writer.transaction(force_rollback=True):
        writer.execute("DELETE FROM orders")
        shop.check("totals", "NO_DATA")
    shop.check("totals", "NO_DATA")
    shop.check("names", "NO_DATA")


def test_a_prepared_transaction_arrives_once_when_it_commits(shop: Story) -> None:
    with shop.session() as writer:
        writer.execute("BEGIN")
        writer.execute("INSERT INTO orders VALUES (100, 1, 5)")
        writer.execute("DELETE FROM orders WHERE id = 1")
        writer.execute("PREPARE TRANSACTION 'story'")
    for id in (200, 201, 202):
        shop.run(f"INSERT INTO orders VALUES ({id}, 2, 1)")
        shop.check("totals")
        shop.check("names")
    shop.run("COMMIT PREPARED 'story'")
    shop.check("totals")
    assert shop.check("names").rows_inserted == 1
    shop.check("totals", "NO_DATA")


def test_mixed_dml_in_one_transaction_is_one_window(shop: Story) -> None:
    shop.together(
        "INSERT INTO orders VALUES (100, 1, 1)",
        "UPDATE orders SET region = 2 WHERE id = 100",
        "UPDATE orders SET id = 101 WHERE id = 100",
        "DELETE FROM orders WHERE region = 0",
        "INSERT INTO regions VALUES (9, 'nine')",
        "UPDATE orders SET region = 9 WHERE region = 1",
        "DELETE FROM regions WHERE id = 2",
        "INSERT INTO regions VALUES (2, 'two again')",
    )
    shop.check("totals")
    shop.check("names")


def test_two_consumers_at_different_paces_share_a_buffer(shop: Story) -> None:
    shop.run("INSERT INTO orders VALUES (100, 1, 5)")
    shop.check("totals")
    assert shop.buffered("orders") == 1, "the other one still needs it"
    shop.run("UPDATE orders SET amount = 6 WHERE id = 100", "DELETE FROM orders WHERE id = 2")
    shop.check("totals")
    assert shop.buffered("orders") == 3
    result = shop.check("names")
    assert (result.rows_inserted, result.rows_deleted) == (1, 1)
    assert shop.buffered("orders") == 0, "both are done"
    shop.check("totals", "NO_DATA")


def test_writers_at_work_during_refreshes_lose_nothing(story18: Story) -> None:
    story18.run(
        "CREATE TABLE regions (id int PRIMARY KEY, name text)",
        "CREATE TABLE orders (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, region int, amount numeric)",
        "INSERT INTO regions SELECT g, 'r' || g FROM generate_series(0, 3) g",
    )
    story18.create("totals", TOTALS)
    story18.create("names", NAMES)
    writers = [threading.Thread(target=_write, args=(story18.dsn, number)) for number in range(3)]
    for writer in writers:
        writer.start()
    try:
        while any(writer.is_alive() for writer in writers):
            for name in ("totals", "names"):
                assert story18.trickle.refresh_stream_table(name).action in {"DIFFERENTIAL", "NO_DATA"}
                assert all(found.equal for found in story18.trickle.verify(name))
    finally:
        for writer in writers:
            writer.join()
    story18.follow()
    assert int(str(story18.value("SELECT count(*) FROM orders"))) > 0


def _write(dsn: str, number: int) -> None:
    """Some dozens of transactions, which may deadlock with those of other writers: then they are rolled back."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for turn in range(40):
            time.sleep(0.03)
            try:
                with connection.transaction():
                    connection.execute(
                        "INSERT INTO orders (region, amount) VALUES (%s, 1), (%s, 2)", (number, turn % 4)
                    )
                    connection.execute("UPDATE orders SET amount = amount + 1 WHERE id %% 7 = %s", (number,))
                    connection.execute("DELETE FROM orders WHERE id %% 11 = %s", (turn % 11,))
                    if turn % 10 == number:
                        connection.execute("UPDATE regions SET name = name || '.' WHERE id = %s", (number,))
            except psycopg.errors.DeadlockDetected:
                continue
