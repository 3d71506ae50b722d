"""What Spark evaluates by itself is what PostgreSQL answers, as text; where PostgreSQL has an error, Spark stops.

Each expression of the list is asked for all edge values of the columns it reads. A value that Spark's types do not hold
may make it stop, and never makes it answer something else.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from tests.conftest import fresh_database

from pgtrickle import db, embedded
from pgtrickle.model import Column, PgType
from pgtrickle.physical.spark_sql import NotListedError, Value, agrees, of_column, of_expression
from pgtrickle.postgres.wire import WEIGHT, send
from pgtrickle.query.expression import from_node
from pgtrickle.query.syntax import dialect
from pgtrickle.spark.java_errors import stopped_at
from pgtrickle.spark.worker import arrow_schema


def listed(texts: str) -> list[str]:
    return texts.split("; ")


NUMBERS = ("0", "1", "-1", "7", "-7", "2")
TEXTS = ("", " ", "a", "A", "a ", "ä", "a\u0308", "'", "\\", "NULL", "0", "日本")
DATES = ("2000-01-01", "1999-12-31", "0001-01-01", "9999-12-31", "2000-02-29")
TIMES = (
    "2000-01-01 00:00:00", "2000-01-01 00:00:00.5", "2000-01-01 00:00:00.25", "2000-01-01 00:00:00.000001",
    "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999",
)  # fmt: skip


@dataclass(frozen=True)
class Domain:
    """A type, its values, and those that Spark may not hold."""

    type: str
    values: tuple[str, ...]
    strange: tuple[str, ...] = ()


DOMAINS = {
    "i2": Domain("smallint", (*NUMBERS, "32767", "-32768")),
    "i4": Domain("integer", (*NUMBERS, "2147483647", "-2147483648", "46341")),
    "i8": Domain("bigint", (*NUMBERS, "9223372036854775807", "-9223372036854775808", "4294967296")),
    "b": Domain("boolean", ("true", "false")),
    "t": Domain("text", TEXTS),
    "v": Domain("varchar(20)", TEXTS),
    "c": Domain("char(5)", TEXTS),
    "n": Domain("numeric(10,2)", ("0", "1", "-1", "0.01", "-0.01", "99999999.99", "-99999999.99", "1.5"), ("NaN",)),
    "m": Domain("numeric(12,4)", ("0", "1", "-0.0001", "99999999.9999", "1.5"), ("NaN",)),
    "big": Domain("numeric(30,10)", ("0", "1", "-0.0000000001", "99999999999999999999.9999999999"), ("NaN",)),
    "d": Domain("date", DATES, ("infinity", "-infinity", "0044-03-15 BC", "10000-01-01", "5874897-12-31")),
    "s": Domain("timestamp", TIMES, ("infinity", "-infinity", "0044-03-15 00:00:00 BC", "10000-01-01 00:00:00")),
    "z": Domain("timestamptz", ("2000-01-01 00:00:00+00", "2000-10-29 01:30:00+02",
    "2000-10-29 01:30:00+01"), ("infinity",)),
    "u": Domain("uuid", ("00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff")),
}  # fmt: skip
TWINS = {f"{name}{name}": name for name in DOMAINS}
"""A second column of each type: of `i4`, `i4i4`."""

INTEGERS = (("i2", "i2i2"), ("i4", "i4i4"), ("i8", "i8i8"), ("i4", "i8"), ("i2", "i4"))
SORTED = ("i2", "i4", "i8", "n", "d", "s")
ARITHMETIC = [
    *(f"{a} {sign} {b}" for sign in ("+", "-", "*", "/", "%") for a, b in INTEGERS),
    *(f"n {sign} {b}" for sign in ("+", "-", "*") for b in ("m", "nn")),
    *listed("n * (1 - m); n * 1.50; n + i4; n * i2; 2 * n - i8; -n; -i2; -i4; -i8; i4 + 1; 1 - i4; i4 * 2147483648"),
    *listed("big + n; big - 0.5; -(i4 + i2)"),
]
COMPARISONS = [
    *(f"{a} {sign} {a}{a}" for sign in ("=", "<>", "<", "<=", ">", ">=") for a in SORTED),
    *(f"{a} {sign} {a}{a}" for sign in ("=", "<>", "IS DISTINCT FROM") for a in ("b", "t", "v", "c", "z", "u")),
    *(f"{a} IS NOT DISTINCT FROM {a}{a}" for a in ("i4", "n", "d", "s", "t")),
    *listed("i2 < i8; i4 = i8; n < m; n = m; n > 1.5; n = i4; big > n; n <> 1.50; d >= '2000-01-01'; d < '1999-12-31'"),
    *listed("s > '2000-01-01 00:00:00.25'; s = '2000-01-01'; t = 'a'; t = ''; t <> 'ä'; v = 'a '; t = v; t = E'\\\\'"),
    *listed("t IN ('a', 'A', ''); v IN ('a', 'b'); i4 IN (1, 2, 7); i8 IN (1, 2); n IN (1, 1.5); i4 IN (1, NULL)"),
    *listed("c = 'a'; c = 'a '; c <> ''; c IN ('a', 'A ')"),
    *listed("d IN ('2000-01-01', '0001-01-01'); i4 NOT IN (1, 2); i4 BETWEEN -1 AND 7; n BETWEEN 0.01 AND 2"),
]
LOGIC = [
    *listed(
        "b AND bb; b OR bb; NOT b; b IS TRUE; b IS NOT TRUE; b IS FALSE; b IS NOT FALSE; i4 IS NULL; t IS NOT NULL"
    ),
    *listed("n IS NULL; d IS NULL; u IS NOT NULL; i4 > 0 AND n > 0 OR b; NOT (i4 = 1 OR t = 'a'); true; false AND b"),
]
VALUES = [
    *listed("CASE WHEN b THEN i4 ELSE 0 END; CASE WHEN i4 <> 0 THEN 7 / i4 END; CASE WHEN t = 'a' THEN 'x' ELSE t END"),
    *listed("CASE WHEN b THEN n WHEN bb THEN 0.01 ELSE 1.00 END; CASE WHEN b THEN d ELSE dd END"),
    *(f"extract({part} from {a})" for part in ("year", "month", "day") for a in ("d", "s")),
    *listed("CASE WHEN b THEN z ELSE zz END; coalesce(i4, 0); coalesce(t, 'none'); coalesce(n, 0.00)"),
    *listed("coalesce(d, '2000-01-01'); coalesce(i8, i8i8, 1); i4::bigint; i8::integer; i8::smallint; i4::numeric"),
    *listed("v::text; c; i4; n; t; d; s; z; u; 12.50; '2000-01-01'::date; NULL::integer; NULL::text"),
]
UNLISTED = [
    *listed("n / 2; n % 2; i4::text; t < 'b'; t || 'a'; big * big; lower(t); d + 1; i4 + n::float8; n::numeric(5,1)"),
    *listed("z < zz; coalesce(n, 0); n::integer; t LIKE 'a%'; CASE i4 WHEN 1 THEN 2 END; ROW(i4) IS NULL; n = 'NaN'"),
    *listed("d = 'infinity'; t COLLATE \"C\" = 'a'; i4 = i4::float8; power(n, 2); v::varchar(1); i4 & 1; abs(i4)"),
    *listed("coalesce(c, cc); c::text; c || 'a'; extract(hour from s); extract(year from z); extract(epoch from d)"),
    *listed("length(t); now(); d = s"),
]


AT_ONCE = 25
"""Expressions that one job of Spark computes."""


@dataclass(frozen=True)
class Edges:
    """The table of edge values."""

    connection: db.Connection
    columns: dict[str, Column]

    def written(self, text: str) -> tuple[str, PgType]:
        """An expression as PostgreSQL writes it, and its type."""
        self.connection.execute("DROP VIEW IF EXISTS asked")
        self.connection.execute(db.statement(f"CREATE VIEW asked AS SELECT {text} AS x FROM edges"))
        row = self.connection.execute(
            "SELECT pg_get_viewdef('asked'::regclass), atttypid::int, format_type(atttypid, atttypmod)"
            " FROM pg_attribute WHERE attrelid = 'asked'::regclass"
        ).fetchone()
        assert row is not None
        definition = " ".join(str(row[0]).split()).removeprefix("SELECT ").rpartition(" FROM edges")[0]
        return definition.removesuffix(" AS x"), PgType(int(str(row[1])), str(row[2]))

    def value(self, text: str) -> tuple[Value, PgType, list[str]]:
        """An expression as Spark has it, its type, and the columns that it reads."""
        written, type_ = self.written(text)
        expression = from_node(dialect.parse_expression(written))
        value = of_expression(expression, {name: of_column(column) for name, column in self.columns.items()})
        assert agrees(value, type_), (text, value.kind, type_)
        return value, type_, sorted(expression.columns)


@dataclass(frozen=True)
class Case:
    """A row that an expression is asked for, as it travels, and PostgreSQL's answer: a text, NULL, or an error."""

    row: dict[str, object]
    answer: str | None
    error: str | None
    strange: bool


@dataclass(frozen=True)
class Stopped:
    """In the place of an answer: at what Spark stopped."""

    at: str | None


@pytest.fixture(scope="module")
def edges(server18: embedded.Server) -> Iterator[Edges]:
    with fresh_database(server18) as dsn, db.open_session(dsn) as connection:
        names = (*DOMAINS, *TWINS)
        types = [DOMAINS[TWINS.get(name, name)].type for name in names]
        defined = ", ".join(f"{name} {type_}" for name, type_ in zip(names, types, strict=True))
        connection.execute(db.statement(f"CREATE TABLE edges ({defined})"))
        connection.execute("SET timezone = 'Europe/Berlin'")
        rows = connection.execute(
            "SELECT attname, atttypid::int, format_type(atttypid, atttypmod) FROM pg_attribute"
            " WHERE attrelid = 'edges'::regclass AND attnum > 0"
        ).fetchall()
        columns = [Column(str(name), PgType(int(str(oid)), str(type_))) for name, oid, type_ in rows]
        yield Edges(connection, {column.name: column for column in columns})


def asked(edges: Edges, text: str) -> tuple[Value, list[Case]]:
    """All cases of an expression."""
    value, type_, read = edges.value(text)
    domains = [DOMAINS[TWINS.get(name, name)] for name in read]
    found = list(product(*([*domain.values, *domain.strange, None] for domain in domains)))
    strange = [any(v in domain.strange for v, domain in zip(row, domains, strict=True)) for row in found]
    edges.connection.execute("TRUNCATE edges")
    for row in found:
        values = ", ".join(["%s"] * len(row))
        insert = (
            f"INSERT INTO edges ({', '.join(read)}) VALUES ({values})" if row else "INSERT INTO edges DEFAULT VALUES"
        )
        edges.connection.execute(db.statement(insert), row)
    edges.connection.execute(
        db.statement(
            "CREATE OR REPLACE FUNCTION pg_temp.answers() RETURNS TABLE (answer text, problem text) LANGUAGE plpgsql AS"
            " $$ DECLARE r edges; BEGIN FOR r IN SELECT * FROM edges ORDER BY ctid LOOP BEGIN problem := NULL;"
            f" SELECT ({send('(' + text + ')', type_)})::text INTO answer FROM (SELECT (r).*) AS edges;"
            " EXCEPTION WHEN data_exception THEN answer := NULL; problem := SQLSTATE; END; RETURN NEXT; END LOOP; END $$"  # noqa: E501
        )
    )
    answers = edges.connection.execute("SELECT answer, problem FROM pg_temp.answers()").fetchall()
    sent = ", ".join(f"{send(name, edges.columns[name].type)} AS {name}" for name in read) or "1"
    carried = edges.connection.execute(db.statement(f"SELECT {sent} FROM edges ORDER BY ctid")).fetchall()
    return value, [
        Case(dict(zip(read, row, strict=False)), text_of(answer), text_of(error), odd)
        for row, (answer, error), odd in zip(carried, answers, strange, strict=True)
    ]


def text_of(value: object) -> str | None:
    return None if value is None else str(value)


Rows = list[tuple[int, dict[str, object]]]
"""Rows as they travel, each with the number of its expression."""


def frame_of(edges: Edges, spark: SparkSession, rows: Rows) -> DataFrame:
    """The rows, with the number in the place of a weight."""
    schema = arrow_schema(edges.columns.values())
    table = pa.table(
        {
            **{name: [row.get(name) for _, row in rows] for name in edges.columns},
            WEIGHT: [number for number, _ in rows],
        },
        schema=schema,
    )
    return spark.createDataFrame(table)


def computed(
    edges: Edges, spark: SparkSession, values: list[Value], rows: list[tuple[int, dict[str, object]]]
) -> list[object]:
    """Spark's answers, in order."""
    branches = " ".join(f"WHEN {number} THEN CAST({value.wire} AS STRING)" for number, value in enumerate(values))
    frame = frame_of(edges, spark, rows)
    return [row[0] for row in frame.selectExpr(f"CASE {WEIGHT} {branches} END").collect()]


@pytest.mark.parametrize(
    "texts", [ARITHMETIC, COMPARISONS, LOGIC, VALUES], ids=["arithmetic", "comparisons", "logic", "values"]
)
def test_answers_are_postgresqls(texts: list[str], edges: Edges, spark: SparkSession) -> None:
    for start in range(0, len(texts), AT_ONCE):
        part = texts[start : start + AT_ONCE]
        found = [asked(edges, text) for text in part]
        plain = [
            (number, case)
            for number, (_, cases) in enumerate(found)
            for case in cases
            if case.error is None and not case.strange
        ]
        values = [value for value, _ in found]
        answers = computed(edges, spark, values, [(number, case.row) for number, case in plain])
        for (number, case), answer in zip(plain, answers, strict=True):
            assert answer == case.answer, (part[number], case)
        for text, (value, cases) in zip(part, found, strict=True):
            stops(edges, spark, text, value, cases)


def stops(edges: Edges, spark: SparkSession, text: str, value: Value, cases: list[Case]) -> None:
    """Where PostgreSQL has an error Spark has no answer, and to strange values it has none or the same."""
    chosen = random.Random(text)
    errors = [case for case in cases if case.error is not None and not case.strange]
    strange = [case for case in cases if case.strange]
    for case in [*chosen.sample(errors, min(1, len(errors))), *chosen.sample(strange, min(1, len(strange)))]:
        try:
            found: object = computed(edges, spark, [value], [(0, case.row)])[0]
        except PySparkException as error:
            found = Stopped(stopped_at(error))
        if isinstance(found, Stopped):
            assert found.at is not None, (text, case)
            assert case.error is not None or case.strange, (text, case, found)
        else:
            assert case.error is None, (text, case, found)
            assert found == case.answer, (text, case)


@pytest.mark.parametrize("text", UNLISTED)
def test_unlisted(text: str, edges: Edges) -> None:
    with pytest.raises(NotListedError):
        edges.value(text)
