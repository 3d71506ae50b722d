"""Random GROUP BY, ROLLUP, CUBE and GROUPING SETS over keys that are easily taken for one another: merged and
same-named columns, expressions that hold other keys, casts that print alike, constants, subqueries.
Some are no valid queries.
"""

from __future__ import annotations

from random import Random

TABLES = """
CREATE TABLE t (a int, b text, n bigint, v int);
CREATE TABLE u (a bigint, b varchar, n bigint, v int);
INSERT INTO t VALUES (1, 'x', 1, 1), (1, 'x', 1, 2), (2, 'X', 20, 3), (NULL, NULL, 5, 4), (4, '', NULL, 4),
  (4, '', NULL, 4), (5, 'k', 1, NULL);
INSERT INTO u VALUES (1, 'x', 1, 1), (2, 'y', 2, 2), (2, 'y', 2, 7), (NULL, 'z', 1, 4), (7, NULL, NULL, 7),
  (5, 'k', 5, 5);
"""

ANY = (
    "1",
    "'k'",
    "'k'::text",
    "NULL::int",
    "true",
    "(SELECT max(v) FROM u)",
    "1 + 1",
    "2::bigint",
    "(SELECT max(v) FROM u)",
    "(SELECT count(*) = 0 FROM u)",
)
ONE = ("a", "b", "n", "v", "a + 1", "a + 1 + 1", "a + 2", "a + v", "v + a", "a::bigint", "abs(a)", "int8abs(a)",
       "b || 'k'", "b::varchar", "b::text", "upper(b)", "a = v", "CASE WHEN a > 1 THEN a END", "coalesce(a, v)",
       "coalesce(a, n)", "n::int", "a IS NULL", "a + 1 = v",
       "(SELECT count(*) FROM u WHERE u.a = t.a)", "EXISTS (SELECT FROM u WHERE u.a = t.a)",
       "(a IN (SELECT a FROM u))")  # fmt: skip
MERGED = ("a", "l.a", "r.a", "l.b", "r.b", "l.v", "r.v", "coalesce(l.a, r.a)", "a + 1", "l.a + 1", "l.a::bigint",
          "int8abs(l.a)", "l.v + r.v", "l.b || r.b", "a::int")  # fmt: skip
SAME = ("x.a", "y.a", "x.v", "y.v", "x.a + 1", "y.a + 1", "x.a + y.a", "x.b", "y.b", "x.a = y.a", "x.a::bigint")
NESTED = ("a", "v", "k", "a + 1", "x", "one", "one + a", "k || 'k'", "x + 1", "a::bigint")

SOURCES = (
    ("t", ONE),
    ("t", ONE),
    ("t AS l FULL JOIN u AS r USING (a)", MERGED),
    ("t AS l LEFT JOIN u AS r USING (a)", MERGED),
    ("t AS l RIGHT JOIN u AS r USING (a)", MERGED),
    ("t AS l JOIN u AS r USING (a)", MERGED),
    ("t AS x JOIN u AS y ON x.a = y.a", SAME),
    ("(SELECT a, v FROM t) AS x (a, v, b) LEFT JOIN (SELECT v AS a, a AS v, b FROM t) AS y ON x.a = y.a", SAME[:8]),
    ("(SELECT a, a + 1 AS x, v, 1 AS one, 'k' AS k FROM t) AS s", NESTED),
    ("(SELECT a, count(*) AS x, max(v) AS v, 1 AS one, b AS k FROM t GROUP BY ROLLUP (a, b)) AS s", NESTED),
)


class Writer:
    """Writes one query."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self.source, pool = self._random.choice(SOURCES)
        some = [self._random.choice(pool) for _ in range(self._random.randint(1, 4))]
        self.keys = list(dict.fromkeys([*some, *(self._random.choice(ANY) for _ in range(self._one_in(3)))]))
        self.named: list[str] = []  # constants in the select list that GROUP BY names by their place

    def _one_in(self, number: int) -> bool:
        return self._random.randrange(number) == 0

    def query(self) -> str:
        selected = self._selected()
        places = [str(place) for place, part in enumerate(selected, start=1) if part in self.keys]
        group = self._clause([key for key in self.keys if key != "1"] + (places if self._one_in(2) else []))
        having = f" HAVING {self._condition()}" if self._one_in(3) else ""
        listed = ", ".join(f"{part} AS o{place}" for place, part in enumerate(selected, start=1))
        distinct = "DISTINCT " if self._one_in(6) else ""
        tail = self._tail(len(selected)) if self._one_in(5) else ""
        return f"SELECT {distinct}{listed} FROM {self.source} GROUP BY {group}{having}{tail}"

    def _selected(self) -> list[str]:
        parts = [self._output() for _ in range(self._random.randint(1, 5))]
        return [*parts, self._random.choice(("count(*)", "sum(1)", f"max({self._key()})"))]

    def _key(self) -> str:
        return self._random.choice(self.keys)

    def _output(self) -> str:
        key = self._key()
        forms = (key, key, key, f"coalesce({key})", f"({key}) IS NULL", f"CASE WHEN ({key}) IS NULL THEN 0 ELSE 1 END",
                 f"ROW({key}, {self._key()})::text", f"GROUPING({key})", f"GROUPING({key}, {self._key()})",
                 f"({key}) + 1", f"({key}) || 'k'", f"({key}) = ({self._key()})",
                 f"concat({key}, {self._key()}, GROUPING({key}))",
                 self._random.choice(ANY), f"GROUPING({key}) + GROUPING({self._key()})",
                 f"(SELECT count(*) FROM u AS w WHERE w.a = {key})")  # fmt: skip
        return self._random.choice(forms)

    def _condition(self) -> str:
        key = self._key()
        forms = (f"GROUPING({key}) = 0", f"({key}) IS NOT NULL", f"({key}) IS NULL OR count(*) > 1", "count(*) > 1",
                 f"GROUPING({self._key()}, {key}) < 2", f"concat({key}) <> 'x'")  # fmt: skip
        return self._random.choice(forms)

    def _tail(self, width: int) -> str:
        order = [str(place) for place in range(1, width + 1)]
        first = [f"GROUPING({self._key()})"] if self._one_in(2) else []
        return f" ORDER BY {', '.join([*first, *order])} LIMIT 4"

    def _clause(self, keys: list[str]) -> str:
        items = [self._item(keys, 0) for _ in range(self._random.randint(1, 2))]
        return ("DISTINCT " if self._one_in(8) else "") + ", ".join(items)

    def _item(self, keys: list[str], depth: int) -> str:
        match self._random.choice(("key", "key", "rollup", "cube", "sets", "sets", "sets")):
            case "rollup":
                return f"ROLLUP ({', '.join(self._some(keys))})"
            case "cube":
                return f"CUBE ({', '.join(self._some(keys))})"
            case "sets" if depth < 2:
                parts = [self._item(keys, depth + 1) for _ in range(self._random.randint(1, 2))]
                return f"GROUPING SETS ({', '.join([*parts, *(['()'] if self._one_in(3) else [])])})"
        return self._random.choice(keys or ["()"]) if self._one_in(2) else f"({', '.join(self._some(keys))})"

    def _some(self, keys: list[str]) -> list[str]:
        return [self._random.choice(keys) for _ in range(self._random.randint(1, 2))] if keys else ["1"]
