"""Hypothesis strategies for queries with window functions, as text, and for steps that change their tables.

Each row of `t` has an id, so that what takes rows one by one is determined: its order ends with the id. What looks at
peers has any order.
"""

from __future__ import annotations

from collections import Counter
from decimal import Decimal

from hypothesis import strategies as st

from tests.steps.parser import Change, Row, Step, StepFile, TableDefinition

TABLES = (
    TableDefinition("t", "id int primary key, k int, j int, v int"),
    TableDefinition("u", "id int primary key, name text"),
)
VALUES = st.sampled_from((None, 0, 1, 1, 2, 3))
NAMES = st.sampled_from((None, "a", "a", "B"))
IDS = range(1, 9)

RANKS = ("rank()", "dense_rank()", "percent_rank()", "cume_dist()")
BY_ROW = ("row_number()", "ntile(2)", "ntile(3)", "lag({})", "lead({}, 2)", "lag({}, 1, -1)")
VALUE = ("first_value({})", "last_value({})", "nth_value({}, 2)", "string_agg({}::text, ',')")
AGGREGATES = ("count(*)", "count({})", "sum({})", "avg({})", "min({})", "max({})", "stddev({})")
ENDS = (
    "UNBOUNDED PRECEDING AND CURRENT ROW",
    "UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING",
    "1 PRECEDING AND 1 FOLLOWING",
    "CURRENT ROW AND 2 FOLLOWING",
    "2 PRECEDING AND 1 PRECEDING",
    "1 FOLLOWING AND UNBOUNDED FOLLOWING",
)
EXCLUDE = ("", "", " EXCLUDE CURRENT ROW", " EXCLUDE GROUP", " EXCLUDE TIES")


class Writer:
    """Draws one query; `id` tells the rows apart that windows are over, `columns` are numbers of theirs."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def of(self, *choices: str) -> str:
        return self._draw(st.sampled_from(choices))

    def view(self) -> str:
        made = self.rows()
        match self.of("plain", "plain", "groups", "filter", "first", "distinct", "on", "limit", "union", "join", "in"):
            case "groups":
                return f"SELECT a, count(*) AS n, sum(id) AS s, max(b) AS m FROM ({made}) q GROUP BY a"
            case "filter":
                return f"SELECT id, b FROM ({made}) q WHERE {self.of('a > 1', 'a IS NULL', 'p = 1', 'p > 0')}"
            case "first":
                order = self.order(("k", "j", "v"), "id", by_row=True)
                by = f"row_number() OVER ({self.partition(('k', 'j', 'v'))} {order})"
                return f"SELECT id, k FROM (SELECT *, {by} AS n FROM t) q WHERE n <= {self.of('1', '2')}"
            case "distinct":
                return f"SELECT DISTINCT a, p FROM ({made}) q"
            case "on":
                return f"SELECT DISTINCT ON (p) p, a, id FROM ({made}) q ORDER BY p, a, id"
            case "limit":
                return f"SELECT id, a, b FROM ({made}) q ORDER BY {self.of('a, ', 'b DESC, ')}id LIMIT 3"
            case "union":
                return f"SELECT id, a FROM ({made}) q {self.of('UNION', 'UNION ALL', 'EXCEPT ALL')} SELECT id, v FROM t"
            case "join":
                join = self.of("JOIN", "LEFT JOIN", "FULL JOIN")
                return f"SELECT q.id, q.a, q.b, x.v FROM ({made}) q {join} t x ON x.id = q.{self.of('id', 'p')}"
            case "in":
                return f"SELECT t.id FROM t WHERE t.v {self.of('', 'NOT ')}IN (SELECT a::int FROM ({made}) q)"
        return made

    def rows(self) -> str:
        """A query of `id`, a number `p`, and two window calls `a` and `b`, the first of which is a number."""
        match self.of("table", "table", "join", "left", "groups", "having", "union", "windows"):
            case "join":
                return self.over("t JOIN u ON u.id = t.k", ("t.k", "t.j", "t.v", "u.id"), "t.id")
            case "left":
                return self.over("t LEFT JOIN u ON u.id = t.k", ("t.k", "t.v", "u.id", "u.name"), "t.id")
            case "groups":
                return self.over("t", ("t.k", "sum(t.v)", "count(*)"), "t.k", " GROUP BY t.k")
            case "having":
                return self.over("t", ("t.j", "min(t.v)", "count(*)"), "t.j", " GROUP BY t.j HAVING count(*) > 1")
            case "union":
                both = "(SELECT id, k, v FROM t UNION ALL SELECT id + 100, length(name), NULL FROM u) x"
                return self.over(both, ("x.k", "x.v"), "x.id")
            case "windows":
                inner = f"SELECT id, k, {self.number(('k', 'j', 'v'), 'id')} AS v FROM t"
                return self.over(f"({inner}) x", ("x.k", "x.v"), "x.id")
        return self.over("t", ("t.k", "t.j", "t.v"), "t.id", self.of("", "", " WHERE t.v > 0"))

    def over(self, rows: str, columns: tuple[str, ...], id_: str, rest: str = "") -> str:
        made = f"{id_} AS id, {columns[0]} AS p, {self.number(columns, id_)} AS a, {self.call(columns, id_)} AS b"
        return f"SELECT {made} FROM {rows}{rest}"

    def number(self, columns: tuple[str, ...], id_: str) -> str:
        numbers = tuple(column for column in columns if not column.endswith("name"))
        if self.of("rank", "sum") == "rank":
            return self.ranked(columns, id_, self.of("rank()", "dense_rank()", "row_number()", "ntile(2)"))
        return self.framed(numbers, id_, self.of("count({})", "count(*)"), columns)

    def call(self, columns: tuple[str, ...], id_: str) -> str:
        numbers = tuple(column for column in columns if not column.endswith("name"))
        match self.of("rank", "row", "aggregate", "aggregate", "value"):
            case "rank":
                return self.ranked(columns, id_, self.of(*RANKS))
            case "row":
                return self.ranked(columns, id_, self.of(*BY_ROW))
            case "value":
                return self.framed(columns, id_, self.of(*VALUE), columns, by_row=True)
        return self.framed(numbers, id_, self.of(*AGGREGATES), columns)

    def ranked(self, columns: tuple[str, ...], id_: str, function: str) -> str:
        order = self.order(columns, id_, by_row=function not in RANKS[:4])
        return f"{function.format(self.of(*columns))} OVER ({self.partition(columns)} {order})"

    def framed(
        self, arguments: tuple[str, ...], id_: str, function: str, columns: tuple[str, ...], *, by_row: bool = False
    ) -> str:
        call = function.format(self.of(*arguments))
        if "value(" not in function and self.of("", "filter") == "filter":
            call += f" FILTER (WHERE {id_} > {self.of('1', '3')})"
        match self.of("whole", "default", "rows", "groups", "range"):
            case "whole" if not by_row:
                return f"{call} OVER ({self.partition(columns)})"
            case "rows":
                order, frame = self.order(columns, id_, by_row=True), f" ROWS BETWEEN {self.of(*ENDS)}"
            case "groups":
                order, frame = self.order(columns, id_, by_row=by_row), f" GROUPS BETWEEN {self.of(*ENDS)}"
            case "range":
                order, frame = f"ORDER BY {id_}{self.of('', ' DESC')}", f" RANGE BETWEEN {self.of(*ENDS)}"
            case _:
                return f"{call} OVER ({self.partition(columns)} {self.order(columns, id_, by_row=by_row)})"
        return f"{call} OVER ({self.partition(columns)} {order}{frame}{self.of(*EXCLUDE)})"

    def partition(self, columns: tuple[str, ...]) -> str:
        one, other = self.of(*columns), self.of(*columns)
        return self.of("", f"PARTITION BY {one}", f"PARTITION BY {one}", f"PARTITION BY {other}, {one} IS NULL")

    def order(self, columns: tuple[str, ...], id_: str, *, by_row: bool) -> str:
        first = f"{self.of(*columns)}{self.of('', ' DESC', ' NULLS FIRST', ' DESC NULLS LAST')}"
        return f"ORDER BY {first}{f', {id_}' if by_row else ''}"


@st.composite
def files(draw: st.DrawFn) -> StepFile:
    """A view and four steps; what they must give is PostgreSQL's to say."""
    present: dict[str, dict[int, Row]] = {table.name: {} for table in TABLES}
    steps = tuple(Step(line, _changes(draw, present), Counter()) for line in range(4))
    return StepFile("random", "a random view", TABLES, (), Writer(draw).view(), steps)


def _changes(draw: st.DrawFn, present: dict[str, dict[int, Row]]) -> tuple[Change, ...]:
    changes: list[Change] = []
    for _ in range(draw(st.integers(1, 6))):
        table = draw(st.sampled_from(("t", "t", "t", "u")))
        rows, id_ = present[table], draw(st.sampled_from(IDS))
        old = rows.pop(id_, None)
        new = None
        if old is None or draw(st.booleans()):
            rest = draw(st.tuples(VALUES, VALUES, VALUES)) if table == "t" else (draw(NAMES),)
            new = rows[id_] = (id_, *rest)
        changes.append(Change(table, old, new))
    return tuple(changes)


GOING_ON = (
    "count(*) OVER w AS c{}",
    "count(w) OVER w AS c{}",
    "sum(v) OVER w AS c{}",
    "sum(w) FILTER (WHERE v > 0) OVER w AS c{}",
    "sum(CASE WHEN v > 0 THEN w ELSE v END) OVER w AS c{}",
    "min(v) OVER w AS c{}",
    "max(w) OVER w AS c{}",
    "first_value(w) OVER w AS c{}",
    "last_value(v) OVER w AS c{}",
    "avg(w) FILTER (WHERE v > 0) OVER w AS c{}",
    "avg(v) OVER w AS c{}",
    "stddev(v) OVER w AS c{}",
)
AROUND = (
    "lag(w) OVER w AS c{}",
    "lag(v, 2, 7) OVER w AS c{}",
    "lead(w, 1) OVER w AS c{}",
    "lead(v, 3) OVER w AS c{}",
)
NEAR = ("ROWS 1 PRECEDING", "ROWS BETWEEN 2 PRECEDING AND 1 PRECEDING", "ROWS BETWEEN 1 PRECEDING AND 2 FOLLOWING")
BY_PEERS = ("rank() OVER w AS c{}", "dense_rank() OVER w AS c{}")
DIRECTIONS = ("", " DESC", " NULLS FIRST", " DESC NULLS LAST")
RUNNING = ("", "ROWS UNBOUNDED PRECEDING", "GROUPS UNBOUNDED PRECEDING", "RANGE UNBOUNDED PRECEDING")
D = TableDefinition("d", "k int, v int, w numeric(6, 2)")
OF_V = st.sampled_from((None, -1, 0, 1, 2))
OF_W = st.sampled_from((None, Decimal("-1.00"), Decimal("0.50"), Decimal("2.25")))


@st.composite
def continued_files(draw: st.DrawFn) -> StepFile:
    """A view of calls that go on from the row before, all of one window or the first places of it, and six steps on a
    table whose rows have no key. Where rows are taken one by one, only those tie that are alike."""

    def of(*choices: str) -> str:
        return draw(st.sampled_from(choices))

    frame = of(*RUNNING)
    columns = draw(st.permutations(("v", "w")))
    if not frame.startswith("ROWS") and draw(st.booleans()):
        columns = columns[:1]
    by_row = len(columns) == 2
    order = ", ".join(column + of(*DIRECTIONS) for column in columns)
    if by_row and draw(st.booleans()):
        frame = of(*NEAR, frame)
    ranks = (*BY_PEERS, "row_number() OVER w AS c{}") if by_row else BY_PEERS
    window = f"{of('PARTITION BY k', 'PARTITION BY k', '')} ORDER BY {order}"
    over = window if not by_row or "PARTITION" in window else f"{window}, k{of(*DIRECTIONS)}"
    going_on = (*GOING_ON, *AROUND) if by_row else tuple(call for call in GOING_ON if "_value" not in call)
    calls = draw(st.lists(st.sampled_from((*going_on, *ranks)), min_size=1, max_size=4, unique=True))
    made = ", ".join(call.format(place) for place, call in enumerate(calls))
    rest = f"FROM d WINDOW w AS ({over} {frame})"
    view = f"SELECT k, v, w, {made} {rest}"
    if draw(st.booleans()):
        number = draw(st.sampled_from(ranks)).format("x")
        bound = of("cx <= 1", "cx = 1", "cx < 3", "3 >= cx", "cx <= 2 AND v > 0")
        view = f"SELECT * FROM (SELECT k, v, w, {made}, {number} {rest}) q WHERE {bound}"
    elif draw(st.booleans()):
        view = f"SELECT k, count(*) AS n, sum(c0) AS s FROM (SELECT k, {calls[0].format(0)} {rest}) q GROUP BY k"
    present: list[Row] = []
    steps = tuple(Step(line, _changes_of_d(draw, present), Counter()) for line in range(6))
    return StepFile("random", "a random view", (D,), (), view, steps)


def _changes_of_d(draw: st.DrawFn, present: list[Row]) -> tuple[Change, ...]:
    changes: list[Change] = []
    for _ in range(draw(st.integers(1, 7))):
        old = new = None
        kind = draw(st.sampled_from(("insert", "insert", "insert", "delete", "update")))
        if kind != "insert" and present:
            old = present.pop(draw(st.integers(0, len(present) - 1)))
        if kind != "delete" or old is None:
            new = (draw(st.sampled_from((None, 1, 1, 2))), draw(OF_V), draw(OF_W))
            present.append(new)
        changes.append(Change("d", old, new))
    return tuple(changes)
