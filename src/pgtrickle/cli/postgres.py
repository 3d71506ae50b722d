"""`pgtrickle postgres start|stop|status`: the embedded server. `cli.main` adds this app."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pgtrickle import embedded
from pgtrickle.cli.outcome import NO, reported

app = typer.Typer(help="Start, stop or show the embedded PostgreSQL server.", no_args_is_help=True)


class PgVersion(StrEnum):
    """The versions that the wheel carries."""

    V18 = "18"
    V16 = "16"


DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Data directory. Default: one below PGTRICKLE_HOME or your home.")
]
Port = Annotated[
    int | None,
    typer.Option("--port", metavar="N", help="Port on 127.0.0.1. Default: the last one used, else a free one."),
]
Version = Annotated[PgVersion, typer.Option("--pg-version", help="PostgreSQL version.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]


@app.command()
def start(
    data_dir: DataDir = None, port: Port = None, pg_version: Version = PgVersion.V18, as_json: AsJson = False
) -> None:
    """Start the server and print its DSN. It keeps its data between starts."""
    with reported():
        _show(embedded.start(data_dir, port, int(pg_version)), as_json)


@app.command()
def stop(data_dir: DataDir = None, pg_version: Version = PgVersion.V18, as_json: AsJson = False) -> None:
    """Stop the server. Does nothing if it is not running."""
    directory = _directory(data_dir, pg_version)
    with reported():
        stopped = embedded.stop(directory)
    if as_json:
        typer.echo(json.dumps({"stopped": stopped, "data_dir": str(directory)}))
    else:
        typer.echo("stopped" if stopped else f"not running: {directory}")


@app.command()
def status(data_dir: DataDir = None, pg_version: Version = PgVersion.V18, as_json: AsJson = False) -> None:
    """Show whether the server runs, and where. Exit code 1 if it does not."""
    directory = _directory(data_dir, pg_version)
    with reported():
        server = embedded.status(directory)
    if server is not None:
        _show(server, as_json)
        return
    typer.echo(json.dumps({"running": False, "data_dir": str(directory)}) if as_json else f"not running: {directory}")
    raise typer.Exit(NO)


def _directory(data_dir: Path | None, version: PgVersion) -> Path:
    return data_dir.absolute() if data_dir is not None else embedded.default_data_dir(int(version))


def _show(server: embedded.Server, as_json: bool) -> None:
    if as_json:
        facts = {"dsn": server.dsn, "port": server.port, "version": server.version, "pid": server.pid}
        typer.echo(json.dumps({"running": True, **facts, "data_dir": str(server.data_dir)}))
    else:
        typer.echo(f"PostgreSQL {server.version} runs on {server.host}:{server.port} (pid {server.pid})")
        typer.echo(f"data: {server.data_dir}")
        typer.echo(f"dsn:  {server.dsn}")
