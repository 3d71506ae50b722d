"""The functions of a stream table in IMMEDIATE mode, as text. Pure; `install.py` creates them.

    before       a statement on a source begins: one more is open in this session
    on_<source>  it has ended: what it changed is kept, and, if no other statement is open, applied
    apply        the changes kept are applied, to state and stream table
    fill         all is computed again: after a TRUNCATE, and when a source's partitions are others

A statement that changes several sources (a WITH query, a foreign key that cascades, triggers of the user) ends on each
of them. The plan needs to know of all that has changed, so it runs at the last end. Which statements are open is a row
for each transaction (`open`), written by us alone and undone with the savepoint; it goes with the last end, so that no
session waits for its own transaction that was prepared for two-phase commit.

Writers take turns: before anything is read of what another might be changing, a row of `turn` is updated. In READ
COMMITTED the next statement sees what the one before has committed; at the stricter levels the update itself fails with
a serialization error, unless nobody came between. A snapshot in which there is no turn is older than the mode itself,
and than the state: that fails the same way.

The name of the stream table is part of their names, so that PostgreSQL's own errors show it in their context.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pgtrickle.answers import PINNED, STORED
from pgtrickle.apply.staging_tables import STATE_SCHEMA
from pgtrickle.capture.source import Source, SourceColumn
from pgtrickle.model import Column, quote
from pgtrickle.postgres import routine
from pgtrickle.postgres.statements.script import Problem, Script
from pgtrickle.postgres.wire import WEIGHT
from pgtrickle.query.operators import Scan
from pgtrickle.refresh.immediate.one_statement import OneStatement

EVENTS: Final = ("insert", "update", "delete", "truncate")
_SET: Final = (
    "DateStyle",
    "IntervalStyle",
    "extra_float_digits",
    "bytea_output",
    "xmlbinary",
    "xmloption",
    "quote_all_identifiers",
    "array_nulls",
    "transform_null_equals",
    "standard_conforming_strings",
    "backslash_quote",
    "row_security",
    "gin_fuzzy_search_limit",
    "jit",
)
"""What is pinned and can be another way in the session of a writer."""
_ALWAYS_SET: Final = frozenset({"DateStyle", "IntervalStyle", "TimeZone"})
"""What sessions often have another way: drivers and frameworks set these."""
_BUSY = Problem(
    "a trigger on it changes its sources while it is being maintained",
    "PT703",
    "let the trigger write to other tables, or use refresh_mode => 'DIFFERENTIAL'",
)
_UNBALANCED = Problem(
    "a statement on a source has ended that has not begun: a trigger of pgtrickle is missing",
    "PT704",
    "refresh the stream table",
)
_MOVED = Problem("it was renamed, moved or given to another role", "PT705", "refresh the stream table")
_TOO_OLD = Problem(
    "could not serialize access: it came into IMMEDIATE mode after this transaction began to read",
    "40001",
    "retry the transaction",
)
_ALTERED = Problem("columns of a source were altered", "PT706", "refresh the stream table")


FEW: Final = 500
"""So many rows of a statement are applied by one statement, whose plan is kept for the session: it asks by key."""
_MINE: Final = "WHERE xid = pg_current_xact_id()"
_MOST_BYTES: Final = 63
"""Of a name."""


@dataclass(frozen=True, slots=True)
class Captured:
    """A source, and its columns that the query uses, with their types where changes are kept."""

    number: int
    source: Source
    columns: tuple[SourceColumn, ...]
    types: tuple[Column, ...]
    intact: str
    same_columns: str


@dataclass(frozen=True, slots=True)
class Names:
    """What belongs to one stream table in IMMEDIATE mode."""

    pgt_id: int
    stream: str

    def of(self, what: str) -> str:
        return f"{STATE_SCHEMA}.{quote(f'i_{self.pgt_id}_{what}')}"

    def prefix(self, what: str) -> str:
        """What the name of a function begins with, whatever the stream table is called."""
        return f"i_{self.pgt_id}_{what} of "

    def bare_function(self, what: str) -> str:
        name = " ".join(f"{self.prefix(what)}{self.stream}".split())
        return name.encode()[:_MOST_BYTES].decode(errors="ignore")

    def function(self, what: str) -> str:
        return f"{STATE_SCHEMA}.{quote(self.bare_function(what))}"

    @property
    def turn(self) -> str:
        return self.of("turn")

    @property
    def open(self) -> str:
        return self.of("open")

    def changes(self, number: int) -> str:
        return self.of(f"changes_{number}")

    def on(self, number: int) -> str:
        return self.function(f"on_{number}")


@dataclass(frozen=True, slots=True)
class Subject:
    """The stream table that is maintained. `guard` is true as long as it has this owner."""

    names: Names
    relid: int
    name: str
    qualified: str
    guard: str
    settings: Mapping[str, str]
    sources: Sequence[Captured]
    may_at_once: str
    """Whether rows are deleted and inserted, so that one statement can do it, as a condition."""
    plan: str
    slots: int
    """How many turns there are; with one, writers follow one another."""


@dataclass(frozen=True, slots=True)
class FewChanges:
    """How few changes of one event are applied: the statement, and the query of the slots whose turns it takes."""

    statement: OneStatement
    slots: str | None


@dataclass(frozen=True, slots=True)
class Function:
    """One function: what CREATE FUNCTION says before its body, and that."""

    what: str
    name: str
    head: str
    body: str

    @property
    def create(self) -> str:
        return f"{self.head} AS {_outer(self.body)}"


def before(subject: Subject) -> Function:
    opened = subject.names.open
    lines = [
        f"INSERT INTO {opened} AS o (xid, waiting) VALUES (pg_current_xact_id(), 1)",
        "  ON CONFLICT (xid) DO UPDATE SET waiting = o.waiting + 1;",
        "RETURN NULL;",
    ]
    return _function(subject, "before", "trigger", "", lines, bare=True)


def on(subject: Subject, captured: Captured, at_once: Mapping[str, FewChanges] | None) -> Function:
    """What happens when a statement on a source has ended. `at_once` says how few changes of each event are applied,
    where one statement can do it."""
    names = subject.names
    kept = _kept(subject, captured)
    fill, apply_kept = f"PERFORM {names.function('fill')}();", f"PERFORM {names.function('apply')}();"
    few = _if_few(subject, at_once) if at_once is not None else []
    lines = [
        *_looked_at(subject, captured),
        f"DELETE FROM {names.open} {_MINE} AND waiting = 1",
        "  RETURNING 0, whole, busy, kept INTO waits, is_whole, is_busy, is_kept;",
        "IF NOT FOUND THEN",
        f"  UPDATE {names.open} SET waiting = waiting - 1, whole = whole OR all_again {_MINE}",
        "    RETURNING waiting, whole, busy, kept INTO waits, is_whole, is_busy, is_kept;",
        "END IF;",
        "IF waits IS NULL THEN",
        f"  {routine.fail(_UNBALANCED, subject.name)}",
        "ELSIF is_busy THEN",
        f"  {routine.fail(_BUSY, subject.name)}",
        "ELSIF all_again OR is_whole THEN",
        "  IF waits = 0 THEN",
        f"    {fill}",
        "  END IF;",
        "  RETURN NULL;",
        "ELSIF rows = 0 THEN",
        "  IF waits = 0 AND is_kept THEN",
        f"    {apply_kept}",
        "  END IF;",
        "  RETURN NULL;",
        "END IF;",
        *few,
        *kept,
        "IF waits = 0 THEN",
        f"  {apply_kept}",
        "ELSE",
        f"  UPDATE {names.open} SET kept = true {_MINE} AND NOT kept;",
        "END IF;",
        "RETURN NULL;",
    ]
    holds = max((len(each.statement.checks) for each in (at_once or {}).values()), default=0)
    declared = "waits integer; is_whole boolean; is_busy boolean; is_kept boolean; "
    declared += "all_again boolean := true; is_ours boolean; rows bigint := 0; this integer; "
    declared += "".join(f"holds_{number} boolean; " for number in range(1, holds + 1))
    return _function(subject, f"on_{captured.number}", "trigger", declared.strip(), lines, few=at_once is not None)


def _looked_at(subject: Subject, captured: Captured) -> list[str]:
    """Whether the function still fits, and how many rows the statement has changed, as far as that matters: none, if it
    has left the one row as it was. If a column has another name by now, the query itself fails."""
    count = "(SELECT count(*) FROM (SELECT FROM {} LIMIT {}) AS first_rows)"
    old, new = (count.format(rows, max(FEW, 1) + 1) for rows in ("old_rows", "new_rows"))
    same = f"{_record(captured, 'n')} *= {_record(captured, 'o')}"
    one = f"{new} = 1 AND (SELECT {same} FROM new_rows AS n, old_rows AS o)"
    lines = _locked(subject)
    for word, event, rows in (
        ("IF", "insert", new),
        ("ELSIF", "delete", old),
        ("ELSIF", "update", f"CASE WHEN {one} THEN 0 ELSE {new} END"),
    ):
        lines += [
            f"{word} TG_OP = '{event.upper()}' THEN",
            f"  SELECT NOT ({captured.intact}), {subject.guard}, {rows} INTO all_again, is_ours, rows;",
        ]
    renamed = ["EXCEPTION WHEN undefined_column THEN", "  all_again := true;", "END;"]
    return ["BEGIN", *_indented([*lines, "END IF;"]), *renamed]


def _locked(subject: Subject) -> list[str]:
    """The table is still there under its name, keeps its owner from here on, and gets no trigger."""
    return [
        f"IF to_regclass({_quoted(subject.qualified)}) IS DISTINCT FROM {subject.relid}::regclass THEN",
        f"  {routine.fail(_MOVED, subject.name)}",
        "END IF;",
        f"LOCK TABLE ONLY {subject.qualified} IN ROW EXCLUSIVE MODE;",
    ]


def _record(captured: Captured, alias: str) -> str:
    """The used columns of a transition row, as they are; a virtual generated column follows from others."""
    if any(column.expression is not None for column in captured.columns):
        return f"{alias}::record"
    return f"ROW({', '.join(f'{alias}.{quote(column.name)}' for column in captured.columns)})::record"


def _kept(subject: Subject, captured: Captured) -> list[str]:
    """Keeps what the statement has changed for `apply`: as it is, since settings of the writer may be in effect."""
    columns = ", ".join([*(quote(column.name) for column in captured.types), WEIGHT])
    into = f"INSERT INTO {subject.names.changes(captured.number)} ({columns})"
    return [
        "IF TG_OP = 'INSERT' THEN",
        f"  {into} {weighted(captured, 'insert')};",
        "ELSIF TG_OP = 'DELETE' THEN",
        f"  {into} {weighted(captured, 'delete')};",
        "ELSE",
        f"  {into} {weighted(captured, 'update')};",
        "END IF;",
    ]


def _if_few(subject: Subject, at_once: Mapping[str, FewChanges]) -> list[str]:
    """Applies few changes, if nothing else is open or kept."""
    lines = ["IF NOT is_ours THEN", f"  {routine.fail(_MOVED, subject.name)}", "END IF;"]
    for word, event in (("IF", "insert"), ("ELSIF", "delete"), ("ELSE", "update")):
        lines.append(word if word == "ELSE" else f"{word} TG_OP = '{event.upper()}' THEN")
        lines += _indented(_turns(subject, at_once[event].slots))
        lines += _indented(_one_statement(subject, at_once[event].statement))
    alone = f"rows <= {FEW} AND waits = 0 AND NOT is_kept"
    condition = f"{alone} AND {_as_pinned(subject)} AND {subject.may_at_once}"
    return [f"IF {condition} THEN", *_indented(lines), "  END IF;", "  RETURN NULL;", "END IF;"]


def _one_statement(subject: Subject, statement: OneStatement) -> list[str]:
    into = ", ".join(f"holds_{number}" for number in range(1, len(statement.checks) + 1))
    lines = [*f"{statement.sql}\n  INTO {into};".splitlines()]
    for number, check in enumerate(statement.checks, start=1):
        lines += [f"IF holds_{number} IS NOT TRUE THEN", f"  {routine.fail(check.problem, subject.name)}", "END IF;"]
    return lines


def _turns(subject: Subject, slots: str | None) -> list[str]:
    """Takes these turns, all in the same order everywhere."""
    if slots is None:
        return _turn(subject)
    return [
        f"FOR this IN {slots} LOOP",
        f"  UPDATE {subject.names.turn} SET turn = turn + 1 WHERE slot = this;",
        *_indented(_if_too_old(subject)),
        "END LOOP;",
    ]


def _turn(subject: Subject) -> list[str]:
    """Takes all turns."""
    ordered = f"PERFORM FROM {subject.names.turn} ORDER BY slot FOR UPDATE;"
    update = f"UPDATE {subject.names.turn} SET turn = turn + 1;"
    return [*([ordered] if subject.slots > 1 else []), update, *_if_too_old(subject)]


def _if_too_old(subject: Subject) -> list[str]:
    return ["IF NOT FOUND THEN", f"  {routine.fail(_TOO_OLD, subject.name)}", "END IF;"]


def _indented(lines: list[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def apply(subject: Subject, script: tuple[Script, Script]) -> Function:
    kept = " OR ".join(f"EXISTS (SELECT FROM {subject.names.changes(each.number)})" for each in subject.sources)
    lines = [f"IF NOT ({kept}) THEN", "  RETURN;", "END IF;", *_maintained(subject, script)]
    return _function(subject, "apply", "void", routine.DECLARATIONS, lines, plan=subject.plan)


def fill(subject: Subject, script: tuple[Script, Script]) -> Function:
    altered = " AND ".join(f"({each.same_columns})" for each in subject.sources) or "true"
    lines = [
        f"IF NOT ({altered}) THEN",
        f"  {routine.fail(_ALTERED, subject.name)}",
        "END IF;",
        *_maintained(subject, script),
    ]
    return _function(subject, "fill", "void", routine.DECLARATIONS, lines)


def _maintained(subject: Subject, script: tuple[Script, Script]) -> list[str]:
    """The two parts of a script, under the lock. The changes are gone before the stream table is written: what its
    triggers do has changes of its own."""
    names = subject.names
    states, table = script
    return [
        *_locked(subject),
        f"IF NOT ({subject.guard}) THEN",
        f"  {routine.fail(_MOVED, subject.name)}",
        "END IF;",
        *_turn(subject),
        f"INSERT INTO {names.open} (xid, waiting, busy) VALUES (pg_current_xact_id(), 0, true);",
        "changed := 0;",
        *routine.body(states, subject.name),
        *(f"DELETE FROM {names.changes(each.number)};" for each in subject.sources),
        *routine.body(table, subject.name),
        *routine.forget((*states, *table)),
        f"DELETE FROM {names.open} {_MINE};",
    ]


def weighted(captured: Captured, event: str) -> str:
    """The rows that a statement has written, and those that it has replaced or deleted."""
    sides = {"insert": ((1, "new_rows"),), "delete": ((-1, "old_rows"),)}
    parts = [
        f"SELECT {_values(captured)}{sign}::bigint AS {WEIGHT} FROM {rows} AS r"
        for sign, rows in sides.get(event, ((1, "new_rows"), (-1, "old_rows")))
    ]
    return " UNION ALL ".join(parts)


def changes_of_scan(captured: Captured, scan: Scan, event: str) -> str:
    """The same, of the columns of one scan, under their names."""
    slots = {column.name: quote(slot.name) for column, slot in zip(captured.columns, captured.types, strict=True)}
    values = [
        f"{slots[attribute]} AS {quote(name)}" for attribute, name in zip(scan.attributes, scan.names, strict=True)
    ]
    return f"SELECT {', '.join([*values, WEIGHT])} FROM ({weighted(captured, event)}) AS changes"


def _values(captured: Captured) -> str:
    """The columns of a transition row `r`; a virtual generated column is NULL there, so it is computed."""
    values = [
        f"({column.expression})" if column.expression is not None else f"r.{quote(column.name)}"
        for column in captured.columns
    ]
    return "".join(f"{value} AS {quote(column.name)}, " for value, column in zip(values, captured.types, strict=True))


def _function(
    subject: Subject,
    what: str,
    returns: str,
    declared: str,
    lines: list[str],
    *,
    bare: bool = False,
    few: bool = False,
    plan: str = "",
) -> Function:
    """CREATE FUNCTION: with the rights of its owner, and a path and settings that no caller can change."""
    name = subject.names.function(what)
    options = {} if bare else _settings(subject) | {"enable_seqscan": "on"}
    if few:
        options = {name: value for name, value in options.items() if name in _ALWAYS_SET} | {"enable_seqscan": "off"}
    pinned = "".join(f" SET {_setting(name)} TO {_quoted(value)}" for name, value in options.items())
    comment = [f"-- {line}".rstrip() for line in plan.splitlines()]
    text = "\n".join(
        [
            "",
            "#variable_conflict use_column",
            f"-- Maintains {_one_line(subject.name)} in IMMEDIATE mode. Made by pgtrickle, which replaces it.",
            *comment,
            *([f"DECLARE {declared}"] if declared else []),
            "BEGIN",
            *(f"  {line}" for line in lines),
            "END",
            "",
        ]
    )
    head = (
        f"CREATE OR REPLACE FUNCTION {name}() RETURNS {returns} LANGUAGE plpgsql SECURITY DEFINER"
        f" SET search_path = pg_catalog, pg_temp{pinned}"
    )
    return Function(what, name, head, text)


def _settings(subject: Subject) -> dict[str, str]:
    """The settings that a query is evaluated under."""
    return {name: PINNED[name] for name in _SET} | dict(subject.settings)


def _as_pinned(subject: Subject) -> str:
    """The condition that the writer's session has those settings that are not set for each call, which takes time."""
    found = [
        f"current_setting({_quoted(name)}) = {_quoted(value)}"
        for name, value in _settings(subject).items()
        if name not in _ALWAYS_SET and name not in {"jit", "extra_float_digits"}
    ]
    digits = "current_setting('extra_float_digits')::integer >= 1"  # one and more show the same
    return " AND ".join([*found, digits])


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _setting(name: str) -> str:
    if name not in (*_SET, *STORED, "enable_seqscan"):
        raise ValueError(f"not a setting of a query: {name}")
    return name


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _outer(text: str) -> str:
    tag = "$pgtrickle$"
    while tag in text:
        tag = f"{tag[:-1]}_$"
    return f"{tag}{text}{tag}"
