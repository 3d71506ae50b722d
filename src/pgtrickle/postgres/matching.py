"""SQL of left joins, semi-joins, anti-joins and marks over weighted rows: what a delta on either side changes.

    probe      the rows of ΔL, each with what the right side has for it
    rematch    the rows of L that ΔR matches, with what that changes for them

Only one version of a side is at hand (tables as at the snapshot, state as before the window). The number of matches in
another version is that number less, or plus, the matches among the side's own delta. Called by
`physical/lower_delta.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from pgtrickle.model import Column, Expr, quote
from pgtrickle.postgres.wire import WEIGHT
from pgtrickle.query.expression import conjunction, element, node_of, reference
from pgtrickle.query.operators import Constant, Equality, LeftJoin, Match, MatchKind

Join = LeftJoin | Match

OWN = "pgt_own"
"""The rows of a side's own delta, in a query of this module."""

# bool, bytea, char, name, the integers, text, oid, the floats, bpchar, varchar, date and times, interval, numeric, uuid
_COMPARABLE = frozenset(
    {16, 17, 18, 19, 20, 21, 23, 25, 26, 700, 701, 1042, 1043, 1082, 1083, 1114, 1184, 1186, 1266, 1700, 2950}
)


@dataclass(frozen=True, slots=True)
class MatchKey:
    """An equality of the condition whose right side's values, each once, find the rows of the left side.

    `null_safe`: NULL finds NULL.
    """

    left: Expr
    right: Expr
    null_safe: bool = False

    def finds(self, value: str) -> str:
        """That the left side has a value of the right side's."""
        left = self.left.sql
        if not self.null_safe:
            return f"{left} = {value}"
        return f"ARRAY[{left}] = ARRAY[{value}] AND ({left} = {value} OR ({left} IS NULL AND {value} IS NULL))"

    def equality(self, value: Expr) -> Equality:
        """The same, the value first."""
        if not self.null_safe:
            return Equality(value, self.left)
        return Equality(_array(value), _array(self.left))


def _array(expression: Expr) -> Expr:
    return Expr(f"ARRAY[{expression.sql}]", expression.columns)


def usable_keys(join: Join) -> tuple[MatchKey, ...]:
    """The equalities between columns (or casts of them) of types of PostgreSQL's own that DISTINCT can tell apart."""
    types = {column.name: column.type.oid for column in (*join.left.columns, *join.right.columns)}
    found = (_key(equality) for equality in join.equalities)
    return tuple(
        key
        for key in found
        if all(_is_plain(side) and types[side.columns[0]] in _COMPARABLE for side in (key.left, key.right))
    )


def _key(equality: Equality) -> MatchKey:
    left, right = element(equality.left), element(equality.right)
    if left != equality.left and right != equality.right:
        return MatchKey(left, right, null_safe=True)
    return MatchKey(equality.left, equality.right)


def _is_plain(side: Expr) -> bool:
    node = node_of(side)
    while isinstance(node, exp.Paren | exp.Cast):
        node = node.this
    return isinstance(node, exp.Column)


def probe(join: Join, delta: str, right: str, own: str | None = None, sign: int = 0) -> str:
    """The rows of `delta` joined with `right`; with `own`, the delta of `right`, with `right` + `sign` · `own`."""
    if own is None:
        return _plain_probe(join, delta, right)
    on = _on(join)
    counted = f"{_counts(on, f'({right})', '1')} UNION ALL {_counts(on, OWN, str(sign))}"
    parts = [f"pgt_left AS MATERIALIZED ({_with_row_number(delta)})", f"{OWN} AS MATERIALIZED ({own})"]
    total = f"SELECT pgt_row, sum(pgt_n) AS pgt_n FROM ({counted}) AS counts GROUP BY pgt_row"
    rows = f"pgt_left AS l LEFT JOIN ({total}) AS c ON c.pgt_row = l.pgt_row"
    exists = "coalesce(c.pgt_n, 0) > 0"
    if isinstance(join, LeftJoin):
        paired = [
            f"SELECT {_both(join, f'l.{WEIGHT} * r.{WEIGHT}{factor}')} FROM pgt_left AS l JOIN {side} AS r ON {on}"
            for side, factor in ((f"({right})", ""), (OWN, f" * {sign}"))
        ]
        selected = " UNION ALL ".join([*paired, _padded(join, f"l.{WEIGHT}", rows, f" WHERE NOT {exists}")])
    else:
        selected = _answered(join, rows, exists)
    return f"WITH {', '.join(parts)} {selected}"


def _plain_probe(join: Join, delta: str, right: str) -> str:
    if isinstance(join, LeftJoin):
        outputs = _both(join, f"l.{WEIGHT} * coalesce(r.{WEIGHT}, 1)")
        return f"SELECT {outputs} FROM ({delta}) AS l LEFT JOIN ({right}) AS r ON {_on(join)}"
    return _answered(join, f"({delta}) AS l", f"EXISTS (SELECT FROM ({right}) AS r WHERE {_on(join)})")


def _answered(join: Match, rows: str, exists: str) -> str:
    columns = [f"l.{quote(name)}" for name in join.left.names]
    if join.mark is not None:
        columns.append(f"{exists} AS {quote(join.mark.name)}")
    where = {MatchKind.SEMI: f" WHERE {exists}", MatchKind.ANTI: f" WHERE NOT {exists}", MatchKind.MARK: ""}
    return f"SELECT {', '.join([*columns, f'l.{WEIGHT}'])} FROM {rows}{where[join.kind]}"


def candidates(left: str, keys: Sequence[MatchKey]) -> str:
    """The left side, or those of its rows that have a key of the delta: found by it, each once."""
    if not keys:
        return f"({left}) AS l"
    equal = " AND ".join(key.finds(f"k.{_column(position)}") for position, key in enumerate(keys))
    return f"({_distinct(keys)}) AS k JOIN ({left}) AS l ON {equal}"


def asked(join: Join, keys: Sequence[MatchKey]) -> tuple[Constant, Expr | None, tuple[Equality, ...]]:
    """The keys of the delta, as rows, and on what they are joined with the left side: for `candidates` in pieces."""
    types = {column.name: column.type for column in join.right.columns}
    rows = tuple(Column(_column(position), types[key.right.columns[0]]) for position, key in enumerate(keys))
    named = [reference(column) for column in rows]
    condition = conjunction(
        Expr(key.finds(value.sql), (*key.left.columns, *value.columns)) for key, value in zip(keys, named, strict=True)
    )
    equalities = tuple(key.equality(value) for key, value in zip(keys, named, strict=True))
    return Constant(rows, f"({_distinct(keys)})"), condition, equalities


def _distinct(keys: Sequence[MatchKey]) -> str:
    values = ", ".join(f"{key.right.sql} AS {_column(position)}" for position, key in enumerate(keys))
    return f"SELECT DISTINCT {values} FROM {OWN}"


def _column(position: int) -> str:
    return f"pgt_k{position}"


def rematch(join: Join, lefts: Sequence[str], right: str, own: str, lacking: str | None = None) -> str:
    """What `own`, the whole delta of the right side, changes for the rows of the left side, the sum of `lefts`: the
    `candidates` of each.

    `right` is the right side at hand. It is as after the delta, or lacks some rows for that: `OWN` all of the delta.
    """
    on = _on(join)
    matched = f"EXISTS (SELECT FROM {OWN} WHERE {on})"
    touched = " UNION ALL ".join(f"SELECT l.* FROM {left} WHERE {matched}" for left in lefts)
    parts = [f"{OWN} AS MATERIALIZED ({own})", f"pgt_left AS MATERIALIZED ({_with_row_number(touched)})"]
    counted = [_counts(on, f"({right})", "1")]
    if lacking is not None:
        counted.append(_counts(on, OWN if lacking == OWN else f"({lacking})", "1"))
    total = f"SELECT pgt_row, sum(pgt_n) AS pgt_n FROM ({' UNION ALL '.join(counted)}) AS counts GROUP BY pgt_row"
    changed = _counts(on, OWN, "1")
    after = "coalesce(a.pgt_n, 0) > 0"
    before = "coalesce(a.pgt_n, 0) - coalesce(c.pgt_n, 0) > 0"
    turned = (
        f"SELECT l.*, {after} AS pgt_now FROM pgt_left AS l LEFT JOIN ({total}) AS a ON a.pgt_row = l.pgt_row "
        f"LEFT JOIN ({changed}) AS c ON c.pgt_row = l.pgt_row WHERE ({after}) <> ({before})"
    )
    parts.append(f"pgt_turned AS MATERIALIZED ({turned})")
    return f"WITH {', '.join(parts)} {_turned(join, on)}"


def _turned(join: Join, on: str) -> str:
    """The rows of L whose answer turned, as the join shows them; of a left join, also the pairs gained and lost."""
    came_with_match = f"CASE WHEN l.pgt_now THEN l.{WEIGHT} ELSE -l.{WEIGHT} END"
    came_without = f"CASE WHEN l.pgt_now THEN -l.{WEIGHT} ELSE l.{WEIGHT} END"
    if isinstance(join, LeftJoin):
        pairs = f"SELECT {_both(join, f'l.{WEIGHT} * r.{WEIGHT}')} FROM pgt_left AS l JOIN {OWN} AS r ON {on}"
        return f"{pairs} UNION ALL {_padded(join, came_without, 'pgt_turned AS l')}"
    columns = ", ".join(f"l.{quote(name)}" for name in join.left.names)
    columns += ", " if columns else ""
    if join.mark is None:
        weight = came_with_match if join.kind is MatchKind.SEMI else came_without
        return f"SELECT {columns}{weight} AS {WEIGHT} FROM pgt_turned AS l"
    return (
        f"SELECT {columns}l.pgt_now = v.pgt_new AS {quote(join.mark.name)}, "
        f"CASE WHEN v.pgt_new THEN l.{WEIGHT} ELSE -l.{WEIGHT} END AS {WEIGHT} "
        "FROM pgt_turned AS l CROSS JOIN (VALUES (false), (true)) AS v(pgt_new)"
    )


def _counts(on: str, side: str, sign: str) -> str:
    """How many matches the rows of `pgt_left` have on a side."""
    pairs = f"SELECT l.pgt_row, r.{WEIGHT} FROM pgt_left AS l JOIN {side} AS r ON {on}"
    return f"SELECT pgt_row, sum({WEIGHT}) * {sign} AS pgt_n FROM ({pairs}) AS pairs GROUP BY pgt_row"


def _with_row_number(relation: str) -> str:
    return f"SELECT row_number() OVER () AS pgt_row, numbered.* FROM ({relation}) AS numbered"


def _padded(join: LeftJoin, weight: str, rows: str, where: str = "") -> str:
    """Left rows with NULLs for the right side's columns."""
    names = ", ".join(quote(name) for name in (*join.right.names, WEIGHT))
    nothing = f"LEFT JOIN (SELECT {names} FROM {OWN} WHERE false) AS r ON false"
    return f"SELECT {_both(join, weight)} FROM {rows} {nothing}{where}"


def _both(join: LeftJoin, weight: str) -> str:
    names = [f"l.{quote(name)}" for name in join.left.names] + [f"r.{quote(name)}" for name in join.right.names]
    return ", ".join([*names, f"{weight} AS {WEIGHT}"])


def _on(join: Join) -> str:
    return "true" if join.condition is None else join.condition.sql
