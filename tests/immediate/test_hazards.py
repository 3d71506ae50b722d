"""What writers do that a trigger might not foresee."""

from __future__ import annotations

import psycopg
import pytest

from pgtrickle.refresh.immediate import functions
from tests.immediate.telling import Told

KINDS = {
    "rows_of": "SELECT id, up, v * 2 AS w FROM t",
    "sums": "SELECT v, count(*) AS n, sum(id) AS ids FROM t GROUP BY v",
    "most": "SELECT up, max(v) AS most FROM t GROUP BY up",
    "places": "SELECT id, v, rank() OVER (PARTITION BY up ORDER BY v, id) AS place FROM t",
    "ups": "SELECT a.id, b.v FROM t a LEFT JOIN t b ON b.id = a.up",
    "first": "SELECT id, v FROM t ORDER BY v DESC, id LIMIT 3",
}


@pytest.mark.parametrize("few", [500, 4])
def test_row_triggers_that_change_what_the_statement_has_written(
    story: Told, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They run before the statement has ended: what they change was not told yet."""
    monkeypatch.setattr(functions, "FEW", few)
    story.run(
        "CREATE TABLE t (id int PRIMARY KEY, up int, v int)",
        "CREATE FUNCTION alter_it() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        "  IF pg_trigger_depth() > 1 THEN RETURN NULL; END IF;"
        "  UPDATE t SET v = v + 100 WHERE id = NEW.id AND id % 3 = 0;"
        "  DELETE FROM t WHERE id = NEW.id AND id % 3 = 1;"
        "  UPDATE t SET v = v + 1 WHERE id = NEW.id - 1;"
        "  RETURN NULL; END $$",
        "CREATE TRIGGER alter_it AFTER INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION alter_it()",
    )
    for name, query in KINDS.items():
        story.create(name, query)
    story.write(
        "INSERT INTO t SELECT g, g / 2, g % 3 FROM generate_series(1, 9) g",
        "INSERT INTO t VALUES (30, 1, 1)",
        "INSERT INTO t VALUES (31, 1, 1)",
        "UPDATE t SET v = 7 WHERE id > 4",
        "UPDATE t SET id = id + 1 WHERE id = 30",
        "DELETE FROM t",
    )


def test_row_triggers_that_alter_rows_or_leave_them_out(shop: Told) -> None:
    shop.run(
        "CREATE FUNCTION other() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        "  IF TG_OP = 'DELETE' THEN RETURN CASE WHEN OLD.id = 2 THEN NULL ELSE OLD END; END IF;"
        "  IF NEW.id % 5 = 0 THEN RETURN NULL; END IF;"
        "  NEW.amount := NEW.amount + 1000; NEW.customer := 3; RETURN NEW; END $$",
        "CREATE TRIGGER other BEFORE INSERT OR UPDATE OR DELETE ON orders FOR EACH ROW EXECUTE FUNCTION other()",
        "CREATE RULE more AS ON DELETE TO items DO ALSO UPDATE customers SET name = name || OLD.id WHERE id = 1",
        "CREATE VIEW dear AS SELECT id, customer, amount FROM orders WHERE amount > 3",
        "CREATE FUNCTION write_more() RETURNS int LANGUAGE plpgsql AS $$ BEGIN"
        "  UPDATE customers SET name = name || 'f'; DELETE FROM items WHERE id = 3; RETURN 3; END $$",
    )
    shop.write(
        "INSERT INTO orders SELECT g, 1, g FROM generate_series(10, 16) g",
        "INSERT INTO orders VALUES (20, 1, 1)",
        "UPDATE orders SET amount = 1",
        "DELETE FROM orders WHERE id < 3",
        "DELETE FROM items WHERE id = 1",
        "INSERT INTO dear VALUES (50, 2, 7), (51, 2, 7)",
        "DELETE FROM dear WHERE id = 51",
        "INSERT INTO orders VALUES (61, write_more(), 1)",
        "DO $$ DECLARE c CURSOR FOR SELECT * FROM orders WHERE id > 10 FOR UPDATE; BEGIN"
        "  FOR r IN c LOOP UPDATE orders SET amount = r.id WHERE CURRENT OF c; END LOOP; END $$",
    )


@pytest.mark.parametrize("few", [500, 0])
def test_unique_keys_of_the_stream_table(story18: Told, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that goes may have the key of one that comes; a check that fails undoes the writer's statement."""
    monkeypatch.setattr(functions, "FEW", few)
    story18.run("CREATE TABLE t (id int PRIMARY KEY, k int, v int)", "CREATE TABLE s (k int PRIMARY KEY, w int)")
    story18.run("INSERT INTO t SELECT g, g % 3, g FROM generate_series(1, 9) g", "INSERT INTO s VALUES (0, 0), (1, 1)")
    story18.create("pairs", "SELECT id, v, w FROM t JOIN s USING (k)")
    story18.create("sums", "SELECT k, sum(v) AS total FROM t GROUP BY k")
    story18.run(
        "CREATE UNIQUE INDEX ON pairs (id)",
        "CREATE UNIQUE INDEX ON pairs (v)",
        "ALTER TABLE sums ADD PRIMARY KEY (k)",
        "ALTER TABLE sums ADD CHECK (total < 1000)",
    )
    story18.write(
        "UPDATE t SET v = 10 - v",
        "UPDATE t SET k = (k + 1) % 3",
        "UPDATE s SET w = 1 - w",
        "UPDATE t SET id = 10 - id WHERE false",
        "WITH x AS (DELETE FROM t WHERE id = 3 RETURNING *) INSERT INTO t SELECT 100 + id, k, v FROM x",
    )
    story18.fails(psycopg.errors.CheckViolation, "UPDATE t SET v = v + 1 WHERE id = 1", "UPDATE t SET v = v + 1000")
    story18.fails(psycopg.errors.UniqueViolation, "UPDATE t SET v = 5, k = 0")


def test_foreign_keys_both_ways_over_partitions(story: Told) -> None:
    story.run(
        "CREATE TABLE p (id int PRIMARY KEY, name text) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (100)",
        "CREATE TABLE c (id int, up int REFERENCES p ON DELETE CASCADE ON UPDATE CASCADE,"
        " peer int REFERENCES p ON DELETE SET NULL ON UPDATE CASCADE) PARTITION BY LIST (up)",
        "CREATE TABLE c_few PARTITION OF c FOR VALUES IN (1, 2, 3)",
        "CREATE TABLE c_more PARTITION OF c DEFAULT",
        "INSERT INTO p SELECT g, 'p' || g FROM generate_series(1, 20) g",
        "INSERT INTO c SELECT g, 1 + g % 15, 1 + g % 7 FROM generate_series(1, 60) g",
    )
    story.create(
        "pairs", "SELECT c.id, c.up, p.name, q.name AS peer FROM c JOIN p ON p.id = c.up LEFT JOIN p q ON q.id = c.peer"
    )
    story.create("sums", "SELECT up, count(*) AS n, count(peer) AS peers FROM c GROUP BY up")
    story.create("rows_of", "SELECT up, peer FROM c")
    story.create("lonely", "SELECT name FROM p WHERE NOT EXISTS (SELECT FROM c WHERE c.up = p.id)")
    story.write(
        "DELETE FROM p WHERE id = 2",
        "UPDATE p SET id = 99 WHERE id = 1",
        "DELETE FROM p1 WHERE id = 3",
        "UPDATE p2 SET id = 50 WHERE id = 10",
        "UPDATE p SET id = id + 20 WHERE id BETWEEN 4 AND 7",
        "DELETE FROM c_few",
        "TRUNCATE p CASCADE",
    )


@pytest.mark.parametrize("few", [500, 0])
def test_a_table_that_refers_to_itself_in_every_way(story18: Told, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "FEW", few)
    story18.run(
        "CREATE TABLE t (id int PRIMARY KEY, up int REFERENCES t ON DELETE CASCADE ON UPDATE CASCADE,"
        " v int REFERENCES t ON DELETE SET NULL ON UPDATE SET NULL)",
        "INSERT INTO t SELECT g, nullif(g / 2, 0), nullif(g / 3, 0) FROM generate_series(1, 30) g",
    )
    for name, query in KINDS.items():
        story18.create(name, query)
    story18.write(
        "UPDATE t SET id = id + 100 WHERE id IN (2, 3, 4)",
        "DELETE FROM t WHERE id IN (5, 104)",
        "UPDATE t SET id = id + 1000, v = NULL",
        "DELETE FROM t WHERE id = 1001",
    )


def test_truncate_over_several_sources(shop: Told) -> None:
    shop.together(
        "DELETE FROM orders WHERE id = 1", "TRUNCATE customers, orders, items", "INSERT INTO customers VALUES (1, 'x')"
    )
    shop.write(
        "INSERT INTO orders VALUES (1, 1, 5)",
        "INSERT INTO items VALUES (1, 1, 'a')",
        "TRUNCATE customers CASCADE",
        "INSERT INTO customers VALUES (1, 'x')",
    )
    with shop.connection.transaction(force_rollback=True):
        shop.write("INSERT INTO orders VALUES (1, 1, 5)", "TRUNCATE orders, items RESTART IDENTITY")
    shop.right()
    shop.run("CREATE FUNCTION empty() RETURNS int LANGUAGE plpgsql AS $$ BEGIN TRUNCATE items; RETURN 1; END $$")
    shop.write("INSERT INTO orders VALUES (2, empty(), 5)")


def test_values_that_are_equal_and_look_different(story18: Told) -> None:
    """1.0 and 1.00, −0 and 0, a and a with blanks; 1 and 1.0 in JSON."""
    story18.run(
        "CREATE TABLE a (id int PRIMARY KEY, n numeric, f float8, b char(4), j jsonb)",
        "CREATE TABLE z (id int PRIMARY KEY, n numeric, f float8, b char(4), j jsonb)",
    )
    for table in ("a", "z"):
        story18.run(
            f"INSERT INTO {table} VALUES (1, 1.0, '-0', 'x', '1.0'), (2, 1.00, 0, 'x ', '1'),"
            " (3, 1, 'NaN', '', '[1.0]'), (4, NULL, NULL, NULL, NULL), (5, 'NaN', 1, 'y', '[1]')"
        )
    for column in "nfbj":
        story18.create(
            f"joined_{column}", f"SELECT a.{column}::text AS k, a.id, z.id AS other FROM a JOIN z USING ({column})"
        )
        story18.create(
            f"shown_{column}", f"SELECT a.{column} AS k, z.{column} AS l FROM a LEFT JOIN z ON a.{column} = z.{column}"
        )
        story18.create(f"sums_{column}", f"SELECT count(*) AS n, sum(id) AS ids FROM a GROUP BY {column}")
    story18.write(
        "INSERT INTO a SELECT id + 10, n, f, b, j FROM z",
        "DELETE FROM z WHERE id = 2",
        "UPDATE a SET n = 1.000, f = 0, b = 'x', j = '1.00' WHERE id IN (2, 3)",
        "UPDATE a SET n = 1, f = '-0', b = 'x  ', j = '1' WHERE id = 2",
        "DELETE FROM a WHERE id IN (1, 12)",
        "UPDATE z SET n = n * 1.0",
        "DELETE FROM a",
    )
