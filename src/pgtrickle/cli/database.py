"""`pgtrickle install|uninstall|config`: the catalog as a whole, and the settings. `cli.main` adds these verbs."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from pgtrickle import config as settings
from pgtrickle.catalog import install as catalog
from pgtrickle.catalog.install import Removal
from pgtrickle.cli.outcome import NO
from pgtrickle.cli.output import print_json, print_table
from pgtrickle.cli.target import AsJson, target


def install(context: typer.Context, as_json: AsJson = False) -> None:
    """Install the catalog, or upgrade an older one. Does nothing if it is up to date."""
    with target(context).connection("installing") as connection:
        result = catalog.install(connection)
    if as_json:
        print_json(asdict(result))
        return
    if result.applied:
        typer.echo(f"the catalog is installed, version {result.version}")
    else:
        typer.echo(f"the catalog is up to date, version {result.version}")
    for note in result.notes:
        typer.echo(f"note: {note}")


def uninstall(
    context: typer.Context,
    drop_tables: Annotated[
        bool,
        typer.Option("--drop-tables/--keep-tables", help="Also drop the stream tables, or keep them as plain tables."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be removed.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove pgtrickle from the database. Lists what it removes. Your own tables stay."""
    where = target(context)
    if not dry_run and not yes and sys.stdin.isatty():
        with where.connection("looking") as connection:
            planned = catalog.uninstall(connection, drop_stream_tables=drop_tables, dry_run=True)
        _show(planned, err=True)
        if not typer.confirm("Go on?", err=True):
            raise typer.Exit(NO)
    with where.connection("uninstalling") as connection:
        removals = catalog.uninstall(connection, drop_stream_tables=drop_tables, dry_run=dry_run)
    if as_json:
        print_json({"dry_run": dry_run, "objects": [asdict(removal) for removal in removals]})
        return
    _show(removals, err=False)
    if removals:
        typer.echo("nothing was changed (dry run)" if dry_run else "done")


def config(context: typer.Context, as_json: AsJson = False) -> None:
    """Show every setting, its value and where the value comes from."""
    with target(context).connection("reading the settings") as connection:
        rows = settings.describe(connection)
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    print_table(
        ["setting", "value", "from", "default", "meaning"],
        [(row.name, _with_unit(row.value, row.unit), row.source, row.default, row.help) for row in rows],
    )


def _show(removals: list[Removal], *, err: bool) -> None:
    for removal in removals:
        typer.echo(str(removal), err=err)
    if not removals:
        typer.echo("there is nothing of pgtrickle in this database", err=err)


def _with_unit(value: settings.Value, unit: str | None) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"{text} {unit}" if unit else text
