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

from collections.abc import Mapping
from typing import Final

from pgtrickle.model import quote
from pgtrickle.postgres import routine
from pgtrickle.postgres.statements.script import Script
from pgtrickle.postgres.wire import WEIGHT
from pgtrickle.refresh.immediate import one_group
from pgtrickle.refresh.immediate.conditions import (
    ALTERED,
    BUSY,
    MOVED,
    UNBALANCED,
    if_too_old,
    locked,
    looked_at,
    read_by,
    unless_others,
    with_known_sources,
)
from pgtrickle.refresh.immediate.one_group import OneGroup
from pgtrickle.refresh.immediate.one_statement import OneStatement
from pgtrickle.refresh.immediate.settings import ALWAYS_SET, as_pinned, checked, settings
from pgtrickle.refresh.immediate.subject import Captured, FewChanges, Function, Subject, quoted, weighted

FEW: Final = 500
"""So many rows of a statement are applied by one statement, whose plan is kept for the session: it asks by key."""
_MINE: Final = "WHERE xid = pg_current_xact_id()"


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
        *looked_at(subject, captured),
        f"DELETE FROM {names.open} {_MINE} AND waiting = 1",
        "  RETURNING 0, whole, busy, kept INTO waits, is_whole, is_busy, is_kept;",
        "IF NOT FOUND THEN",
        f"  UPDATE {names.open} SET waiting = waiting - 1, whole = whole OR all_again {_MINE}",
        "    RETURNING waiting, whole, busy, kept INTO waits, is_whole, is_busy, is_kept;",
        "END IF;",
        "IF waits IS NULL THEN",
        f"  {routine.fail(UNBALANCED, subject.name)}",
        "ELSIF is_busy THEN",
        f"  {routine.fail(BUSY, subject.name)}",
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
    declared += "all_again boolean := true; is_ours boolean; has_triggers boolean; rows bigint := 0; this integer; "
    declared += one_group.DECLARATIONS + " "
    declared += "".join(f"holds_{number} boolean; " for number in range(1, holds + 1))
    return _function(subject, f"on_{captured.number}", "trigger", declared.strip(), lines, few=at_once is not None)


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
    lines = ["IF is_ours IS NOT TRUE THEN", f"  {routine.fail(MOVED, subject.name)}", "END IF;"]
    for word, event in (("IF", "insert"), ("ELSIF", "delete"), ("ELSE", "update")):
        lines.append(word if word == "ELSE" else f"{word} TG_OP = '{event.upper()}' THEN")
        lines += routine.indented(_one_group(subject, at_once[event].one_group))
        lines += routine.indented(_turns(subject, at_once[event].slots))
        lines += routine.indented(_one_statement(subject, at_once[event].statement))
    return [
        f"IF rows <= {FEW} AND waits = 0 AND NOT is_kept AND {as_pinned(subject)} THEN",
        "  IF has_triggers THEN",  # of any kind: asked for only if there are some
        f"    has_triggers := NOT ({subject.may_at_once});",
        "  END IF;",
        "  IF NOT has_triggers THEN",
        *routine.indented(routine.indented([*lines, "END IF;", "RETURN NULL;"])),
        "  END IF;",
        "END IF;",
    ]


def _one_group(subject: Subject, group: OneGroup | None) -> list[str]:
    return [] if group is None else one_group.body(group, _take(subject), subject.name)


def _one_statement(subject: Subject, statement: OneStatement) -> list[str]:
    into = ", ".join(f"holds_{number}" for number in range(1, len(statement.checks) + 1))
    lines = [*f"{statement.sql}\n  INTO {into};".splitlines()]
    for number, check in enumerate(statement.checks, start=1):
        lines += [f"IF holds_{number} IS NOT TRUE THEN", f"  {routine.fail(check.problem, subject.name)}", "END IF;"]
    return [*unless_others(subject, read_by(subject.sources, statement.sql)), *lines]


def _turns(subject: Subject, slots: str | None) -> list[str]:
    """Takes these turns, all in the same order everywhere."""
    if slots is None:
        return _turn(subject)
    return [
        f"FOR this IN {slots} LOOP",
        *routine.indented(_take(subject)),
        "END LOOP;",
    ]


def _take(subject: Subject) -> list[str]:
    """Takes the turn `this`."""
    return [f"UPDATE {subject.names.turn} SET turn = turn + 1 WHERE slot = this;", *if_too_old(subject)]


def _turn(subject: Subject) -> list[str]:
    """Takes all turns."""
    ordered = f"PERFORM FROM {subject.names.turn} ORDER BY slot FOR UPDATE;"
    update = f"UPDATE {subject.names.turn} SET turn = turn + 1;"
    return [*([ordered] if subject.slots > 1 else []), update, *if_too_old(subject)]


def apply(subject: Subject, script: tuple[Script, Script], slots: str | None) -> Function:
    """`slots`: the query of the turns that the changes kept have to take; None: all."""
    kept = " OR ".join(f"EXISTS (SELECT FROM {subject.names.changes(each.number)})" for each in subject.sources)
    lines = [f"IF NOT ({kept}) THEN", "  RETURN;", "END IF;", *_maintained(subject, script, slots)]
    return _function(subject, "apply", "void", f"{routine.DECLARATIONS} this integer;", lines, plan=subject.plan)


def fill(subject: Subject, script: tuple[Script, Script]) -> Function:
    altered = " AND ".join(f"({each.same_columns})" for each in subject.sources) or "true"
    lines = [
        f"IF NOT ({altered}) THEN",
        f"  {routine.fail(ALTERED, subject.name)}",
        "END IF;",
        *_maintained(subject, script, None),
    ]
    return _function(subject, "fill", "void", routine.DECLARATIONS, lines)


def _maintained(subject: Subject, script: tuple[Script, Script], slots: str | None) -> list[str]:
    """The two parts of a script, when the turns are taken. The changes are gone before the stream table is written:
    what its triggers do has changes of its own."""
    names = subject.names
    states, table = script
    return [
        *locked(subject),
        f"IF NOT EXISTS (SELECT FROM pg_class WHERE oid = {subject.relid} AND relowner = {subject.owner}) THEN",
        f"  {routine.fail(MOVED, subject.name)}",
        "END IF;",
        *_turns(subject, slots),
        f"INSERT INTO {names.open} (xid, waiting, busy) VALUES (pg_current_xact_id(), 0, true);",
        "changed := 0;",
        *with_known_sources(subject, routine.body(states, subject.name)),
        *(f"DELETE FROM {names.changes(each.number)};" for each in subject.sources),
        *routine.body(table, subject.name),
        *routine.forget((*states, *table)),
        f"DELETE FROM {names.open} {_MINE};",
    ]


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
    options = {} if bare else settings(subject) | {"enable_seqscan": "on"}
    if few:
        options = {name: value for name, value in options.items() if name in ALWAYS_SET} | {"enable_seqscan": "off"}
    pinned = "".join(f" SET {checked(name)} TO {quoted(value)}" for name, value in options.items())
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


def _one_line(text: str) -> str:
    return " ".join(text.split())
