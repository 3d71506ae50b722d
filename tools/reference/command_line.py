"""The page of the command line, from the commands as typer has them."""

from __future__ import annotations

import re
from typing import Any

import typer

from pgtrickle.cli.main import app
from tools.reference import markdown


def page() -> str:
    root: Any = typer.main.get_command(app)
    context = root.context_class(root, info_name="pgtrickle")
    return markdown.page(
        "Command line",
        f"`pgtrickle [OPTIONS] VERB …`. {root.help}",
        _described(root, context),
        "Without `--dsn` the database is that of `PGTRICKLE_DSN`, else that of libpq's own variables (`PGHOST`,"
        " `PGDATABASE`, `PGSERVICE` …), else the embedded server. Verbs that only read change nothing in the database."
        " Every reading verb has `--json`.",
        str(root.epilog),
        *_verbs(root, context),
    )


def _verbs(group: Any, context: Any) -> list[str]:
    """The verbs of a group, and those of the groups in it."""
    parts = []
    for name in sorted(group.commands):
        command = group.commands[name]
        inner = command.context_class(command, info_name=name, parent=context)
        parts += _verbs(command, inner) if hasattr(command, "commands") else [_verb(command, inner)]
    return parts


def _verb(command: Any, context: Any) -> str:
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    parts = [f"## {context.command_path}", markdown.prose(command.help), f"```\n{usage}\n```"]
    return "\n\n".join([*parts, _described(command, context)])


def _described(command: Any, context: Any) -> str:
    """Arguments and options, as `--help` describes them."""
    records = [each.get_help_record(context) for each in command.get_params(context)]
    rows = [(f"`{re.sub(r'  +', ' ', names)}`", text) for names, text in filter(None, records)]
    return markdown.table(("argument or option", "meaning"), rows)
