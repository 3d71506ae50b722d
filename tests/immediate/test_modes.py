"""Into IMMEDIATE mode and out of it, with writers at work; what may not be in it; what becomes of it when its query,
its sources or its name are changed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import psycopg
import pytest

from pgtrickle import db
from pgtrickle.api import Trickle
from pgtrickle.errors import Error, IgnoredSetting
from tests.immediate.telling import Told

PAIRS = "SELECT t.id, t.v, s.name FROM t JOIN s ON s.k = t.k"
SUMS = "SELECT k, count(*) AS n, sum(v) AS total FROM t GROUP BY k"


@pytest.fixture
def tables(story18: Told) -> Told:
    story18.run(
        "CREATE TABLE t (id int PRIMARY KEY, k int, v int)",
        "CREATE TABLE s (k int PRIMARY KEY, name text)",
        "CREATE INDEX ON t (k)",
        "INSERT INTO s SELECT g, 'n' || g FROM generate_series(0, 4) g",
        "INSERT INTO t SELECT g, g % 5, g FROM generate_series(1, 50) g",
    )
    return story18


@contextmanager
def _writing(dsn: str) -> Iterator[None]:
    """Someone writes all the time, and must never be refused."""
    stop, problems = threading.Event(), list[Exception]()

    def write() -> None:
        number = 1000
        try:
            with db.open_session(dsn) as connection:
                while not stop.is_set():
                    number += 1
                    with connection.transaction():
                        connection.execute("INSERT INTO t VALUES (%s, %s, 1)", (number, number % 6))
                        connection.execute("UPDATE s SET name = name || '.' WHERE k = %s", (number % 5,))
                    connection.execute("DELETE FROM t WHERE id = %s", (number - 7,))
        except Exception as problem:  # noqa: BLE001 -- raised again below
            problems.append(problem)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if problems:
        raise problems[0]


def test_to_and_fro_with_a_writer_at_work(tables: Told) -> None:
    for name, query in (("pairs", PAIRS), ("sums", SUMS)):
        tables.create(name, query, mode="DIFFERENTIAL")
    with _writing(tables.dsn):
        for mode in ("IMMEDIATE", "DIFFERENTIAL", "IMMEDIATE", "AUTO", "IMMEDIATE", "FULL", "IMMEDIATE"):
            for name in tables.queries:
                tables.trickle.alter_stream_table(name, refresh_mode=mode)
                stream = tables.stream(name)
                assert stream.refresh_mode == mode
                assert stream.effective_mode == ("DIFFERENTIAL" if mode == "AUTO" else mode), (mode, stream)
    tables.right()
    assert all(found.equal for found in tables.trickle.verify())
    for name in tables.queries:
        tables.trickle.alter_stream_table(name, refresh_mode="DIFFERENTIAL")
    tables.run("UPDATE t SET v = v + 1", "DELETE FROM s WHERE k = 2")
    for name in tables.queries:
        assert tables.trickle.refresh_stream_table(name).action == "DIFFERENTIAL"
    tables.right()


def test_only_what_it_captures_is_left(tables: Told) -> None:
    empty = tables.ours()
    tables.create("pairs", PAIRS)
    assert not [name for name in tables.ours() if name.startswith("pgtrickle_") and "_i0" not in name]
    tables.trickle.alter_stream_table("pairs", refresh_mode="DIFFERENTIAL")
    assert not [name for name in tables.ours() if "_i0" in name or name.startswith("i_")]
    tables.trickle.alter_stream_table("pairs", refresh_mode="IMMEDIATE")
    tables.trickle.drop_stream_table("pairs")
    assert tables.ours() == empty


def test_a_refresh_has_nothing_to_do(tables: Told) -> None:
    tables.create("pairs", PAIRS)
    tables.write("UPDATE t SET v = 0")
    result = tables.trickle.refresh_stream_table("pairs")
    assert result.action == "NO_DATA", result
    result = tables.trickle.refresh_stream_table("pairs", full=True)
    assert result.action == "FULL", result
    assert tables.stream("pairs").is_immediate
    tables.write("UPDATE t SET v = 1")


def test_what_is_missing_is_mended_by_a_refresh(tables: Told) -> None:
    tables.create("pairs", PAIRS)
    tables.run("ALTER TABLE t DISABLE TRIGGER ALL", "UPDATE t SET v = 7")
    tables.run("ALTER TABLE t ENABLE TRIGGER ALL")
    tables.trickle.refresh_stream_table("pairs")
    tables.write("UPDATE t SET v = 8")
    assert tables.stream("pairs").is_immediate


def test_another_query(tables: Told) -> None:
    tables.create("pairs", PAIRS)
    tables.queries["pairs"] = "SELECT t.id, t.v * 2 AS w FROM t"
    tables.trickle.alter_stream_table("pairs", query=tables.queries["pairs"])
    assert tables.stream("pairs").is_immediate
    tables.write("UPDATE t SET v = 1", "DELETE FROM s")


def test_what_cannot_be_in_it(tables: Told) -> None:
    tables.run("CREATE TABLE parted (id int) PARTITION BY RANGE (id)", "CREATE TABLE part PARTITION OF parted DEFAULT")
    tables.run("CREATE TABLE heir () INHERITS (t)")
    for query, code in (
        ("SELECT * FROM t WHERE now() > '2020-01-01'", "PT700"),
        ("SELECT * FROM part", "PT701"),
        ("SELECT * FROM heir", "PT701"),
    ):
        with pytest.raises(Error) as raised:
            tables.trickle.create_stream_table("wrong", query, refresh_mode="IMMEDIATE")
        assert raised.value.code == code
        tables.trickle.create_stream_table("right", query, refresh_mode="DIFFERENTIAL")
        with pytest.raises(Error) as raised:
            tables.trickle.alter_stream_table("right", refresh_mode="IMMEDIATE")
        assert raised.value.code == code
        tables.trickle.drop_stream_table("right")
    with pytest.raises(Error) as raised:
        tables.trickle.create_stream_table("wrong", PAIRS, refresh_mode="IMMEDIATE", cdc_mode="wal")
    assert raised.value.code in {"PT292", "PT009"}
    tables.create("pairs", PAIRS)
    with pytest.raises(Error) as raised:
        tables.trickle.alter_stream_table("pairs", cdc_mode="wal")
    assert raised.value.code in {"PT292", "PT009"}


def test_what_happens_to_its_sources(tables: Told) -> None:
    """A writer is told that the stream table has to be refreshed, or goes on; never is it wrong after that."""
    tables.create("pairs", PAIRS)
    tables.create("sums", SUMS)
    tables.run("ALTER TABLE t ADD COLUMN more int DEFAULT 3")
    tables.write("INSERT INTO t VALUES (100, 1, 1, 1)", "UPDATE t SET more = 4")
    tables.run("ALTER TABLE s ALTER COLUMN name TYPE varchar(40)")
    error = tables.fails(psycopg.Error, "UPDATE s SET name = 'x'")
    assert error.sqlstate == "PT706"
    tables.fails(psycopg.Error, "INSERT INTO t VALUES (101, 1, 1, 1)")  # reads what may be other names by now
    tables.trickle.refresh_stream_table("pairs")
    tables.write("UPDATE s SET name = 'y'", "INSERT INTO t VALUES (102, 1, 1, 1)")
    tables.run("ALTER TABLE t RENAME TO t_new")
    tables.queries = {name: query.replace("FROM t ", "FROM t_new t ") for name, query in tables.queries.items()}
    tables.write("UPDATE t_new SET v = 4")
    for name in tables.queries:
        tables.trickle.refresh_stream_table(name)
        assert tables.stream(name).is_immediate
    tables.write("UPDATE t_new SET v = 5", "DELETE FROM t_new WHERE id < 30")


def test_a_used_column_that_is_renamed(tables: Told) -> None:
    """No writer goes on until the query says which column is meant."""
    tables.create("pairs", PAIRS)
    tables.run("ALTER TABLE t RENAME COLUMN v TO value")
    with pytest.raises(psycopg.Error, match="pairs: columns of a source were altered"):
        tables.run("UPDATE t SET value = 4")
    with pytest.raises(Error, match="PT106"):
        tables.trickle.refresh_stream_table("pairs")
    tables.queries["pairs"] = PAIRS.replace("t.v", "t.value AS v")
    tables.trickle.alter_stream_table("pairs", query=tables.queries["pairs"])
    tables.write("UPDATE t SET value = 4", "DELETE FROM t WHERE id < 30")
    assert tables.stream("pairs").is_immediate


@pytest.mark.parametrize("rows", [1, 600])
def test_a_source_whose_name_another_table_has_by_now(tables: Told, rows: int) -> None:
    """As when a table is loaded again beside itself: what does not read it goes on, what does is told so."""
    tables.create("pairs", PAIRS)
    tables.run("ALTER TABLE s RENAME TO s_old", "CREATE TABLE s AS SELECT k, 'new' AS name FROM s_old")
    tables.queries["pairs"] = PAIRS.replace("JOIN s ", "JOIN s_old s ")
    tables.write("DELETE FROM s_old WHERE k = 4")
    error = tables.fails(psycopg.Error, f"INSERT INTO t SELECT g, 1, 1 FROM generate_series(100, 99 + {rows}) g")
    assert error.sqlstate == "PT707"
    assert "pairs" in str(error)
    tables.queries["pairs"] = PAIRS
    tables.trickle.alter_stream_table("pairs", query=PAIRS)
    tables.write(f"INSERT INTO t SELECT g, 1, 1 FROM generate_series(100, 99 + {rows}) g", "DELETE FROM s WHERE k = 3")


@pytest.mark.parametrize("rows", [1, 600])
def test_columns_of_a_source_that_is_read_swap_their_names(tables: Told, rows: int) -> None:
    tables.run("ALTER TABLE s ADD COLUMN other text DEFAULT 'other'")
    tables.create("pairs", PAIRS)
    tables.run(*(f"ALTER TABLE s RENAME {names}" for names in ("name TO x", "other TO name", "x TO other")))
    with pytest.raises(psycopg.Error, match="pairs: columns of a source were altered"):
        tables.run(f"INSERT INTO t SELECT g, 1, 1 FROM generate_series(100, 99 + {rows}) g")


def test_another_name_and_schema(tables: Told) -> None:
    tables.create("pairs", PAIRS)
    tables.run("ALTER TABLE pairs RENAME TO doubles")
    tables.queries = {"doubles": PAIRS}
    error = tables.fails(psycopg.Error, "UPDATE t SET v = 3")
    assert error.sqlstate == "PT705"
    tables.trickle.refresh_stream_table("doubles")
    tables.write("UPDATE t SET v = 3", "UPDATE s SET name = 'z'")
    names = tables.rows("SELECT proname FROM pg_proc WHERE proname LIKE 'i\\_%'")
    assert names
    assert all("doubles" in str(name) for (name,) in names)
    tables.run("CREATE SCHEMA other", "ALTER TABLE doubles SET SCHEMA other")
    tables.queries = {"other.doubles": PAIRS}
    tables.fails(psycopg.Error, "DELETE FROM t WHERE id < 4")
    tables.trickle.refresh_stream_table("other.doubles")
    tables.write("DELETE FROM t WHERE id < 4")


def test_a_function_of_the_query_that_is_replaced(tables: Told) -> None:
    tables.run("CREATE FUNCTION twice(n int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT n * 2'")
    tables.create("pairs", "SELECT id, twice(v) AS w FROM t")
    tables.run("CREATE OR REPLACE FUNCTION twice(n int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT n * 3'")
    with pytest.raises(psycopg.Error, match="pairs"):
        tables.run("DELETE FROM t WHERE id = 7")
    tables.trickle.refresh_stream_table("pairs")
    tables.write("DELETE FROM t WHERE id = 7", "UPDATE t SET v = v + 1")


def test_filled_later(tables: Told) -> None:
    """Until a service has filled it, it is not kept by anyone."""
    tables.trickle.create_stream_table("pairs", PAIRS, refresh_mode="IMMEDIATE", initialize=False)
    assert not tables.stream("pairs").is_immediate
    tables.run("UPDATE t SET v = 3")
    tables.trickle.refresh_stream_table("pairs")
    tables.queries["pairs"] = PAIRS
    assert tables.stream("pairs").is_immediate
    tables.write("UPDATE t SET v = 4")


def test_the_wal_of_the_setting_has_no_effect(tables: Told) -> None:
    """By name it is refused; the setting is for all tables, and is told to have none."""
    tables.trickle.settings = replace(tables.trickle.settings, cdc_mode="wal")
    with pytest.warns(IgnoredSetting, match="has no effect"):
        tables.create("pairs", PAIRS)
    tables.connection.execute("SET pg_trickle.cdc_mode = 'wal'")
    told: list[str] = []
    tables.connection.add_notice_handler(lambda notice: told.append(notice.message_primary or ""))
    tables.run("SELECT pgtrickle_internal.check_options('1m', 'immediate', NULL, NULL, NULL)")
    assert ["no effect" in each for each in told] == [True]


def test_changes_that_a_skipped_refresh_left(story18: Told) -> None:
    """Somebody else refreshes the table for long: it is not taken into the mode without its last changes."""
    story18.run(
        "CREATE TABLE src (id int PRIMARY KEY, g int)", "INSERT INTO src SELECT i, i % 3 FROM generate_series(1, 10) i"
    )
    story18.create("sums", "SELECT g, count(*) AS n FROM src GROUP BY g", mode="DIFFERENTIAL")
    story18.run("INSERT INTO src VALUES (100, 7)")
    with db.open_session(story18.dsn) as other:
        other.execute("BEGIN; SELECT FROM pgtrickle_internal.pgt_refresh_locks FOR UPDATE")
        soon = threading.Timer(1.5, other.rollback)
        soon.start()
        story18.trickle.alter_stream_table("sums", refresh_mode="IMMEDIATE")
        soon.join()
    assert story18.stream("sums").effective_mode == "IMMEDIATE"
    story18.right()
    story18.write("DELETE FROM src WHERE id = 100", "INSERT INTO src VALUES (101, 7)")


def test_writers_that_come_to_take_finer_turns(story18: Told) -> None:
    """They would not meet those that take them as before: the table is defined again, with the writers locked out."""
    story18.run(
        "CREATE TABLE src (id int PRIMARY KEY, g int)", "INSERT INTO src SELECT i, i % 3 FROM generate_series(1, 10) i"
    )
    name = str(story18.rows("SELECT current_database()")[0][0])
    story18.run(f"ALTER DATABASE {name} SET pg_trickle.user_triggers = 'on'")
    with Trickle(story18.dsn) as before:
        before._refresher.without_spark = True
        before.create_stream_table("sums", "SELECT g, count(*) AS n FROM src GROUP BY g", refresh_mode="IMMEDIATE")
    story18.queries["sums"] = "SELECT g, count(*) AS n FROM src GROUP BY g"
    assert story18.rows("SELECT count(*) FROM pgtrickle_state.i_1_turn") == [(1,)]
    story18.run(f"ALTER DATABASE {name} RESET pg_trickle.user_triggers")
    story18.trickle.refresh_stream_table("sums")
    assert story18.stream("sums").effective_mode == "IMMEDIATE"
    story18.write(*(f"INSERT INTO src VALUES ({200 + each}, {each})" for each in range(5)))


def test_literals_in_a_session_that_reads_them_in_another_way(story18: Told) -> None:
    story18.run("CREATE TABLE src (id int PRIMARY KEY, s text)")
    story18.create("marked", r"SELECT id, s || '\' AS z FROM src WHERE s <> '\'")
    with db.open_session(story18.dsn) as writer:
        writer.execute("SET standard_conforming_strings = off")
        writer.execute("INSERT INTO src VALUES (1, 'a'), (2, chr(92)), (3, NULL)")
        writer.execute("UPDATE src SET s = s || chr(92)")
    story18.right()
