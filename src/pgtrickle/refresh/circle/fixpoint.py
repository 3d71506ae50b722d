"""The rounds of a circle: its tables' queries, over and over, until none gains a row. Called by `circle_refresh.py`.

PostgreSQL evaluates them, in the transaction that sees the snapshot: rounds are many and small, and each reads the rows
of the one before, which no one else can see. What a table gains is collected in a temporary table with the number
of the round; the table itself is changed afterwards, by the caller.

    round 0      from nothing: the queries, its own tables being empty; or, going on: what outside changes bring
    round n      what the rows of round n−1 bring
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count

import psycopg

from pgtrickle.db import Connection, execute, scalar, use_settings
from pgtrickle.delta.algebra import Changes
from pgtrickle.delta.monotone import Growth, growth
from pgtrickle.errors import StateError
from pgtrickle.model import quote
from pgtrickle.postgres.row_image import by_image
from pgtrickle.postgres.wire import WEIGHT
from pgtrickle.query import render
from pgtrickle.query.looks import tie_breaks
from pgtrickle.query.operators import Operator, Scan
from pgtrickle.refresh.prepared import Prepared

_ROUND = "pgt_round"
_DIFFERENCE, _EQUAL = "pgt_difference", "pgt_equal"


@dataclass(frozen=True, slots=True)
class Outside:
    """Sources that are not of the circle: SQL of a scan at the snapshot, where that is not the table itself, and of the
    rows it gained in the window, which are read only if the circle goes on from what it holds."""

    at: Callable[[Scan], str | None]
    gained: Callable[[Scan], str]
    changed: frozenset[int] = frozenset()


@dataclass(slots=True)
class Fixpoint:
    """The rounds of one refresh, in the reader's transaction. `members` by the oid of their storage; `onward`: they go
    on from what they hold."""

    reader: Connection
    members: Mapping[int, Prepared]
    outside: Outside
    onward: bool
    _last: dict[int, int] = field(default_factory=dict)
    """How many rows each gained in the round before."""

    def run(self, most: int) -> int | None:
        """Returns the number of rounds after which all was settled, or None if it was not after so many."""
        for member in self.members.values():
            self._create(member)
        for number in count():
            gained = {oid: self._grow(member, number) for oid, member in self.members.items()}
            if not any(gained.values()):
                return number
            if number == most:
                return None
            self._last = gained
        raise AssertionError("counting does not end")

    def gained_sql(self, member: Prepared) -> str:
        """SELECT of all rows a member has gained, under its tree's names, with weight one."""
        return f"SELECT {_names(member)}, 1::bigint AS {WEIGHT} FROM {_work(member)}"

    def _create(self, member: Prepared) -> None:
        execute(
            self.reader,
            f"CREATE TEMPORARY TABLE {_bare(member)} ON COMMIT DROP AS "
            f"SELECT {_stored_as_named(member)}, 0 AS {_ROUND} FROM {member.storage.qualified} WITH NO DATA",
        )
        execute(self.reader, f"CREATE INDEX ON {_work(member)} ({_ROUND})")
        if _may_hash(member):
            execute(self.reader, f"CREATE INDEX ON {_work(member)} (({_hash(member, member.tree.names)}))")

    def _grow(self, member: Prepared, number: int) -> int:
        """Adds the member's rows of a round; returns how many."""
        use_settings(self.reader, member.settings)
        if number == 0 and not self.onward:
            return self._add(member, number, render.select(member.tree, leaf=self._leaf(number)))
        changed = self.outside.changed if number == 0 else {oid for oid, rows in self._last.items() if rows}
        found = growth(member.tree, changed)
        if found is None:
            whole = render.select(member.tree, leaf=self._leaf(number))
            return self._add_difference(
                member,
                number,
                f"SELECT {_names(member)}, 1::bigint AS {WEIGHT} FROM ({whole}) AS now UNION ALL "
                f"SELECT {_names(member)}, -1 FROM ({self._content(member, number)}) AS before",
            )
        return self._add_growth(member, number, found)

    def _add_growth(self, member: Prepared, number: int, found: Growth) -> int:
        if not found.terms:
            return 0
        queries = [(term.sign, render.select(term.tree, leaf=self._leaf(number))) for term in found.terms]
        if found.distinct:
            return self._add_new(member, number, " UNION ".join(f"({query})" for _, query in queries))
        if all(sign > 0 for sign, _ in queries):
            return self._add(member, number, " UNION ALL ".join(f"({query})" for _, query in queries))
        weighted = (
            f"SELECT {_names(member)}, {sign}::bigint AS {WEIGHT} FROM ({query}) AS t" for sign, query in queries
        )
        return self._add_difference(member, number, " UNION ALL ".join(weighted))

    def _add(self, member: Prepared, number: int, query: str) -> int:
        return execute(
            self.reader, f"INSERT INTO {_work(member)} SELECT {_names(member)}, {number} FROM ({query}) AS rows"
        )

    def _add_new(self, member: Prepared, number: int, query: str) -> int:
        """Those of the rows, which are distinct, that the member does not have; equal ones count as the same."""
        names = member.tree.names
        places = [(_work(member), names)]
        if self.onward:
            places.append((member.storage.qualified, tuple(column.name for column in member.storage.columns)))
        absent = " AND ".join(
            f"NOT EXISTS (SELECT FROM {table} AS t WHERE {_hash(member, own, 't.')} = {_hash(member, names, 'n.')}"
            f" AND ROW({_list(own, 't.')}) IS NOT DISTINCT FROM ROW({_list(names, 'n.')}))"
            for table, own in places
        )
        return self._add(member, number, f"SELECT * FROM ({query}) AS n WHERE {absent}")

    def _add_difference(self, member: Prepared, number: int, weighted: str) -> int:
        """Rows with a weight, added up; none may be negative, since the query is monotone."""
        execute(
            self.reader,
            f"CREATE TEMPORARY TABLE {_DIFFERENCE} ON COMMIT DROP AS {by_image(weighted, member.tree.columns)}",
        )
        if self._takes_away():
            self._add_up_equal_rows(member)
        if self._takes_away():
            raise StateError(
                f"rows of {member.storage.schema}.{member.storage.name} came out differently in another round",
                code="PT374",
                hint="values that are equal but look different (1.0 and 1.00) may be the cause: cast them alike",
            )
        added = self._add(
            member, number, f"SELECT d.* FROM pg_temp.{_DIFFERENCE} AS d CROSS JOIN generate_series(1, d.{WEIGHT})"
        )
        execute(self.reader, f"DROP TABLE pg_temp.{_DIFFERENCE}")
        return added

    def _takes_away(self) -> bool:
        return bool(scalar(self.reader, f"SELECT EXISTS (SELECT FROM pg_temp.{_DIFFERENCE} WHERE {WEIGHT} < 0)"))

    def _add_up_equal_rows(self, member: Prepared) -> None:
        """A group below may look another way once it has gained rows (1.0 instead of 1.00): the member keeps the look
        that it found first."""
        names = _names(member)
        order = ", ".join([f"{WEIGHT} > 0 DESC", *tie_breaks(member.tree.columns)])
        equal = f"sum({WEIGHT}) OVER (PARTITION BY {names}) AS total"
        first = f"row_number() OVER (PARTITION BY {names} ORDER BY {order}) AS place"
        found = f"SELECT {names}, {equal}, {first} FROM pg_temp.{_DIFFERENCE}"
        added = f"SELECT {names}, total::bigint AS {WEIGHT} FROM ({found}) AS f WHERE place = 1 AND total <> 0"
        try:
            with self.reader.transaction():
                execute(self.reader, f"CREATE TEMPORARY TABLE {_EQUAL} ON COMMIT DROP AS {added}")
        except psycopg.errors.UndefinedFunction:  # of a type without equality, where looks are all there is
            return
        execute(self.reader, f"DROP TABLE pg_temp.{_DIFFERENCE}")
        execute(self.reader, f"ALTER TABLE pg_temp.{_EQUAL} RENAME TO {_DIFFERENCE}")

    def _leaf(self, number: int) -> render.Leaf:
        """What the leaves of a query are in a round."""

        def leaf(operator: Operator) -> str | None:
            match operator:
                case Changes(scan=scan) if scan.table.oid in self.members:
                    return self._scanned(scan, number, last=True)
                case Changes(scan=scan):
                    return self.outside.gained(scan)
                case Scan() if operator.table.oid in self.members:
                    return self._scanned(operator, number)
                case Scan():
                    return self.outside.at(operator)
            return None

        return leaf

    def _scanned(self, scan: Scan, number: int, *, last: bool = False) -> str:
        """A member as a query reads it: what it has before the round, or what it gained in the one before."""
        member = self.members[scan.table.oid]
        rows = _gained(member, f"= {number - 1}") if last else self._content(member, number)
        stored = {column.name: name for column, name in zip(member.storage.columns, member.tree.names, strict=True)}
        columns = ", ".join(f"{quote(stored[attribute])} AS {quote(name)}" for attribute, name in scan.pairs)
        return f"SELECT {columns} FROM ({rows}) AS member"

    def _content(self, member: Prepared, number: int) -> str:
        gained = _gained(member, f"< {number}")
        if not self.onward:
            return gained
        return f"SELECT {_stored_as_named(member)} FROM {member.storage.qualified} UNION ALL {gained}"


def _gained(member: Prepared, rounds: str) -> str:
    return f"SELECT {_names(member)} FROM {_work(member)} WHERE {_ROUND} {rounds}"


def _bare(member: Prepared) -> str:
    return f"pgt_cycle_{member.pgt_id}"


def _work(member: Prepared) -> str:
    return f"pg_temp.{_bare(member)}"


def _names(member: Prepared) -> str:
    return _list(member.tree.names)


def _stored_as_named(member: Prepared) -> str:
    pairs = zip(member.storage.columns, member.tree.names, strict=True)
    return ", ".join(f"{quote(column.name)} AS {quote(name)}" for column, name in pairs)


def _list(names: tuple[str, ...], alias: str = "") -> str:
    return ", ".join(f"{alias}{quote(name)}" for name in names)


def _hash(member: Prepared, names: tuple[str, ...], alias: str = "") -> str:
    """Equal for equal rows."""
    return member.storage.row_hash(names, alias) if _may_hash(member) else "0::bigint"


def _may_hash(member: Prepared) -> bool:
    """The hash of rows does not know of collations by which different texts are equal."""
    return bool(member.storage.hashable) and all(column.type.deterministic for column in member.storage.columns)
