"""Capture through to the result: whatever a statement does to a source, the stream table follows exactly."""

from __future__ import annotations

import pytest

from pgtrickle.db import statement
from tests.stories.telling import Story

PLAIN = "SELECT region, id, amount FROM orders WHERE amount > 2 OR amount IS NULL"
GROUPED = "SELECT region, count(*) AS n, sum(amount) AS total, max(amount) AS most FROM orders GROUP BY region"


@pytest.fixture
def orders(story: Story) -> Story:
    """A table with a composite key, and two stream tables that use all its columns but one."""
    story.run(
        "CREATE TABLE orders (region int, id int, amount numeric, note text, PRIMARY KEY (region, id))",
        "INSERT INTO orders SELECT g % 3, g, g, 'n' FROM generate_series(1, 20) g",
    )
    story.create("plain", PLAIN)
    story.create("grouped", GROUPED)
    return story


def test_insert_update_delete_under_a_composite_key(orders: Story) -> None:
    orders.run("INSERT INTO orders VALUES (9, 100, 1.5, 'x'), (9, 101, NULL, NULL)")
    orders.follow()
    orders.run("UPDATE orders SET amount = amount + 1 WHERE id <= 5")
    orders.follow()
    orders.run("DELETE FROM orders WHERE id > 10")
    orders.follow()


def test_a_key_changing_update(orders: Story) -> None:
    orders.run("UPDATE orders SET id = id + 1000, region = 2 - region WHERE id % 2 = 0")
    orders.follow()
    orders.run("UPDATE orders SET id = -id")
    orders.follow()


def test_an_update_of_unused_columns_captures_nothing(orders: Story) -> None:
    orders.run("UPDATE orders SET note = note || '!'", "UPDATE orders SET amount = amount")
    assert orders.buffered("orders") == 0
    orders.check("plain", "NO_DATA")
    orders.check("grouped", "NO_DATA")


def test_insert_on_conflict(orders: Story) -> None:
    orders.run(
        "INSERT INTO orders VALUES (1, 1, 50, 'a'), (1, 200, 60, 'b') "
        "ON CONFLICT (region, id) DO UPDATE SET amount = excluded.amount + orders.amount",
        "INSERT INTO orders VALUES (1, 1, 70, 'a'), (1, 201, 80, 'b') ON CONFLICT DO NOTHING",
    )
    orders.follow()
    assert orders.rows("SELECT amount FROM plain WHERE region = 1 AND id IN (1, 200, 201) ORDER BY 1") == [
        (51,),
        (60,),
        (80,),
    ]


def test_merge(orders: Story) -> None:
    orders.run(
        "MERGE INTO orders USING (VALUES (1, 1, 90), (2, 2, NULL), (0, 500, 91)) AS s(region, id, amount) "
        "ON orders.region = s.region AND orders.id = s.id "
        "WHEN MATCHED AND s.amount IS NULL THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET amount = s.amount "
        "WHEN NOT MATCHED THEN INSERT VALUES (s.region, s.id, s.amount, 'merged')"
    )
    orders.follow()


def test_copy(orders: Story) -> None:
    with (
        orders.connection.cursor() as cursor,
        cursor.copy("COPY orders (region, id, amount, note) FROM STDIN") as copy,
    ):
        for id in range(300, 320):
            copy.write_row((id % 5, id, None if id % 4 == 0 else id, "copied"))
    orders.follow()


def test_dml_in_ctes(orders: Story) -> None:
    orders.run(
        "WITH gone AS (DELETE FROM orders WHERE id % 4 = 0 RETURNING *), "
        "moved AS (UPDATE orders SET region = 7 WHERE id % 4 = 1 RETURNING *) "
        "INSERT INTO orders SELECT region + 10, id, amount, note FROM gone "
        "UNION ALL SELECT region + 20, id, amount, note FROM moved"
    )
    orders.follow()


def test_update_from_another_table(orders: Story) -> None:
    orders.run(
        "CREATE TABLE prices (id int, amount numeric)",
        "INSERT INTO prices VALUES (1, 11), (2, 22), (2, 22), (99, 99)",
        "UPDATE orders SET amount = p.amount FROM prices p WHERE p.id = orders.id",
        "DELETE FROM orders USING prices p WHERE p.id = orders.id AND orders.id = 1",
    )
    orders.follow()


def test_truncate_reinitialises_and_says_so(orders: Story) -> None:
    orders.run("INSERT INTO orders VALUES (5, 5, 5, '')", "TRUNCATE orders")
    for name in ("plain", "grouped"):
        assert "public.orders was truncated" in orders.check(name, "REINITIALIZE").reason
    assert orders.value("SELECT count(*) FROM plain") == 0
    orders.run("INSERT INTO orders VALUES (5, 5, 5, '')")
    orders.check("plain")
    orders.check("grouped")


def test_truncate_then_insert_in_one_transaction(orders: Story) -> None:
    orders.together(
        "INSERT INTO orders VALUES (5, 4, 4, '')", "TRUNCATE orders", "INSERT INTO orders VALUES (5, 5, 5, '')"
    )
    assert "truncated" in orders.check("plain", "REINITIALIZE").reason
    assert orders.content("plain") == {"(5,5,5)": 1}
    orders.check("grouped", "REINITIALIZE")
    orders.run("UPDATE orders SET amount = 6")
    orders.check("plain")
    orders.check("grouped")


def test_a_truncate_rolled_back_is_nothing(orders: Story) -> None:
    with orders.connection.transaction(force_rollback=True):
        orders.run("TRUNCATE orders")
    orders.check("plain", "NO_DATA")


def test_a_second_stream_table_widens_the_buffer(orders: Story) -> None:
    orders.run("INSERT INTO orders VALUES (8, 1, 8, 'before')")
    orders.create("notes", "SELECT note, count(*) AS n FROM orders GROUP BY note")
    orders.run("UPDATE orders SET note = 'changed' WHERE id % 2 = 0", "INSERT INTO orders VALUES (8, 2, 8, 'after')")
    orders.follow()
    orders.trickle.drop_stream_table("notes")
    del orders.queries["notes"]
    orders.run("DELETE FROM orders WHERE region = 8")
    orders.follow()


def test_a_writer_without_grants_on_our_schemas(orders: Story, writer_role: str) -> None:
    orders.run(f"GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON orders TO {writer_role}")
    with orders.session() as writer:
        writer.execute(statement(f"SET ROLE {writer_role}"))
        writer.execute("INSERT INTO orders VALUES (6, 1, 66, '')")
        writer.execute("UPDATE orders SET amount = amount * 2 WHERE region = 1")
        writer.execute("DELETE FROM orders WHERE region = 2")
        orders.follow()
        writer.execute("TRUNCATE orders")
        orders.check("plain", "REINITIALIZE")


@pytest.fixture
def writer_role(story: Story) -> object:
    """A role with nothing but what a test grants it; roles belong to the whole server, so it goes at the end."""
    role = f"writer_{story.value('SELECT oid FROM pg_database WHERE datname = current_database()')}"
    story.run(f"CREATE ROLE {role}")
    yield role
    story.run(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_stored_generated_columns(story: Story) -> None:
    story.run(
        "CREATE TABLE items (id int, price numeric, gross numeric GENERATED ALWAYS AS (price * 1.19) STORED)",
        "INSERT INTO items (id, price) VALUES (1, 10), (2, 20.50)",
    )
    story.create("gross", "SELECT id, gross FROM items")
    story.create("most", "SELECT max(gross) AS most, sum(gross) AS total FROM items")
    story.run("UPDATE items SET price = 11 WHERE id = 1", "INSERT INTO items (id, price) VALUES (3, NULL)")
    story.follow()
    story.run("DELETE FROM items WHERE id = 2")
    story.follow()


def test_virtual_generated_columns(story18: Story) -> None:
    story18.run(
        "CREATE TABLE items (id int, price numeric, gross numeric GENERATED ALWAYS AS (price * 1.19) VIRTUAL)",
        "INSERT INTO items (id, price) VALUES (1, 10), (2, 20.50)",
    )
    story18.create("gross", "SELECT id, gross FROM items WHERE gross > 1")
    story18.create("most", "SELECT max(gross) AS most, sum(gross) AS total FROM items")
    story18.run("UPDATE items SET price = 11 WHERE id = 1", "INSERT INTO items (id, price) VALUES (3, NULL)")
    story18.follow()
    story18.run("DELETE FROM items WHERE id = 2")
    story18.follow()


def test_values_of_over_8_kb_updated_and_left_alone(story: Story) -> None:
    large = "(SELECT string_agg(md5((g * {n})::text), '') FROM generate_series(1, 600) g)"
    story.run(
        "CREATE TABLE pages (id int PRIMARY KEY, body text, hits int)",
        "ALTER TABLE pages ALTER body SET STORAGE EXTERNAL",
        f"INSERT INTO pages SELECT n, {large.format(n='n')}, 0 FROM generate_series(1, 4) n",
    )
    story.create("copies", "SELECT id, body, hits FROM pages")
    story.create("longest", "SELECT hits, max(body) AS most FROM pages GROUP BY hits")
    story.run("UPDATE pages SET hits = hits + 1 WHERE id <= 2")
    story.follow()
    story.run(f"UPDATE pages SET body = {large.format(n=77)} WHERE id = 3")
    story.follow()
    story.run("DELETE FROM pages WHERE id = 1", "UPDATE pages SET body = body || '.' WHERE id = 4")
    story.follow()
    assert int(str(story.value("SELECT min(length(body)) FROM copies"))) > 8192


PARTITIONED = (
    "CREATE TABLE events (at int, kind int, v int) PARTITION BY RANGE (at)",
    "CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM (0) TO (100)",
    "CREATE TABLE events_2 PARTITION OF events FOR VALUES FROM (100) TO (200)",
    "INSERT INTO events SELECT g, g % 3, g FROM generate_series(0, 199, 10) g",
)
KINDS = "SELECT kind, count(*) AS n, sum(v) AS total FROM events GROUP BY kind"


def test_a_partitioned_table_written_through_the_parent_and_through_a_partition(story: Story) -> None:
    story.run(*PARTITIONED)
    story.create("kinds", KINDS)
    story.create("late", "SELECT at, v FROM events WHERE at > 50")
    story.run("INSERT INTO events VALUES (5, 1, 5), (105, 1, 5)", "INSERT INTO events_2 VALUES (199, 2, 9)")
    story.follow()
    story.run("UPDATE events_1 SET v = v + 1 WHERE kind = 1", "UPDATE events SET at = at + 100 WHERE at < 40")
    story.follow()
    story.run("DELETE FROM events WHERE kind = 0", "DELETE FROM events_2 WHERE kind = 1")
    story.follow()
    story.run("TRUNCATE events_1")
    for name in story.queries:
        assert "truncated" in story.check(name, "REINITIALIZE").reason


def test_attaching_and_detaching_a_partition_reinitialises(story: Story) -> None:
    story.run(*PARTITIONED)
    story.create("kinds", KINDS)
    story.run("CREATE TABLE events_3 (at int, kind int, v int)", "INSERT INTO events_3 VALUES (250, 1, 1)")
    story.run("ALTER TABLE events ATTACH PARTITION events_3 FOR VALUES FROM (200) TO (300)")
    reason = story.check("kinds", "REINITIALIZE").reason
    if story.mover is None:
        assert reason == "the definition of a source changed"
    else:  # the new partition has no replica identity: its source is back on triggers
        assert reason.startswith("changes of a source were lost")
    story.run("INSERT INTO events VALUES (260, 2, 6)", "UPDATE events_3 SET v = 9", "DELETE FROM events_1 WHERE at = 0")
    story.check("kinds")
    story.run("ALTER TABLE events DETACH PARTITION events_2")
    story.check("kinds", "REINITIALIZE")
    story.run("INSERT INTO events_2 VALUES (150, 1, 1)")
    story.check("kinds", "NO_DATA")
    story.run("INSERT INTO events VALUES (270, 2, 6)")
    story.check("kinds")


def test_capture_switched_off_for_a_time_reinitialises(story18: Story) -> None:
    """A user may disable all triggers for a bulk load, ours with them: what was missed is computed anew."""
    story18.run("CREATE TABLE t (v int)", "INSERT INTO t VALUES (1)")
    story18.create("copies", "SELECT v FROM t")
    story18.run("ALTER TABLE t DISABLE TRIGGER ALL", "INSERT INTO t VALUES (2)", "ALTER TABLE t ENABLE TRIGGER ALL")
    story18.check("copies", "REINITIALIZE")
    story18.run("INSERT INTO t VALUES (3)")
    story18.check("copies")
