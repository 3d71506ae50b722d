"""Every kind of statement and transaction that changes sources: the writer sees the stream tables changed at once."""

from __future__ import annotations

import psycopg
import pytest

from pgtrickle import db
from tests.immediate.telling import Told


def test_seen_in_the_transaction_of_the_writer_and_by_no_one_else(shop: Told) -> None:
    with shop.session() as other, shop.connection.transaction():
        before = other.execute("SELECT * FROM joined ORDER BY 1").fetchall()
        shop.write(
            "INSERT INTO orders VALUES (5, 2, 100)",
            "UPDATE customers SET name = 'Ann' WHERE id = 1",
            "DELETE FROM orders WHERE id = 2",
        )
        assert other.execute("SELECT * FROM joined ORDER BY 1").fetchall() == before
    with shop.session() as other:
        shop.right(other)
    shop.write(
        "INSERT INTO orders SELECT g, g % 4, g FROM generate_series(10, 60) g WHERE g % 4 > 0",
        "UPDATE orders SET amount = amount + 1 WHERE id % 2 = 0",
        "UPDATE orders SET customer = NULL WHERE id % 5 = 0",
        "UPDATE orders SET id = id + 100 WHERE id > 30",
        "DELETE FROM orders WHERE id > 20",
    )
    assert all(found.equal for found in shop.trickle.verify())


def test_savepoints_take_back_both(shop: Told) -> None:
    with shop.connection.transaction():
        shop.write("INSERT INTO orders VALUES (5, 2, 100)")
        with shop.connection.transaction(force_rollback=True):
            shop.write("DELETE FROM customers WHERE id = 1", "TRUNCATE items")
        shop.right()
        shop.write("UPDATE orders SET amount = 1 WHERE id = 5")
        with pytest.raises(psycopg.errors.UniqueViolation), shop.connection.transaction():
            shop.write("DELETE FROM orders WHERE id = 4", "INSERT INTO orders VALUES (5, 2, 100)")
        shop.right()
    shop.write("INSERT INTO orders VALUES (6, 3, 100)")


def test_truncate(shop: Told) -> None:
    shop.together("TRUNCATE items", "INSERT INTO items VALUES (1, 1, 'pen'), (2, 3, 'ink')")
    shop.together("TRUNCATE orders, items", "INSERT INTO orders VALUES (1, 2, 3)", "TRUNCATE orders, items")
    shop.write("INSERT INTO orders VALUES (1, 2, 3)", "TRUNCATE customers CASCADE")
    shop.together("INSERT INTO customers VALUES (1, 'ann')", "INSERT INTO orders VALUES (1, 1, 3)")
    with shop.connection.transaction(force_rollback=True):
        shop.write("TRUNCATE customers CASCADE")
    shop.right()


def test_a_statement_that_fails_leaves_both_alone(shop: Told) -> None:
    shop.fails(psycopg.errors.UniqueViolation, "INSERT INTO orders VALUES (9, 1, 1), (1, 1, 1)")
    shop.fails(psycopg.errors.ForeignKeyViolation, "INSERT INTO orders VALUES (9, 77, 1)")
    shop.write("INSERT INTO orders VALUES (9, 1, 1)")


def test_what_fails_in_maintenance_names_the_stream_table(story: Told) -> None:
    story.run("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 4)")
    story.create("inverse", "SELECT id, 100 / v AS part FROM t")
    error = story.fails(psycopg.errors.DivisionByZero, "UPDATE t SET v = 5", "INSERT INTO t VALUES (2, 0)")
    assert "inverse" in str(error.diag.context) + str(error.diag.message_primary)
    story.write("INSERT INTO t VALUES (2, 1)")


def test_copy_upsert_and_merge(shop: Told) -> None:
    with shop.connection.cursor() as cursor, cursor.copy("COPY orders FROM STDIN") as copy:
        for id in range(20, 30):
            copy.write_row((id, id % 3 + 1, id))
    shop.right()
    shop.write(
        "INSERT INTO orders VALUES (1, 3, 11), (40, 2, 40) ON CONFLICT (id) DO UPDATE"
        " SET customer = excluded.customer, amount = excluded.amount",
        "INSERT INTO orders VALUES (1, 3, 11), (40, 2, 40) ON CONFLICT DO NOTHING",
        "MERGE INTO orders o USING (VALUES (1, 1), (20, 2), (50, 3)) AS s(id, customer) ON o.id = s.id"
        " WHEN MATCHED AND s.id = 1 THEN DELETE WHEN MATCHED THEN UPDATE SET customer = s.customer"
        " WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.customer, 1)",
    )


def test_one_statement_that_changes_several_sources(shop: Told) -> None:
    shop.write(
        "WITH c AS (INSERT INTO customers VALUES (7, 'zoe') RETURNING id),"
        " o AS (INSERT INTO orders SELECT 70, id, 70 FROM c RETURNING id)"
        " INSERT INTO items SELECT 700, id, 'cap' FROM o",
        "WITH gone AS (DELETE FROM items WHERE article = 'pen' RETURNING parent),"
        " moved AS (UPDATE customers SET name = name || '!' RETURNING id)"
        " UPDATE orders SET amount = amount * 2 FROM gone WHERE orders.id = gone.parent",
        "UPDATE orders o SET amount = c.id FROM customers c WHERE c.id = o.customer",
        "DELETE FROM items i USING orders o WHERE o.id = i.parent AND o.amount < 3",
    )


def test_foreign_keys_that_cascade(shop: Told) -> None:
    shop.run(
        "CREATE TABLE notes (id int PRIMARY KEY, about int REFERENCES orders ON DELETE SET NULL ON UPDATE CASCADE)"
    )
    shop.run("INSERT INTO notes VALUES (1, 1), (2, 3), (3, NULL)")
    shop.create("noted", "SELECT n.id, o.amount FROM notes n LEFT JOIN orders o ON o.id = n.about")
    shop.create("counted", "SELECT about, count(*) AS n FROM notes GROUP BY about")
    shop.run("ALTER TABLE items DROP CONSTRAINT items_parent_fkey")
    shop.run(
        "ALTER TABLE items ADD FOREIGN KEY (parent) REFERENCES orders ON DELETE CASCADE ON UPDATE CASCADE"
        " DEFERRABLE INITIALLY DEFERRED"
    )
    shop.write("UPDATE orders SET id = id + 1000", "DELETE FROM orders WHERE id = 1003")
    shop.write("DELETE FROM customers", "DELETE FROM notes")


def test_a_table_that_cascades_to_itself(story: Told) -> None:
    story.run(
        "CREATE TABLE tree (id int PRIMARY KEY, up int REFERENCES tree ON DELETE CASCADE, v int)",
        "INSERT INTO tree SELECT g, nullif(g / 2, 0), g FROM generate_series(1, 40) g",
    )
    story.create("levels", "SELECT t.id, u.v FROM tree t LEFT JOIN tree u ON u.id = t.up")
    story.create("sums", "SELECT up, sum(v) AS total FROM tree GROUP BY up")
    story.write("DELETE FROM tree WHERE id IN (4, 5)", "DELETE FROM tree WHERE id = 3", "DELETE FROM tree")


def test_deferred_constraints(shop: Told) -> None:
    shop.run("ALTER TABLE orders ALTER CONSTRAINT orders_customer_fkey DEFERRABLE INITIALLY DEFERRED")
    shop.together("INSERT INTO orders VALUES (9, 9, 9)", "INSERT INTO customers VALUES (9, 'dan')")
    shop.fails(psycopg.errors.ForeignKeyViolation, "INSERT INTO orders VALUES (10, 10, 9)")
    shop.together("DELETE FROM customers WHERE id = 9", "DELETE FROM orders WHERE id = 9")
    shop.run("ALTER TABLE items ALTER CONSTRAINT items_parent_fkey DEFERRABLE INITIALLY DEFERRED")
    shop.together("DELETE FROM customers WHERE id < 3", "UPDATE items SET article = 'x'")
    shop.right()


def test_statements_that_change_nothing(shop: Told) -> None:
    shop.write(
        "UPDATE orders SET amount = 1 WHERE false",
        "DELETE FROM orders WHERE false",
        "INSERT INTO orders SELECT 1, 1, 1 WHERE false",
        "UPDATE orders SET amount = amount",
        "WITH c AS (UPDATE customers SET name = name WHERE false) UPDATE items SET id = id",
        "UPDATE items SET id = id + 100 WHERE id = 4",
    )


def test_by_a_session_that_applies_replicated_changes(shop: Told) -> None:
    shop.run("SET session_replication_role = replica")
    shop.write("INSERT INTO orders VALUES (9, 3, 9)", "UPDATE customers SET name = 'x'", "TRUNCATE items")


def test_generated_columns(story: Told) -> None:
    kinds = ["STORED", "VIRTUAL"] if story.connection.info.server_version >= 180000 else ["STORED"]
    for kind in kinds:
        table = f"g_{kind.lower()}"
        story.run(f"CREATE TABLE {table} (id int PRIMARY KEY, a int, b int, c int GENERATED ALWAYS AS (a + b) {kind})")
        story.run(f"INSERT INTO {table} VALUES (1, 1, 1), (2, NULL, 2), (3, 1, 1)")
        story.create(f"of_{table}", f"SELECT c, count(*) AS n FROM {table} GROUP BY c")
        story.write(
            f"UPDATE {table} SET b = 5",
            f"INSERT INTO {table} VALUES (4, 3, 3)",
            f"UPDATE {table} SET a = b, b = a",
            f"DELETE FROM {table} WHERE id = 1",
        )


def test_two_phase_commit(shop: Told) -> None:
    """A transaction that has made temporary tables cannot be prepared: PostgreSQL says so, and nothing is lost."""
    shop.run("CREATE TABLE bystander (id int)")
    shop.run("BEGIN", "UPDATE orders SET amount = 3 WHERE false", "PREPARE TRANSACTION 'nothing'")
    shop.write("INSERT INTO orders VALUES (9, 3, 9)")  # by the same session, which waits for no one
    shop.run("COMMIT PREPARED 'nothing'")
    shop.right()
    shop.run("BEGIN", "DELETE FROM customers WHERE id IN (1, 2)")
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="temporary"):
        shop.run("PREPARE TRANSACTION 'something'")
    shop.right()


def test_discard(shop: Told) -> None:
    for _ in range(2):
        shop.write("INSERT INTO orders SELECT max(id) + 1, 1, 5 FROM orders")
        shop.run("DISCARD ALL")
    shop.run("PREPARE p AS INSERT INTO orders SELECT max(id) + 1, 1, 5 FROM orders")
    for _ in range(8):  # also with a plan that is kept
        shop.write("EXECUTE p")
    with shop.connection.transaction():
        shop.write("EXECUTE p")
        shop.run("DISCARD PLANS", "DISCARD TEMP")
        shop.write("EXECUTE p")


def test_many_statements_in_one_transaction(shop: Told) -> None:
    with shop.connection.transaction():
        for id in range(100, 130):
            shop.run(f"INSERT INTO orders VALUES ({id}, {id % 3 + 1}, {id})")
        shop.right()


def test_a_do_block_that_catches(shop: Told) -> None:
    shop.write(
        "DO $$ BEGIN FOR n IN 1..5 LOOP BEGIN INSERT INTO orders VALUES (n, 1, n);"
        " EXCEPTION WHEN unique_violation THEN UPDATE orders SET amount = n * 10 WHERE id = n; END; END LOOP; END $$"
    )
    assert db.scalar(shop.connection, "SELECT count(*) FROM orders") == 5
