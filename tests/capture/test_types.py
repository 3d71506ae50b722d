"""Hazard types: every image is captured as it is, and a change of the image alone is a change."""

from __future__ import annotations

import psycopg
import pytest

from pgtrickle import db
from pgtrickle.capture import triggers
from pgtrickle.catalog.install import install
from pgtrickle.db import Connection

from .conftest import Follow, Ledger, run, table_of

TYPES = """
    CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
    CREATE DOMAIN positive AS int NOT NULL CHECK (VALUE > 0);
    CREATE DOMAIN nested AS positive CHECK (VALUE < 1000);
    CREATE TYPE point3 AS (x int, y numeric, z text);
"""

# type, value, another that `=` may call the same, a third
HAZARDS = [
    ("numeric", "1.0", "1.00", "1e40"),
    ("numeric(10,2)", "1.00", "NaN", "-0.01"),
    ("double precision", "0", "-0", "NaN"),
    ("real", "1e-40", "Infinity", "0.1"),
    ("date", "infinity", "4713-01-01 BC", "-infinity"),
    ("timestamptz", "infinity", "2024-03-10 02:30:00.123456+01", "0044-03-15 BC"),
    ("timetz", "12:00:00+00", "13:00:00+01", "24:00:00"),
    ("interval", "1 month", "30 days", "720 hours"),
    ("json", '{"a": 1}', '{"a":1}', '{"a":1,"a":2}'),
    ("jsonb", '{"a": 1.0}', '{"a": 1.00}', "null"),
    ("int[]", "{1,2}", "[5:6]={1,2}", "{}"),
    ("text[][]", "{{a,NULL},{c,d}}", '{{a,"NULL"},{c,d}}', "[0:0][2:2]={{x}}"),
    ("bytea", "\\x", "\\x00", "\\xff00"),
    ("char(5)", "a", "ab", ""),
    ("varchar(10)", "a", "a ", ""),
    ("mood", "sad", "happy", "ok"),
    ("positive", "1", "2", "3"),
    ("nested", "1", "2", "3"),
    ("point3", "(1,1.0,a)", "(1,1.00,a)", "(,,)"),
    ("int4range", "[1,5)", "empty", "(,)"),
    ("int4multirange", "{[1,5)}", "{}", "{[1,2),[3,4)}"),
    ("bit varying(8)", "1", "10", "00000000"),
    ("inet", "10.0.0.1", "10.0.0.1/8", "::1"),
    ("uuid", "0" * 32, "f" * 32, "1" * 32),
    ("money", "1.00", "-1.00", "0.01"),
    ('text COLLATE "C"', "abc", "ABC", "äbc"),
    ("tsvector", "a:1", "a:2", "b"),
    ("point", "(0,0)", "(1e-300,0)", "(NaN,1)"),
    ("boolean", "true", "false", "true"),
]


@pytest.mark.parametrize("mode", ["statement", "row"])
def test_hazard_types(conn: Connection, follow: Follow, mode: str) -> None:
    conn.execute(TYPES)
    for place, (type_name, *values) in enumerate(HAZARDS):
        _check_hazard(conn, follow, mode, f"h{place}", type_name, values)


@pytest.mark.parametrize(
    ("build_option", "prepare", "type_name", "values"),
    [
        (
            "ICU",
            "CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
            'text COLLATE "nocase"',
            ["abc", "ABC", "äbc"],
        ),
        ("libxml", "SELECT '<a/>'::xml", "xml", ["<a/>", "<a></a>", "<b/>"]),
    ],
    ids=["nondeterministic collation", "xml"],
)
def test_hazard_type_of_some_builds(
    conn: Connection, follow: Follow, build_option: str, prepare: str, type_name: str, values: list[str]
) -> None:
    try:
        conn.execute(db.statement(prepare))
    except psycopg.errors.FeatureNotSupported:
        pytest.skip(f"this server is built without {build_option}")
    _check_hazard(conn, follow, "statement", "h", type_name, values)


def _check_hazard(conn: Connection, follow: Follow, mode: str, table: str, type_name: str, values: list[str]) -> None:
    first, second, third = values
    run(conn, f"CREATE TABLE {table} (id int, v {type_name})")
    ledger = follow(table, "id", "v", mode=mode)
    cast = type_name.split(" COLLATE")[0]
    conn.execute(db.statement(f"INSERT INTO {table} SELECT g, %s::text::{cast} FROM generate_series(1, 3) g"), (first,))
    assert ledger.check().changes == 3, type_name
    update = db.statement(f"UPDATE {table} SET v = %s::text::{cast} WHERE id = %s")
    conn.execute(update, (second, 1))
    assert ledger.check().changes == 1, f"{type_name}: the image changed, though the value may be equal"
    conn.execute(update, (first, 2))
    assert ledger.check().changes == 0, f"{type_name}: the same image is no change"
    conn.execute(update, (third, 3))
    ledger.check()
    run(conn, f"INSERT INTO {table} SELECT id + 10, v FROM {table}", f"DELETE FROM {table} WHERE id < 10")
    ledger.check()


def test_nulls(conn: Connection, follow: Follow) -> None:
    run(conn, "CREATE TABLE h (a int, b text)", "INSERT INTO h VALUES (NULL, NULL), (NULL, NULL), (1, '')")
    ledger = follow("h", "a", "b")
    run(conn, "UPDATE h SET b = NULL")
    assert ledger.check().changes == 1
    run(conn, "UPDATE h SET a = NULL", "DELETE FROM h WHERE ctid = (SELECT max(ctid) FROM h)")
    ledger.check()


@pytest.mark.parametrize("mode", ["statement", "row"])
def test_stored_generated_column(conn: Connection, follow: Follow, mode: str) -> None:
    run(
        conn,
        "CREATE TABLE g (a int, twice int GENERATED ALWAYS AS (a * 2) STORED,"
        " low text GENERATED ALWAYS AS ('x' || (a > 5)) STORED)",
        "INSERT INTO g (a) SELECT generate_series(1, 10)",
    )
    ledger = follow("g", "twice", "low", mode=mode)
    run(conn, "UPDATE g SET a = a + 3 WHERE a < 4", "DELETE FROM g WHERE a = 9", "INSERT INTO g (a) VALUES (0)")
    assert ledger.check().changes == 5


@pytest.mark.parametrize("mode", ["statement", "row"])
def test_virtual_generated_column(database18: str, mode: str) -> None:
    """Transition tables hold NULL for it, so the capture function computes it."""
    with db.open_session(database18) as conn:
        install(conn)
        run(
            conn,
            "CREATE TABLE g (a int, b text, v int GENERATED ALWAYS AS (a * 2) VIRTUAL,"
            " w text GENERATED ALWAYS AS (upper(b) || '/' || a) VIRTUAL)",
            "INSERT INTO g (a, b) SELECT g, 'x' || g FROM generate_series(1, 10) g",
        )
        source = table_of(conn, "g")
        with conn.transaction():
            triggers.attach(conn, source, ["v", "w"], trigger_mode=mode)
        ledger = Ledger(conn, source, ["v", "w"])
        ledger.reset()
        run(conn, "INSERT INTO g (a, b) VALUES (50, 'q'), (51, NULL)", "UPDATE g SET a = a + 1 WHERE a < 3")
        assert ledger.check().changes == 4
        run(conn, "DELETE FROM g WHERE a > 5", "UPDATE g SET b = upper(b)")
        ledger.check()
        run(conn, "ALTER TABLE g ALTER COLUMN v SET EXPRESSION AS (a * 3)", "UPDATE g SET a = 0 WHERE a = 4")
        assert ledger.check().truncated, "a new expression changes rows that no trigger sees"
