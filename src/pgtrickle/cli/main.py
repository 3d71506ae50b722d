"""`pgtrickle [--dsn DSN] VERB`: the application with all its verbs, and the entry point of the package."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated

import typer

from pgtrickle.cli import database, declare, health, package, postgres, repair, service, tables, top
from pgtrickle.cli.anywhere import OptionsAnywhere
from pgtrickle.cli.target import EXPOSED, Target, has_password

app = typer.Typer(
    cls=OptionsAnywhere,
    help="Stream tables for PostgreSQL: tables defined by a query and kept up to date on Apache Spark.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 the answer is no, 2 wrong usage, 3 the server, Java or Spark cannot be used.",
)


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(f"pgtrickle {version('pgtrickle')}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    dsn: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DSN",
            help="Connection string of the database. Default: PGTRICKLE_DSN, then libpq's own variables, then the"
            " embedded server. `run` takes several.",
        ),
    ] = None,
    spark_conf: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="One of Spark's own settings, such as spark.driver.memory=4g; may be given several times. It takes the"
            " place of PGTRICKLE_SPARK_CONF, and this process does the work, whatever service runs.",
        ),
    ] = None,
    _version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    given = tuple(each for each in dsn or () if each)
    exposed = any(has_password(each) for each in given)
    if exposed and context.invoked_subcommand != "run":  # which has a log
        typer.echo(f"warning: {EXPOSED}", err=True)
    context.obj = Target(given, exposed, "; ".join(spark_conf) if spark_conf else None)


_VERBS: tuple[Callable[..., None], ...] = (
    database.install,
    database.uninstall,
    service.run,
    package.package,
    tables.create,
    tables.alter,
    tables.drop,
    tables.refresh,
    tables.pause,
    tables.resume,
    repair.repair,
    declare.apply,
    declare.dump,
    tables.status,
    top.top,
    tables.history,
    tables.explain,
    health.cdc,
    health.health,
    health.doctor,
    tables.verify,
    database.config,
)
for _verb in _VERBS:
    app.command()(_verb)
app.add_typer(postgres.app, name="postgres")


def main() -> None:
    app(prog_name="pgtrickle")
