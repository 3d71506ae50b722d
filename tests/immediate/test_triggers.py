"""Triggers of the user on the sources, and on the stream table; partitioned sources."""

from __future__ import annotations

import psycopg
import pytest

from tests.immediate.telling import Told


@pytest.mark.parametrize("moment", ["BEFORE", "AFTER"])
@pytest.mark.parametrize("level", ["ROW", "STATEMENT"])
def test_triggers_that_write_to_other_sources(shop: Told, moment: str, level: str) -> None:
    shop.run(
        "CREATE FUNCTION more() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        "  UPDATE customers SET name = name || '+' WHERE id = 1;"
        "  INSERT INTO items SELECT coalesce(max(id), 0) + 1, min(parent), 'gift' FROM items;"
        "  DELETE FROM items WHERE id = 2;"
        "  BEGIN INSERT INTO customers VALUES (1, 'again'); EXCEPTION WHEN unique_violation THEN NULL; END;"
        "  RETURN NEW; END $$",
        f"CREATE TRIGGER zz_more {moment} INSERT OR UPDATE ON orders FOR EACH {level} EXECUTE FUNCTION more()",
        f"CREATE TRIGGER aa_more {moment} UPDATE ON orders FOR EACH {level} EXECUTE FUNCTION more()",
    )
    shop.write(
        "INSERT INTO orders VALUES (7, 1, 7), (8, 2, 8)",
        "UPDATE orders SET amount = amount + 1 WHERE id < 3",
        "INSERT INTO orders VALUES (8, 3, 9), (9, 3, 9) ON CONFLICT (id) DO UPDATE SET customer = excluded.customer",
    )
    with shop.connection.transaction(force_rollback=True):
        shop.write("UPDATE orders SET amount = 0", "DELETE FROM customers WHERE id = 2")
    shop.right()


def test_a_trigger_that_writes_to_its_own_table(story: Told) -> None:
    story.run(
        "CREATE TABLE t (id int PRIMARY KEY, up int, v int)",
        "CREATE FUNCTION grow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        "  IF NEW.id < 8 THEN INSERT INTO t VALUES (NEW.id + 1, NEW.id, NEW.v); END IF; RETURN NULL; END $$",
        "CREATE TRIGGER grow AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION grow()",
    )
    story.create("sums", "SELECT v, count(*) AS n, sum(id) AS ids FROM t GROUP BY v")
    story.create("ups", "SELECT a.id, b.v FROM t a LEFT JOIN t b ON b.id = a.up")
    story.write("INSERT INTO t VALUES (1, NULL, 1)", "DELETE FROM t WHERE id IN (2, 4)", "UPDATE t SET up = 1")


def test_triggers_on_the_stream_table(shop: Told) -> None:
    """They see each row that changes, once; what they write elsewhere is part of the transaction."""
    shop.run(
        "CREATE TABLE told (what text, id int)",
        "CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        "  INSERT INTO public.told VALUES (TG_OP, coalesce(NEW.id, OLD.id)); RETURN NULL; END $$",
        "CREATE TRIGGER tell AFTER INSERT OR UPDATE OR DELETE ON joined FOR EACH ROW EXECUTE FUNCTION tell()",
    )
    shop.write("INSERT INTO orders VALUES (7, 1, 7)", "UPDATE orders SET amount = 8 WHERE id = 7")
    shop.write("DELETE FROM orders WHERE id = 7")
    told = [what for what, id in shop.rows("SELECT what, id FROM told") if id == 7]
    assert told[0] == "INSERT"
    assert told[-1] == "DELETE"
    assert set(told) == {"INSERT", "UPDATE", "DELETE"} or told == ["INSERT", "DELETE", "INSERT", "DELETE"]


def test_a_trigger_on_the_stream_table_that_writes_to_its_sources(story: Told) -> None:
    """It is refused: what it changes would have to be part of what is being maintained."""
    story.run(
        "CREATE TABLE a (id int PRIMARY KEY, k int)",
        "CREATE TABLE b (id int PRIMARY KEY, k int)",
        "INSERT INTO a VALUES (1, 1)",
        "INSERT INTO b VALUES (1, 1)",
    )
    story.create("ab", "SELECT a.id, b.id AS other FROM a LEFT JOIN b ON a.k = b.k")
    story.run(
        "CREATE FUNCTION back() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        "  INSERT INTO public.b VALUES (NEW.id + 100, 3) ON CONFLICT DO NOTHING; RETURN NULL; END $$",
        "CREATE TRIGGER back AFTER INSERT ON ab FOR EACH ROW EXECUTE FUNCTION back()",
    )
    error = story.fails(psycopg.Error, "INSERT INTO a SELECT g, 3 FROM generate_series(10, 700) g")
    assert error.sqlstate == "PT703"
    assert "ab" in str(error)


def _parted(story: Told) -> None:
    story.run(
        "CREATE TABLE p (id int, k int, v int) PARTITION BY RANGE (k)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20) PARTITION BY LIST (v)",
        "CREATE TABLE p2a PARTITION OF p2 FOR VALUES IN (1, 2)",
        "CREATE TABLE p2b PARTITION OF p2 DEFAULT",
        "CREATE TABLE d (k int PRIMARY KEY, name text)",
        "INSERT INTO p SELECT g, g % 20, g % 4 FROM generate_series(1, 60) g",
        "INSERT INTO d SELECT g, 'd' || g FROM generate_series(0, 25) g",
    )
    story.create("parted", "SELECT p.id, d.name, p.v FROM p JOIN d USING (k)")
    story.create("sums", "SELECT k, count(*) AS n, sum(v) AS total FROM p GROUP BY k")
    story.create("rows_of", "SELECT v, id FROM p")


def test_partitions_written_to_by_the_parent_and_by_themselves(story: Told) -> None:
    _parted(story)
    story.write(
        "INSERT INTO p VALUES (100, 5, 1), (101, 15, 1)",
        "INSERT INTO p2a VALUES (102, 12, 2)",
        "UPDATE p SET k = (k + 10) % 20",
        "UPDATE p2 SET v = v + 1",
        "UPDATE p1 SET v = 0 WHERE id < 30",
        "DELETE FROM p2b WHERE id < 10",
        "TRUNCATE p2a",
        "DELETE FROM p WHERE k = 3",
        "TRUNCATE p2",
    )
    assert all(found.equal for found in story.trickle.verify())


def test_partitions_that_come_and_go(story: Told) -> None:
    """The next statement finds that they are others, and computes the table again."""
    _parted(story)
    story.run(
        "CREATE TABLE p3 (id int, k int, v int)",
        "INSERT INTO p3 VALUES (200, 20, 1), (201, 21, 2)",
        "ALTER TABLE p ATTACH PARTITION p3 FOR VALUES FROM (20) TO (30)",
    )
    story.write("INSERT INTO p VALUES (202, 22, 3)")
    story.run("ALTER TABLE p DETACH PARTITION p1")
    story.write("UPDATE p SET v = v + 1", "INSERT INTO p VALUES (203, 23, 3)", "DELETE FROM p WHERE k = 20")
    for name in story.queries:
        story.trickle.refresh_stream_table(name)
        assert story.stream(name).is_immediate
    story.write("INSERT INTO p3 VALUES (204, 24, 3)", "INSERT INTO d VALUES (50, 'x')", "UPDATE p3 SET k = 20")
    assert all(found.equal for found in story.trickle.verify())
