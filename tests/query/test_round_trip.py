"""Every type's odd values, sent and received: what comes back is the same, to the last bit. No Spark."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from pgtrickle import db
from pgtrickle.db import Connection, statement
from pgtrickle.postgres.copy import pipe
from pgtrickle.postgres.wire import receive, send
from pgtrickle.query.analyse.scratch_view import scratch
from pgtrickle.query.compile import compile_query

TYPES = (
    "CREATE TABLE t (a int)",
    "GRANT SELECT ON t TO PUBLIC",
    'CREATE TABLE "Odd ""T" (a int)',
    "CREATE TABLE pg_class (a int)",
    "CREATE TYPE two AS (a text, b text)",
    "CREATE TYPE numbered AS (n int, b two)",
    "CREATE TYPE lasting AS (n int, i interval)",
    "CREATE TYPE mood AS ENUM ('b', 'x y', '\"')",
    "CREATE DOMAIN waiting AS interval CHECK (VALUE IS NOT NULL)",
    "CREATE DOMAIN small AS int",
    "CREATE TYPE span AS RANGE (subtype = interval)",
)
LEAST = "'-9223372036854775808 microseconds'"
VALUES = rf"""
interval {LEAST}
interval '1 day -9223372036854775808 microseconds'
interval '-178956970 years -8 mons -2147483648 days -9223372036854775808 microseconds'
interval '178956970 years 7 mons 2147483647 days 9223372036854775807 microseconds'
interval '-1 mon +1 day -00:00:00.000001'
interval '-9223372036854775807 microseconds'
ARRAY[interval {LEAST}, NULL, '1 day'] ~ ARRAY[ARRAY[interval {LEAST}]] ~ waiting {LEAST} ~ ARRAY[waiting {LEAST}]
span(interval {LEAST}, '1 day', '[]') ~ ARRAY[span(interval {LEAST}, NULL)] ~ span_multirange(span({LEAST}, '1 s'))
date '4713-01-01 BC' ~ date '5874897-12-31' ~ date 'infinity' ~ date '-infinity'
timestamp '4713-01-01 00:00:00 BC' ~ timestamp '294276-12-31 23:59:59.999999' ~ timestamp '-infinity'
timestamptz '4713-01-01 00:00:00+00 BC' ~ timestamptz '294276-12-31 23:59:59.999999+00' ~ timestamptz 'infinity'
time '24:00' ~ timetz '24:00+15:59:59' ~ timetz '00:00-15:59:59'
float8 '-0' ~ float8 'nan' ~ float8 '4.9406564584124654e-324' ~ float8 '1.7976931348623157e308' ~ float8 '-infinity'
float4 '1.4e-45' ~ float4 '3.4028235e38' ~ float4 '0.1'
numeric 'NaN' ~ numeric 'Infinity' ~ numeric '1e-16383' ~ numeric '1e131071' ~ numeric '0.00' ~ 1.0::numeric(1000, 500)
money '-92233720368547758.08' ~ money '92233720368547758.07'
int8 '-9223372036854775808' ~ int2 '-32768' ~ small '-2147483648'
''::"char" ~ E'\\200'::"char" ~ E'\\377'::"char" ~ ' '::"char" ~ '\'::"char"
'a  '::character(5) ~ ''::character(5) ~ 'a  '::varchar(5) ~ repeat('x', 63)::name ~ E'\u0001\u2028\U0010FFFF'::text
B'' ~ B'101'::bit(3) ~ ''::varbit ~ '101'::bit varying(5) ~ '\x00ff'::bytea ~ ''::bytea
'a:1A,2B b:16383'::tsvector ~ $$'a\'' 'b c' '\\' ':*'$$::tsvector ~ ''::tsvector
$$!('a b' & 'c\'d':*AB) | '\\'$$::tsquery ~ ''::tsquery
int4range(1, 5) ~ 'empty'::int4range ~ '[,]'::int4range ~ tstzrange(NULL, 'infinity')
'{{[1,2),[4,5)}}'::int4multirange ~ tsrange('4713-01-01 BC', 'infinity', '[]')
'[0:1]={{1,2}}'::int[] ~ '[-2147483647:-2147483646]={{1,NULL}}'::int[] ~ '{{}}'::int[] ~ '{{{{1,2}},{{3,4}}}}'::int[]
ARRAY['NULL', 'null', NULL, '', '"', '\', '{{', 'a b']
ROW(NULL, NULL)::two ~ ROW('', '"')::two ~ ARRAY[ROW('a,"b', '(')::two] ~ ROW(1, ROW(E'\\', NULL)::two)::numbered
'b'::mood ~ 'x y'::mood ~ '"'::mood ~ ARRAY['x y', '"']::mood[]
'$.a[*] ? (@."x" == 1e-5)'::jsonpath ~ 'strict $'::jsonpath
'{{"a": 1e400, "b": "\u0001"}}'::jsonb ~ '{{"a":1,"a":  2}}'::json
999999::regclass ~ 0::regclass ~ '"Odd ""T"'::regclass ~ 'pg_catalog.pg_class'::regclass ~ 'public.pg_class'::regclass
999999::regproc ~ 0::regproc ~ 'now'::regproc ~ 999999::regprocedure ~ 'sum(int)'::regprocedure
999999::regoper ~ 0::regoper ~ 999999::regoperator ~ 'pg_catalog.+(int4,int4)'::regoperator
999999::regtype ~ 0::regtype ~ 'two[]'::regtype ~ 999999::regrole ~ 999999::regnamespace ~ 'public'::regnamespace
999999::regconfig ~ 999999::regdictionary ~ 999999::regcollation ~ ARRAY[999999::regclass, 0, 'public.pg_class']
(SELECT relacl FROM pg_catalog.pg_class WHERE relname = 't')
(SELECT relacl[1] FROM pg_catalog.pg_class WHERE relname = 't')
'0/0'::pg_lsn ~ 'FFFFFFFF/FFFFFFFF'::pg_lsn ~ '10:20:10,14,15'::txid_snapshot ~ '10:20:10,14,15'::pg_snapshot
'18446744073709551615'::xid8 ~ '4294967295'::xid ~ '4294967295'::cid ~ '4294967295'::oid ~ '(4294967295,65535)'::tid
inet '::1/64' ~ cidr '10.0.0.0/8' ~ inet '10.1.2.3/8' ~ macaddr '08:00:2b:01:02:03' ~ macaddr8 '08:00:2b:01:02:03:04:05'
point '(-0,nan)' ~ point '(inf,-inf)' ~ line '{{1,-0,3}}' ~ lseg '[(0,0),(1,1e-320)]' ~ box '(1,1),(0,0)'
path '[(0,0),(1,1)]' ~ path '((0,0),(1,1))' ~ polygon '((0,0),(1,1))' ~ circle '<(0,0),nan>'
'1 2 3'::int2vector ~ ''::int2vector ~ '1 2 3'::oidvector ~ uuid '00000000-0000-0000-0000-000000000000'
"""
ALL = [value.strip() for line in VALUES.strip().splitlines() for value in line.split(" ~ ")]
SINCE_17 = ("interval 'infinity'", "interval '-infinity'", "ARRAY[interval '-infinity']")


@pytest.fixture
def conn(database: str) -> Iterator[Connection]:
    with db.open_session(database) as connection:
        for each in TYPES:
            connection.execute(statement(each))
        yield connection


def _comes_back(conn: Connection, value: str) -> str | None:
    """None if the value comes back the same; else what became of it."""
    try:
        with scratch(conn, "public") as place:
            (column,) = place.attributes(place.define(f"SELECT {value} AS x"))
        sent, received = send("x", column.type), receive("s", column.type)
        row = conn.execute(
            statement(
                f"SELECT ROW(x)::record *= ROW({received})::record, s FROM (SELECT x, {sent} AS s FROM"
                f" (SELECT {value} AS x OFFSET 0) AS a OFFSET 0) AS b"
            )
        ).fetchone()
    except psycopg.Error as error:
        return str(error)
    assert row is not None
    return None if row[0] else f"sent as {row[1]!r}"


def test_all_values_come_back(conn: Connection) -> None:
    values = [*ALL, *(SINCE_17 if conn.info.server_version >= 170000 else ())]
    wrong = {value: found for value in values if (found := _comes_back(conn, value)) is not None}
    assert wrong == {}


def test_rows_that_go_from_session_to_session(database18: str) -> None:
    with db.open_session(database18) as source, db.open_session(database18) as target:
        for each in TYPES:
            source.execute(statement(each))
        target.execute("CREATE TEMPORARY TABLE copied (i interval, s span, n int, w waiting[], b two)")
        row = f"interval {LEAST}, span({LEAST}, '1 s'), NULL::int, ARRAY[waiting {LEAST}], ROW({LEAST}, NULL)::two"
        pipe(source, f"SELECT {row}", target, "pg_temp.copied")
        assert target.execute(
            statement(f"SELECT ROW({row})::record *= ROW(c.*)::record FROM copied AS c")
        ).fetchall() == [(True,)]


def test_what_cannot_is_refused(database18: str) -> None:
    with db.open_session(database18) as conn:
        for each in (*TYPES, "CREATE TABLE s (id int, l lasting, m lasting[], w waiting, b two)"):
            conn.execute(statement(each))
        refusals = {name: compile_query(conn, f"SELECT {name} AS x FROM s").refusal for name in ("l", "m", "w", "b")}
        codes = {name: refusal and refusal.code for name, refusal in refusals.items()}
        assert codes == {"l": "PT283", "m": "PT283", "w": None, "b": None}
        assert compile_query(conn, "SELECT id, w FROM s").tree is not None
