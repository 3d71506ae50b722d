"""What must hold when a statement on a source has ended, as lines and conditions: that the stream table and its sources
are those that the functions were written for. Pure; called by `functions.py` and `install.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pgtrickle.model import quote
from pgtrickle.postgres import routine
from pgtrickle.postgres.statements.script import Problem, Require
from pgtrickle.refresh.immediate.one_statement import OneStatement
from pgtrickle.refresh.immediate.subject import Captured, Subject, quoted

BUSY: Final = Problem(
    "a trigger on it changes its sources while it is being maintained",
    "PT703",
    "let the trigger write to other tables, or use refresh_mode => 'DIFFERENTIAL'",
)
UNBALANCED: Final = Problem(
    "a statement on a source has ended that has not begun: a trigger of pgtrickle is missing",
    "PT704",
    "refresh the stream table",
)
MOVED: Final = Problem("it was renamed, moved or given to another role", "PT705", "refresh the stream table")
TOO_OLD: Final = Problem(
    "could not serialize access: it came into IMMEDIATE mode after this transaction began to read",
    "40001",
    "retry the transaction",
)
ALTERED: Final = Problem("columns of a source were altered", "PT706", "refresh the stream table")
OTHER_SOURCE: Final = Problem("a source was renamed, moved, dropped or replaced", "PT707", "refresh the stream table")


def looked_at(subject: Subject, captured: Captured) -> list[str]:
    """Whether the function still fits, and how many rows the statement has changed, as far as that matters: none, if it
    has left the one row as it was. If a column has another name by now, the query itself fails."""
    same = f"{_record(captured, 'n')} *= {_record(captured, 'o')}"
    one = f"counted = 1 AND (SELECT {same} FROM new_rows AS n, old_rows AS o)"
    lines = locked(subject)
    for word, event, rows, how_many in (
        ("IF", "insert", "new_rows", "counted"),
        ("ELSIF", "delete", "old_rows", "counted"),
        ("ELSIF", "update", "new_rows", f"CASE WHEN {one} THEN 0 ELSE counted END"),
    ):
        counted = f"(SELECT count(*) AS counted FROM {rows})"
        lines += [
            f"{word} TG_OP = '{event.upper()}' THEN",
            f"  SELECT NOT ({captured.intact}), relowner = {subject.owner}, relhastriggers, {how_many}",
            "    INTO all_again, is_ours, has_triggers, rows",
            f"    FROM pg_class, {counted} AS c WHERE oid = {subject.relid};",
            *routine.indented(if_too_old(subject)),
        ]
    renamed = ["EXCEPTION WHEN undefined_column THEN", "  all_again := true;", "END;"]
    return ["BEGIN", *routine.indented([*lines, "END IF;"]), *renamed]


def if_too_old(subject: Subject) -> list[str]:
    """After a row was read that is there since the table came into the mode."""
    return ["IF NOT FOUND THEN", f"  {routine.fail(TOO_OLD, subject.name)}", "END IF;"]


def locked(subject: Subject) -> list[str]:
    """The table is still there under its name, keeps its owner from here on, and gets no trigger."""
    return [
        f"IF to_regclass({quoted(subject.qualified)}) IS DISTINCT FROM {subject.relid}::regclass THEN",
        f"  {routine.fail(MOVED, subject.name)}",
        "END IF;",
        f"LOCK TABLE ONLY {subject.qualified} IN ROW EXCLUSIVE MODE;",
    ]


def _record(captured: Captured, alias: str) -> str:
    """The used columns of a transition row, as they are; a virtual generated column follows from others."""
    if any(column.expression is not None for column in captured.columns):
        return f"{alias}::record"
    return f"ROW({', '.join(f'{alias}.{quote(column.name)}' for column in captured.columns)})::record"


def of_known_sources(sources: Sequence[Captured], statement: OneStatement) -> OneStatement:
    """Has the statement say as well whether the sources that it reads are those that it was written for. It has locked
    them by then: none can have got another name since it was read, nor another table its name."""
    read = read_by(sources, statement.sql)
    if not read:
        return statement
    same = " AND ".join(f"({each.same_columns})" for each in read)
    checks = (Require(f"NOT ({_others(read)})", OTHER_SOURCE), Require(same, ALTERED))
    asked = ", ".join(check.condition for check in checks)
    return OneStatement(f"{statement.sql}, {asked}", (*statement.checks, *checks))


def read_by(sources: Sequence[Captured], text: str) -> list[Captured]:
    """The sources that a text reads from; also one that is quoted."""
    names = {each.number: each.source.table.qualified for each in sources}
    return [each for each in sources if names[each.number] in text or quoted(names[each.number])[1:-1] in text]


def _others(read: Sequence[Captured]) -> str:
    """Whether one of the sources is not the table of its name any more, as a condition."""
    return " OR ".join(
        f"to_regclass({quoted(each.source.table.qualified)}) IS DISTINCT FROM {each.source.table.oid}::regclass"
        for each in read
    )


def unless_others(subject: Subject, read: Sequence[Captured]) -> list[str]:
    return [f"IF {_others(read)} THEN", f"  {routine.fail(OTHER_SOURCE, subject.name)}", "END IF;"] if read else []


def with_known_sources(subject: Subject, lines: list[str]) -> list[str]:
    """The same for several statements: asked before, for an error that says so, and when what they read is locked."""
    read = read_by(subject.sources, "\n".join(lines))
    if not read:
        return lines
    asked, same = unless_others(subject, read), " AND ".join(f"({each.same_columns})" for each in read)
    altered = [f"IF NOT ({same}) THEN", f"  {routine.fail(ALTERED, subject.name)}", "END IF;"]
    return [*asked, *lines, *asked, *altered]
