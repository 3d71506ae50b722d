"""`pgtrickle dump` and `apply`: stream tables as files, to keep them with the rest of one's source."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from pgtrickle import db
from pgtrickle.catalog import install
from pgtrickle.catalog.declarations import Declaration, declared
from pgtrickle.catalog.names import Name, qualify
from pgtrickle.cli import declaration_files
from pgtrickle.cli.declaration_files import Step, file_name, shown, text_of
from pgtrickle.cli.outcome import NO
from pgtrickle.cli.output import print_json
from pgtrickle.cli.tables import Here
from pgtrickle.cli.target import AsJson, Target, target
from pgtrickle.errors import StateError, UsageError
from pgtrickle.options import INHERIT


def dump(
    context: typer.Context,
    directory: Annotated[
        Path | None, typer.Argument(metavar="[DIR]", help="Where to write one file each. Default: all to stdout.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the stream tables as files. `pgtrickle apply` makes them again from these.

    Files of the same name are overwritten, others stay.
    """
    with target(context).connection("reading the catalog") as connection:
        install.require(connection)
        found = declared(connection)
        if directory is not None:
            _write(directory, found)
    if as_json:
        print_json([{"table": shown(each.name), "file": file_name(each.name), "text": text_of(each)} for each in found])
    elif directory is None:
        typer.echo("\n".join(text_of(each) for each in found), nl=False)
    else:
        typer.echo(f"wrote {len(found)} files to {directory}")


def apply(
    context: typer.Context,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The directory with the files.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show the plan. Exit code 1 if there is something to do.")
    ] = False,
    prune: Annotated[bool, typer.Option("--prune", help="Drop stream tables that no file declares.")] = False,
    initialize: Annotated[
        bool, typer.Option("--initialize/--no-initialize", help="Fill new ones now, or let the service do it when due.")
    ] = True,
    here: Here = False,
    as_json: AsJson = False,
) -> None:
    """Make the stream tables be as files declare them. Shows the plan, then does it."""
    where = target(context)
    with where.connection("planning") as connection:
        is_there = install.has_leases(connection)
        if is_there:
            install.require(connection)
        qualified = functools.cache(lambda name: Name(*qualify(connection, name)))
        files = declaration_files.read_directory(directory, qualified)
        _require_same_path(connection, files)
        steps = declaration_files.plan(files, declared(connection) if is_there else [], prune=prune)
    if as_json:
        facts = [{"verb": each.verb, "table": shown(each.declaration.name), "file": each.file} for each in steps]
        print_json([fact | {"changes": list(each.changes)} for fact, each in zip(facts, steps, strict=True)])
    else:
        for step in steps:
            typer.echo(str(step))
    left = [step for step in steps if step.verb != "keep"]
    if dry_run and left:
        raise typer.Exit(NO)
    if not dry_run:
        for step in left:
            _carry_out(where, step, initialize=initialize, here=here)
            if not as_json:
                typer.echo(f"done: {step.verb} {shown(step.declaration.name)}")


def _carry_out(where: Target, step: Step, *, initialize: bool, here: bool) -> None:
    wanted, name = step.declaration, str(step.declaration.name)
    if step.verb == "drop":
        with where.trickle(f"dropping {shown(wanted.name)}") as trickle:
            trickle.drop_stream_table(name)
        return
    with where.worker(f"{step.verb} {shown(wanted.name)}", here=here, install_catalog=True) as worker:
        given: dict[str, Any] = {key: getattr(wanted, key) for key in declaration_files.OPTIONS}
        given["protect"] = wanted.protect == "true"
        given["indexes"] = [str(index) for index in wanted.indexes]
        if step.verb == "create":
            asked = {key: value for key, value in given.items() if value != INHERIT}
            worker.create_stream_table(name, wanted.query, initialize=initialize, **asked)
        else:
            changed = {"query": wanted.query, **given}
            worker.alter_stream_table(name, **{key: changed[key] for key in step.changes})


def _write(directory: Path, found: Sequence[Declaration]) -> None:
    names = [file_name(each.name) for each in found]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise UsageError(
            f"several stream tables would be in {min(twice)}", code="PT675", hint="dump to stdout, without a directory"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, each in zip(names, found, strict=True):
            (directory / name).write_text(text_of(each), encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"cannot write to {directory}: {error.strerror}", code="PT676", hint="give a directory that can be written"
        ) from error


def _require_same_path(connection: db.Connection, files: Sequence[tuple[str, Declaration]]) -> None:
    """Names in a query mean what they mean by the session's path: it must come to the one that the file is for."""
    path = db.caller(connection).search_path
    schemas = functools.cache(lambda each: db.schemas_of(connection, each))
    for file, each in files:
        if each.search_path is not None and schemas(each.search_path) != schemas(path):
            wanted = ",".join(part.strip() for part in each.search_path.split(","))
            raise StateError(
                f"{file} is for the search_path {each.search_path}, and this session has {path}",
                code="PT677",
                hint=f"connect with PGOPTIONS='-c search_path={wanted}', or change that line of the file",
            )
