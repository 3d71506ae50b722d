"""Hypothesis strategies for queries over values that are equal but look different, and for windows over their tables.

Every relation has a column `k`, of a type whose equal values may look different, and a column `v`, an integer. So
PostgreSQL's answer is one up to looks: there is no LIMIT among rows that differ, and nothing that shows a look.
"""

from __future__ import annotations

from itertools import count

from hypothesis import strategies as st

VALUES = {
    "numeric": ("1", "1.0", "1.00", "2", "2.0", "0", "0.0", "'NaN'", "NULL"),
    "float8": ("0", "'-0'", "1", "'NaN'", "NULL"),
    "interval": ("'1 month'", "'30 days'", "'720:00:00'", "'1 day'", "'24:00:00'", "NULL"),
    "bpchar": ("'a'", "'a '", "'a  '", "'b'", "NULL"),
    "numeric[]": ("'{1.0}'", "'{1.00}'", "'{1,NULL}'", "'{1.0,NULL}'", "NULL"),
    "jsonb": ("'1.0'", "'1.00'", "'[1]'", "'[1.0]'", "'null'", "NULL"),
}
FOLDED = ("'a'", "'A'", "'b'", "'B'", "NULL")
"""Of a collation that does not tell the cases apart."""
TABLES = ("a", "b")
SETS = ("UNION", "UNION", "UNION ALL", "INTERSECT", "INTERSECT ALL", "EXCEPT", "EXCEPT ALL")


class Writer:
    """Draws one query; aliases are its own."""

    def __init__(self, draw: st.DrawFn, *, ordered: bool, is_array: bool) -> None:
        self._draw = draw
        self._numbers = count(1)
        self._ordered = ordered
        """Whether the type has min and max."""
        self._is_array = is_array

    def of(self, *choices: str) -> str:
        return self._draw(st.sampled_from(choices))

    def item(self, depth: int) -> tuple[str, str]:
        """A relation in FROM, and its alias."""
        alias = f"q{next(self._numbers)}"
        if depth <= 0 or self.of("table", "table", "query") == "table":
            return f"{self.of(*TABLES)} {alias}", alias
        return f"({self.query(depth - 1)}) {alias}", alias

    def query(self, depth: int) -> str:
        item, q = self.item(depth)
        shapes = ["rows", "distinct", "distinct k", "groups", "groups", "sets", "first of each", "first", "ties"]
        shapes += ["set", "join", "using", "outer", "scalar", "exists", "in", "domain", "lateral", "expanded"]
        shapes += ["extreme", "extreme", "extreme asked"] if self._ordered else []
        if depth <= 0:
            shapes = ["rows", "distinct", "groups", "sets"] + (["extreme"] if self._ordered else [])
        shapes += ["taken"]
        match self.of(*shapes):
            case "rows":
                return f"SELECT {q}.k, {q}.v FROM {item} WHERE {q}.v {self.of('> 1', 'IS NOT NULL')}"
            case "distinct":
                return f"SELECT DISTINCT {q}.k, {q}.v FROM {item}"
            case "distinct k":
                return f"SELECT DISTINCT {q}.k, 1 AS v FROM {item}"
            case "groups":
                having = self.of("", " HAVING count(*) > 1")
                call = self.of(f"sum({q}.v)::int", "count(*)::int", f"max({q}.v)")
                return f"SELECT {q}.k, {call} AS v FROM {item} GROUP BY {q}.k{having}"
            case "sets":
                sets = self.of(f"CUBE ({q}.k, {q}.v)", f"ROLLUP ({q}.k, {q}.v)", f"GROUPING SETS (({q}.k), ({q}.v))")
                return f"SELECT {q}.k, count(*)::int + COALESCE({q}.v, 0) AS v FROM {item} GROUP BY {sets}"
            case "extreme":
                return f"SELECT {self.of('min', 'max')}({q}.k) AS k, {q}.v FROM {item} GROUP BY {q}.v"
            case "taken":
                calls = ["mode() WITHIN GROUP (ORDER BY {k}){where}"]
                calls += ["percentile_disc(0.5) WITHIN GROUP (ORDER BY {k}){where}"]
                calls += [] if self._is_array else ["(array_agg(DISTINCT {k}){where})[1]"]
                calls += ["min(DISTINCT {k}){where}"] if self._ordered else []
                where = self.of("", "", f" FILTER (WHERE {q}.v > 1)")
                call = self.of(*calls).format(k=f"{q}.k", where=where)
                return f"SELECT {call} AS k, {q}.v FROM {item} GROUP BY {q}.v"
            case "extreme asked":
                other, r = self.item(depth - 1)
                one = f"SELECT {self.of('min', 'max')}({r}.k) FROM {other} WHERE {r}.v {self.of('=', '<')} {q}.v"
                return f"SELECT ({one}) AS k, {q}.v FROM {item}"
            case "first of each":
                return (
                    f"SELECT DISTINCT ON ({q}.v) {q}.k, {q}.v FROM {item} ORDER BY {q}.v, {q}.k{self.of('', ' DESC')}"
                )
            case "first":
                return f"SELECT {q}.k, {q}.v FROM {item} ORDER BY {q}.k{self.of('', ' DESC')}, {q}.v LIMIT 2"
            case "ties":
                return f"SELECT {q}.k, {q}.v FROM {item} ORDER BY {q}.k FETCH FIRST 1 ROWS WITH TIES"
            case "set":
                other, r = self.item(depth - 1)
                operation = self.of(*SETS)
                return f"(SELECT {q}.k, {q}.v FROM {item}) {operation} (SELECT {r}.k, {r}.v FROM {other})"
            case "expanded":
                return f"SELECT {q}.k, w.v FROM {item} CROSS JOIN LATERAL unnest(ARRAY[{q}.v, 7]) w(v)"
        other, r = self.item(depth - 1)
        kind = self.of("", "LEFT ", "RIGHT ", "FULL ")
        match self.of("join", "using", "outer", "scalar", "exists", "in", "domain", "lateral"):
            case "using":
                return f"SELECT k, {q}.v FROM {item} {kind}JOIN {other} USING (k)"
            case "outer":
                return f"SELECT {self.of(q, r)}.k, {q}.v + {r}.v AS v FROM {item} {kind}JOIN {other} ON {q}.k = {r}.k"
            case "scalar":
                one = f"SELECT {self.of('count(*)', 'sum(' + r + '.v)')}::int FROM {other} WHERE {r}.k = {q}.k"
                return f"SELECT {q}.k, ({one}) AS v FROM {item}"
            case "exists":
                where = f"{r}.k {self.of('=', '<', '<>')} {q}.k AND {r}.v {self.of('=', '<')} {q}.v"
                asked = f"{self.of('', 'NOT ')}EXISTS (SELECT FROM {other} WHERE {where})"
                return f"SELECT {q}.k, {q}.v FROM {item} WHERE {asked}"
            case "in":
                return (
                    f"SELECT {q}.k, {q}.v FROM {item} WHERE {q}.k {self.of('', 'NOT ')}IN (SELECT {r}.k FROM {other})"
                )
            case "domain":
                where = f"{r}.k {self.of('<', '<=', '<>', 'IS NOT DISTINCT FROM')} {q}.k"
                return f"SELECT {q}.k, (SELECT count(*)::int FROM {other} WHERE {where}) AS v FROM {item}"
            case "lateral":
                where = f"{r}.k {self.of('=', '<=', '<>')} {q}.k"
                made = self.of(
                    f"SELECT DISTINCT {r}.k, {r}.v FROM {other} WHERE {where}",
                    f"SELECT {r}.k, count(*)::int AS v FROM {other} WHERE {where} GROUP BY {r}.k",
                    f"SELECT {r}.k, {r}.v FROM {other} WHERE {where} ORDER BY {r}.k, {r}.v LIMIT 1",
                    f"SELECT {q}.k, count(*)::int AS v FROM {other} WHERE {where}",
                )
                return f"SELECT {self.of('m', 'm', q)}.k, m.v FROM {item}, LATERAL ({made}) m"
        return f"SELECT {self.of(q, r)}.k, {self.of(q, r)}.v FROM {item} JOIN {other} ON {q}.k = {r}.k"


@st.composite
def queries(draw: st.DrawFn, kind: str) -> str:
    return Writer(draw, ordered=kind != "jsonb", is_array=kind.endswith("[]")).query(draw(st.sampled_from((1, 2, 2))))


@st.composite
def statements(draw: st.DrawFn, values: tuple[str, ...]) -> str:
    """One change of a table `(id, k, v)`."""
    table, value = draw(st.sampled_from(TABLES)), draw(st.sampled_from(values))
    v = draw(st.sampled_from(("1", "1", "2", "3", "NULL")))
    match draw(st.sampled_from(("insert", "insert", "insert", "delete", "update", "look"))):
        case "insert":
            return f"INSERT INTO {table} (k, v) VALUES ({value}, {v})"
        case "delete":
            offset = v.replace("NULL", "0")
            return f"DELETE FROM {table} WHERE id = (SELECT id FROM {table} ORDER BY id OFFSET {offset} LIMIT 1)"
        case "update":
            return f"UPDATE {table} SET v = {v} WHERE id % 3 = 1"
    return f"UPDATE {table} SET k = {value} WHERE id % 3 = 1"
