"""Parts of one statement that reads everything as it was and writes everything: for changes that are few. Pure.

    WITH a AS MATERIALIZED (SELECT …), b AS (UPDATE … FROM a …), … SELECT …

All parts see the same snapshot, and no temporary table is made. Composed by `refresh/immediate/one_statement.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from pgtrickle.model import quote
from pgtrickle.postgres.statements.script import Filled, Require, Run, Scratch, Script, When


@dataclass(frozen=True, slots=True)
class Part:
    """A query, or an INSERT, UPDATE or DELETE, under a name that the others know it by."""

    name: str
    query: str
    writes: bool = False


@dataclass(frozen=True, slots=True)
class AtOnce:
    """Parts, in order, and what must hold of them."""

    parts: tuple[Part, ...]
    checks: tuple[Require, ...] = ()


class PartNames(Scratch):
    """Names of parts, which are of one statement and in no schema."""

    __slots__ = ()

    def table(self, what: str) -> str:
        return quote(f"pgt_{what}_{self.suffix}")

    def part(self, number: int) -> PartNames:
        return PartNames(f"{self.suffix}_{number}")


class NotAtOnce(Exception):
    """A script needs several statements."""


def at_once(script: Script, scratch: Scratch) -> AtOnce:
    """A script as parts: each temporary table is one, or several, each with the rows of the one before it and those
    that are added. The last bears its name, for who reads it in the end."""
    return _Parts(Counter(each.table for each in _filled(script) if each.query is not None), scratch).of(script)


def _filled(script: Script) -> Iterator[Filled]:
    for command in script:
        if isinstance(command, Run) and command.filled is not None:
            yield command.filled
        elif isinstance(command, When):
            yield from _filled((*command.then, *command.otherwise))


@dataclass(slots=True)
class _Parts:
    """The parts so far; `left` counts how often each table will be filled yet, `now` has the part that it is."""

    left: Counter[str]
    scratch: Scratch
    now: dict[str, str | None] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)
    checks: list[Require] = field(default_factory=list)
    written: int = 0

    def of(self, script: Script) -> AtOnce:
        for command in script:
            match command:
                case Run(filled=Filled() as filled):
                    self._fill(filled)
                case Run(sql=sql, expected=None):
                    self._write(sql)
                case Require(condition=condition, problem=problem):
                    self.checks.append(Require(self._named(condition), problem))
                case When(condition=condition, then=then, otherwise=()):
                    self._when(self._named(condition), then)
                case _:
                    raise NotAtOnce
        return AtOnce(tuple(self.parts), tuple(self.checks))

    def _fill(self, filled: Filled, condition: str | None = None, before: str | None = None) -> None:
        """With a condition, the table is `before` where that does not hold."""
        if filled.query is None:
            self.now[filled.table] = None
            return
        rows, there = self._named(filled.query), self.now.get(filled.table)
        self.left[filled.table] -= 1
        if there is not None and not filled.instead:
            rows = f"SELECT * FROM {there} UNION ALL {rows}"
        if condition is not None:
            other = f" UNION ALL SELECT * FROM {before} WHERE NOT (SELECT {condition})" if before is not None else ""
            rows = f"SELECT * FROM ({rows}) AS filled WHERE (SELECT {condition}){other}"
        left = self.left[filled.table]
        name = filled.table if left == 0 else quote(f"{filled.table[1:-1]}_before_{left}")
        self.parts.append(Part(name, rows))
        self.now[filled.table] = name

    def _when(self, condition: str, then: Script) -> None:
        """Tables that are filled otherwise under a condition, each once."""
        before = dict(self.now)
        for command in then:
            if not isinstance(command, Run) or command.filled is None:
                raise NotAtOnce
            self._fill(command.filled, condition, before.get(command.filled.table))

    def _write(self, sql: str) -> None:
        if sql.startswith("ANALYZE "):
            return
        self.written += 1
        self.parts.append(Part(self.scratch.table(f"write_{self.written}"), self._named(sql), writes=True))

    def _named(self, sql: str) -> str:
        """With the parts that tables are now."""
        for table, part in self.now.items():
            if part is not None and part != table:
                sql = sql.replace(table, part)
        return sql
