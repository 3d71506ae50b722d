"""Hazard types: every image is captured as it is, and a change of the image alone is a change."""

from __future__ import annotations

import pytest

from pgtrickle.db import Connection

from .conftest import Follow, run

TYPES = """
    CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
    CREATE DOMAIN positive AS int NOT NULL CHECK (VALUE > 0);
    CREATE DOMAIN nested AS positive CHECK (VALUE < 1000);
    CREATE TYPE point3 AS (x int, y numeric, z text);
    CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
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
    ('text COLLATE "nocase"', "abc", "ABC", "äbc"),
    ("mood", "sad", "happy", "ok"),
    ("positive", "1", "2", "3"),
    ("nested", "1", "2", "3"),
    ("point3", "(1,1.0,a)", "(1,1.00,a)", "(,,)"),
    ("int4range", "[1,5)", "empty", "(,)"),
    ("int4multirange", "{[1,5)}", "{}", "{[1,2),[3,4)}"),
    ("bit varying(8)", "1", "10", "00000000"),
    ("inet", "10.0.0.1", "10.0.0.1/8", "::1"),
    ("uuid", "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff", "11111111-1111-1111-1111-111111111111"),
    ("money", "1.00", "-1.00", "0.01"),
    ("xml", "<a/>", "<a></a>", "<b/>"),
    ("tsvector", "a:1", "a:2", "b"),
    ("point", "(0,0)", "(1e-300,0)", "(NaN,1)"),
    ("boolean", "true", "false", "true"),
]


@pytest.mark.parametrize("mode", ["statement", "row"])
@pytest.mark.parametrize("hazard", HAZARDS, ids=[each[0] for each in HAZARDS])
def test_hazard_type(conn: Connection, follow: Follow, hazard: tuple[str, str, str, str], mode: str) -> None:
    type_name, first, second, third = hazard
    if type_name == "xml" and not _has_xml(conn):
        pytest.skip("this server is built without libxml")
    conn.execute(TYPES)
    run(conn, f"CREATE TABLE h (id int, v {type_name})")
    ledger = follow("h", "id", "v", mode=mode)
    with conn.transaction(), conn.cursor() as cursor:
        cast = type_name.split(" COLLATE")[0]
        insert = f"INSERT INTO h SELECT g, %s::text::{cast} FROM generate_series(1, 3) g"
        cursor.execute(insert.encode(), (first,))
    assert ledger.check().changes == 3
    update = f"UPDATE h SET v = %s::text::{cast} WHERE id = %s"
    conn.execute(update.encode(), (second, 1))
    assert ledger.check().changes == 1, "the image changed, though the value may be equal"
    conn.execute(update.encode(), (first, 2))
    assert ledger.check().changes == 0, "the same image is no change"
    conn.execute(update.encode(), (third, 3))
    ledger.check()
    run(conn, "INSERT INTO h SELECT id + 10, v FROM h", "DELETE FROM h WHERE id < 10")
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
        "CREATE TABLE g (a int, twice int GENERATED ALWAYS AS (a * 2) STORED, low text GENERATED ALWAYS AS ('x' || (a > 5)) STORED)",
        "INSERT INTO g (a) SELECT generate_series(1, 10)",
    )
    ledger = follow("g", "twice", "low", mode=mode)
    run(conn, "UPDATE g SET a = a + 3 WHERE a < 4", "DELETE FROM g WHERE a = 9", "INSERT INTO g (a) VALUES (0)")
    assert ledger.check().changes == 5


@pytest.mark.parametrize("mode", ["statement", "row"])
def test_virtual_generated_column(database18: str, mode: str) -> None:
    """Transition tables hold NULL for it, so the capture function computes it."""
    from pgtrickle import db
    from pgtrickle.capture import triggers
    from pgtrickle.catalog.install import install

    from .conftest import Ledger, table_of

    with db.connect(database18) as conn:
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


def _has_xml(conn: Connection) -> bool:
    import psycopg

    try:
        conn.execute("SELECT '<a/>'::xml")
    except psycopg.errors.FeatureNotSupported:
        return False
    return True
