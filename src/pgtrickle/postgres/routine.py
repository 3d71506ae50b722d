"""Scripts (`statements/`) as the body of a PL/pgSQL function, for what runs inside of the server. Pure.

    Run      EXECUTE '…';
    When     EXECUTE 'SELECT …' INTO holds; IF holds THEN … ELSE … END IF;
    Rounds   LOOP … EXIT WHEN changed = 0; END LOOP;

Statements are planned each time they run, since what is in their temporary tables is another each time. Called by
`refresh/immediate/functions.py`; `apply/run.py` runs the same scripts from outside.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from pgtrickle.postgres.statements.script import (
    Command,
    FromTables,
    Problem,
    Require,
    Rounds,
    Run,
    Script,
    There,
    UnlessConflict,
    When,
    empty_temporary,
)

DECLARATIONS: Final = "holds boolean; wanted bigint; hit bigint; changed bigint; rounds integer;"
"""The variables of `body`."""
_MADE = re.compile(r'CREATE TEMPORARY TABLE (pg_temp\."[^"]+")')


def literal(text: str) -> str:
    """A text as a string constant, readable if it can be: by a dollar quote that does not occur in it."""
    tag = "$q$"
    while tag in text or text.endswith("$"):
        if text.endswith("$"):
            return "'" + text.replace("'", "''") + "'" if "\\" not in text else _escaped(text)
        tag = f"{tag[:-1]}q$"
    return f"{tag}{text}{tag}"


def _escaped(text: str) -> str:
    return "E'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def body(script: Script, about: str) -> list[str]:
    """The script as lines of PL/pgSQL; `about` says in errors what is being maintained."""
    return [line for command in script for line in _command(command, about)]


def forget(script: Script) -> list[str]:
    """Lines that drop the temporary tables that the script has made, so that it can run again in the transaction."""
    made = dict.fromkeys(table for command in script for table in _made(command))
    return [f"DROP TABLE IF EXISTS {', '.join(made)};"] if made else []


def fail(problem: Problem, about: str, message: str | None = None) -> str:
    """RAISE, with the code of the problem as its SQLSTATE."""
    told = message or literal(f"{about}: {problem.message}")
    return f"RAISE EXCEPTION USING ERRCODE = '{problem.code}', MESSAGE = {told}, HINT = {literal(problem.hint)};"


def _command(command: Command, about: str) -> list[str]:
    match command:
        case Run():
            return _run(command, about)
        case Require(condition=condition, problem=problem):
            return [*_holds(condition), "IF holds IS NOT TRUE THEN", f"  {fail(problem, about)}", "END IF;"]
        case When(condition=condition, then=then, otherwise=otherwise):
            rest = ["ELSE", *indented(body(otherwise, about))] if otherwise else []
            return [*_holds(condition), "IF holds THEN", *indented(body(then, about)), *rest, "END IF;"]
        case UnlessConflict(statement=statement, otherwise=otherwise):
            return [
                "BEGIN",
                *indented(_run(statement, about)),
                "EXCEPTION WHEN unique_violation OR exclusion_violation THEN",
                *indented(body(otherwise, about)),
                "END;",
            ]
        case FromTables():
            return body(_from_tables(command), about)
        case There(script=script):
            return body(script, about)
        case Rounds():
            return _rounds(command, about)


def _holds(condition: str) -> list[str]:
    return [f"EXECUTE {literal(f'SELECT {condition}')} INTO holds;"]


def _run(statement: Run, about: str) -> list[str]:
    execute = [
        f"EXECUTE {literal(statement.sql)};",
        "GET DIAGNOSTICS hit = ROW_COUNT;",
        "changed := changed + hit;",
    ]
    if statement.expected is None:
        return execute
    problem = statement.expected.problem
    told = f"format({literal(f'{about}: %s {problem.message}, but only %s are there')}, wanted, hit)"
    return [
        f"EXECUTE {literal(statement.expected.rows)} INTO wanted;",
        "IF wanted > 0 THEN",
        *indented(execute),
        "  IF hit <> wanted THEN",
        f"    {fail(problem, about, told)}",
        "  END IF;",
        "END IF;",
    ]


def _from_tables(command: FromTables) -> Script:
    """All is in one session: what is sent is put into its table, and the answer comes into the other."""
    sent: Script = ()
    if command.sent is not None:
        table = command.sent.table
        sent = (
            empty_temporary(table, command.sent.columns),
            Run(f"INSERT INTO {table} {command.sent.rows}"),
            Run(f"ANALYZE {table}"),  # few, mostly: they are to be found by index
        )
    made = empty_temporary(command.table, command.columns)
    return (*sent, made, Run(f"INSERT INTO {command.table} {command.query}"))


def _rounds(command: Rounds, about: str) -> list[str]:
    return [
        "rounds := 0;",
        "LOOP",
        "  changed := 0;",
        *indented(body(command.script, about)),
        "  EXIT WHEN changed = 0;",
        "  rounds := rounds + 1;",
        f"  IF rounds > {command.most} THEN",
        f"    {fail(command.problem, about)}",
        "  END IF;",
        "END LOOP;",
    ]


def _made(command: Command) -> list[str]:
    """The temporary tables that a command makes."""
    match command:
        case Run(sql=sql):
            return _MADE.findall(sql)
        case FromTables(table=table, sent=sent):
            return [table, *([sent.table] if sent is not None else [])]
        case There(script=script) | Rounds(script=script):
            return [table for each in script for table in _made(each)]
        case When(then=then, otherwise=otherwise):
            return [table for each in (*then, *otherwise) for table in _made(each)]
        case UnlessConflict(otherwise=otherwise):
            return [table for each in otherwise for table in _made(each)]
    return []


def indented(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" for line in lines]
