"""Hypothesis strategies for queries with correlated subqueries, as text, and for steps that change their tables.

`t` is the table around; subqueries read `r` and `s`, the rows around them at any depth, and subqueries of their own.
"""

from __future__ import annotations

from collections import Counter
from itertools import count

from hypothesis import strategies as st

from tests.steps.parser import Change, Row, Step, StepFile, TableDefinition

TABLES = (
    TableDefinition("t", "k int, v int"),
    TableDefinition("r", "k int, v int"),
    TableDefinition("s", "k int, v int"),
)
VALUES = st.sampled_from((None, 1, 1, 2, 3))
SET_OPERATIONS = ("UNION", "UNION ALL", "INTERSECT", "INTERSECT ALL", "EXCEPT", "EXCEPT ALL")
AGGREGATES = ("count(*)", "count({})", "max({})", "min({})", "sum({})")


class Writer:
    """Draws one query; aliases are its own, as PostgreSQL makes them."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self._numbers = count(1)

    def of(self, *choices: str) -> str:
        return self._draw(st.sampled_from(choices))

    def chance(self) -> bool:
        return self._draw(st.booleans())

    def view(self) -> str:
        """A query of `t` that asks a subquery of one column, `x`, in one of the ways there are."""
        asked = self.query(["t"], 2)
        return self.elsewhere(asked) if self.chance() else self.in_expression(asked)

    def in_expression(self, asked: str) -> str:
        """The subquery in SELECT or WHERE, or as LATERAL."""
        match self.of("exists", "in", "any", "mark", "scalar", "lateral", "left", "with"):
            case "exists":
                return f"SELECT t.k, t.v FROM t WHERE {self.of('', 'NOT ')}EXISTS ({asked})"
            case "in":
                return f"SELECT t.k, t.v FROM t WHERE t.v {self.of('', 'NOT ')}IN ({asked})"
            case "any":
                return f"SELECT t.k, t.v FROM t WHERE t.v {self.of('<', '=', '<>')} {self.of('ANY', 'ALL')} ({asked})"
            case "mark":
                return f"SELECT t.k, t.v IN ({asked}) AS a, EXISTS ({self.query(['t'], 1)}) AS b FROM t"
            case "scalar":
                return f"SELECT t.k, (SELECT {self.aggregate('q.x')} FROM ({asked}) q) AS n FROM t"
            case "with":
                asks = f"EXISTS (SELECT FROM w w2 WHERE w2.x {self.of('=', '<')} r.v)"
                counted = self.of("w", f"r WHERE {asks}")
                return f"SELECT t.k, (WITH w AS ({asked}) SELECT count(*) FROM {counted}) AS n FROM t"
            case "lateral":
                return f"SELECT t.k, q.x FROM t, LATERAL ({asked}) q"
        return f"SELECT t.k, q.x FROM t LEFT JOIN LATERAL ({asked}) q ON {self.of('true', 'q.x > t.k', 'q.x = 1')}"

    def elsewhere(self, asked: str) -> str:
        """The subquery in any other place, or asked of groups."""
        one = f"(SELECT {self.aggregate('q.x')} FROM ({asked}) q)"
        match self.of("group", "having", "row", "first", "first groups", "on", "sets", "function", "groups", "groups"):
            case "group":
                return f"SELECT {one} AS m, count(*) AS n, sum(t.v) AS s FROM t GROUP BY 1"
            case "having":
                return f"SELECT t.v, count(*) AS n FROM t GROUP BY t.v, {one} HAVING {one} {self.of('> 1', 'IS NULL')}"
            case "row":
                row = f"(SELECT {self.aggregate('q.x')}, {self.aggregate('q.x')} FROM ({asked}) q)"
                return f"SELECT t.k, (t.k, t.v) {self.of('=', '<>', '<', '>=')} {row} AS c FROM t"
            case "first":
                return f"SELECT t.k, t.v FROM t ORDER BY {one}{self.of('', ' DESC')}, t.k, t.v LIMIT 2"
            case "first groups":
                order = f"t.k{self.of('', ' DESC')}, 3"
                return f"SELECT count(*) AS n, t.k, {one} AS m FROM t GROUP BY 2, 3 ORDER BY {order} LIMIT 2"
            case "on":
                rows = f"LATERAL (SELECT p.x AS k, p.x + 1 AS v FROM ({asked}) p) q"
                on = f"{self.of('', 'NOT ')}EXISTS ({self.query(['t', 'q'], 1)})"
                return f"SELECT t.k, q.v FROM t {self.of('LEFT', '')} JOIN {rows} ON {on}"
            case "sets":
                sets = self.of("CUBE (t.k, t.v)", "ROLLUP (t.k, t.v)", "GROUPING SETS ((t.k, t.v), (t.v), (t.v))")
                return f"SELECT t.k, t.v, count(*) AS n, {one} AS m FROM t GROUP BY {sets}"
            case "function":
                array = f"(SELECT array_agg(q.x ORDER BY q.x) FROM ({asked}) q)"
                on = self.of("true", "u.x > t.k", "u.x < 3")
                return f"SELECT t.k, u.x FROM t {self.of('LEFT', '')} JOIN unnest({array}) u(x) ON {on}"
        asked = asked.replace("t.v", self.of("max(t.v)", "count(t.v)", "min(t.v)"))
        if self.chance():
            return f"SELECT t.k FROM t GROUP BY t.k HAVING {self.of('', 'NOT ')}EXISTS ({asked})"
        return f"SELECT t.k, sum(t.v) AS s, (SELECT {self.aggregate('q.x')} FROM ({asked}) q) AS n FROM t GROUP BY t.k"

    def query(self, around: list[str], depth: int) -> str:
        """A query with one column, `x`, that may read the rows `around`."""
        if depth > 0 and self.chance():
            one, other = self.query(around, depth - 1), self.query(around, depth - 1)
            return f"({one}) {self.of(*SET_OPERATIONS)} ({other}){self.limit()}"
        outside = self.of(*around)
        kind = self.of("rows", "rows", "distinct", "groups", "total", "having", "row")
        if kind == "row":
            return f"SELECT {outside}.v AS x{self.of('', f' WHERE {outside}.k > 1')}"
        own = f"q{next(self._numbers)}"
        item, columns = self.item(own, around, depth)
        where = f" FROM {item} WHERE {self.condition(own, columns, around, depth)}"
        value = self.of(f"{own}.v", f"{own}.v", f"{own}.v + {outside}.k")
        match kind:
            case "distinct":
                return f"SELECT DISTINCT {value} AS x{where}{self.limit()}"
            case "groups":
                return f"SELECT {self.aggregate(f'{own}.v')} AS x{where} GROUP BY {own}.{columns[0]}{self.limit()}"
            case "total":
                return f"SELECT {self.aggregate(f'{own}.v')} AS x{where}"
            case "having":
                return (
                    f"SELECT {self.aggregate(f'{own}.v')} AS x{where} HAVING count(*) {self.of('= 0', '> 1', '<> 1')}"
                )
        return f"SELECT {value} AS x{where}{self.limit()}"

    def item(self, own: str, around: list[str], depth: int) -> tuple[str, list[str]]:
        """What a query reads, under the name `own`, and the columns that it has."""
        match self.of("table", "table", "table", "derived", "values", "series", "right", "full"):
            case "derived" if depth > 0:
                return f"({self.query(around, depth - 1)}) {own}(v)", ["v"]
            case "values":
                return f"(VALUES ({self.of(*around)}.k), ({self.of(*around)}.v)) {own}(v)", ["v"]
            case "series":
                return f"generate_series(1, {self.of(*around)}.v) {own}(v)", ["v"]
            case "right":
                other = f"q{next(self._numbers)}"
                on = f"{other}.v = {own}.v AND {own}.k {self.of('=', '<')} {self.of(*around)}.{self.of('k', 'v')}"
                return f"r {own} RIGHT JOIN s {other} ON {on}", ["k", "v"]
            case "full" if depth > 0:
                other, query = f"q{next(self._numbers)}", self.query(around, depth - 1)
                return f"r {own} FULL JOIN ({query}) {other}(v) ON {other}.v = {own}.v", ["k", "v"]
        return f"{self.of('r', 's')} {own}", ["k", "v"]

    def aggregate(self, argument: str) -> str:
        return self.of(*AGGREGATES).format(argument)

    def limit(self) -> str:
        some = (" LIMIT 1", " DESC LIMIT 2", " OFFSET 1", " LIMIT ALL", " FETCH FIRST 2 ROWS WITH TIES")
        return self.of("", "", "", "", *(f" ORDER BY 1{part}" for part in some))

    def condition(self, own: str, columns: list[str], around: list[str], depth: int) -> str:
        parts = [self.comparison(own, columns, around) for _ in range(self._draw(st.integers(1, 2)))]
        if depth > 0 and self.chance():
            parts.append(
                f"{self.of('', 'NOT ')}EXISTS ({self.query([*around, own] if 'k' in columns else around, depth - 1)})"
            )
        return self.of(" AND ", " AND ", " OR ").join(parts)

    def comparison(self, own: str, columns: list[str], around: list[str]) -> str:
        outside = f"{self.of(*around)}.{self.of('k', 'v')}"
        compared = self.of("=", "=", "=", "<", "<>", "IS NOT DISTINCT FROM")
        return f"{own}.{self.of(*columns)} {compared} {self.of(outside, outside, '1')}"


@st.composite
def views(draw: st.DrawFn) -> str:
    return Writer(draw).view()


@st.composite
def files(draw: st.DrawFn) -> StepFile:
    """A view and three steps; what they must give is PostgreSQL's to say."""
    present: dict[str, Counter[Row]] = {table.name: Counter() for table in TABLES}
    steps = tuple(Step(line, _changes(draw, present), Counter()) for line in range(3))
    return StepFile("random", "a random view", TABLES, (), draw(views()), steps)


def _changes(draw: st.DrawFn, present: dict[str, Counter[Row]]) -> tuple[Change, ...]:
    changes: list[Change] = []
    for _ in range(draw(st.integers(1, 5))):
        table = draw(st.sampled_from(sorted(present)))
        rows = sorted(present[table].elements(), key=repr)
        old = draw(st.sampled_from([None, *rows]))
        new = draw(st.tuples(VALUES, VALUES)) if old is None or draw(st.booleans()) else None
        present[table].subtract([] if old is None else [old])
        present[table].update([] if new is None else [new])
        changes.append(Change(table, old, new))
    return tuple(changes)
