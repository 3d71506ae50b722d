"""Capture stories: whatever a statement does to a table, the windows of its buffer add up to the table's content."""

from __future__ import annotations

import pytest

from pgtrickle.db import Connection

from .conftest import Follow, buffered, run


@pytest.fixture(params=["statement", "row"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def orders(conn: Connection) -> None:
    run(
        conn,
        "CREATE TABLE orders (region int, id int, amount numeric, note text, PRIMARY KEY (region, id))",
        "INSERT INTO orders SELECT g % 3, g, g, 'n' FROM generate_series(1, 20) g",
    )


def test_insert_update_delete(conn: Connection, orders: None, follow: Follow, mode: str) -> None:
    ledger = follow("orders", "region", "id", "amount", mode=mode)
    run(conn, "INSERT INTO orders VALUES (9, 100, 1.5, 'x'), (9, 101, NULL, NULL)")
    assert ledger.check().changes == 2
    run(conn, "UPDATE orders SET amount = amount + 1 WHERE id <= 5")
    assert ledger.check().changes == 5
    run(conn, "DELETE FROM orders WHERE id > 10")
    ledger.check()
    assert set(buffered(conn, ledger.source)) == {"I", "U", "D"}
    assert ledger.advance().changes == 0


def test_mixed_dml_in_one_transaction(conn: Connection, orders: None, follow: Follow, mode: str) -> None:
    ledger = follow("orders", "region", "id", "amount", mode=mode)
    run(
        conn,
        "INSERT INTO orders VALUES (7, 1, 1, 'x')",
        "UPDATE orders SET amount = 2 WHERE region = 7",
        "UPDATE orders SET id = 2 WHERE region = 7",
        "DELETE FROM orders WHERE region = 7",
        "INSERT INTO orders VALUES (7, 1, 3, 'x')",
        "DELETE FROM orders WHERE region = 0",
    )
    ledger.check()


def test_key_changing_update_swaps_every_key(conn: Connection, follow: Follow, mode: str) -> None:
    run(
        conn,
        "CREATE TABLE t (id int UNIQUE DEFERRABLE, v int)",
        "INSERT INTO t SELECT g, g FROM generate_series(1, 10) g",
    )
    ledger = follow("t", "id", "v", mode=mode)
    run(conn, "UPDATE t SET id = 11 - id")
    assert ledger.check().changes == 10


def test_on_conflict(conn: Connection, orders: None, follow: Follow, mode: str) -> None:
    ledger = follow("orders", "region", "id", "amount", mode=mode)
    run(
        conn,
        "INSERT INTO orders SELECT g % 3, g, -g, 'c' FROM generate_series(15, 25) g"
        " ON CONFLICT (region, id) DO UPDATE SET amount = excluded.amount",
        "INSERT INTO orders VALUES (1, 1, 5, 'd') ON CONFLICT DO NOTHING",
    )
    assert ledger.check().changes == 11


def test_merge(conn: Connection, orders: None, follow: Follow, mode: str) -> None:
    if conn.info.server_version < 150000:
        pytest.skip("PostgreSQL has MERGE since 15")
    ledger = follow("orders", "region", "id", "amount", mode=mode)
    run(
        conn,
        "MERGE INTO orders o USING (SELECT g % 3 AS region, g AS id FROM generate_series(10, 30) g) s"
        " ON o.region = s.region AND o.id = s.id"
        " WHEN MATCHED AND o.id < 13 THEN DELETE WHEN MATCHED THEN UPDATE SET amount = 0"
        " WHEN NOT MATCHED THEN INSERT VALUES (s.region, s.id, 7, 'm')",
    )
    assert ledger.check().changes == 21


def test_copy(conn: Connection, orders: None, follow: Follow, mode: str) -> None:
    ledger = follow("orders", "region", "id", "amount", mode=mode)
    with conn.transaction(), conn.cursor() as cursor, cursor.copy("COPY orders FROM STDIN") as copy:
        for each in range(50):
            copy.write_row((50, each, each, "copied"))
    assert ledger.check().changes == 50


def test_cte_dml_moves_rows_between_tables(conn: Connection, orders: None, follow: Follow, mode: str) -> None:
    run(conn, "CREATE TABLE archive (LIKE orders)")
    source = follow("orders", "region", "id", "amount", mode=mode)
    target = follow("archive", "region", "id", "amount", mode=mode)
    run(
        conn,
        "WITH gone AS (DELETE FROM orders WHERE region = 1 RETURNING *), kept AS"
        " (UPDATE orders SET amount = 0 WHERE region = 2 RETURNING *) INSERT INTO archive SELECT * FROM gone",
    )
    source.check()
    target.check()


def test_update_from_and_foreign_key_cascade(conn: Connection, follow: Follow, mode: str) -> None:
    run(
        conn,
        "CREATE TABLE parent (id int PRIMARY KEY)",
        "CREATE TABLE child (id int, parent int REFERENCES parent ON DELETE CASCADE ON UPDATE CASCADE, v int)",
        "INSERT INTO parent SELECT generate_series(1, 5)",
        "INSERT INTO child SELECT g, g % 5 + 1, 0 FROM generate_series(1, 20) g",
    )
    ledger = follow("child", "id", "parent", "v", mode=mode)
    run(conn, "UPDATE child SET v = p.id FROM parent p WHERE p.id = child.parent AND p.id < 4")
    assert ledger.check().changes == 12
    run(conn, "DELETE FROM parent WHERE id = 1", "UPDATE parent SET id = 50 WHERE id = 5")
    assert ledger.check().changes == 8


def test_rolled_back_savepoints_leave_nothing(conn: Connection, orders: None, follow: Follow, mode: str) -> None:
    ledger = follow("orders", "region", "id", "amount", mode=mode)
    run(
        conn,
        "INSERT INTO orders VALUES (7, 1, 1, 'x')",
        "SAVEPOINT a",
        "DELETE FROM orders WHERE region < 7",
        "SAVEPOINT b",
        "INSERT INTO orders VALUES (7, 2, 1, 'x')",
        "ROLLBACK TO a",
        "SAVEPOINT c",
        "INSERT INTO orders VALUES (7, 3, 1, 'x')",
        "RELEASE c",
    )
    assert ledger.check().changes == 2


def test_a_failing_statement_captures_nothing(conn: Connection, orders: None, follow: Follow, mode: str) -> None:
    ledger = follow("orders", "region", "id", "amount", mode=mode)
    with pytest.raises(Exception, match="duplicate key"):
        run(conn, "INSERT INTO orders VALUES (8, 1, 1, 'x'), (1, 1, 1, 'x')")
    assert ledger.check().changes == 0


def test_update_of_unused_columns_captures_nothing(conn: Connection, orders: None, follow: Follow, mode: str) -> None:
    ledger = follow("orders", "id", "amount", mode=mode)
    run(
        conn,
        "UPDATE orders SET note = note || '!'",
        "UPDATE orders SET region = region + 10",
        "UPDATE orders SET id = id",
    )
    assert ledger.check().changes == 0
    run(conn, "UPDATE orders SET amount = CASE WHEN id = 3 THEN 0 ELSE amount END")
    assert ledger.check().changes == 1


def test_no_column_used_still_counts_rows(conn: Connection, orders: None, follow: Follow, mode: str) -> None:
    ledger = follow("orders", mode=mode)
    run(
        conn,
        "DELETE FROM orders WHERE id = 4",
        "UPDATE orders SET amount = 9",
        "INSERT INTO orders VALUES (5, 5, 5, '')",
    )
    assert ledger.check().changes == 2


def test_duplicates_of_a_keyless_table(conn: Connection, follow: Follow, mode: str) -> None:
    run(conn, "CREATE TABLE bag (a int, b text)", "INSERT INTO bag SELECT 1, 'x' FROM generate_series(1, 5)")
    ledger = follow("bag", "a", "b", mode=mode)
    run(conn, "DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag)")
    run(conn, "UPDATE bag SET b = NULL WHERE ctid = (SELECT max(ctid) FROM bag)", "INSERT INTO bag SELECT * FROM bag")
    ledger.check()
    assert sum(ledger.content.values()) == 8


def test_truncate_marks_the_window(conn: Connection, orders: None, follow: Follow, mode: str) -> None:
    ledger = follow("orders", "id", mode=mode)
    run(conn, "TRUNCATE orders", "INSERT INTO orders VALUES (1, 1, 1, 'after')")
    assert ledger.check().truncated
    assert list(ledger.content) == [("1",)]
    run(conn, "INSERT INTO orders VALUES (1, 2, 1, 'later')")
    assert not ledger.check().truncated


def test_rolled_back_truncate_marks_nothing(conn: Connection, orders: None, follow: Follow, mode: str) -> None:
    ledger = follow("orders", "id", mode=mode)
    run(conn, "SAVEPOINT a", "TRUNCATE orders", "ROLLBACK TO a", "DELETE FROM orders WHERE id = 1")
    pending = ledger.check()
    assert (pending.changes, pending.truncated) == (1, False)


def test_toast_values_updated_and_left_alone(conn: Connection, follow: Follow, mode: str) -> None:
    run(
        conn,
        "CREATE TABLE docs (id int, body text, blob bytea, n int)",
        "ALTER TABLE docs ALTER body SET STORAGE EXTERNAL, ALTER blob SET STORAGE EXTERNAL",
        "INSERT INTO docs SELECT g, repeat(chr(64 + g), 20000), decode(repeat('ab', 9000 + g), 'hex'), 0"
        " FROM generate_series(1, 5) g",
    )
    ledger = follow("docs", "id", "body", "blob", mode=mode)
    run(conn, "UPDATE docs SET n = n + 1")
    assert ledger.check().changes == 0
    run(conn, "UPDATE docs SET id = id + 10 WHERE id = 1", "UPDATE docs SET body = 'z' || body WHERE id = 2")
    assert ledger.check().changes == 2
    run(conn, "UPDATE docs SET blob = set_byte(blob, 8999, 1) WHERE id = 3", "DELETE FROM docs WHERE id = 4")
    assert ledger.check().changes == 2


def test_a_writer_without_grants_on_our_schemas(conn: Connection, database: str, orders: None, follow: Follow) -> None:
    run(conn, "DROP ROLE IF EXISTS plain_writer", "CREATE ROLE plain_writer", "GRANT ALL ON orders TO plain_writer")
    try:
        ledger = follow("orders", "id", "amount")
        run(
            conn,
            "SET LOCAL ROLE plain_writer",
            "INSERT INTO orders VALUES (8, 8, 8, 'w')",
            "UPDATE orders SET amount = 9 WHERE region = 8",
            "DELETE FROM orders WHERE id = 1",
        )
        assert ledger.check().changes == 3
        with pytest.raises(Exception, match="permission denied"):
            run(conn, "SET LOCAL ROLE plain_writer", f"SELECT 1 FROM pgtrickle_changes.changes_{ledger.source.oid}")
        with pytest.raises(Exception, match="permission denied"):
            run(
                conn,
                "GRANT USAGE ON SCHEMA pgtrickle_changes TO plain_writer",
                "SET LOCAL ROLE plain_writer",
                "CREATE TEMP TABLE mine (id int, amount numeric)",
                "CREATE TRIGGER forged AFTER INSERT ON mine REFERENCING NEW TABLE AS new_rows FOR EACH STATEMENT"
                f" EXECUTE FUNCTION pgtrickle_changes.capture_{ledger.source.oid}()",
            )
    finally:
        run(conn, "DROP OWNED BY plain_writer", "DROP ROLE plain_writer")


def test_a_replication_session_is_captured_too(conn: Connection, orders: None, follow: Follow, mode: str) -> None:
    ledger = follow("orders", "id", mode=mode)
    run(conn, "SET LOCAL session_replication_role = replica", "DELETE FROM orders WHERE id < 4")
    assert ledger.check().changes == 3


def test_columns_named_like_our_own_words(conn: Connection, follow: Follow, mode: str) -> None:
    run(
        conn,
        'CREATE TABLE odd ("r" int, "n" int, "o" int, xid int, "new_r" int, "Q""$$%s{}" int, tg_op text, new_rows int)',
        "INSERT INTO odd VALUES (1, 2, 3, 4, 5, 6, 'seven', 8)",
    )
    columns = ["r", "n", "o", "xid", "new_r", 'Q"$$%s{}', "tg_op", "new_rows"]
    ledger = follow("odd", *columns, mode=mode)
    run(conn, "UPDATE odd SET n = 20", "INSERT INTO odd SELECT * FROM odd", 'DELETE FROM odd WHERE "Q""$$%s{}" > 6')
    assert ledger.check().changes == 2


def test_names_too_long_for_a_prefix(conn: Connection, follow: Follow, mode: str) -> None:
    first, second = "a" * 62 + "1", "a" * 62 + "2"
    wide = "é" * 31
    run(conn, f'CREATE TABLE long ("{first}" int, "{second}" int, "{wide}" int)', "INSERT INTO long VALUES (1, 2, 3)")
    ledger = follow("long", first, second, wide, mode=mode)
    run(conn, f'UPDATE long SET "{second}" = 9, "{wide}" = 8', "INSERT INTO long VALUES (4, 5, 6)")
    assert ledger.check().changes == 2
