"""Types: every value arrives as PostgreSQL itself prints it: as a column, a join key, a group key, an argument."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

from pgtrickle.db import statement
from tests.stories.telling import Story, telling


@dataclass(frozen=True)
class Kind:
    """A type with values of it that are easy to get wrong.

    `looks`: equal values may look different, so which look a group or an extreme shows is PostgreSQL's choice of the
    moment, and only equality can be asked for.
    """

    type: str
    values: tuple[str, ...]
    ddl: tuple[str, ...] = ()
    looks: bool = False


KINDS = {
    "numeric": Kind(
        "numeric",
        ("1", "1.0", "1.00", "-0.000", "NaN", "Infinity", "-Infinity", "1e-40", f"{'9' * 60}.{'1' * 50}", "0", "1.000"),
        looks=True,
    ),
    "numeric(5,2)": Kind("numeric(5,2)", ("1", "1.005", "-999.99", "NaN", "0", "2.50")),
    "float8": Kind(
        "float8",
        ("0", "-0", "NaN", "Infinity", "-Infinity", "0.1", "1e300", "5e-324", "0.30000000000000004", "0.3", "-0.1"),
        looks=True,
    ),
    "float4": Kind("float4", ("0", "-0", "NaN", "0.1", "16777217", "3.4028235e38", "1e-45", "0.2"), looks=True),
    "money": Kind("money", ("$1.00", "-$1,234.56", "0", "$92233720368547758.07", "2")),
    "date": Kind(
        "date", ("infinity", "-infinity", "4713-11-24 BC", "0001-01-01 BC", "5874897-12-31", "2024-02-29", "2024-03-01")
    ),
    "timestamp": Kind(
        "timestamp", ("infinity", "-infinity", "0044-03-15 12:00 BC", "2024-01-01 00:00:00.000001", "epoch")
    ),
    "timestamptz": Kind(
        "timestamptz",
        (
            "infinity",
            "-infinity",
            "0044-03-15 12:00+00 BC",
            "2024-03-31 01:59:59.999999+01",
            "2024-03-31 00:59:59.999999Z",
        ),
    ),
    "time": Kind("time", ("24:00", "00:00", "12:34:56.789012", "23:59:59.999999")),
    "timetz": Kind("timetz", ("12:00+02", "10:00+00", "24:00-15:59", "00:00+15:59")),
    "interval": Kind(
        "interval",
        ("1 mon", "30 days", "720:00", "-1 mon +30 days", "0", "1 year 2 mons 3 days 04:05:06.7", "-0.000001 s"),
        looks=True,
    ),
    "text": Kind(
        "text",
        ("", " ", "a,b", 'say "hi"', "back\\slash", "line\nbreak", "\r\n", "\t", "NULL", "\\N", "{}", "ü€😀", "é"),
    ),
    "text collate C": Kind('text COLLATE "C"', ("a", "B", "ä", "Z", "_", "", "b")),
    "char(n)": Kind("char(4)", ("a", "a ", "ab", "", "    ", "abcd", "ü")),
    "internal char": Kind('"char"', ("a", "", "\\", ",", "Z")),
    "name": Kind("name", ("a", "B", "", "with space", "z")),
    "bytea": Kind("bytea", ("", "\\x00", "\\x00ff", "\\x5c", "\\x2c22", "\\xff")),
    "bit": Kind("bit(3)", ("000", "101", "111", "001")),
    "varbit": Kind("varbit", ("", "0", "00", "101", "1")),
    "boolean": Kind("boolean", ("true", "false", "f", "t")),
    "int2": Kind("int2", ("-32768", "32767", "0", "1")),
    "int8": Kind("int8", ("-9223372036854775808", "9223372036854775807", "0", "-1")),
    "oid": Kind("oid", ("0", "4294967295", "1", "2")),
    "uuid": Kind(
        "uuid",
        (
            "00000000-0000-0000-0000-000000000000",
            "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF",
            "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        ),
    ),
    "inet": Kind("inet", ("10.0.0.1", "10.0.0.1/8", "::1", "10.0.0.1/32", "fe80::1/64")),
    "cidr": Kind("cidr", ("10.0.0.0/8", "10.0.0.0/16", "::/0", "10.0.0.0/32")),
    "macaddr": Kind("macaddr", ("08:00:2b:01:02:03", "ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00")),
    "jsonb": Kind(
        "jsonb",
        (
            '{"a": 1, "b": [1, 2]}',
            '{"b":[1,2],"a":1}',
            '{"a": 1.0}',
            '{"a": 1.00}',
            "null",
            '"\\u00e9\\n"',
            "[]",
            "1",
            "1.0",
        ),
        looks=True,
    ),
    "json": Kind("json", ('{"a":  1}', '{"a": 1}', '{"a": 1, "a": 2}', "null", '"x\\ny"')),
    "int[]": Kind("int[]", ("{}", "{1,NULL,3}", "[0:1]={1,2}", "{1,2}", "{{1,2},{3,4}}", "[-1:-1]={7}", "{NULL}")),
    "text[]": Kind("text[]", ("{}", '{""}', "{NULL}", '{"NULL"}', '{"a,b","c\\"d"}', "{a}")),
    "numeric[]": Kind("numeric[]", ("{1.0}", "{1.00}", "{NaN}", "{1}"), looks=True),
    "enum": Kind(
        "mood", ("sad", "ok", "happy", "so so"), ("CREATE TYPE mood AS ENUM ('sad', 'so so', 'ok', 'happy')",)
    ),
    "domain": Kind("even", ("2", "4", "-6", "0"), ("CREATE DOMAIN even AS int NOT NULL CHECK (VALUE % 2 = 0)",)),
    "domain of numeric": Kind(
        "price", ("1.0", "1.00", "2.5"), ("CREATE DOMAIN price AS numeric CHECK (VALUE > 0)",), looks=True
    ),
    "composite": Kind(
        "pair",
        ('(1,"a,b")', "(,)", '(1.0,"")', "(1.00,x)", '(2,"say ""hi""")'),
        ("CREATE TYPE pair AS (n numeric, t text)",),
        looks=True,
    ),
    "composite of box": Kind("placed", ('(1,"(1,2)")', "(,)"), ("CREATE TYPE placed AS (n int, p point)",)),
    "int4range": Kind("int4range", ("empty", "[1,5)", "[1,4]", "(,)", "(,3]", "[7,)")),
    "numrange": Kind("numrange", ("empty", "[1.0,2)", "[1.00,2)", "(,)", "[1,2]"), looks=True),
    "multirange": Kind("int4multirange", ("{}", "{[1,3),[5,7)}", "{(,)}", "{[1,9)}")),
    "point": Kind("point", ("(1,2)", "(-0,NaN)", "(Infinity,0)")),
    "box": Kind("box", ("(1,2),(0,0)", "(2,1),(0,0)", "(5,5),(5,5)")),
    "tsvector": Kind("tsvector", ("a:1 b:2", "", "'it''s':3A", "b:2 a:1", "c")),
    "tsquery": Kind("tsquery", ("a & b", "a | !b", "'x y'")),
    "pg_lsn": Kind("pg_lsn", ("0/0", "FFFFFFFF/FFFFFFFF", "1/2")),
    "jsonpath": Kind("jsonpath", ("$.a[*]", "$")),
}


@dataclass(frozen=True)
class Wide:
    """Tables t and u with a column of every type, whose rows hold the i-th value of each."""

    story: Story
    columns: dict[str, Kind]

    def can(self, expression: str) -> dict[str, Kind]:
        """The columns for which PostgreSQL accepts an expression over `v`."""
        return {column: kind for column, kind in self.columns.items() if self._accepts(column, expression)}

    def insert(self, table: str, id: int, place: int) -> None:
        values = [kind.values[place % len(kind.values)] for kind in self.columns.values()]
        marks = ", ".join(["%s"] * (len(values) + 2))
        self.story.connection.execute(statement(f"INSERT INTO {table} VALUES ({marks})"), (id, id % 3, *values))

    def churn(self) -> None:
        """Rows come, change, double, lose their values and go."""
        story = self.story
        changing = ", ".join(f"{column} = n.{column}" for column in self.columns)
        for id in (20, 21):
            self.insert("t", id, id)
            self.insert("u", id, id)
        story.follow()
        story.run(
            f"UPDATE t SET {changing} FROM t n WHERE t.id IN (0, 1, 2) AND n.id = t.id + 3",
            f"INSERT INTO t SELECT id + 100, {', '.join(['g', *self.columns])} FROM t WHERE id < 6",
            "UPDATE t SET g = 2 - g WHERE id % 2 = 1",
        )
        story.follow()
        nothing = ", ".join(f"{column} = NULL" for column in self.columns if column != "domain")
        story.run("DELETE FROM t WHERE id IN (0, 100, 20)", "DELETE FROM u WHERE id % 4 = 0")
        story.run(f"UPDATE t SET {nothing} WHERE id IN (4, 5, 8)", "DELETE FROM t WHERE id = 8")
        story.follow()

    def _accepts(self, column: str, expression: str) -> bool:
        try:
            with self.story.connection.transaction(force_rollback=True):
                self.story.run(expression.format(v=column))
        except (
            psycopg.errors.UndefinedFunction,
            psycopg.errors.InvalidTableDefinition,
            psycopg.errors.FeatureNotSupported,
        ):
            return False
        return True


def wide(story: Story) -> Wide:
    columns = {"".join(c if c.isalnum() else "_" for c in name): kind for name, kind in KINDS.items()}
    definitions = ", ".join(f"{column} {kind.type}" for column, kind in columns.items())
    story.run(
        *(ddl for kind in columns.values() for ddl in kind.ddl),
        f"CREATE TABLE t (id int PRIMARY KEY, g int, {definitions})",
        f"CREATE TABLE u (id int PRIMARY KEY, g int, {definitions})",
    )
    told = Wide(story, columns)
    for id in range(13):
        told.insert("t", id, id)
        if id % 2 == 0:
            told.insert("u", id, id)
    return told


def test_every_type_as_a_plain_column(story: Story) -> None:
    told = wide(story)
    story.create("plain", f"SELECT {', '.join(told.columns)}, id FROM t")
    story.create("doubles", f"SELECT {', '.join(told.columns)} FROM t WHERE g < 2")
    told.churn()


def test_every_type_as_a_join_key(story18: Story) -> None:
    """Rows that agree in any column, which PostgreSQL compares one by one, and rows that agree in all of them."""
    told = wide(story18)
    keys = told.can("SELECT FROM t JOIN u ON t.{v} = u.{v}")
    assert {"numeric", "interval", "char_n_", "jsonb", "composite", "enum", "numrange"} <= keys.keys()
    equal = [f"t.{key} = u.{key}" for key in keys]
    agreeing = ", ".join(f"{each} AS {key}" for key, each in zip(keys, equal, strict=True))
    story18.create("agree_in_any", f"SELECT t.id, u.id AS uid, {agreeing} FROM t JOIN u ON {' OR '.join(equal)}")
    seen = ", ".join(f"t.{key} AS t_{key}, u.{key} AS u_{key}" for key in keys)
    story18.create("agree_in_all", f"SELECT {seen} FROM t JOIN u ON {' AND '.join(equal)}")
    assert int(str(story18.value("SELECT count(*) FROM agree_in_all"))) >= 7
    told.churn()


def test_join_keys_of_different_types(story18: Story) -> None:
    """Equal as PostgreSQL says, though their forms differ: 1 and 1.00, 'a' padded and not."""
    story18.run(
        "CREATE TABLE a (i int8, c char(4), s text, d date)",
        'CREATE TABLE b (i numeric, c varchar, s text COLLATE "C", d timestamp)',
        "INSERT INTO a VALUES (1, 'x', 'x', '2024-01-01'), (2, 'y', ' y', 'infinity')",
        "INSERT INTO b VALUES (1.00, 'x', 'x', '2024-01-01'), (2.5, 'y  ', ' y', 'infinity')",
    )
    for column in "icsd":
        condition = f"a.{column} = b.{column}" + (' COLLATE "C"' if column == "s" else "")
        story18.create(f"on_{column}", f"SELECT a.{column} AS l, b.{column} AS r FROM a JOIN b ON {condition}")
    story18.run("INSERT INTO a VALUES (1, 'x   ', 'X', '-infinity')", "UPDATE b SET i = 2.0, c = 'x  ' WHERE i = 2.5")
    story18.follow()
    story18.run("DELETE FROM a WHERE s = 'x'", "INSERT INTO b VALUES (1, 'x', 'X', '-infinity')")
    story18.follow()


def test_every_type_as_a_group_key(story18: Story) -> None:
    told = wide(story18)
    keys = told.can("SELECT FROM t GROUP BY {v}")
    assert {"numeric", "interval", "char_n_", "jsonb", "composite", "money"} <= keys.keys()
    branches = [
        f"SELECT '{key}' AS type, v::text COLLATE \"C\" AS v, n "
        f"FROM (SELECT {key} AS v, count(*) AS n FROM t GROUP BY {key}) AS q"
        for key, kind in keys.items()
        if not kind.looks
    ]
    story18.create("grouped", " UNION ALL ".join(branches))
    told.churn()


def test_types_whose_equal_values_look_different_as_group_keys(story18: Story) -> None:
    told = wide(story18)
    for key, kind in told.can("SELECT FROM t GROUP BY {v}").items():
        if kind.looks:
            story18.looks.add(f"by_{key}")
            story18.create(f"by_{key}", f"SELECT {key} AS v, count(*) AS n FROM t GROUP BY {key}")
    assert len(story18.queries) >= 8
    told.churn()


def test_extremes_of_every_type_that_has_them(story18: Story) -> None:
    told = wide(story18)
    ordered = told.can("CREATE TEMPORARY VIEW probe AS SELECT min({v}) AS l, max({v}) AS m FROM t")
    assert {"numeric", "interval", "char_n_", "enum", "int__", "text", "date", "inet"} <= ordered.keys()
    calls = ", ".join(f"min({column}) AS {column}_l, max({column}) AS {column}_m" for column in ordered)
    story18.looks.add("extremes")
    story18.create("extremes", f"SELECT g, {calls} FROM t GROUP BY g")
    told.churn()


def test_every_type_in_the_order_of_a_window(story18: Story) -> None:
    """Peers by it, rows one by one, and its values handed from row to row."""
    told = wide(story18)
    ordered = told.can("SELECT rank() OVER (ORDER BY {v}) FROM t")
    assert {"numeric", "float8", "interval", "char_n_", "jsonb", "composite", "numrange", "enum"} <= ordered.keys()
    calls = [
        f"rank() OVER (ORDER BY {key}) AS {key}_r, count({key}) OVER (ORDER BY {key} DESC) AS {key}_n,"
        f" lag(id) OVER (PARTITION BY g ORDER BY {key} NULLS FIRST, id) AS {key}_l,"
        f" first_value({key}) OVER (PARTITION BY g ORDER BY {key}, id GROUPS 1 PRECEDING) AS {key}_f"
        for key in ordered
    ]
    story18.create("ordered", f"SELECT id, {', '.join(calls)} FROM t")
    told.churn()


def test_every_type_that_partitions_a_window(story18: Story) -> None:
    """The state finds a partition by a hash of its keys: equal values have one, however they look."""
    told = wide(story18)
    keys = told.can("SELECT count(*) OVER (PARTITION BY {v}) FROM t")
    assert {"numeric", "float8", "interval", "char_n_", "jsonb", "composite", "numrange", "money"} <= keys.keys()
    few = [key for key, kind in keys.items() if not kind.looks]
    parted = [[key] for key, kind in keys.items() if kind.looks] + [
        few[place : place + 4] for place in range(0, len(few), 4)
    ]
    branches = [
        f"SELECT '{by[0]}' AS type, id, {by[0]}::text AS v, count(*) OVER (PARTITION BY {', '.join(by)}) AS n,"
        f" string_agg(id::text, ' ') OVER (PARTITION BY {', '.join(by)} ORDER BY id) AS s FROM t"
        for by in parted
    ]
    story18.create("parted", " UNION ALL ".join(branches))
    told.churn()


RANGES = {
    "int2": "1",
    "int8": "5",
    "numeric": "0.5",
    "numeric_5_2_": "0.5",
    "float8": "0.25",
    "float4": "0.25",
    "date": "interval '1 day'",
    "timestamp": "interval '2000 years'",
    "timestamptz": "interval '2 hours'",
    "time": "interval '2 hours'",
    "timetz": "interval '2 hours'",
    "interval": "interval '1 day'",
    "domain": "2",
    "domain_of_numeric": "0.5",
}
"""Distances, for each type that has any."""


def test_frames_by_distance_of_every_type_that_has_it(story18: Story) -> None:
    told = wide(story18)
    within = "rank() OVER (ORDER BY {v} RANGE BETWEEN {d} PRECEDING AND CURRENT ROW)"
    calls = [
        f"count(*) OVER (ORDER BY {key}{way} RANGE BETWEEN {distance} PRECEDING AND {distance} FOLLOWING) AS {key}_n"
        for key, distance in RANGES.items()
        for way in ("", " DESC")
    ]
    found = {key for d in {*RANGES.values()} for key in told.can(f"SELECT {within.replace('{d}', d)} FROM t LIMIT 0")}
    assert found == RANGES.keys()
    inner = "WHERE coalesce(date <> ALL ('{4713-11-24 BC, 5874897-12-31}'), true)"  # no day before or after
    story18.create("near", f"SELECT id, {', '.join(calls[::2])} FROM t {inner}")
    story18.create("near_down", f"SELECT id, {', '.join(calls[1::2])} FROM t {inner}")
    told.churn()


def test_sums_and_averages_of_every_type_that_has_them(story18: Story) -> None:
    told = wide(story18)
    summed = told.can("SELECT sum({v}), avg({v}) FROM t WHERE false")
    assert {"numeric", "numeric_5_2_", "float8", "float4", "int2", "int8", "interval", "domain"} <= summed.keys()
    exact = [column for column in summed if column not in {"float8", "float4"}]  # sums of floats depend on the order
    calls = ", ".join(f"sum({column}) AS {column}_s, avg({column}) AS {column}_a" for column in exact)
    finite = "interval_ IS NULL OR isfinite(interval_)"
    story18.create("summed", f"SELECT g, {calls} FROM t WHERE {finite.replace('interval_', 'interval')} GROUP BY g")
    told.churn()


def test_the_least_interval_and_relations_that_are_gone(story18: Story) -> None:
    """Values whose text PostgreSQL does not read again."""
    least = "'-9223372036854775808 microseconds'"
    story18.run(
        "CREATE TABLE t (id int PRIMARY KEY, i interval, a interval[], r regclass)",
        "CREATE TABLE u (i interval, n int)",
        f"INSERT INTO t VALUES (1, {least}, ARRAY[interval {least}], 999999), (2, '1 day', NULL, 't')",
    )
    story18.create("plain", "SELECT i, a, r FROM t")
    story18.create("longest", "SELECT i, count(*) AS n, max(a) AS a FROM t GROUP BY i")
    story18.create("joined", "SELECT t.i, a, n FROM t JOIN u ON t.i = u.i")
    story18.run(
        f"INSERT INTO u VALUES ({least}, 1), ('1 day', 2)",
        f"INSERT INTO t VALUES (3, '5 days -9223372036854775808 microseconds', '{{{least[1:-1]}, NULL}}', 0)",
    )
    story18.follow()
    story18.run("DELETE FROM t WHERE id = 1", "UPDATE t SET i = '-9223372036854775808 microseconds' WHERE id = 2")
    story18.follow()


NAMES = (
    "w",
    "h",
    "n",
    "change_id",
    "xid",
    "action",
    "sid",
    "part",
    "pgt_row",
    "new_a",
    "select",
    "Two Words",
    'q"uote',
    "ü",
    "%s",
    "{x}",
    "l" * 63,
)


def test_column_names_that_need_care(story: Story) -> None:
    """Names that we use ourselves, that need quotes, that fill all the bytes a name may have."""
    quoted = ['"' + name.replace('"', '""') + '"' for name in NAMES]
    table = '"My ""Table"""'
    story.run(f"CREATE TABLE {table} ({', '.join(f'{name} int' for name in quoted)})")
    row = ", ".join(str(position) for position in range(len(quoted)))
    story.run(f"INSERT INTO {table} VALUES ({row}), ({row})", f"INSERT INTO {table} ({quoted[0]}) VALUES (7)")
    story.create("plain", f"SELECT {', '.join(quoted)} FROM {table}")
    sums = ", ".join(f"sum({name}) AS {name}" for name in quoted[4:])
    story.create(
        '"Grouped Table"', f"SELECT {', '.join(quoted[:4])}, {sums} FROM {table} GROUP BY {', '.join(quoted[:4])}"
    )
    on = f"a.{quoted[0]} = b.{quoted[1]} - 1 AND a.{quoted[-1]} = b.{quoted[-1]}"
    story.create("joined", f"SELECT {', '.join(f'a.{name}' for name in quoted)} FROM {table} a JOIN {table} b ON {on}")
    story.run(f"UPDATE {table} SET {quoted[-1]} = 5, {quoted[2]} = 9 WHERE {quoted[0]} = 0")
    story.follow()
    story.run(f"INSERT INTO {table} VALUES ({row})", f"DELETE FROM {table} WHERE {quoted[0]} = 7")
    story.follow()


def test_division_and_averages_have_the_digits_of_postgres(story18: Story) -> None:
    story18.run(
        "CREATE TABLE t (id int, a numeric, b numeric, i int)", "INSERT INTO t VALUES (1, 10, 3, 7), (2, 1.50, 0.7, -7)"
    )
    story18.create(
        "divided", "SELECT id, a / b AS q, a % b AS r, i / 2 AS iq, i % 2 AS ir, round(a / b, 3) AS rounded FROM t"
    )
    story18.create("ratio", "SELECT sum(a) / sum(b) AS q, avg(a) * 1.10 AS m, avg(i) AS i, avg(a / b) AS aq FROM t")
    story18.run("INSERT INTO t VALUES (3, 2e30, 3e-5, 1), (4, NULL, NULL, NULL)", "UPDATE t SET a = -a WHERE id = 1")
    story18.follow()
    story18.run("DELETE FROM t WHERE id IN (1, 3)")
    story18.follow()


def test_casts_that_depend_on_the_time_zone(story18: Story) -> None:
    """The zone is the database's: a refresh and a reader in the same zone agree."""
    database = story18.value("SELECT current_database()")
    story18.run(f"ALTER DATABASE {database} SET TimeZone = 'America/St_Johns'")
    with telling(story18.dsn, story18.trickle._spark) as there:  # sessions that are in that zone
        there.run(
            "CREATE TABLE t (at timestamptz, here timestamp)",
            "INSERT INTO t VALUES ('2024-07-01 01:00Z', '2024-01-01')",
        )
        there.create("days", "SELECT at, at::date AS day, here::timestamptz AS there, at::text AS said FROM t")
        there.run("INSERT INTO t VALUES ('2024-03-10 05:29Z', '2024-03-10 02:30'), ('infinity', '-infinity')")
        there.follow()


def test_a_group_key_looks_like_a_row_that_is_there(story18: Story) -> None:
    """1.0 and 1.00 are one group; when all rows that say 1.0 are gone, the group cannot say 1.0 any more."""
    story18.run("CREATE TABLE t (id int, v numeric)", "INSERT INTO t VALUES (1, 1.0), (2, 1.00)")
    story18.create("grouped", "SELECT v, count(*) AS n FROM t GROUP BY v")
    shown = str(story18.value("SELECT v::text FROM grouped"))
    story18.run(f"DELETE FROM t WHERE v::text = '{shown}'")
    story18.follow()
