"""Hypothesis strategies for schemas, queries of the supported operators, and windows of DML over them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from hypothesis import strategies as st

VALUES = {
    "int": ("NULL", "0", "1", "2", "3", "-4", "2147483647"),
    "numeric": ("NULL", "0", "1.0", "1.00", "2.5", "-3.125", "12345678901234567890.5", "'NaN'"),
    # what a template, a driver or we ourselves might read as more than text is as likely as any other
    "text": (
        "NULL",
        "''",
        "'a'",
        "'b'",
        "'A'",
        "'ß'",
        "'{}'",
        "'{{'",
        "'%s'",
        "'%%'",
        "'$1'",
        "E'\\\\'",
        "'it''s'",
        "'--/*'",
    ),
    # sums of these have no rounding, whatever their order
    "float": ("NULL", "0", "'-0'", "1.5", "-2.25", "'NaN'", "'Infinity'"),
    "date": ("NULL", "'2026-01-01'", "'2026-01-02'", "'9999-12-31'", "'0001-01-01'"),
    "moment": (
        "NULL",
        "'2026-01-01 12:00+00'",
        "'2026-01-01 13:00+01'",
        "'0002-01-01 00:00+00'",
        "'2026-01-02 00:00+00'",
    ),
    "span": ("NULL", "'1 month'", "'30 days'", "'1 day'", "'24:00'", "'0'"),
    "C": ("NULL", "'a'", "'B'", "'ä'", "''"),
    "libc": ("NULL", "'a'", "'B'", "'ä'", "'_a'"),
    "char": ("NULL", "'a'", "'a '", "'B'", "''"),
    "truth": ("NULL", "true", "false"),
    "json": ("NULL", "'1'", "'1.0'", "'{\"a\": [1, null]}'", "'null'"),
    "uuid": ("NULL", "'00000000-0000-0000-0000-000000000000'", "'ffffffff-0000-0000-0000-000000000001'"),
}
TYPES = {
    "float": "float8",
    "moment": "timestamptz",
    "span": "interval",
    "C": 'text COLLATE "C"',
    "libc": 'text COLLATE "C.utf8"',
    "char": "char(3)",
    "truth": "boolean",
    "json": "jsonb",
}
"""What a kind is called by PostgreSQL, where that differs."""
NO_EXTREMES = frozenset({"truth", "json", "uuid"})


@dataclass(frozen=True)
class TableDefinition:
    """A table: columns `i`, `g` (int), `n` (numeric, or one with digits), `s` (text), and one of each other kind; keyed
    or not, indexed or not; with an heir or not."""

    name: str
    keyed: bool
    indexed: bool
    numeric: str = "numeric"
    inherited: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The table, and its heir."""
        return (self.name, f"{self.name}_heir") if self.inherited else (self.name,)

    @property
    def read_as(self) -> tuple[str, ...]:
        """What a query may read of it."""
        return (self.name, f"ONLY {self.name}", *self.names[1:]) if self.inherited else (self.name,)

    @property
    def ddl(self) -> str:
        key = "id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, " if self.keyed else ""
        index = f"; CREATE INDEX ON {self.name} (i)" if self.indexed else ""
        identity = f"; ALTER TABLE {self.name} REPLICA IDENTITY FULL"  # so that it may be captured from the WAL
        types = {name: TYPES.get(kind, kind) for name, kind in COLUMNS.items()} | {"n": self.numeric}
        columns = ", ".join(f"{name} {type_}" for name, type_ in types.items())
        heirs = "".join(f"; CREATE TABLE {heir} () INHERITS ({self.name})" for heir in self.names[1:])
        return f"CREATE TABLE {self.name} ({key}{columns}){index}{identity}{heirs}"


OTHERS = {f"x{place}": kind for place, kind in enumerate(list(VALUES)[3:])}
COLUMNS = {"i": "int", "g": "int", "n": "numeric", "s": "text"} | OTHERS
LISTED = ", ".join(COLUMNS)


@dataclass(frozen=True)
class Relation:
    """Something in FROM: its SQL with alias, and its columns by name with their kinds."""

    sql: str
    columns: dict[str, str]


@st.composite
def schemas(draw: st.DrawFn, numeric: str = "numeric", *, heirs: bool = False) -> list[TableDefinition]:
    """A table that others inherit has no key: an heir would not make its values."""
    tables = []
    for number in range(draw(st.integers(2, 4))):
        keyed, indexed = draw(st.booleans()), draw(st.booleans())
        inherited = heirs and not keyed and draw(st.booleans())
        tables.append(TableDefinition(f"t{number}", keyed, indexed, numeric, inherited))
    return tables


def _any_of(tables: list[TableDefinition]) -> st.SearchStrategy[str]:
    """A table as a query reads it."""
    return st.sampled_from(tables).flatmap(lambda table: st.sampled_from(table.read_as))


@st.composite
def rows(draw: st.DrawFn) -> str:
    return "(" + ", ".join(draw(st.sampled_from(VALUES[kind])) for kind in COLUMNS.values()) + ")"


@st.composite
def statements(draw: st.DrawFn, tables: list[TableDefinition]) -> str:
    source = draw(st.sampled_from(tables))
    table = draw(st.sampled_from(source.names))
    kind = draw(st.sampled_from(("insert", "insert", "insert", "update", "delete", "copy rows")))
    if kind == "insert":
        values = ", ".join(draw(st.lists(rows(), min_size=1, max_size=4)))
        return f"INSERT INTO {table} ({LISTED}) VALUES {values}"
    if kind == "copy rows":
        chosen = draw(conditions(_row("", COLUMNS)))
        copied = draw(st.sampled_from(source.read_as))
        return f"INSERT INTO {table} ({LISTED}) SELECT {LISTED} FROM {copied} WHERE {chosen}"
    condition = draw(conditions(_row("", COLUMNS)))
    table = draw(st.sampled_from(source.read_as))
    if kind == "delete":
        return f"DELETE FROM {table} WHERE {condition}"
    column = draw(st.sampled_from(list(COLUMNS)))
    return f"UPDATE {table} SET {column} = {draw(st.sampled_from(VALUES[COLUMNS[column]]))} WHERE {condition}"


def _row(alias: str, columns: dict[str, str]) -> dict[str, str]:
    return {f"{alias}.{name}" if alias else name: kind for name, kind in columns.items()}


@st.composite
def conditions(draw: st.DrawFn, columns: dict[str, str]) -> str:
    name = draw(st.sampled_from(list(columns)))
    kind = columns[name]
    form = draw(st.sampled_from(("compare", "compare", "null", "other column", "not", "in")))
    if form == "null":
        return f"{name} IS {draw(st.sampled_from(('', 'NOT ')))}NULL"
    if form == "not":
        return f"NOT ({name} = {_plain(draw, kind)})"
    if form == "in":
        return f"{name} IN ({_plain(draw, kind)}, {_plain(draw, kind)})"
    if form == "other column":
        same = [other for other, other_kind in columns.items() if other_kind == kind]
        return f"{name} {draw(st.sampled_from(('=', '<', '<>')))} {draw(st.sampled_from(same))}"
    return f"{name} {draw(st.sampled_from(('=', '<', '>=', '<>')))} {_plain(draw, kind)}"


def _plain(draw: st.DrawFn, kind: str) -> str:
    return draw(st.sampled_from([value for value in VALUES[kind] if value != "NULL"]))


def queries(tables: list[TableDefinition], *, timed: bool = False) -> st.SearchStrategy[str]:
    """Queries up to five deep, whose output columns are named o0, o1, …; they read the clock only if `timed`."""
    drawn = (
        st.sampled_from((1, 2, 2, 2, 2, 5)).flatmap(lambda depth: _queries(tables, depth)).map(lambda made: made.sql)
    )
    return drawn if timed else drawn.filter(lambda query: not CLOCK.search(query))


CLOCK = re.compile(r"now\(\)|CURRENT_DATE|LOCALTIMESTAMP")
START = datetime(2026, 1, 1, 12, tzinfo=UTC)
"""When the clock of a story begins: what is compared with it is some hours from there."""
PASSES = (125, 61, 1500, -60, 0)
"""Minutes between the refreshes of a story."""


@st.composite
def queries_in_time(draw: st.DrawFn, tables: list[TableDefinition]) -> str:
    """Queries that read the clock."""
    source, columns = draw(_from(tables, 1))
    source += f" WHERE {_in_time(draw, columns)}"
    if draw(st.booleans()):
        return draw(_aggregate(source, columns)).sql
    return draw(_select(source, columns, tables, 1, distinct=draw(st.booleans()))).sql


def _in_time(draw: st.DrawFn, columns: dict[str, str]) -> str:
    """A condition that turns as the clock moves."""
    hours = [name for name, kind in columns.items() if kind == "int"]
    if not hours:
        return "now() > timestamptz '2026-01-01 13:00+00'"
    moment = f"timestamptz '2026-01-01 12:00+00' + {draw(st.sampled_from(hours))} * interval '1 hour'"
    form = draw(st.sampled_from(("since", "until", "date", "local", "hour")))
    return {
        "since": f"{moment} > now() - interval '2 hours'",
        "until": f"now() >= {moment}",
        "date": f"({moment})::date {draw(st.sampled_from(('=', '<=', '<>')))} CURRENT_DATE",
        "local": f"({moment})::timestamp < LOCALTIMESTAMP",
        "hour": f"{moment} BETWEEN date_trunc('hour', now()) AND now() + interval '3 hours'",
    }[form]


@st.composite
def _queries(draw: st.DrawFn, tables: list[TableDefinition], depth: int) -> Relation:
    shapes = ["select", "select", "distinct", "aggregate", "aggregate"] + (
        ["set", "set", "first", "first of each", "windows", "recursion"] if depth else []
    )
    shape = draw(st.sampled_from(shapes))
    if shape == "first":
        rows = draw(_queries(tables, depth - 1))
        order = ", ".join(f"{name} {draw(st.sampled_from(('', 'DESC', 'NULLS FIRST')))}" for name in rows.columns)
        limit = f"LIMIT {draw(st.integers(1, 3))} OFFSET {draw(st.integers(0, 1))}"
        return Relation(f"SELECT * FROM ({rows.sql}) f ORDER BY {order} {limit}", rows.columns)
    if shape == "first of each":
        rows = draw(_queries(tables, depth - 1))
        parts = ["o0", *(f"{name} {draw(st.sampled_from(('', 'DESC')))}" for name in list(rows.columns)[1:])]
        return Relation(f"SELECT DISTINCT ON (o0) * FROM ({rows.sql}) e ORDER BY {', '.join(parts)}", rows.columns)
    if shape == "windows":
        return draw(_windowed(draw(_queries(tables, depth - 1))))
    if shape == "recursion":
        return draw(_recursions(tables, depth))
    if shape == "set":
        left, right = draw(_queries(tables, depth - 1)), draw(_queries(tables, depth - 1))
        shared = [(a, b) for a in left.columns for b in right.columns if left.columns[a] == right.columns[b]][:2]
        if shared:
            outputs = {f"o{position}": left.columns[a] for position, (a, _) in enumerate(shared)}
            one = ", ".join(f"{a} AS o{position}" for position, (a, _) in enumerate(shared))
            other = ", ".join(b for _, b in shared)
            operation = draw(st.sampled_from(SET_OPERATIONS))
            sql = f"(SELECT {one} FROM ({left.sql}) l) {operation} (SELECT {other} FROM ({right.sql}) r)"
            return Relation(sql, outputs)
        return left
    source, columns = draw(_from(tables, depth))
    where = f" WHERE {draw(_wheres(tables, columns, depth))}" if draw(st.booleans()) else ""
    if shape == "aggregate":
        return draw(_aggregate(source + where, columns))
    return draw(_select(source + where, columns, tables, depth, distinct=shape == "distinct"))


SET_OPERATIONS = ("UNION ALL", "UNION ALL", "UNION", "INTERSECT", "INTERSECT ALL", "EXCEPT", "EXCEPT ALL")
JOINS = ("JOIN", "JOIN", "JOIN", "LEFT JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN")


@st.composite
def _wheres(draw: st.DrawFn, tables: list[TableDefinition], columns: dict[str, str], depth: int) -> str:
    """A condition, which may ask a subquery, by itself or under OR and NOT."""
    plain = draw(conditions(columns))
    form = draw(st.sampled_from((*("plain", "asks") * 4, *("or", "not") * 2, "clock")))
    if form == "plain":
        return plain
    if form == "clock":
        return f"{_in_time(draw, columns)} {draw(st.sampled_from(('AND', 'OR')))} {plain}"
    asks = draw(_asks(tables, columns, depth))
    return {"asks": asks, "or": f"({plain} OR {asks})", "not": f"NOT ({plain} AND {asks})"}[form]


@st.composite
def _asks(draw: st.DrawFn, tables: list[TableDefinition], columns: dict[str, str], depth: int) -> str:
    """EXISTS, IN, ANY, ALL or a comparison with a scalar subquery; correlated or not."""
    alias = f"q{depth}"
    source = f"{draw(_any_of(tables))} {alias}"
    inside = _row(alias, COLUMNS)
    alike = [(a, b) for a in columns for b in inside if columns[a].replace("big", "int") == inside[b]]
    correlated = draw(st.booleans())
    around = draw(conditions(inside))
    if alike and correlated:
        a, b = draw(st.sampled_from(alike))
        around += f" AND {b} {draw(st.sampled_from(('=', '=', '=', '>')))} {a}"
    form = draw(st.sampled_from(("EXISTS", "NOT EXISTS", "IN", "NOT IN", "ALL", "ANY", "scalar", "scalar")))
    if form.endswith("EXISTS") or not alike:
        extra = f" AND {alike[0][0]} < {alike[0][1]}" if alike and draw(st.integers(0, 3)) == 0 else ""
        return f"{form if form.endswith('EXISTS') else 'EXISTS'} (SELECT FROM {source} WHERE {around}{extra})"
    a, b = draw(st.sampled_from(alike))
    if form == "scalar":
        function = draw(st.sampled_from(("count",) if inside[b] in NO_EXTREMES else ("max", "min", "count")))
        compared = a if function != "count" else str(draw(st.integers(0, 2)))
        comparison = draw(st.sampled_from(("=", "<", ">=")))
        return f"{compared} {comparison} (SELECT {function}({b}) FROM {source} WHERE {around})"
    if form in ("ALL", "ANY"):
        comparison = draw(st.sampled_from(("=", "<>", "<", ">=")))
        return f"{a} {comparison} {form} (SELECT {b} FROM {source} WHERE {around})"
    return f"{a} {form} (SELECT {b} FROM {source} WHERE {around})"


@st.composite
def _from(draw: st.DrawFn, tables: list[TableDefinition], depth: int) -> tuple[str, dict[str, str]]:
    count = draw(st.integers(1, 3 if depth else 2))
    columns: dict[str, str] = {}
    text = ""
    for position in range(count):
        alias = f"a{depth}{position}"
        if depth and draw(st.integers(0, 3)) == 0:
            inner = draw(_queries(tables, depth - 1))
            relation = Relation(f"({inner.sql}) {alias}", _row(alias, inner.columns))
        elif draw(st.integers(0, 7)) == 0:
            relation = Relation(f"{CONSTANT} {alias}(i, s)", _row(alias, {"i": "int", "s": "text"}))
        else:
            relation = Relation(f"{draw(_any_of(tables))} {alias}", _row(alias, COLUMNS))
        if text:
            text += f" {draw(_joins(tables, columns, relation))}"
        else:
            text = f"FROM {relation.sql}"
        columns |= relation.columns
    if draw(st.integers(0, 3)) == 0:
        lateral = draw(st.booleans())
        made = draw(_laterals(tables, f"e{depth}", columns) if lateral else _expansions(f"e{depth}", columns))
        text, columns = f"{text} {made.sql}", columns | made.columns
    return text, columns


CONSTANT = "(VALUES (1, 'a'), (2, NULL), (2, NULL), (NULL, 'b'))"


@st.composite
def _expansions(draw: st.DrawFn, alias: str, columns: dict[str, str]) -> Relation:
    """A function of the row before it; rows of which it makes nothing stay or go."""
    name = draw(st.sampled_from(list(columns)))
    kind = columns[name]
    calls = [(f"unnest(ARRAY[{name}, {_plain(draw, kind)}])", kind)]
    if kind == "int":
        calls.append((f"generate_series(1, least({name}, 3))", "int"))
    if kind == "text":
        calls.append((f"jsonb_array_elements_text(jsonb_build_array({name}, 'a'))", "text"))
    call, made = draw(st.sampled_from(calls))
    join, on = draw(st.sampled_from((("CROSS JOIN", ""), ("LEFT JOIN", " ON true"))))
    return Relation(f"{join} LATERAL {call} AS {alias}(e){on}", _row(alias, {"e": made}))


@st.composite
def _laterals(draw: st.DrawFn, tables: list[TableDefinition], alias: str, columns: dict[str, str]) -> Relation:
    """A subquery of the row before it: plain rows, the first of them, groups, or one group."""
    inside = _row("q", COLUMNS)
    alike = [(a, b) for a in columns for b in inside if columns[a] == inside[b]]
    a, b = draw(st.sampled_from(alike)) if alike else ("1", "1")
    rows = f"FROM {draw(_any_of(tables))} q WHERE {b} {draw(st.sampled_from(('=', '=', '<', '<>')))} {a}"
    forms = {
        "rows": (f"SELECT q.i, q.s {rows}", {"i": "int", "s": "text"}),
        "first": (f"SELECT q.i, q.s {rows} ORDER BY q.i DESC, q.s LIMIT 2", {"i": "int", "s": "text"}),
        "groups": (f"SELECT q.g, count(*) AS n {rows} GROUP BY q.g", {"g": "int", "n": "big"}),
        "distinct": (f"SELECT DISTINCT q.g {rows}", {"g": "int"}),
        "one": (f"SELECT count(*) AS n, max(q.i) AS m {rows}", {"n": "big", "m": "int"}),
    }
    sql, outputs = forms[draw(st.sampled_from(sorted(forms)))]
    join, on = draw(st.sampled_from((("CROSS JOIN", ""), ("LEFT JOIN", " ON true"))))
    return Relation(f"{join} LATERAL ({sql}) {alias}{on}", _row(alias, outputs))


@st.composite
def _joins(draw: st.DrawFn, tables: list[TableDefinition], left: dict[str, str], right: Relation) -> str:
    """A join, whose condition may ask a subquery of one side; PostgreSQL has FULL JOIN on equalities only."""
    kind = draw(st.sampled_from(JOINS))
    if kind != "FULL JOIN":
        asks = ""
        if draw(st.integers(0, 7)) == 0:
            asks = f" AND {draw(_asks(tables, draw(st.sampled_from((left, right.columns))), 20))}"
        return f"{kind} {right.sql} ON {draw(_on(left, right.columns))}{asks}"
    alike = [(a, b) for a in left for b in right.columns if left[a] == right.columns[b]]
    if not alike:
        return f"LEFT JOIN {right.sql} ON true"
    a, b = draw(st.sampled_from(alike))
    return f"FULL JOIN {right.sql} ON {a} = {b}"


@st.composite
def _on(draw: st.DrawFn, left: dict[str, str], right: dict[str, str]) -> str:
    alike = [(a, b) for a in left for b in right if left[a] == right[b]]
    if not alike:
        return "true"
    a, b = draw(st.sampled_from(alike))
    condition = f"{a} {draw(st.sampled_from(('=', '=', '=', '=', '<', 'IS NOT DISTINCT FROM')))} {b}"
    return f"{condition} AND {draw(conditions(left | right))}" if draw(st.integers(0, 3)) == 0 else condition


@st.composite
def _sets(draw: st.DrawFn, columns: dict[str, str]) -> tuple[str, str]:
    """A call in the select list that returns a set, and its kind."""
    name = draw(st.sampled_from(list(columns)))
    return f"unnest(ARRAY[{name}, {_plain(draw, columns[name])}])", columns[name]


@st.composite
def _windows(draw: st.DrawFn, columns: dict[str, str]) -> str:
    """A window call whose result is a number, the same however PostgreSQL takes rows that tie."""
    names = st.sampled_from(list(columns))
    partition = "" if draw(st.integers(0, 3)) == 0 else f"PARTITION BY {draw(names)} "
    way = draw(st.sampled_from(("", " DESC", " NULLS FIRST")))
    order, everything = f"ORDER BY {draw(names)}{way}", f"ORDER BY {draw(names)}{way}, {', '.join(columns)}"
    window, by_row = f"({partition}{order})", f"({partition}{everything})"
    return draw(
        st.sampled_from(
            (
                f"rank() OVER {window}",
                f"dense_rank() OVER {window}",
                f"count({draw(names)}) OVER {window}",
                f"count(*) OVER ({partition})",
                f"count(*) FILTER (WHERE {draw(conditions(columns))}) OVER {window}",
                f"count(*) OVER ({partition}{order} GROUPS BETWEEN 1 PRECEDING AND 1 FOLLOWING EXCLUDE TIES)",
                f"row_number() OVER {by_row}",
                f"count({draw(names)}) OVER ({partition}{everything} ROWS BETWEEN 2 PRECEDING AND CURRENT ROW)",
            )
        )
    )


@st.composite
def _select(
    draw: st.DrawFn, rest: str, columns: dict[str, str], tables: list[TableDefinition], depth: int, *, distinct: bool
) -> Relation:
    chosen = draw(st.lists(st.sampled_from(list(columns)), min_size=1, max_size=3))
    outputs, kinds = [], {}
    for position, name in enumerate(chosen):
        kind = columns[name]
        wrapped = draw(
            st.sampled_from(
                (
                    name,
                    name,
                    f"coalesce({name}, {_plain(draw, kind)})",
                    f"CASE WHEN {name} IS NULL THEN 'none' ELSE 'some' END",
                )
            )
        )
        kinds[f"o{position}"] = "text" if wrapped.startswith("CASE") else kind
        outputs.append(f"{wrapped} AS o{position}")
    if draw(st.integers(0, 4)) == 0:
        answer = f"CASE WHEN {draw(_asks(tables, columns, depth + 10))} THEN 'yes' ELSE 'no' END"
        outputs.append(f"{answer} AS o{len(outputs)}")
        kinds[f"o{len(kinds)}"] = "text"
    if draw(st.integers(0, 24)) == 0:
        outputs.append(f"CASE WHEN {_in_time(draw, columns)} THEN 'new' ELSE 'old' END AS o{len(outputs)}")
        kinds[f"o{len(kinds)}"] = "text"
    texts = [name for name, kind in columns.items() if kind == "text"]
    if texts and draw(st.integers(0, 7)) == 0:
        inside = f"{draw(_any_of(tables))} q WHERE q.s {draw(st.sampled_from(('=', '<')))} {texts[0]}"
        outputs.append(f"array_to_string(ARRAY(SELECT q.s FROM {inside} ORDER BY q.s), '+') AS o{len(outputs)}")
        kinds[f"o{len(kinds)}"] = "text"
    if draw(st.integers(0, 4)) == 0:
        outputs.append(f"{draw(_windows(columns))} AS o{len(outputs)}")
        kinds[f"o{len(kinds)}"] = "big"
    if draw(st.integers(0, 7)) == 0:
        call, kind = draw(_sets(columns))
        outputs.append(f"{call} AS o{len(outputs)}")
        kinds[f"o{len(kinds)}"] = kind
    return Relation(f"SELECT {'DISTINCT ' if distinct else ''}{', '.join(outputs)} {rest}", kinds)


@st.composite
def _windowed(draw: st.DrawFn, rows: Relation) -> Relation:
    """A row beside what one or two windows make of it, or only some of these rows. Which rows tie does not matter."""
    kinds, calls = dict(rows.columns), []
    for _ in range(draw(st.integers(1, 2))):
        by, ordered = (draw(st.lists(st.sampled_from(list(rows.columns)), max_size=2, unique=True)) for _ in "12")
        name = draw(st.sampled_from(list(rows.columns)))
        number = rows.columns[name] in ("int", "numeric")
        call, kind = draw(
            st.sampled_from(
                [
                    ("rank()", "big"),
                    ("dense_rank()", "big"),
                    ("row_number()", "big"),
                    ("count(*)", "big"),
                    (f"count({name})", "big"),
                    *([(f"max({name})", rows.columns[name])] if number else []),
                ]
            )
        )
        if call == "row_number()":  # so that only rows tie that are alike
            ordered = [*ordered, *(column for column in rows.columns if column not in ordered)]
        frames = ("", "", "RANGE CURRENT ROW", "GROUPS BETWEEN 1 PRECEDING AND 1 FOLLOWING")
        frame = draw(st.sampled_from(frames)) if ordered and not call.endswith("()") else ""
        over = " ".join(
            filter(
                None,
                (
                    f"PARTITION BY {', '.join(by)}" if by else "",
                    f"ORDER BY {', '.join(ordered)}" if ordered else "",
                    frame,
                ),
            )
        )
        calls.append(f"{call} OVER ({over}) AS o{len(kinds)}")
        kinds[f"o{len(kinds)}"] = kind
    windowed = f"SELECT {', '.join([*rows.columns, *calls])} FROM ({rows.sql}) w"
    if draw(st.booleans()):
        return Relation(windowed, kinds)
    return Relation(f"SELECT * FROM ({windowed}) v WHERE o{len(kinds) - 1} <= {draw(st.integers(1, 3))}", kinds)


@st.composite
def _recursions(draw: st.DrawFn, tables: list[TableDefinition], depth: int) -> Relation:
    """What is reached over the rows of a table, in a few steps or in any number of them."""
    name, begun = f"r{depth}", draw(_queries(tables, depth - 1))
    numbers = [column for column, kind in begun.columns.items() if kind == "int"] or ["1"]
    first = f"SELECT {draw(st.sampled_from(numbers))}, 0 FROM ({begun.sql}) b"
    source, columns = f"{draw(_any_of(tables))} e", _row("e", COLUMNS)
    there, on = draw(st.sampled_from((("e.g", "e.i"), ("e.i", "e.g"), ("e.i", "e.i"))))
    reached = f"FROM {name} JOIN {source} ON {on} = {name}.o0"
    extra = f" AND {draw(conditions(columns))}" if draw(st.booleans()) else ""
    if draw(st.integers(0, 5)) == 0:
        extra += f" AND {draw(_asks(tables, columns, depth + 30))}"
    if draw(st.integers(0, 7)) == 0:
        extra += f" AND {_in_time(draw, columns)}"
    if draw(st.booleans()):
        recursion = f"{first} UNION SELECT {there}, {name}.o1 {reached}{extra}"
    else:
        recursion = f"{first} UNION ALL SELECT {there}, {name}.o1 + 1 {reached} WHERE {name}.o1 < 2{extra}"
    above = draw(st.sampled_from(("o0, o1", "o0, o1", "DISTINCT o0, o1", "o0, count(*)::int AS o1")))
    group = " GROUP BY o0" if "count" in above else ""
    sql = f"WITH RECURSIVE {name}(o0, o1) AS ({recursion}) SELECT {above} FROM {name}{group}"
    return Relation(sql, {"o0": "int", "o1": "int"})


@st.composite
def _aggregate(draw: st.DrawFn, rest: str, columns: dict[str, str]) -> Relation:
    keys = draw(st.lists(st.sampled_from(list(columns)), max_size=2, unique=True))
    kinds = {f"o{position}": columns[key] for position, key in enumerate(keys)}
    outputs = [f"{key} AS o{position}" for position, key in enumerate(keys)]
    for position in range(len(keys), len(keys) + draw(st.integers(1, 3))):
        call, kind = draw(_calls(columns))
        outputs.append(f"{call} AS o{position}")
        kinds[f"o{position}"] = kind
    group = f" GROUP BY {', '.join(keys)}" if keys else ""
    first, kind = next(iter(columns.items()))
    extreme = f"{'count' if kind in NO_EXTREMES else 'max'}({first})"
    having = draw(st.sampled_from(("", "", " HAVING count(*) > 1", f" HAVING {extreme} IS NOT NULL")))
    if draw(st.integers(0, 24)) == 0:
        outputs.append(f"count(*) FILTER (WHERE {_in_time(draw, columns)}) AS o{len(outputs)}")
        kinds[f"o{len(kinds)}"] = "big"
    return Relation(f"SELECT {', '.join(outputs)} {rest}{group}{having}", kinds)


@st.composite
def _calls(draw: st.DrawFn, columns: dict[str, str]) -> tuple[str, str]:
    name = draw(st.sampled_from(list(columns)))
    kind = columns[name]
    counts = ((f"count({name})", "big"), (f"count(DISTINCT {name})", "big"))
    if kind == "truth":
        return draw(st.sampled_from(((f"bool_and({name})", kind), (f"bool_or({name})", kind), *counts)))
    if kind in NO_EXTREMES:
        return draw(st.sampled_from(counts))
    if kind == "span":
        return draw(st.sampled_from(((f"sum({name})", kind), (f"min({name})", kind), (f"max({name})", kind), *counts)))
    if kind not in ("int", "big", "numeric", "float"):
        return draw(st.sampled_from(((f"min({name})", kind), (f"max({name})", kind), *counts)))
    if kind == "float":
        floats = tuple((f"{call}({name})", kind) for call in ("sum", "avg", "min", "max"))
        return draw(st.sampled_from((*floats, *counts)))
    sum_kind = "numeric" if kind != "int" else "big"
    return draw(
        st.sampled_from(
            (
                ("count(*)", "big"),
                (f"sum({name})", sum_kind),
                (f"avg({name})", "numeric"),
                (f"min({name})", kind),
                (f"max({name})", kind),
                (f"count({name}) FILTER (WHERE {name} > 0)", "big"),
            )
        )
    )


VALUES["big"] = VALUES["int"]
