"""A stream table is what its query is under the settings at its creation, whatever is set for the database later."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession

from pgtrickle import db
from pgtrickle.answers import STORED
from pgtrickle.api import Trickle
from pgtrickle.capture.modes import CaptureMode
from pgtrickle.catalog import reader
from pgtrickle.catalog.install import MIGRATIONS, install
from pgtrickle.errors import QueryError, SessionWarning, StateError
from pgtrickle.scheduler import request_executor
from tests.wal.moving import moving

AT_CREATION = {
    "TimeZone": "America/New_York",
    "DateStyle": "ISO, DMY",
    "default_text_search_config": "pg_catalog.english",
    "timezone_abbreviations": "Australia",
    "search_path": "public",
}
LATER = [
    {"TimeZone": "Asia/Tokyo", "DateStyle": "German", "array_nulls": "off", "quote_all_identifiers": "on"},
    {
        "default_text_search_config": "pg_catalog.german",
        "IntervalStyle": "iso_8601",
        "bytea_output": "escape",
        "extra_float_digits": "-10",
        "transform_null_equals": "on",
        "search_path": "elsewhere, pg_catalog",
        "timezone_abbreviations": "India",
        "standard_conforming_strings": "off",
        "lc_time": "POSIX",
        "xmlbinary": "hex",
        "row_security": "off",
        "backslash_quote": "off",
    },
    {"TimeZone": "Europe/Berlin", "DateStyle": "SQL, MDY", "array_nulls": "on", "gin_fuzzy_search_limit": "1"},
]
SOURCES = """
    CREATE SCHEMA elsewhere;
    CREATE TABLE public.events (id int PRIMARY KEY, kind int, at timestamptz, here timestamp, said text, doc text,
        list text[], price money, n numeric, span interval, raw bytea, f float8);
    CREATE TABLE public."Kinds" (id int PRIMARY KEY, "the Label" text, day date);
    CREATE TABLE elsewhere.events (id int);
    ALTER TABLE public.events REPLICA IDENTITY FULL;
    INSERT INTO public."Kinds" VALUES (1, 'one', '2024-06-30'), (2, 'two', '2024-07-01'), (3, 'NULL', NULL);
"""
QUERIES = {
    "looks": "SELECT id, at::text AS t, at::date AS d, extract(hour FROM at) AS h, date_trunc('day', at) AS day,"
    " here::timestamptz AS z, said::date AS s, to_tsvector(doc) AS v, to_char(here, 'TMMonth TMDay HH24') AS m,"
    " price, price::text AS p, to_char(n, 'L999G999D99') AS c, list, list::text AS l, span::text AS sp, raw::text AS r,"
    " f::text AS f, quote_ident(doc) AS quoted, ('{' || doc || ',NULL}')::text[] AS made,"
    " ('2024-01-01 12:00 ' || 'IST')::timestamptz AS abbreviated FROM events",
    "daily": "SELECT at::date AS day, to_char(at, 'HH24') AS hour, count(*) AS n, sum(price) AS total, max(said::date)"
    " AS last, array_agg(list ORDER BY id) AS lists FROM events GROUP BY 1, 2",
    "joined": 'SELECT e.id, k."the Label", e.at::text AS t, e.list FROM events AS e JOIN "Kinds" AS k ON k.id = e.kind'
    " WHERE e.said::date > '01/02/2024'",
    "matched": 'SELECT k.id, k."the Label", e.id AS event FROM "Kinds" AS k'
    " LEFT JOIN events AS e ON e.at::date = k.day",
    "first": "SELECT id, at::text AS t FROM events ORDER BY at::text, id LIMIT 2",
    "lists": "SELECT DISTINCT list, to_tsvector(doc) AS v FROM events",
    "whole": "SELECT id, at::text AS t, at::date AS d, to_tsvector(doc) AS v, said::date AS s FROM events",
}
ROW = (
    "({0}, 1 + {0} % 3, timestamptz '2024-06-30 22:30:00+00' + {0} * interval '3 hours',"
    " timestamp '2024-03-31 02:30:00', '0{1}/02/2024', 'the Running dogs {0}', ARRAY['a', NULL, 'NULL', 'b\"c\\d'],"
    " '1234.5{1}'::money, 1234.5{1},"
    " interval '-1 year 2 days 3 hours', '\\x00ff'::bytea, 0.1::float8 + 0.2)"
)


def put(dsn: str, settings: dict[str, str]) -> None:
    """Sets them for the database, and ends all other sessions of it: whoever comes has the new ones."""
    with psycopg.connect(dsn, autocommit=True, options="-csearch_path=pg_catalog") as admin:
        for name, value in settings.items():
            values = sql.SQL(value) if name == "search_path" else sql.Literal(value)
            admin.execute(
                sql.SQL("ALTER DATABASE {} SET {} = {}").format(
                    sql.Identifier(admin.info.dbname), sql.Identifier(name), values
                )
            )
        admin.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )


@contextmanager
def under(dsn: str, settings: dict[str, str]) -> Iterator[psycopg.Connection]:
    """A session with these, and PostgreSQL's defaults for all that is set for the database: the oracle's."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        for name in {name for each in LATER for name in each}:
            conn.execute(sql.SQL("SET {} TO DEFAULT").format(sql.Identifier(name)))
            conn.execute(f"SELECT set_config(name, boot_val, false) FROM pg_settings WHERE name = '{name}'".encode())
        for name, value in settings.items():
            conn.execute("SELECT set_config(%s, %s, false)", (name, value))
        yield conn


def rows(conn: psycopg.Connection, query: str) -> Counter[str]:
    return Counter(str(row) for (row,) in conn.execute(f"SELECT whole_row::text FROM ({query}) AS whole_row".encode()))


def write(dsn: str, window: int) -> None:
    """A window of inserts, updates and deletes, by a session with whatever is set by now."""
    id = 10 * window
    with psycopg.connect(dsn, autocommit=True) as user:
        user.execute("SET search_path = public; SET standard_conforming_strings = on; SET DateStyle = ISO")
        values = ", ".join(ROW.format(id + place, 1 + place) for place in range(4))
        user.execute(f"INSERT INTO events VALUES {values}".encode())
        user.execute(f"UPDATE events SET at = at + interval '1 day', said = '03/02/2024' WHERE id = {id + 1}".encode())
        user.execute(f"DELETE FROM events WHERE id IN ({id + 2}, {id - 7})".encode())
        user.execute(f"UPDATE \"Kinds\" SET day = date '2024-07-01' + {window} WHERE id = 1".encode())


def refresh(trickle: Trickle) -> None:
    for name in QUERIES:
        action = trickle.refresh_stream_table(f"public.{name}").action
        assert action == ("FULL" if name == "whole" else "DIFFERENTIAL"), name


def test_what_is_set_later_changes_nothing(database18: str, spark: SparkSession) -> None:
    with db.connect(database18) as admin:
        admin.execute(SOURCES)
    put(database18, AT_CREATION)
    write(database18, 0)
    with Trickle(database18, spark=spark) as trickle:
        for name, query in QUERIES.items():
            trickle.create_stream_table(
                name, query, refresh_mode="FULL" if name == "whole" else "DIFFERENTIAL", cdc_mode="trigger"
            )
    for window, settings in enumerate(LATER, start=1):
        put(database18, settings)
        write(database18, window)
        with Trickle(database18, spark=spark) as trickle:
            refresh(trickle)
            equal(database18)
            assert [found for found in trickle.verify() if not found.equal] == []
    with moving(database18) as mover, Trickle(database18, spark=spark) as trickle:
        mover.to(int(str(db.scalar(mover.conn, "SELECT 'public.events'::regclass::oid"))), CaptureMode.WAL)
        write(database18, len(LATER) + 1)
        refresh(trickle)
        equal(database18)
        with pytest.warns(SessionWarning):
            trickle.alter_stream_table("public.whole", query="SELECT id, at::text AS t FROM public.events")
        with under(database18, {"TimeZone": "Europe/Berlin"}) as present:
            assert rows(present, "SELECT * FROM public.whole") == rows(
                present, "SELECT id, at::text AS t FROM public.events"
            ), "a new query is read with what is set by now"


def equal(dsn: str) -> None:
    with under(dsn, AT_CREATION) as oracle:
        for name, query in QUERIES.items():
            assert rows(oracle, f"SELECT * FROM {name}") == rows(oracle, query), name


@pytest.fixture
def odd(database18: str) -> str:
    """A database in which texts mean something else."""
    with db.connect(database18) as admin:
        admin.execute("CREATE TABLE public.t (id int, x int, span interval)")
    put(database18, {"transform_null_equals": "on", "array_nulls": "off", "IntervalStyle": "iso_8601"})
    return database18


def test_a_query_that_means_something_else_here_is_refused(odd: str) -> None:
    with Trickle(odd) as trickle:
        for query in (
            "SELECT id FROM t WHERE x = NULL",
            "SELECT id, '{NULL}'::text[] AS list FROM t",
        ):
            with pytest.raises(QueryError) as refused, pytest.warns(SessionWarning):
                trickle.create_stream_table("st", query, initialize=False)
            assert refused.value.code == "PT293"
            assert "transform_null_equals = on" in refused.value.message
        assert trickle.status() == ()


def test_what_will_look_different_is_told(odd: str) -> None:
    with Trickle(odd) as trickle:
        with pytest.warns(SessionWarning) as told:
            trickle.create_stream_table("st", "SELECT id, span::text AS s FROM t", initialize=False)
        assert [str(each.message).split(" is ")[0] for each in told] == ["st: array_nulls", "st: IntervalStyle"]
        text = trickle.explain("st")
        assert "evaluated under\n  DateStyle ISO, MDY, TimeZone" in text
        assert "IntervalStyle is iso_8601 in the session that defined it, and postgres wherever it is computed" in text


def test_a_request_is_carried_out_with_what_the_session_had_that_made_it(database18: str) -> None:
    with db.connect(database18) as admin:
        admin.execute("CREATE SCHEMA mine; CREATE TABLE mine.t (id int, at timestamptz)")
    with Trickle(database18) as trickle, psycopg.connect(database18, autocommit=True) as user:
        user.execute("SET TimeZone = 'Asia/Tokyo'; SET DateStyle = 'SQL, DMY'; SET search_path = mine, public")
        user.execute(
            "SELECT pgtrickle.create_stream_table('st', 'SELECT id, at::text AS a FROM t', initialize => false)"
        )
        assert request_executor.carry_out(trickle.connection, trickle) == 1
        request = user.execute("SELECT state, error, result -> 'notes' FROM pgtrickle.pgt_requests").fetchone()
        assert request is not None
        assert request[:2] == ("DONE", None)
        assert "DateStyle is SQL, DMY" in request[2][0]
        (stream,) = trickle.status("mine.st")
        assert stream.settings["TimeZone"] == "Asia/Tokyo"
        assert stream.search_path == "mine, public"
        assert db.scalar(trickle.connection, "SHOW search_path") == db.OWN_PATH


def test_a_function_that_needs_a_path_says_so(database18: str, spark: SparkSession) -> None:
    """As with REFRESH MATERIALIZED VIEW in PostgreSQL 17 and later."""
    with db.connect(database18) as admin:
        admin.execute(
            "CREATE TABLE public.t (id int); INSERT INTO public.t VALUES (1);"
            "CREATE FUNCTION public.helper(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1 + 1';"
            "CREATE FUNCTION public.calls(int) RETURNS int IMMUTABLE LANGUAGE plpgsql"
            " AS 'BEGIN RETURN helper($1); END'"
        )
    with Trickle(database18, spark=spark) as trickle:
        with pytest.raises(StateError) as refused:
            trickle.create_stream_table("st", "SELECT calls(id) AS c FROM t")
        assert refused.value.code == "PT294"
        assert "calls(integer)" in refused.value.message
        assert "SET search_path" in str(refused.value.hint)
        assert trickle.status() == ()
        with db.connect(database18) as admin:
            admin.execute("ALTER FUNCTION public.calls(int) SET search_path = public")
        trickle.create_stream_table("st", "SELECT calls(id) AS c FROM t")
        assert trickle.verify("st")[0].equal


def test_members_that_commit_together_have_each_their_own(database18: str, spark: SparkSession) -> None:
    """An atomic diamond, and a circle: several tables in one transaction, defined in three time zones."""
    zones = ["Asia/Tokyo", "America/New_York", "UTC"]
    arms = "SELECT id, at::text AS t FROM e"
    with psycopg.connect(database18, autocommit=True) as user:
        user.execute("CREATE TABLE e (id int PRIMARY KEY, at timestamptz)")
        user.execute("INSERT INTO e VALUES (1, '2024-06-30 22:30:00+00')")

        def trickle(zone: str) -> Trickle:
            options = f"-cTimeZone={zone} -cpg_trickle.allow_circular=on"
            return Trickle(make_conninfo(database18, options=options), spark=spark)

        ends = "SELECT l.id, l.t AS l, r.t AS r, e.at::text AS t FROM l JOIN r USING (id) JOIN e USING (id)"
        for zone, (name, query) in zip(zones, {"l": arms, "r": arms, "ends": ends}.items(), strict=True):
            with trickle(zone) as defining:
                defining.create_stream_table(name, query, refresh_mode="DIFFERENTIAL")
        either = "SELECT at::text AS t FROM e UNION SELECT t FROM {}"
        for zone, name, reads in ((zones[0], "a", None), (zones[1], "b", "a"), (zones[0], "a", "b")):
            with trickle(zone) as defining:
                if name == "a" and reads == "b":
                    defining.alter_stream_table(name, query=either.format(reads))
                else:
                    query = either.format(reads) if reads else "SELECT at::text AS t FROM e UNION SELECT 'none'"
                    defining.create_stream_table(name, query, refresh_mode="DIFFERENTIAL")
        user.execute("INSERT INTO e VALUES (2, '2024-12-31 23:30:00+00')")
        with trickle("Europe/Berlin") as anyone:
            assert anyone.refresh_stream_table("ends").action == "DIFFERENTIAL"
            anyone.refresh_stream_table("a")
        shown = {zone: times(user, zone) for zone in zones}
        assert set(user.execute("SELECT l, r, t FROM ends")) == set(zip(*(shown[zone] for zone in zones), strict=True))
        for name in ("a", "b"):
            found = {t for (t,) in user.execute(f"SELECT t FROM {name}".encode())}
            assert found == {*shown[zones[0]], *shown[zones[1]]}, name


def times(conn: psycopg.Connection, zone: str) -> list[str]:
    conn.execute("SELECT set_config('TimeZone', %s, false)", (zone,))
    return [str(t) for (t,) in conn.execute("SELECT at::text FROM e ORDER BY id")]


def test_a_table_of_before_takes_those_of_the_session_that_upgrades(database18: str, tmp_path: Path) -> None:
    for file in MIGRATIONS.glob("*.sql"):
        if file.name < next(MIGRATIONS.glob("*_sessions.sql")).name:
            shutil.copy(file, tmp_path)
    put(database18, {"TimeZone": "Asia/Tokyo"})
    with db.connect(database18) as conn:
        install(conn, directory=tmp_path)
        conn.execute(
            "INSERT INTO pgtrickle.pgt_stream_tables (pgt_relid, pgt_schema, pgt_name, defining_query,"
            " normalized_query, refresh_mode, effective_mode, search_path)"
            " VALUES (1, 'public', 'st', '', '', 'AUTO', 'FULL', '')"
        )
        install(conn)
        (found,) = reader.list_tables(conn)
    assert found.settings["TimeZone"] == "Asia/Tokyo"
    assert set(found.settings) >= set(STORED)
