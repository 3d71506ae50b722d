"""Which expressions are keys of grouping sets, as PostgreSQL resolved it: read from a view's node tree. Pure; called by
`analyze.py`, for `syntax/mark_grouping_keys.py`.

An expression of the select list, HAVING or ORDER BY is a key where PostgreSQL's own tree says so: by its sort-group
reference; by being a column of the groups (from PostgreSQL 18 on); or, before that, by being equal to a key, node by
node, columns that a join merged taken apart. A constant is a key by its reference only: `1` in `1 + a` is no key.
So is a subquery that reads no column of the query, and from PostgreSQL 18 on whatever reads columns of queries further
out alone: within an expression it is asked anew, and not NULL in a set that leaves it out.
What is not definite is left to PostgreSQL: two keys that are the same expression; an expression of constants, which the
planner may have made a constant of, within another one; an order by a constant, which it may leave out, before 18 also
of DISTINCT.
"""

from __future__ import annotations

from collections.abc import Iterator

from pgtrickle.query.analyse import node_text
from pgtrickle.query.analyse.node_text import Node, Value
from pgtrickle.query.syntax.resolved_keys import Above, Grouped

_JOIN, _GROUP = 2, 9  # RTEKind
_SIMPLE = 1  # GroupingSetKind
#: What equal() of PostgreSQL does not look at; and which joins may make a column NULL: the same ones above them all.
_IGNORED = frozenset(
    {
        "location", "funcformat", "relabelformat", "coerceformat", "convertformat", "row_format", "opfuncid",
        "varnosyn", "varattnosyn", "varnullingrels", "varreturningtype",
    }
)  # fmt: skip


def read(tree: str) -> tuple[Grouped, ...]:
    """The SELECTs with grouping sets in a rule's node tree."""
    if ":groupingSets ({" not in tree:
        return ()
    queries = (
        node for node in node_text.walk(node_text.parse(tree)) if node.kind == "QUERY" and node.nodes("groupingSets")
    )
    return tuple(_Reader(query).grouped() for query in queries)


class _Reader:
    """Reads one Query node."""

    def __init__(self, query: Node) -> None:
        self._query = query
        self._rtable = query.nodes("rtable")
        self._entries = query.nodes("targetList")
        self._written = list(_written(query.nodes("groupingSets")))
        self._numbers = {ref: number for number, ref in enumerate(dict.fromkeys(self._written))}
        by_ref = {entry.number("ressortgroupref"): entry.node("expr") for entry in self._entries}
        self._group = next((place for place, rte in enumerate(self._rtable, 1) if rte.number("rtekind") == _GROUP), 0)
        listed = [clause.number("tleSortGroupRef") for clause in query.nodes("groupClause")]
        given = self._rtable[self._group - 1].nodes("groupexprs") if self._group else [by_ref[ref] for ref in listed]
        keys = dict(zip(listed, given, strict=True))
        self._columns = [self._numbers[ref] for ref in listed]
        self._fixed = frozenset(self._numbers[ref] for ref, key in keys.items() if _is_fixed(key))
        self._asked = frozenset(self._numbers[ref] for ref, key in keys.items() if key and self._is_asked(key))
        constants = (self._numbers[ref] for ref, key in keys.items() if key and key.kind == "CONST")
        self._constants = self._asked.union(constants)
        self._equal = {self._image(key): self._numbers[ref] for ref, key in keys.items() if key is not None}
        outer = any(key is not None and key.kind == "VAR" and key.number("varlevelsup") > 0 for key in keys.values())
        self._definite = len(self._equal) == len(listed) and not outer

    def grouped(self) -> Grouped:
        having = self._query.node("havingQual")
        shown = [entry for entry in self._entries if entry.fields.get("resjunk") != "true"]
        selected = tuple(self._entry(entry) for entry in shown)
        names = tuple(str(entry.fields.get("resname")) for entry in shown)
        kept = None if having is None else self._above(having)
        order = self._sorted("sortClause")
        on = self._sorted("distinctClause") if self._query.fields.get("hasDistinctOn") == "true" else ()
        keys = tuple(self._numbers[ref] for ref in self._written)
        sorted_by = {above.key for above in (*order, *on)} & self._fixed
        if not self._group:  # before 18 DISTINCT, too, takes a key of no row for a constant
            unlike = (above.key for above in (*order, *self._sorted("distinctClause")))
            sorted_by |= (self._fixed | self._asked).intersection(unlike)
        definite = self._definite and not sorted_by
        return Grouped(keys, self._constants, selected, kept, order, on, names, definite, self._group > 0)

    def _is_asked(self, key: Node) -> bool:
        """Whether it has the value of a parameter where it is not named as the key."""
        levels = set(_levels(key))
        if 0 in levels:
            return False
        asks = any(node.kind == "SUBLINK" for node in node_text.walk(key))
        return asks or bool(levels) if self._group else asks and not levels

    def _sorted(self, clause: str) -> tuple[Above, ...]:
        entries = {entry.number("ressortgroupref"): entry for entry in self._entries}
        return tuple(self._entry(entries[item.number("tleSortGroupRef")]) for item in self._query.nodes(clause))

    def _entry(self, entry: Node) -> Above:
        ref = entry.number("ressortgroupref")
        return Above(self._numbers[ref]) if ref in self._numbers else self._above(entry.node("expr"))

    def _above(self, expression: Node | None) -> Above:
        if expression is None:
            return Above(None)
        within, named = list(self._within(expression)), list(self._named(expression))
        self._definite = self._definite and self._fixed.isdisjoint(within)
        whole = self._key(expression)
        if whole is not None:
            return Above(whole)
        return Above(None, tuple(sorted(within)), tuple(named))

    def _key(self, node: Node) -> int | None:
        """The key that a node is; a constant is none by itself."""
        if self._group:
            of_groups = node.kind == "VAR" and (node.number("varno"), node.number("varlevelsup")) == (self._group, 0)
            found = self._columns[node.number("varattno") - 1] if of_groups else None
        else:
            found = self._equal.get(self._image(node))
        return None if found in self._constants else found

    def _within(self, value: Value) -> Iterator[int]:
        """The keys in an expression; of an aggregate only its direct arguments are above the groups."""
        if isinstance(value, tuple):
            for part in value:
                yield from self._within(part)
        if not isinstance(value, Node) or value.kind in ("QUERY", "GROUPINGFUNC"):
            return
        key = self._key(value)
        if key is not None:
            yield key
        elif value.kind == "AGGREF":
            yield from self._within(value.fields.get("aggdirectargs"))
        else:
            for part in value.fields.values():
                yield from self._within(part)

    def _named(self, value: Value) -> Iterator[tuple[int, ...]]:
        if isinstance(value, tuple):
            for part in value:
                yield from self._named(part)
        if isinstance(value, Node) and value.kind == "GROUPINGFUNC":
            yield tuple(self._numbers[ref] for ref in value.numbers("refs"))
        elif isinstance(value, Node) and value.kind != "QUERY":
            for part in value.fields.values():
                yield from self._named(part)

    def _image(self, value: Value) -> str:
        """What is the same for values that equal() of PostgreSQL takes for the same."""
        if isinstance(value, tuple):
            return f"({' '.join(self._image(part) for part in value)})"
        if not isinstance(value, Node):
            return str(value)
        merged = self._merged(value)
        if merged is not None:
            return self._image(merged)
        fields = (f":{name} {self._image(part)}" for name, part in value.fields.items() if name not in _IGNORED)
        return f"{{{value.kind} {' '.join(fields)}}}"

    def _merged(self, node: Node) -> Node | None:
        """What a column that a join made stands for."""
        if node.kind != "VAR" or node.number("varlevelsup"):
            return None
        table = self._rtable[node.number("varno") - 1]
        if table.number("rtekind") != _JOIN or node.number("varattno") < 1:
            return None
        return table.nodes("joinaliasvars")[node.number("varattno") - 1]


def _is_fixed(key: Node | None) -> bool:
    """Whether it reads nothing."""
    return key is not None and not any(node.kind in ("VAR", "SUBLINK") for node in node_text.walk(key))


def _levels(value: Value, depth: int = 0) -> Iterator[int]:
    """How far out the queries are whose columns an expression reads: 0 is that which it stands in."""
    if isinstance(value, tuple):
        for part in value:
            yield from _levels(part, depth)
    if not isinstance(value, Node):
        return
    if value.kind == "VAR" and value.number("varlevelsup") >= depth:
        yield value.number("varlevelsup") - depth
    for part in value.fields.values():
        yield from _levels(part, depth + (value.kind == "QUERY"))


def _written(sets: list[Node]) -> Iterator[int]:
    """The references of all keys, in the order in which they are written."""
    for each in sets:
        if each.number("kind") == _SIMPLE:
            yield from each.numbers("content")
        else:
            yield from _written(each.nodes("content"))
