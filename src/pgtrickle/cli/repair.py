"""`pgtrickle repair`: mends stream tables after a restore, or after something of them was dropped by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pgtrickle.cli.outcome import NO
from pgtrickle.cli.output import print_json, print_table
from pgtrickle.cli.target import AsJson, target

if TYPE_CHECKING:
    from pgtrickle.refresh.definition.repair import Repair


def repair(
    context: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(help="Stream tables; all by default.")] = None,
    refresh: Annotated[
        bool, typer.Option("--refresh/--no-refresh", help="Compute them now, or leave that to the service.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Mend stream tables, for instance after a restore.

    Also after capture or state was dropped by hand. Exit code 1 if one cannot be mended.
    """
    with target(context).trickle("repairing") as trickle:
        found = trickle.repair(*(names or ()), refresh=refresh)
    if as_json:
        print_json([_as_json(each) for each in found])
    elif not found:
        typer.echo("there are no stream tables; `pgtrickle create` makes one")
    else:
        print_table(["table", "outcome", "what was done"], [(each.table, each.outcome, _words(each)) for each in found])
        for each in found:
            if each.error is not None and each.error.hint:
                typer.echo(f"hint: {each.table}: {each.error.hint}", err=True)
    if any(each.error is not None for each in found):
        raise typer.Exit(NO)


def _words(found: Repair) -> str:
    if found.error is not None:
        return str(found.error)
    return found.left or "; ".join(found.done) or "nothing was missing"


def _as_json(found: Repair) -> dict[str, object]:
    return {
        "table": found.table,
        "outcome": found.outcome,
        "done": list(found.done),
        "left": found.left,
        "error": None if found.error is None else str(found.error),
        "hint": None if found.error is None else found.error.hint,
    }
